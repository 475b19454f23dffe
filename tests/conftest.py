"""Eight virtual CPU devices for every test, and the --slow switch.

RL_JAX_TEST_PLATFORM=cuda runs the tests of the kernels for GPUs on one.
"""

import importlib.metadata
import os

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
