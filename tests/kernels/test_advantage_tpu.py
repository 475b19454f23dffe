"""The advantage kernels, compiled for TPUs that are not there.

The TPU compiler comes with libtpu and runs on a CPU host. It wants a process of its
own: this file is run as a script, which prints what the tests then look at.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies

from rl_jax.kernels import (  # pyright: ignore[reportMissingImports]
    advantage,
    estimate,
)

TOPOLOGIES = ["v5e:2x4", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"]

# (N, num_groups, centre, scale)
GROUPS = [
    (8, 2, "group_mean", "group_std"),
    (65_536, 8_192, "group_mean", "group_std"),
    (65_536, 8_192, "leave_one_out", "varying_std"),
    (65_536, 8_192, "batch_mean", "batch_sample_std"),
    (65_536, 8_192, "none", "none"),
    (1_000_000, 100_000, "group_mean", "group_sample_std"),  # several chunks
]
# (B, T) of one device
ROWS = [(8, 8_192), (16, 4_096), (1, 1), (3, 500)]


@dataclasses.dataclass(frozen=True)
class Program:
    """What the compiler says of a program.

    Attributes:
        kernels: names of its Mosaic calls.
        other_calls: collectives and loops.
        temp_bytes: beyond arguments and results, on one device.
        seconds: to compile.
    """

    kernels: list[str]
    other_calls: list[str]
    temp_bytes: int
    seconds: float


def compile_all(topology_name: str) -> dict[str, Program]:
    topology = topologies.get_topology_desc(platform="tpu", topology_name=topology_name)
    devices = np.array(topology.devices)
    axis = (jax.sharding.AxisType.Explicit,)
    mesh = jax.sharding.Mesh(devices, ("rows",), axis_types=axis)

    def compiled(f, partition, shape, *dtypes):
        sharding = jax.NamedSharding(mesh, partition)
        args: Any = [jax.ShapeDtypeStruct(shape, d, sharding=sharding) for d in dtypes]
        with jax.set_mesh(mesh):
            mapped = jax.shard_map(f, in_specs=partition, out_specs=partition)
            lowered = jax.jit(mapped).lower(*args)
            began = time.monotonic()
            program: Any = lowered.compile()
            seconds = time.monotonic() - began
        text = program.as_text()
        kernels = re.findall(r'%([\w-]+?)[.\d]* = .*"tpu_custom_call"', text)
        others = re.findall(r" (all-[\w-]+|collective-[\w-]+|while)\(", text)
        temp_bytes = program.memory_analysis().temp_size_in_bytes
        return Program(kernels, others, temp_bytes, seconds)

    found = {}
    for N, num_groups, centre, scale in GROUPS:
        f = functools.partial(
            advantage.group_advantage, num_groups=num_groups, centre=centre, scale=scale
        )
        arrays = (N,), jnp.float32, jnp.int32, jnp.bool_
        found[f"group {N} {centre} {scale}"] = compiled(f, jax.P(), *arrays)
    for B, T in ROWS:
        shape, floats = (B * len(devices), T), (jnp.float32,)
        rows = jnp.int32, jnp.bool_
        f = functools.partial(advantage.gae, gamma=0.99, lam=0.95)
        found[f"gae {B} {T}"] = compiled(f, jax.P("rows"), shape, *floats * 2, *rows)
        f = functools.partial(advantage.discounted_returns, gamma=0.99)
        found[f"returns {B} {T}"] = compiled(f, jax.P("rows"), shape, *floats, *rows)
    return found


@pytest.fixture(
    scope="module",
    params=[
        TOPOLOGIES[0],
        *(pytest.param(name, marks=pytest.mark.slow) for name in TOPOLOGIES[1:]),
    ],
)
def compiled(request) -> dict[str, Program]:
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, the TPU compiler, is not installed: pip install libtpu")
    env = os.environ | estimate.environment()
    done = subprocess.run(
        [sys.executable, __file__, request.param],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: Program(**fields) for name, fields in found.items()}


def test_every_program_is_one_kernel_and_talks_to_no_other_device(compiled):
    kernels = {"group": "advantage_group", "gae": "advantage_gae"}
    kernels["returns"] = "advantage_returns"
    assert len(compiled) == len(GROUPS) + 2 * len(ROWS)
    for name, program in compiled.items():
        assert program.kernels == [kernels[name.split()[0]]], name
        assert program.other_calls == [], name


def test_temporaries_are_a_few_copies_of_the_arguments(compiled):
    for name, program in compiled.items():
        kind, *sizes = name.split()
        numbers = int(sizes[0]) * (1 if kind == "group" else int(sizes[1]))
        # Padded ids and rewards, flags and two results; tiles of 8 x 128 at least.
        assert program.temp_bytes <= 5 * 4 * numbers + 512 * 1024, name


if __name__ == "__main__":
    found = compile_all(sys.argv[1])
    print(json.dumps({k: dataclasses.asdict(v) for k, v in found.items()}))
