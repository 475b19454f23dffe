"""A sandbox of each level, started once for all tests of a file."""

import pytest

from rl_jax.errors import ConfigError
from rl_jax.rewards.sandbox import LEVELS, Sandbox

WITHOUT = {
    "namespaces": set(),
    "watched": {"cgroup"},
    "one process": {"cgroup", "watch"},
    "landlock": {"namespaces"},
    "none": {"namespaces", "landlock"},
}


def opened(name):
    level = name if name in LEVELS else "namespaces"
    try:
        return Sandbox(level, without=frozenset(WITHOUT[name]))
    except ConfigError as error:
        pytest.skip(f"this machine: {error}")


@pytest.fixture(scope="module")
def sandbox():
    """The best that can be had here."""
    with Sandbox("none") as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def apart():
    """With namespaces."""
    with opened("namespaces") as sandbox:
        yield sandbox


@pytest.fixture(scope="module", params=["namespaces", "watched", "landlock", "none"])
def each(request):
    """Every level in turn, and namespaces without a control group."""
    with opened(request.param) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def one_process():
    """With namespaces, but nothing to bound several processes by."""
    with opened("one process") as sandbox:
        yield sandbox


@pytest.fixture(scope="module", params=["namespaces", "watched"])
def family(request):
    """Where programs may start processes, bounded in either way."""
    with opened(request.param) as sandbox:
        if not sandbox.forks:
            pytest.skip("programs may not start processes here")
        yield sandbox
