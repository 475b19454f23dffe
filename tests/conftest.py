"""Eight virtual CPU devices for every test, and the --slow switch.

RL_JAX_TEST_PLATFORM=cuda runs the tests of the kernels for GPUs on one.
"""

import gc
import importlib.metadata
import os
import pathlib

import pytest

_platform = os.environ.get("RL_JAX_TEST_PLATFORM", "cpu")
os.environ["JAX_PLATFORMS"] = _platform
# Tests compile much and run little: the optimiser of the CPU backend is not worth its
# time here. (jax 0.12 has only the faster of the two code generators.)
_flags = [
    "--xla_force_host_platform_device_count=8",
    "--xla_backend_optimization_level=0",
]
if tuple(map(int, importlib.metadata.version("jax").split(".")[:2])) < (0, 12):
    _flags.append("--xla_cpu_use_fusion_emitters=false")
if _platform == "cpu":
    os.environ["XLA_FLAGS"] = " ".join([*_flags, os.environ.get("XLA_FLAGS", "")])


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: give --slow to run it")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


# A program compiled for the CPU holds pieces of memory of its own, of which Linux lets
# a process have 65,530 (vm.max_map_count); beyond that LLVM crashes.
_MOST_PIECES = 30_000


@pytest.fixture(autouse=True, scope="module")
def _few_compiled_programs():
    """Forgets what earlier modules compiled before there is too much of it."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.exists() and len(maps.read_bytes().splitlines()) > _MOST_PIECES:
        import jax

        jax.clear_caches()
        gc.collect()
