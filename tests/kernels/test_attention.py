"""Packed attention in plain JAX, dense and block by block, and over a cache.

Legend: B rows, T/S positions, H = K * R query heads, K key/value heads, C channels,
W decode slots.
"""

import functools
import re
from typing import Any

import attention_cases as cases
import attention_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.kernels import attention  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.attention import (  # pyright: ignore[reportMissingImports]
    blockwise,
    plain,
    spans,
)
from rl_jax.kernels.platform import (  # pyright: ignore[reportMissingImports]
    KernelError,
)

BLOCK = 16
IDS = [case.name for case in cases.CASES]


@pytest.mark.parametrize("case", cases.CASES, ids=IDS)
def test_the_plain_form_matches_the_reference(case):
    attend = functools.partial(
        attention.packed_attention, implementation="plain", **case.options
    )
    cases.check(case, cases.outputs(case, attend))


@functools.partial(jax.jit, static_argnames=("scale", "softcap"))
def block_by_block(q, k, v, segment_BT, window, d_out, *, scale, softcap=0.0):
    """Results and gradients in blocks that are small against the table's cases."""
    options = {"scale": scale, "softcap": softcap, "block": BLOCK}
    first_BT = spans.first_seen(segment_BT, window)
    out, lse = blockwise.forward(q, k, v, first_BT, **options)
    grads = blockwise.backward(q, k, v, first_BT, out, lse, d_out, **options)
    return cases.Results(out, *grads)


@pytest.mark.parametrize("case", cases.CASES, ids=IDS)
def test_the_blockwise_form_matches_the_reference(case):
    q, k, v, segment_BT, d_out = cases.draw(case)
    cases.check(case, block_by_block(q, k, v, segment_BT, d_out=d_out, **case.options))


def test_rows_longer_than_a_block_match_the_reference_through_the_public_function():
    T = 2 * blockwise.BLOCK + 37
    case = cases.Case("long rows", T, ((100, 150, -7, 20),), K=1, R=2, window=120)
    attend = functools.partial(attention.packed_attention, **case.options)
    cases.check(case, cases.outputs(case, attend))


@given(
    rows=st.lists(
        st.lists(st.integers(-6, 12).filter(bool), max_size=8), min_size=2, max_size=2
    ),
    window=st.one_of(st.just(2**30), st.integers(1, 40)),
)
@settings(max_examples=40, deadline=None)
def test_blockwise_equals_dense_whatever_the_segments(rows, window):
    T, K = 40, 1
    segment_BT = cases.segments([_fitting(row, T) for row in rows], T)
    rng = np.random.default_rng(0)
    q, k, v, d_out = (
        rng.normal(size=(2, T, n, 4)).astype(np.float32) for n in (2, K, K, 2)
    )
    live = (segment_BT != 0)[..., None, None]
    got = block_by_block(q, k, v, segment_BT, window, d_out * live, scale=0.5)
    want = densely(q, k, v, segment_BT, window, d_out * live)
    np.testing.assert_allclose(got[0] * live, want[0] * live, rtol=0, atol=1e-5)
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


@jax.jit
def densely(q, k, v, segment_BT, window, d_out):
    def attend(*qkv):
        return plain.dense(*qkv, segment_BT, window, scale=0.5)

    out, pull = jax.vjp(attend, q, k, v)
    return out, *pull(d_out)


def _fitting(row, T):
    """As much of a row as T has room for."""
    kept, room = [], T
    for length in row:
        if abs(length) <= room:
            kept.append(length)
            room -= abs(length)
    return tuple(kept)


@given(
    row=st.lists(st.integers(-6, 12).filter(bool), max_size=8),
    window=st.one_of(st.none(), st.integers(1, 40)),
    sizes=st.sampled_from([(8, 8), (4, 16), (16, 4), (5, 7), (40, 40)]),
)
@settings(max_examples=20, deadline=None)
def test_spans_say_which_keys_are_seen_and_no_more_blocks_than_hold_them(
    row, window, sizes
):
    T, (query_block, key_block) = 40, sizes
    segment_BT = cases.segments([_fitting(row, T)], T)
    first_BT = np.asarray(spans.first_seen(jnp.asarray(segment_BT), window))
    seen_TT = np.zeros((T, T), bool)
    for t in range(T):
        if segment_BT[0, t]:
            seen_TT[t, reference.visible(segment_BT[0], t, window)] = True
        else:
            seen_TT[t, t] = True
        assert first_BT[0, t] == seen_TT[t].argmax()
    assert (np.diff(first_BT[0]) >= 0).all()
    rows, cols = np.nonzero(seen_TT)
    held = set(zip(rows // query_block, cols // key_block, strict=True))
    oldest, newest = spans.key_blocks(jnp.asarray(first_BT), query_block, key_block)
    visited = {
        (u, j)
        for u in range(oldest.shape[1])
        for j in range(oldest[0, u], newest[0, u] + 1)
    }
    # Blocks between two that hold something hold something themselves, or are of the
    # same row of blocks: nothing outside the first and last is visited.
    assert held <= visited
    for u in range(oldest.shape[1]):
        assert (u, int(oldest[0, u])) in held and (u, int(newest[0, u])) in held
    oldest, newest = spans.query_blocks(jnp.asarray(first_BT), query_block, key_block)
    visited = {
        (u, j)
        for j in range(oldest.shape[1])
        for u in range(oldest[0, j], newest[0, j] + 1)
    }
    assert held <= visited
    for j in range(oldest.shape[1]):
        assert (int(oldest[0, j]), j) in held and (int(newest[0, j]), j) in held


def test_the_gradients_of_the_reference_are_its_finite_differences():
    case = cases.Case("differences", 5, ((3, 2),), K=1, R=2, C=2, window=2, softcap=2.0)
    q, k, v, segment_BT, d_out = cases.draw(case)
    arrays = [x.astype(np.float64) for x in (q, k, v)]

    def value(q, k, v):
        return (reference.packed(q, k, v, segment_BT, **case.options) * d_out).sum()

    grads = reference.packed_grads(q, k, v, segment_BT, d_out, **case.options)
    for i, grad in enumerate(grads):
        for at in np.ndindex(grad.shape):
            sides = []
            for step in (1e-5, -1e-5):
                moved = [x.copy() for x in arrays]
                moved[i][at] += step
                sides.append(value(*moved))
            # Truncation is of order 1e-10, rounding of 1e-11.
            assert abs((sides[0] - sides[1]) / 2e-5 - grad[at]) < 1e-8


@pytest.mark.parametrize("T", [24, blockwise.BLOCK + 8])
def test_what_stands_in_padding_changes_nothing(T):
    case = cases.Case("padding", T, ((9, -4, 6), (15,)), softcap=2.0)
    drawn = cases.draw(case)
    padding_BT = drawn.segment_BT == 0
    attend = jax.jit(functools.partial(attention.packed_attention, **case.options))

    @jax.jit
    def run(q, k, v):
        out, pull = jax.vjp(lambda *qkv: attend(*qkv, drawn.segment_BT), q, k, v)
        return out, *pull(drawn.d_out_BTHC)

    before = run(*drawn[:3])
    other = [np.where(padding_BT[..., None, None], -7.5, x) for x in drawn[:3]]
    for mine, theirs in zip(before, run(*other), strict=True):
        mine, theirs = (np.asarray(x)[~padding_BT] for x in (mine, theirs))
        np.testing.assert_array_equal(mine, theirs)


def test_packed_equals_each_segment_alone():
    case = cases.Case("packed", 7, ((3, 2, 1),))
    q, k, v, segment_BT, _ = cases.draw(case)
    packed = jax.jit(functools.partial(attention.packed_attention, scale=0.5))
    packed_THC = packed(q, k, v, segment_BT)[0]
    spans_of_row = ((0, 3), (3, 5), (5, 6))
    # Each segment at the start of a row of its own, and padding behind it.
    alone_q, alone_k, alone_v = (
        np.concatenate([np.roll(x, -start, axis=1) for start, _ in spans_of_row])
        for x in (q, k, v)
    )
    alone_BT = np.array(
        [[t < b - a for t in range(7)] for a, b in spans_of_row], np.int32
    )
    alone_BTHC = packed(alone_q, alone_k, alone_v, alone_BT)
    for b, (start, stop) in enumerate(spans_of_row):
        np.testing.assert_allclose(
            packed_THC[start:stop], alone_BTHC[b, : stop - start], rtol=0, atol=1e-6
        )


def test_short_rows_are_the_dense_form_bit_for_bit():
    case = cases.Case("dense", 33, ((20, 9),), C=4)
    q, k, v, segment_BT, d_out = cases.draw(case)

    def grads(attend):
        @jax.jit
        def run(q, k, v, segment_BT, d_out):
            def of(*qkv):
                return attend(*qkv, segment_BT, scale=0.5)

            # As it was called before it had a backward pass of its own.
            out, pull = jax.vjp(jax.checkpoint(of), q, k, v)
            return out, *pull(d_out)

        return run(q, k, v, segment_BT, d_out)

    got, want = grads(attention.packed_attention), grads(plain.dense)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("T", [19, blockwise.BLOCK + 5])
def test_a_window_can_be_data_of_a_scan_within_shard_map(T):
    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((2, 2), ("rows", "heads"), axis_types=auto)
    case = cases.Case("scan", T, ((9, 8), (17,)), R=2, C=4)
    q, k, v, segment_BT, _ = cases.draw(case)
    windows = (3, 2**30)
    live = (segment_BT != 0)[..., None, None]

    def loss(q, k, v, attend):
        def layer(x, window):
            return x + attend(x, k, v, segment_BT, window), None

        x, _ = jax.lax.scan(jax.checkpoint(layer), q, jnp.asarray(windows, jnp.int32))
        return (jnp.where(live, x, 0) ** 2).sum()

    heads = jax.P("rows", None, "heads", None)
    specs = heads, heads, heads, jax.P("rows", None), jax.P()
    attend = functools.partial(
        attention.packed_attention, scale=case.scale, windows=windows
    )
    dense = functools.partial(plain.dense, scale=case.scale)
    want = jax.jit(jax.grad(functools.partial(loss, attend=dense), (0, 1, 2)))(q, k, v)
    for check_vma in (True, False):
        sharded = jax.shard_map(
            attend, in_specs=specs, out_specs=heads, check_vma=check_vma, mesh=mesh
        )
        of_sharded = jax.grad(functools.partial(loss, attend=sharded), (0, 1, 2))
        for a, b in zip(jax.jit(of_sharded)(q, k, v), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


def compiled(T, B=1, H=2, C=8) -> list[Any]:
    """The forward and the backward program of rows of T positions."""
    shapes = [jax.ShapeDtypeStruct((B, T, H, C), jnp.float32)] * 3
    segment = jax.ShapeDtypeStruct((B, T), jnp.int32)
    attend = functools.partial(attention.packed_attention, scale=0.5)

    def loss(q, k, v, segment):
        return attend(q, k, v, segment).sum()

    programs = attend, jax.grad(loss, (0, 1, 2))
    return [jax.jit(f).lower(*shapes, segment).compile() for f in programs]


def test_no_array_of_a_long_rows_program_is_quadratic_in_its_length():
    T = 8 * blockwise.BLOCK
    naive = jax.jit(functools.partial(plain.dense, scale=0.5)).lower(
        *[jax.ShapeDtypeStruct((1, T, 2, 8), jnp.float32)] * 3,
        jax.ShapeDtypeStruct((1, T), jnp.int32),
    )
    naive: Any = naive.compile()
    assert _quadratic(naive, T)
    for program in compiled(T):
        assert not _quadratic(program, T)
        ours = program.memory_analysis().temp_size_in_bytes
        assert 10 * ours < naive.memory_analysis().temp_size_in_bytes


def _quadratic(program, T):
    """Shapes of the program with two axes of T, or with as many elements."""
    shapes = set(re.findall(r"\w+\[([\d,]+)\]", program.as_text()))
    sizes = [[int(n) for n in shape.split(",")] for shape in shapes]
    return [s for s in sizes if s.count(T) > 1 or np.prod(s) >= T * T]


def test_blocks_of_other_segments_and_beyond_the_window_take_no_time():
    """Counted, not timed: what the loops visit."""
    T, block = 64, 8
    first_BT = functools.partial(spans.first_seen, np.ones((1, T), np.int32))
    eight = cases.segments([(8,) * 8], T)

    def visits(first_BT):
        oldest, newest = spans.key_blocks(first_BT, block, block)
        return int((newest - oldest + 1).sum())

    assert visits(first_BT(None)) == 36  # 1 + 2 + ... + 8
    assert visits(first_BT(9)) == 15  # the block itself, and the one before it
    assert visits(spans.first_seen(jnp.asarray(eight), None)) == 8
    assert visits(spans.first_seen(jnp.zeros((1, T), jnp.int32), None)) == 8


def test_heads_that_keys_do_not_divide_are_refused():
    q, k = jnp.zeros((1, 3, 4, 2)), jnp.zeros((1, 3, 3, 2))
    with pytest.raises(ValueError, match="4 query heads are no multiple of 3"):
        attention.packed_attention(q, k, k, jnp.ones((1, 3), jnp.int32), scale=1.0)


def test_a_kernel_for_other_devices_than_the_meshs_is_refused_by_name():
    q = jnp.zeros((1, 128, 2, 8))
    mesh = jax.make_mesh((1,), ("x",))
    with jax.set_mesh(mesh), pytest.raises(KernelError, match="the mesh has cpus"):
        attention.packed_attention(
            q, q, q, jnp.ones((1, 128), jnp.int32), scale=1.0, implementation="gpu"
        )


def test_cache_attention_equals_the_last_row_of_packed_attention():
    S, C = 6, 8
    case = cases.Case("cache", S, ((S,),) * 3, C=C)
    q, k, v, segment_BT, _ = cases.draw(case)
    position_W = np.array([0, 3, 5], np.int32)
    # What stands beyond the position is left over from an older sample.
    beyond = np.arange(S)[None, :, None, None] > position_W[:, None, None, None]
    k_WKSC, v_WKSC = (np.where(beyond, 1e3, x).swapaxes(1, 2) for x in (k, v))
    rows = np.arange(3), position_W
    for options in ({}, {"window": 2, "softcap": 1.5}):
        options = {"scale": C**-0.5} | options
        want_BTHC = attention.packed_attention(q, k, v, segment_BT, **options)
        got_WHC = attention.cache_attention(
            q[rows], k_WKSC, v_WKSC, position_W, **options
        )
        want_WHC = np.asarray(want_BTHC)[rows]
        np.testing.assert_allclose(got_WHC, want_WHC, rtol=0, atol=1e-6)
