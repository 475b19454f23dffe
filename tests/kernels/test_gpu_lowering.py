"""The kernels lowered for a GPU that is not there; no kernel runs here.

Where jax's CUDA plugin is installed (pip install 'jax[cuda13]'; it takes no GPU) they
are compiled too, for an H100:

    python -m pytest tests/kernels/test_gpu_lowering.py --slow

Legend: N tokens or samples, D model width, V vocabulary; B packed rows, T positions.
"""

import functools
import importlib.metadata
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh

from rl_jax.kernels import (  # pyright: ignore[reportMissingImports]
    advantage,
    logprob,
    platform,
)

H100 = AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
# The shapes that the kernels have to take: (N, D, V) in bfloat16, and (N, D, V).
LARGE = (8192, 4096, 151_936)
WIDE = (8192, 2048, 128_256)


def cuda_text(function, *shapes, mesh=None) -> str:
    mesh = mesh or AbstractMesh((), (), abstract_device=H100)
    with jax.sharding.use_abstract_mesh(mesh):
        lowered = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",))
    return lowered.as_text()


def calls(function, *shapes, mesh=None) -> list[str]:
    """Names of the Triton kernels in the CUDA program of a function, in order."""
    text = cuda_text(function, *shapes, mesh=mesh)
    return re.findall(r'@__gpu\$xla\.gpu\.triton\(.* name = "(\w+)"', text)


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def logprob_shapes(N, D, V, dtype=jnp.bfloat16, layout="VD"):
    weight = shape(*((V, D) if layout == "VD" else (D, V)), dtype=dtype)
    return shape(N, D, dtype=dtype), weight, shape(N, dtype=jnp.int32), shape(N)


def loss(hidden_ND, weight, target_N, mask_N, **options):
    out = logprob.token_logprob(hidden_ND, weight, target_N, mask_N=mask_N, **options)
    return (out.logp_N + out.entropy_N + out.lse_N).sum()


def divergence(hidden_ND, weight, teacher_hidden_NE, teacher_weight, **options):
    args = (hidden_ND, weight, teacher_hidden_NE, teacher_weight)
    out = logprob.token_kl(*args, **options)
    return (out.reverse_N + out.forward_N).sum()


@pytest.mark.parametrize(
    ("sizes", "layout", "dtype"),
    [
        (LARGE, "VD", jnp.bfloat16),
        (WIDE, "DV", jnp.bfloat16),
        (LARGE, "DV", jnp.float32),
        ((5, 3, 17), "VD", jnp.float32),
    ],
)
def test_log_probabilities_lower_to_triton_kernels(sizes, layout, dtype):
    forward: Any = functools.partial(loss, layout=layout)
    shapes = logprob_shapes(*sizes, dtype=dtype, layout=layout)
    assert calls(forward, *shapes) == ["logprob_stats"]
    assert calls(jax.value_and_grad(forward, argnums=(0, 1)), *shapes) == [
        "logprob_stats",
        "logprob_d_logits",
        "logprob_d_hidden",
        "logprob_d_weight",
    ]


def test_every_option_of_the_head_lowers():
    N, D, V = LARGE
    options = {"temperature": 0.7, "softcap": 30.0, "layout": "DV"}

    def both(hidden_ND, weight, target_N, mask_N, bias_V):
        return jax.grad(
            lambda h, w, b: loss(h, w, target_N, mask_N, bias_V=b, **options), (0, 1, 2)
        )(hidden_ND, weight, bias_V)

    shapes = logprob_shapes(N, D, V, layout="DV")
    assert len(calls(both, *shapes, shape(V, dtype=jnp.bfloat16))) == 4


def test_hidden_states_and_head_may_differ_in_dtype():
    hidden_ND, _, *rest = logprob_shapes(*LARGE)
    weight = logprob_shapes(*LARGE, dtype=jnp.float32)[1]
    assert len(calls(jax.grad(loss, (0, 1)), hidden_ND, weight, *rest)) == 4


def test_divergences_lower_to_triton_kernels():
    hidden_ND, weight, *_ = logprob_shapes(*LARGE)
    teacher_NE, teacher_weight, *_ = logprob_shapes(8192, 5120, 151_936)
    assert calls(
        jax.value_and_grad(divergence, argnums=(0, 1)),
        *(hidden_ND, weight, teacher_NE, teacher_weight),
    ) == [
        "logprob_kl_stats",
        "logprob_d_logits",
        "logprob_d_hidden",
        "logprob_d_weight",
    ]


def test_a_sharded_head_lowers_inside_shard_map():
    axes, explicit = ("rows", "vocab"), jax.sharding.AxisType.Explicit
    mesh = AbstractMesh((2, 4), axes, (explicit,) * 2, abstract_device=H100)
    by_row, by_word = jax.P("rows"), jax.P("vocab")
    specs = (by_row, by_word, by_row, by_row)
    shapes = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=jax.NamedSharding(mesh, spec))
        for x, spec in zip(logprob_shapes(*LARGE), specs, strict=True)
    ]
    local = jax.grad(functools.partial(loss, vocab_axis="vocab", varying=axes), (0, 1))

    def sharded(*args):
        return jax.shard_map(local, in_specs=specs, out_specs=(by_row, by_word))(*args)

    assert len(calls(sharded, *shapes, mesh=mesh)) == 4


@pytest.mark.parametrize(("B", "T"), [(8, 8192), (1, 65_536), (3, 5)])
def test_recursions_over_rows_lower_to_triton_kernels(B, T):
    x_BT = shape(B, T)
    segment_BT, mask_BT = shape(B, T, dtype=jnp.int32), shape(B, T, dtype=bool)

    def gae(reward_BT, value_BT, segment_BT, mask_BT):
        return advantage.gae(
            reward_BT, value_BT, segment_BT, mask_BT, gamma=0.99, lam=0.95
        )

    def returns(reward_BT, segment_BT, mask_BT):
        return advantage.discounted_returns(reward_BT, segment_BT, mask_BT, gamma=0.99)

    got = calls(gae, x_BT, x_BT, segment_BT, mask_BT)
    assert got == ["advantage_gae_tiles", "advantage_gae"]
    got = calls(returns, x_BT, segment_BT, mask_BT)
    assert got == ["advantage_returns_tiles", "advantage_returns"]


@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
@pytest.mark.parametrize("N", [5, 4096])
def test_group_advantages_lower_to_a_triton_kernel(N, scale):
    def group(*args):
        return advantage.group_advantage(
            *args, num_groups=512, centre="leave_one_out", scale=scale
        )

    shapes = shape(N), shape(N, dtype=jnp.int32), shape(N, dtype=bool)
    assert calls(group, *shapes) == ["advantage_group"]


def test_a_dtype_that_the_kernel_cannot_take_is_an_error_that_names_the_rule():
    shapes = logprob_shapes(*LARGE, dtype=jnp.float16)
    with pytest.raises(platform.KernelError, match="float32 and bfloat16"):
        calls(loss, *shapes)


def test_the_kind_of_gpu_in_the_mesh_decides_the_tiles():
    def grid(kind):
        mesh = AbstractMesh(
            (), (), abstract_device=AbstractDevice(kind, None, platform="gpu")
        )
        return cuda_text(loss, *logprob_shapes(*LARGE), mesh=mesh)

    assert "num_stages = 3 : i32" in grid("NVIDIA H100 80GB HBM3")
    assert "num_stages = 4 : i32" in grid("NVIDIA GeForce RTX 4090")


def has_plugin() -> bool:
    names = {d.name for d in importlib.metadata.distributions()}
    return bool(names & {"jax-cuda12-plugin", "jax-cuda13-plugin"})


# What the compiler has to know of an H100.
TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84978434048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  cuda_compute_capability { major: 9 }
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def temporaries(function, *shapes) -> float:
    """MiB that a program compiled for an H100 needs beyond its inputs and outputs."""
    topology = topologies.get_topology_desc(
        platform="cuda", target_config=TARGET, topology="1x1x1"
    )
    mesh = jax.sharding.Mesh(np.array(topology.devices), ("all",))
    whole = jax.NamedSharding(mesh, jax.P())
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole) for x in shapes]
    with jax.set_mesh(mesh):
        memory: Any = jax.jit(function).lower(*shapes).compile().memory_analysis()
    return memory.temp_size_in_bytes / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not has_plugin(), reason="jax's CUDA plugin is not installed")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("sizes", [LARGE, WIDE])
def test_log_probabilities_compile_for_an_h100_and_need_little_memory(sizes, dtype):
    N, D, _ = sizes
    hidden_ND, weight, target_N, _ = logprob_shapes(*sizes, dtype=dtype)

    def forward(hidden_ND, weight, target_N):
        return logprob.token_logprob(hidden_ND, weight, target_N)

    def summed(hidden_ND, weight, target_N):
        return sum(x.sum() for x in forward(hidden_ND, weight, target_N))

    both: Any = jax.value_and_grad(summed, (0, 1))
    shapes = (hidden_ND, weight, target_N)
    assert temporaries(forward, *shapes) <= 64
    assert temporaries(both, *shapes) <= 4 * N * D / 2**20 + 128


@pytest.mark.slow
@pytest.mark.skipif(not has_plugin(), reason="jax's CUDA plugin is not installed")
def test_divergences_and_advantages_compile_for_an_h100():
    N, D, V = LARGE
    hidden_ND, weight, *_ = logprob_shapes(N, D, V)
    args = (hidden_ND, weight, hidden_ND, weight)
    assert temporaries(jax.grad(divergence, (0, 1)), *args) <= 4 * N * D / 2**20 + 128
    x_BT, mask_BT = shape(8, 8192), shape(8, 8192, dtype=jnp.int32)

    def gae(*args):
        return advantage.gae(*args, gamma=0.99, lam=0.95)

    def group(*args):
        return advantage.group_advantage(
            *args, num_groups=512, centre="group_mean", scale="group_std"
        )

    assert temporaries(gae, x_BT, x_BT, mask_BT, mask_BT) <= 8
    assert temporaries(group, *[shape(65_536, dtype=t) for t in "fi?"]) <= 8
