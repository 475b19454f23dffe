"""Packed and paged attention for TPUs: interpreted, and compiled for every generation.

Legend: B rows, T positions, H = K * R query heads, K key/value heads, C channels of a
head, W decode slots, M pages of S positions, J pages of a slot.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import Any

import attention_cases as cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental import topologies

from rl_jax.kernels import (  # pyright: ignore[reportMissingImports]
    attention,
    estimate,
)
from rl_jax.kernels.attention import (  # pyright: ignore[reportMissingImports]
    blocks,
    spans,
    tpu,
)
from rl_jax.kernels.attention.scoring import (  # pyright: ignore[reportMissingImports]
    Scoring,
)
from rl_jax.kernels.platform import (  # pyright: ignore[reportMissingImports]
    GENERATIONS,
    KernelError,
)

SMALL = blocks.Blocks(query=128, key=128, back_query=128, back_key=128, fused=True)
QUICK = {"a row of padding", "odd channels, all options"}
PAGED_QUICK = {
    "window over pages",
    "bfloat16, all options",
    "channels of a narrow head",
}


def to_whole_blocks(x, T):
    """Padding behind the row, up to T positions."""
    return np.pad(x, [(0, 0), (0, T - x.shape[1])] + [(0, 0)] * (x.ndim - 2))


def interpreted(case, sizes):
    """Results of the kernels, in blocks of these sizes."""
    drawn = cases.draw(case)
    T = case.T + -case.T % 128
    q, k, v, segment_BT, d_out = (to_whole_blocks(x, T) for x in drawn)
    options = dataclasses.asdict(Scoring(**case.options))

    @jax.jit
    def run(q, k, v, d_out):
        kept = q, k, v, segment_BT, None
        static = {"scoring": Scoring(**options), "interpret": True, "blocks": sizes}
        out, lse = tpu.forward(*kept, residuals=True, **static)
        return out, *tpu.backward(*kept, out, lse, d_out, **static)

    return cases.Results(*(x[:, : case.T] for x in run(q, k, v, d_out)))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, id=c.name, marks=[pytest.mark.slow] * (c.name not in QUICK))
        for c in cases.CASES
    ],
)
def test_the_tpu_kernels_match_the_reference(case):
    cases.check(case, interpreted(case, SMALL))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["many blocks", "many blocks, window"])
@pytest.mark.parametrize("sizes", [(128, 384, 384, 128), (384, 128, 128, 384)])
def test_blocks_of_queries_and_keys_need_not_be_alike_nor_the_backward_pass_fused(
    name, sizes
):
    (case,) = (c for c in cases.CASES if c.name == name)
    cases.check(case, interpreted(case, blocks.Blocks(*sizes, fused=False)))


@pytest.mark.parametrize("data", [False, True])
def test_the_public_function_interprets_the_kernels_with_a_window_that_is_data(data):
    case = cases.Case("public", 128, ((60, 50),), K=1, R=2, window=20)
    options = {"scale": case.scale, "implementation": "tpu_interpret"}

    def attend(q, k, v, segment_BT):
        window = jnp.int32(20) if data else 20
        windows = (5, 20) if data else None
        return attention.packed_attention(
            q, k, v, segment_BT, window, windows=windows, **options
        )

    cases.check(case, cases.outputs(case, attend))


def test_rows_of_no_whole_number_of_lanes_are_padded():
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, d_out = (jax.random.normal(key, (2, 100, 2, 8)) for key in keys)
    segment_BT = jnp.where(jnp.arange(100) < 70, 1 + jnp.arange(100) // 30, 0)
    segment_BT = jnp.broadcast_to(segment_BT, (2, 100))
    real = (segment_BT > 0)[..., None, None]

    def results(implementation):
        def attend(q, k, v):
            options = {"scale": 0.35, "implementation": implementation}
            return attention.packed_attention(q, k, v, segment_BT, **options) * real

        out, back = jax.vjp(attend, q, k, v)
        return out, *back(d_out * real)

    want = results("plain")
    for found, expected in zip(results("tpu_interpret"), want, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_window_that_is_data_needs_the_values_it_can_take():
    q = jnp.zeros((1, 128, 1, 8))
    with pytest.raises(KernelError, match="needs `windows`"):
        attention.packed_attention(
            q,
            q,
            q,
            jnp.ones((1, 128), jnp.int32),
            jnp.int32(3),
            scale=1.0,
            implementation="tpu_interpret",
        )


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=lambda g: g.name)
def test_blocks_divide_rows_and_long_rows_do_without_parts_of_dq(generation):
    for T in (128, 384, 1024, 1152, 4096, 32768):
        sizes = blocks.block_sizes(T, 128, jnp.bfloat16, generation)
        for size in (sizes.query, sizes.key, sizes.back_query, sizes.back_key):
            assert T % size == 0 and size % 128 == 0
        assert sizes.fused == (T < 32768)


@given(
    cuts=st.lists(st.integers(1, 8 * 128 - 1), max_size=12),
    window=st.one_of(st.none(), st.integers(1, 8 * 128)),
    sizes=st.sampled_from([(128, 512), (512, 256)]),
)
@settings(max_examples=12, deadline=None)
def test_schedules_visit_every_block_that_holds_something_seen_once(
    cuts, window, sizes
):
    T, (query_block, key_block) = 8 * 128, sizes
    segment_T = 1 + np.searchsorted(np.unique(cuts), np.arange(T), side="right")
    segment_T[segment_T == 3] = 0
    first_T = np.asarray(spans.first_seen(jnp.asarray(segment_T[None]), window))[0]
    at_T = np.arange(T)
    seen_TT = (first_T[:, None] <= at_T) & (at_T <= at_T[:, None])
    shape = T // query_block, query_block, T // key_block, key_block
    holds_UY = seen_TT.reshape(shape).any(axis=(1, 3))

    schedule = tpu._visits(jnp.asarray(first_T), window, *sizes)
    visited_UY = np.zeros_like(holds_UY, int)
    for u, step in np.argwhere(np.asarray(schedule.block_mask[0])):
        visited_UY[u, schedule.data_next[0, u, step]] += 1
    np.testing.assert_array_equal(visited_UY, holds_UY)
    assert 0 <= schedule.data_next.min() and schedule.data_next.max() < shape[2]

    for every_step in (False, True):
        schedule = tpu._visits_from_keys(
            jnp.asarray(first_T), window, *sizes, every_step=every_step
        )
        visited_UY = np.zeros_like(holds_UY, int)
        for step, y in np.argwhere(np.asarray(schedule.block_mask[0])):
            u = int(schedule.data_next[0, step, y])
            assert not every_step or u == step
            visited_UY[u, y] += 1
        np.testing.assert_array_equal(visited_UY, holds_UY)
        assert 0 <= schedule.data_next.min() and schedule.data_next.max() < shape[0]


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
    drawn = cases.draw_paged(case)
    attend = functools.partial(
        attention.paged_attention, implementation="tpu_interpret", **case.options
    )
    if case.C % 128:
        with pytest.raises(KernelError, match="make pages of 128 channels"):
            attend(*drawn)
        wider = [(0, 0)] * 3 + [(0, -case.C % 128)]
        drawn = drawn._replace(
            k_pages_KMSC=np.pad(drawn.k_pages_KMSC, wider),
            v_pages_KMSC=np.pad(drawn.v_pages_KMSC, wider),
        )
    cases.check_paged(case, jax.jit(attend)(*drawn))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 9, 12, 128), "multiple of 8 positions"),
        ((64, 9, 512, 128), "smaller pages"),
    ],
)
def test_pages_that_do_not_fit_are_refused(shape, message):
    pages = jax.ShapeDtypeStruct(shape, jnp.float32)
    slots = jax.ShapeDtypeStruct((3,), jnp.int32)
    table = jax.ShapeDtypeStruct((3, 2), jnp.int32)
    q = jax.ShapeDtypeStruct((3, shape[0], 128), jnp.float32)
    attend = functools.partial(
        attention.paged_attention, scale=1.0, implementation="tpu_interpret"
    )
    with pytest.raises(KernelError, match=message):
        jax.eval_shape(attend, q, pages, pages, table, slots)


# Compiled for TPUs that are not there, in a process of its own.

TOPOLOGIES = {
    "v5e": "v5e:2x4",
    "v5p": "v5p:2x2x2",
    "v6e": "v6e:2x4",
    "tpu7x": "tpu7x:2x2x1",
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program: its kernels' names, with how often each stands there."""

    kernels: dict[str, int]
    temp_bytes: int
    argument_bytes: int


def programs(mesh, name: str) -> tuple[Any, list]:
    """A function and its arguments."""

    def like(shape, dtype, *partition):
        sharding = jax.sharding.NamedSharding(mesh, jax.P(*partition))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    heads = "rows", None, "heads", None
    kind, *sizes = name.split()
    if kind == "paged":
        W, H, K, C, M, S, J = map(int, sizes)
        pages = like((K, M, S, C), jnp.bfloat16, "heads")
        attend = jax.shard_map(
            functools.partial(
                attention.paged_attention, scale=0.1, window=1000, softcap=30.0
            ),
            in_specs=(
                jax.P("rows", "heads"),
                jax.P("heads"),
                jax.P("heads"),
                jax.P("rows"),
                jax.P("rows"),
            ),
            out_specs=jax.P("rows", "heads"),
        )
        q = like((W, H, C), jnp.bfloat16, "rows", "heads")
        table = like((W, J), jnp.int32, "rows")
        return attend, [q, pages, pages, table, like((W,), jnp.int32, "rows")]

    B, T, H, K, C = map(int, sizes)
    dtype = jnp.float32 if kind == "float32" else jnp.bfloat16
    q, k = like((B, T, H, C), dtype, *heads), like((B, T, K, C), dtype, *heads)
    segment = like((B, T), jnp.int32, "rows")
    windows = (1000, 2**30) if kind == "windows" else (2**30,)
    attend = jax.shard_map(
        functools.partial(
            attention.packed_attention,
            scale=0.1,
            windows=windows,
            softcap=30.0 if kind == "windows" else 0.0,
        ),
        in_specs=(jax.P(*heads),) * 3 + (jax.P("rows"), jax.P()),
        out_specs=jax.P(*heads),
        check_vma=False,  # splash attention does not declare how results vary
    )
    if kind == "forward":
        return lambda *args: attend(*args, jnp.int32(2**30)), [q, k, k, segment]

    def loss(q, k, v, segment):
        def layer(x, window):
            return x + attend(x, k, v, segment, window), None

        body = jax.checkpoint(layer, prevent_cse=False)
        x, _ = jax.lax.scan(body, q, jnp.asarray(windows, jnp.int32))
        return (x.astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, (0, 1, 2)), [q, k, k, segment]


def compile_all(generation: str, names: list[str]) -> dict[str, Compiled]:
    """Compiles programs for a topology of the generation, from shapes alone."""
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=TOPOLOGIES[generation]
    )
    devices = np.array(topology.devices)
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.Mesh(devices.reshape(-1, 2), ("rows", "heads"), axis_types=auto)
    done = {}
    with jax.set_mesh(mesh):
        for name in names:
            function, args = programs(mesh, name)
            compiled = jax.jit(function).lower(*args).compile()
            memory: Any = compiled.memory_analysis()
            done[name] = Compiled(
                kernels=_kernels(compiled.as_text()),
                temp_bytes=memory.temp_size_in_bytes,
                argument_bytes=memory.argument_size_in_bytes,
            )
    return done


def _kernels(text):
    """Kernels of a program by name, each with the scope it was called in."""
    found = {}
    # A call with metadata of its own runs over several lines.
    for call in re.findall(
        r'custom_call_target="tpu_custom_call".*?op_name="(.*?)"', text, re.S
    ):
        name = call.rsplit("/", 2)[-2]
        scope = "attention" if "attention" in call else "elsewhere"
        found[f"{scope} {name}"] = found.get(f"{scope} {name}", 0) + 1
    return found


@functools.cache
def compiled_for(generation: str, *names: str) -> dict[str, Compiled]:
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, the TPU compiler, is not installed: pip install libtpu")
    env = os.environ | estimate.environment()
    done = subprocess.run(
        [sys.executable, __file__, generation, *names],
        env=env,
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: Compiled(**fields) for name, fields in found.items()}


QUICK_PROGRAMS = ("gradient 4 512 4 2 64", "paged 16 8 4 128 64 16 8")


def test_kernels_compile_inside_shard_map_scan_checkpoint_and_grad():
    gradient, paged = compiled_for("v5e", *QUICK_PROGRAMS).values()
    names = set(gradient.kernels)
    assert {
        "attention splash_mha_fwd_segmented_residuals",
        "attention splash_mha_dkv_segmented_no_residuals",
    } <= names
    assert all(name.startswith("attention ") for name in names)
    assert paged.kernels == {"attention attention_paged": 1}
    # Beside the cache there is next to nothing: no copy of it.
    assert paged.temp_bytes < 0.1 * paged.argument_bytes


ALL_PROGRAMS = (
    "forward 4 4096 8 4 128",
    "gradient 4 4096 8 4 128",
    "gradient 4 4096 6 2 64",
    "gradient 4 4096 4 4 256",
    "windows 4 2048 8 4 128",
    "float32 4 2048 8 4 128",
    "gradient 4 16384 4 2 128",  # too many parts of d_q: two backward kernels
    "paged 32 64 16 128 2048 16 256",
    "paged 28 18 6 128 512 128 32",
    "paged 8 16 16 256 256 32 64",
)


@pytest.mark.slow
@pytest.mark.parametrize("generation", TOPOLOGIES)
@pytest.mark.parametrize("name", ALL_PROGRAMS)
def test_kernels_compile_for_every_generation_at_the_sizes_of_models(generation, name):
    (program,) = compiled_for(generation, name).values()
    assert all(kernel.startswith("attention ") for kernel in program.kernels)
    kinds = {re.sub(r"attention (splash_mha_)?", "", k) for k in program.kernels}
    if name.startswith("paged"):
        assert kinds == {"attention_paged"}
        assert program.temp_bytes < 0.1 * program.argument_bytes
    elif name.startswith("forward"):
        assert kinds == {"fwd_segmented_no_residuals"}
    else:
        dq = {"dq_segmented_no_residuals"} if " 16384 " in name else set()
        both = {"fwd_segmented_residuals", "dkv_segmented_no_residuals"}
        assert kinds >= both | dq


if __name__ == "__main__":
    found = compile_all(sys.argv[1], sys.argv[2:])
    print(json.dumps({k: dataclasses.asdict(v) for k, v in found.items()}))
