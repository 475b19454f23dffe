"""Packed attention on GPUs, in Pallas (Triton): forward, d_q, and d_k with d_v.

A program takes one block of queries of a head through the keys it sees, or one block of
keys through the queries that see it, of all heads that share it: no atomic operations,
and results repeat to the bit. Loops begin and end where `spans` says. Scores are kept
in units of log 2, whose exponential is the processor's own instruction.

Edges: positions beyond the row repeat the last one and are not written; channels are
made up to a power of two with zeros.

Source: FlashAttention-2, arXiv:2307.08691.

Legend: B rows, T positions, H = K * R query heads, K key/value heads, C channels of a
head; I queries and J keys of a block.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from ..platform import KernelError, result
from .scoring import Scoring
from .spans import first_seen, query_blocks

_HIDDEN = -1e30
_LOG2E = math.log2(math.e)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Positions of a block, powers of two from 16 up, and how Triton compiles them.

    Attributes:
        num_warps, num_stages: of 32 threads; copies of the inputs under way at once.
    """

    query: int
    key: int
    num_warps: int
    num_stages: int


def block_sizes(C: int, dtype, *, back: bool) -> Blocks:
    """Blocks whose sums fit a program's registers; nothing here has been timed.

    Of 128 x 64 the output's sums are 64 registers a thread at C = 128, and queries
    with two stages of keys and values 96 KiB of shared memory, which an A100 (163) and
    an H100 (227) have. The backward pass holds two sums; float32 takes twice the memory
    and does without tensor cores.
    """
    num_warps = 4 if C <= 64 else 8
    if C > 128 or dtype == jnp.float32:
        return Blocks(32, 32, num_warps, 2)
    if back:
        return Blocks(64, 64, num_warps, 2)
    return Blocks(128, 64, num_warps, 2)


def forward(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segment_BT: jax.Array,
    window: jax.Array | None,
    *,
    scoring: Scoring,
    residuals: bool,
    interpret: bool,
    blocks: Blocks | None = None,
):
    """As `plain.forward`. Raises: KernelError for other dtypes, or C over 256."""
    B, T, H, C = q_BTHC.shape
    _check(q_BTHC, k_BTKC, v_BTKC)
    blocks = blocks or block_sizes(C, q_BTHC.dtype, back=False)
    first_BT = first_seen(segment_BT, scoring.window if window is None else window)
    arrays = q_BTHC, k_BTKC, v_BTKC, first_BT
    out = result(q_BTHC.shape, q_BTHC.dtype, *arrays)
    lse = result((B, H, T), jnp.float32, *arrays)
    made = _call(
        _forward_kernel,
        arrays,
        [out, lse] if residuals else [out],
        grid=(pl.cdiv(T, blocks.query), H, B),
        name="attention_forward",
        scoring=scoring,
        blocks=blocks,
        interpret=interpret,
    )
    return tuple(made) if residuals else made[0]


def backward(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segment_BT: jax.Array,
    window: jax.Array | None,
    out_BTHC: jax.Array,
    lse_BHT: jax.Array,
    d_out_BTHC: jax.Array,
    *,
    scoring: Scoring,
    interpret: bool,
    blocks: Blocks | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As `plain.backward`. Raises: KernelError as `forward` does."""
    B, T, H, C = q_BTHC.shape
    K = k_BTKC.shape[2]
    _check(q_BTHC, k_BTKC, v_BTKC)
    blocks = blocks or block_sizes(C, q_BTHC.dtype, back=True)
    first_BT = first_seen(segment_BT, scoring.window if window is None else window)
    _, newest_BU = query_blocks(first_BT, blocks.query, blocks.key)
    # A query's weighted mean of d_weight.
    mean_BTH = (d_out_BTHC.astype(jnp.float32) * out_BTHC).sum(-1)
    mean_BHT = mean_BTH.swapaxes(1, 2)
    arrays = q_BTHC, k_BTKC, v_BTKC, first_BT, d_out_BTHC, lse_BHT, mean_BHT
    call = functools.partial(_call, scoring=scoring, blocks=blocks, interpret=interpret)
    (dq_BTHC,) = call(
        _dq_kernel,
        arrays,
        [result(q_BTHC.shape, q_BTHC.dtype, *arrays)],
        grid=(pl.cdiv(T, blocks.query), H, B),
        name="attention_dq",
    )
    dk_BTKC, dv_BTKC = call(
        _dkv_kernel,
        (*arrays, newest_BU),
        [result(x.shape, x.dtype, *arrays) for x in (k_BTKC, v_BTKC)],
        grid=(pl.cdiv(T, blocks.key), K, B),
        name="attention_dkv",
    )
    return dq_BTHC, dk_BTKC, dv_BTKC


def _check(*arrays):
    dtypes = {x.dtype for x in arrays}
    if len(dtypes) > 1 or not dtypes <= {jnp.dtype("float32"), jnp.dtype("bfloat16")}:
        raise KernelError(
            "the GPU's attention kernels take queries, keys and values that are all "
            f"float32 or all bfloat16, got {', '.join(str(x.dtype) for x in arrays)}: "
            "cast them, or set RL_JAX_KERNELS=plain"
        )
    C = arrays[0].shape[-1]
    if C > 256:
        raise KernelError(
            f"the GPU's attention kernels take heads of at most 256 channels, got {C}: "
            "set RL_JAX_KERNELS=plain"
        )


def _call(kernel, arrays, out_shape, *, grid, name, scoring, blocks, interpret):
    return pl.pallas_call(
        functools.partial(kernel, scoring=scoring, blocks=blocks),
        grid=grid,
        out_shape=out_shape,
        compiler_params=plgpu.CompilerParams(
            num_warps=blocks.num_warps, num_stages=blocks.num_stages
        ),
        interpret=interpret,
        name=name,
    )(*arrays)


def _forward_kernel(
    q_ref, k_ref, v_ref, first_ref, out_ref, *lse_refs, scoring, blocks
):
    """One block of queries of one head."""
    u, h, b = (pl.program_id(axis) for axis in range(3))
    T = q_ref.shape[1]
    at_I, first_I, begin, end = _keys_of(first_ref, b, u, blocks)
    q_IC = _load(q_ref, b, at_I, h)

    def visit(y, carry):
        top_I, sum_I, out_IC = carry
        at_J = y * blocks.key + jnp.arange(blocks.key)
        kv_head = _kv_head(h, q_ref, k_ref)
        k_JC = _load(k_ref, b, at_J, kv_head)
        v_JC = _load(v_ref, b, at_J, kv_head)
        score_IJ, _ = _scores(q_IC, k_JC, scoring)
        score_IJ = jnp.where(_seen(first_I, at_I, at_J), score_IJ, _HIDDEN)
        new_I = jnp.maximum(top_I, score_IJ.max(axis=1))
        weight_IJ = jnp.exp2(score_IJ - new_I[:, None])
        keep_I = jnp.exp2(top_I - new_I)
        sum_I = sum_I * keep_I + weight_IJ.sum(axis=1)
        added_IC = _dot(weight_IJ.astype(v_JC.dtype), v_JC, 1, 0)
        return new_I, sum_I, out_IC * keep_I[:, None] + added_IC

    carry = (
        jnp.full(blocks.query, _HIDDEN, jnp.float32),
        jnp.zeros(blocks.query, jnp.float32),
        jnp.zeros(q_IC.shape, jnp.float32),
    )
    top_I, sum_I, out_IC = jax.lax.fori_loop(begin, end, visit, carry)
    _store(out_ref, b, at_I, h, out_IC / sum_I[:, None])
    for lse_ref in lse_refs:
        lse_I = (top_I + jnp.log2(sum_I)) / _LOG2E
        plgpu.store(lse_ref.at[b, h, at_I], lse_I, mask=at_I < T)


def _dq_kernel(
    q_ref,
    k_ref,
    v_ref,
    first_ref,
    d_out_ref,
    lse_ref,
    mean_ref,
    dq_ref,
    *,
    scoring,
    blocks,
):
    """d_q of one block of queries of one head."""
    u, h, b = (pl.program_id(axis) for axis in range(3))
    at_I, first_I, begin, end = _keys_of(first_ref, b, u, blocks)
    queries = _queries(q_ref, d_out_ref, lse_ref, mean_ref, b, at_I, h)

    def visit(y, dq_IC):
        at_J = y * blocks.key + jnp.arange(blocks.key)
        kv_head = _kv_head(h, q_ref, k_ref)
        k_JC = _load(k_ref, b, at_J, kv_head)
        v_JC = _load(v_ref, b, at_J, kv_head)
        seen_IJ = _seen(first_I, at_I, at_J)
        _, d_score_IJ = _weights(queries, k_JC, v_JC, seen_IJ, scoring)
        return dq_IC + _dot(d_score_IJ.astype(k_JC.dtype), k_JC, 1, 0)

    zeros_IC = jnp.zeros(queries[0].shape, jnp.float32)
    dq_IC = jax.lax.fori_loop(begin, end, visit, zeros_IC)
    _store(dq_ref, b, at_I, h, dq_IC * scoring.scale)


def _dkv_kernel(
    q_ref,
    k_ref,
    v_ref,
    first_ref,
    d_out_ref,
    lse_ref,
    mean_ref,
    newest_ref,
    dk_ref,
    dv_ref,
    *,
    scoring,
    blocks,
):
    """d_k and d_v of one block of keys, from every query head that shares it."""
    y, kv_head, b = (pl.program_id(axis) for axis in range(3))
    T, R = q_ref.shape[1], q_ref.shape[2] // k_ref.shape[2]
    at_J = y * blocks.key + jnp.arange(blocks.key)
    k_JC, v_JC = _load(k_ref, b, at_J, kv_head), _load(v_ref, b, at_J, kv_head)
    begin = jax.lax.div(y * blocks.key, blocks.query)
    steps = newest_ref[b, y] + 1 - begin

    def visit(step, carry):
        dk_JC, dv_JC = carry
        # Heads outside, blocks inside, in one loop.
        h = kv_head * R + jax.lax.div(step, steps)
        u = begin + jax.lax.rem(step, steps)
        at_I = u * blocks.query + jnp.arange(blocks.query)
        first_I = plgpu.load(first_ref.at[b, jnp.minimum(at_I, T - 1)])
        queries = _queries(q_ref, d_out_ref, lse_ref, mean_ref, b, at_I, h)
        seen_IJ = _seen(first_I, at_I, at_J) & (at_I < T)[:, None]
        weight_IJ, d_score_IJ = _weights(queries, k_JC, v_JC, seen_IJ, scoring)
        q_IC, d_out_IC = queries[:2]
        dv_JC += _dot(weight_IJ.astype(d_out_IC.dtype), d_out_IC, 0, 0)
        dk_JC += _dot(d_score_IJ.astype(q_IC.dtype), q_IC, 0, 0)
        return dk_JC, dv_JC

    zeros_JC = jnp.zeros(k_JC.shape, jnp.float32)
    dk_JC, dv_JC = jax.lax.fori_loop(0, steps * R, visit, (zeros_JC, zeros_JC))
    _store(dk_ref, b, at_J, kv_head, dk_JC * scoring.scale)
    _store(dv_ref, b, at_J, kv_head, dv_JC)


def _keys_of(first_ref, b, u, blocks):
    """(positions, oldest keys, first block of keys, end) of a block of queries."""
    T = first_ref.shape[1]
    at_I = u * blocks.query + jnp.arange(blocks.query)
    first_I = plgpu.load(first_ref.at[b, jnp.minimum(at_I, T - 1)])
    begin = jax.lax.div(first_ref[b, u * blocks.query], blocks.key)
    newest = jnp.minimum((u + 1) * blocks.query, T) - 1
    return at_I, first_I, begin, jax.lax.div(newest, blocks.key) + 1


def _kv_head(h, q_ref, k_ref):
    return jax.lax.div(h, q_ref.shape[2] // k_ref.shape[2])


def _queries(q_ref, d_out_ref, lse_ref, mean_ref, b, at_I, h):
    """What the backward pass reads of a block of queries."""
    at = jnp.minimum(at_I, q_ref.shape[1] - 1)
    return (
        _load(q_ref, b, at_I, h),
        _load(d_out_ref, b, at_I, h),
        plgpu.load(lse_ref.at[b, h, at]),
        plgpu.load(mean_ref.at[b, h, at]),
    )


def _weights(queries, k_JC, v_JC, seen_IJ, scoring):
    """Softmax weights, and the cotangents of q . k, but for the scale."""
    q_IC, d_out_IC, lse_I, mean_I = queries
    score_IJ, slope_IJ = _scores(q_IC, k_JC, scoring)
    weight_IJ = jnp.exp2(score_IJ - lse_I[:, None] * _LOG2E)
    weight_IJ = jnp.where(seen_IJ, weight_IJ, 0.0)
    d_weight_IJ = _dot(d_out_IC, v_JC, 1, 1)
    d_score_IJ = weight_IJ * (d_weight_IJ - mean_I[:, None])
    return weight_IJ, d_score_IJ if slope_IJ is None else d_score_IJ * slope_IJ


def _scores(q_IC, k_JC, scoring):
    """Scores over log 2, and their slope where they are capped."""
    score_IJ = _dot(q_IC, k_JC, 1, 1)
    if not scoring.softcap:
        return score_IJ * (scoring.scale * _LOG2E), None
    part_IJ = jnp.tanh(score_IJ * (scoring.scale / scoring.softcap))
    return part_IJ * (scoring.softcap * _LOG2E), 1.0 - part_IJ * part_IJ


def _seen(first_I, at_I, at_J):
    """Keys between the oldest that a query sees and itself."""
    return (first_I[:, None] <= at_J[None, :]) & (at_J[None, :] <= at_I[:, None])


def _load(ref, b, at_A, head):
    """[A, C] of [B, T, heads, C]; its last position again beyond the row."""
    T, _, C = ref.shape[1:]
    c_C = jnp.arange(pl.next_power_of_2(C))
    at = ref.at[b, jnp.minimum(at_A, T - 1)[:, None], head, c_C[None, :]]
    if C == len(c_C):
        return plgpu.load(at)
    mask = jnp.broadcast_to((c_C < C)[None, :], (len(at_A), len(c_C)))
    return plgpu.load(at, mask=mask, other=0.0)


def _store(ref, b, at_A, head, x_AC) -> None:
    T, _, C = ref.shape[1:]
    c_C = jnp.arange(x_AC.shape[1])
    mask = (at_A < T)[:, None] & (c_C < C)[None, :]
    at = ref.at[b, at_A[:, None], head, c_C[None, :]]
    plgpu.store(at, x_AC.astype(ref.dtype), mask=mask)


def _dot(a, b, contract_a: int, contract_b: int):
    """Summed in float32; products of float32 are exact."""
    return jax.lax.dot_general(
        a,
        b,
        (((contract_a,), (contract_b,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )
