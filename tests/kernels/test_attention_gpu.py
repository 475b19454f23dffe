r"""Packed and paged attention for GPUs: interpreted, and lowered for CUDA.

On the CPU the kernels run in Pallas's interpreter. With a GPU, run them for real:

    RL_JAX_TEST_PLATFORM=cuda \
        python -m pytest tests/kernels/test_attention_gpu.py --slow

Legend: B rows, T positions, H = K * R query heads, K key/value heads, C channels of a
head, W decode slots, M pages of S positions, J pages of a slot.
"""

import functools
import re

import attention_cases as cases
import jax
import jax.numpy as jnp
import pytest

from rl_jax.kernels import attention  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.attention import (  # pyright: ignore[reportMissingImports]
    gpu,
)
from rl_jax.kernels.attention.scoring import (  # pyright: ignore[reportMissingImports]
    Scoring,
)
from rl_jax.kernels.platform import (  # pyright: ignore[reportMissingImports]
    KernelError,
)

INTERPRET = jax.default_backend() != "gpu"
IMPLEMENTATION = "gpu_interpret" if INTERPRET else "gpu"

# Several blocks, of two sizes, at those of the table.
SMALL = gpu.Blocks(query=16, key=32, num_warps=4, num_stages=2)
QUICK = {"one token", "a row of padding", "extreme scores", "odd channels, all options"}
PAGED_QUICK = {"lengths of all kinds", "window over pages", "bfloat16, all options"}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.name, marks=[pytest.mark.slow] * (c.name not in QUICK))
        for c in cases.CASES
    ],
)
def test_the_gpu_kernels_match_the_reference(case):
    q, k, v, segment_BT, d_out = cases.draw(case)
    scoring = Scoring(**case.options)

    @jax.jit
    def run(q, k, v, d_out):
        kept = q, k, v, segment_BT, None
        sizes = SMALL if INTERPRET else None
        static = {"scoring": scoring, "interpret": INTERPRET, "blocks": sizes}
        out, lse = gpu.forward(*kept, residuals=True, **static)
        return cases.Results(out, *gpu.backward(*kept, out, lse, d_out, **static))

    cases.check(case, run(q, k, v, d_out))


def test_the_public_function_interprets_the_kernels_with_a_window_that_is_data():
    case = cases.Case("public", 20, ((11, 8),), K=1, R=2, window=4)

    def attend(q, k, v, segment_BT):
        return attention.packed_attention(
            q,
            k,
            v,
            segment_BT,
            jnp.int32(4),
            scale=case.scale,
            implementation=IMPLEMENTATION,
        )

    cases.check(case, cases.outputs(case, attend))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            c, id=c.name, marks=[pytest.mark.slow] * (c.name not in PAGED_QUICK)
        )
        for c in cases.PAGED_CASES
    ],
)
def test_the_paged_kernel_matches_the_reference(case):
    attend = functools.partial(
        attention.paged_attention, implementation=IMPLEMENTATION, **case.options
    )
    cases.check_paged(case, jax.jit(attend)(*cases.draw_paged(case)))


def refused(message, *, C=8, dtype=jnp.float32, page=None):
    q = jax.ShapeDtypeStruct((1, 32, 2, C), dtype)
    options = {"scale": 1.0, "implementation": "gpu_interpret"}
    with pytest.raises(KernelError, match=message):
        if page is None:
            segment = jax.ShapeDtypeStruct((1, 32), jnp.int32)
            attend = functools.partial(attention.packed_attention, **options)
            jax.eval_shape(attend, q, q, q, segment)
        else:
            pages = jax.ShapeDtypeStruct((2, 3, page, C), dtype)
            ints = [jax.ShapeDtypeStruct(s, jnp.int32) for s in ((32, 2), (32,))]
            attend = functools.partial(attention.paged_attention, **options)
            jax.eval_shape(
                attend, jax.ShapeDtypeStruct(q.shape[1:], dtype), pages, pages, *ints
            )


def test_what_the_kernels_cannot_take_is_refused_by_name():
    refused("at most 256 channels, got 512", C=512)
    refused("all float32 or all bfloat16", dtype=jnp.float16)
    refused("16, 32, 64 or 128 positions, got 24", page=24)


# Lowered for CUDA, which needs no GPU.


def lowered(function, *shapes):
    """Names of the Triton kernels in what a function is lowered to."""
    device = jax.sharding.AbstractDevice(
        device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu"
    )
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        program = jax.jit(function).trace(*shapes)
        text = program.lower(lowering_platforms=("cuda",)).as_text()
    # Each call's target is Triton's, and its configuration holds its name.
    calls = re.findall(
        r'custom_call @[\w$.]*triton[\w$.]*\(.*?name = "(\w+)"', text, re.S
    )
    assert len(calls) == text.count("custom_call @")
    return calls


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize(("T", "C", "window"), [(1000, 128, 100), (512, 80, None)])
def test_packed_attention_lowers_to_triton_kernels(dtype, T, C, window):
    q, k = (jax.ShapeDtypeStruct((2, T, n, C), dtype) for n in (8, 2))
    segment = jax.ShapeDtypeStruct((2, T), jnp.int32)

    def attend(q, k, v, segment):
        return attention.packed_attention(
            q, k, v, segment, window, scale=0.1, softcap=20.0
        )

    def loss(*args):
        return attend(*args).astype(jnp.float32).sum()

    assert lowered(attend, q, k, k, segment) == ["attention_forward"]
    assert lowered(jax.grad(loss, (0, 1, 2)), q, k, k, segment) == [
        "attention_forward",
        "attention_dq",
        "attention_dkv",
    ]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_paged_attention_lowers_to_a_triton_kernel(dtype):
    q = jax.ShapeDtypeStruct((8, 9, 96), dtype)
    pages = jax.ShapeDtypeStruct((3, 99, 32, 96), dtype)
    ints = [jax.ShapeDtypeStruct(s, jnp.int32) for s in ((8, 7), (8,))]
    attend = functools.partial(attention.paged_attention, scale=0.1, window=100)
    assert lowered(attend, q, pages, pages, *ints) == ["attention_paged"]
