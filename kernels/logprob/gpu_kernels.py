"""The Triton kernels of gpu.py, and how they read tiles.

`blocks` is a `gpu.Blocks`. Heads are `Head`s of refs.

Edges: along an axis that is not summed over, indices beyond the end repeat the last
row (which costs nothing in the loop) or, along the contiguous axis, are masked; along
one that is summed over, they are masked with zeros.

Legend: N tokens, D model width, V vocabulary of this shard, S spans of it; of one tile:
R rows, Q words, J columns, A what is summed over.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

# Programs that run at once share what they read if they are close to a square of
# tiles: 16 tiles of tokens by as many of the vocabulary as there are processors left.
_GROUP = 16

# Below every logit, and finite, so that differences with it are no NaN.
_LOW = -1e30

_LOG2E = 1.4426950408889634


def stats(live_ref, target_ref, hidden_ref, head, *out_refs, logits, blocks, span):
    """One tile of tokens against one span of the vocabulary: `Stats` of it, [S, N]."""
    V = head.weight.shape[logits.vocab_dim]

    def start(n_R):
        target_R = _values(target_ref, n_R)
        # Another shard's: no word of the last tile, which may reach beyond V.
        target_R = jnp.where(target_R < V, target_R, -1)

        def body(v_Q, carry):
            top_R, sum_R, dot_R, z_target_R = carry
            z_RQ, _ = _logits_tile(hidden_ref, head, n_R, v_Q, logits, blocks)
            hit_RQ = target_R[:, None] == v_Q[None, :]
            z_target_R += jnp.where(hit_RQ, z_RQ, 0.0).sum(axis=1)
            z_RQ = _within(v_Q, V, z_RQ)
            new_top_R = jnp.maximum(top_R, z_RQ.max(axis=1))
            z_RQ -= new_top_R[:, None]
            e_RQ = _exp(z_RQ)
            behind_R = top_R - new_top_R
            scale_R = _exp(behind_R)
            return (
                new_top_R,
                sum_R * scale_R + e_RQ.sum(axis=1),
                (dot_R + sum_R * behind_R) * scale_R + (e_RQ * z_RQ).sum(axis=1),
                z_target_R,
            )

        return body

    _walk(start, (_LOW, 0.0, 0.0, 0.0), live_ref, out_refs, V, blocks, span)


def kl_stats(
    live_ref,
    hidden_ref,
    head,
    teacher_hidden_ref,
    teacher_head,
    *out_refs,
    logits,
    teacher_logits,
    blocks,
    span,
):
    """As `stats`, of a student and its teacher: `KLStats`."""
    V = head.weight.shape[logits.vocab_dim]
    student = (hidden_ref, head, logits)
    teacher = (teacher_hidden_ref, teacher_head, teacher_logits)

    def added(carry, z_RQ, lead_RQ):
        top_R, sum_R, dot_R = carry
        new_top_R = jnp.maximum(top_R, z_RQ.max(axis=1))
        e_RQ = _exp(z_RQ - new_top_R[:, None])
        scale_R = _exp(top_R - new_top_R)
        return (
            new_top_R,
            sum_R * scale_R + e_RQ.sum(axis=1),
            dot_R * scale_R + (e_RQ * lead_RQ).sum(axis=1),
        )

    def start(n_R):
        def body(v_Q, carry):
            z_RQ, teacher_z_RQ = (
                _within(v_Q, V, _logits_tile(hidden, head, n_R, v_Q, logits, blocks)[0])
                for hidden, head, logits in (student, teacher)
            )
            lead_RQ = z_RQ - teacher_z_RQ
            return (
                *added(carry[:3], z_RQ, lead_RQ),
                *added(carry[3:], teacher_z_RQ, -lead_RQ),
            )

        return body

    _walk(start, (_LOW, 0.0, 0.0) * 2, live_ref, out_refs, V, blocks, span)


def _walk(start: Callable[..., Any], init, live_ref, out_refs, V, blocks, span) -> None:
    """Runs the body that start(n_R) gives over this program's tiles of the vocabulary.

    body(v_Q, carry) -> carry, [R] each; `init` are its first values, and the last ones
    are written to `out_refs`.
    """
    S, N = out_refs[0].shape
    n_tile, split = _tile_of_program(pl.cdiv(N, blocks.rows), S)

    @pl.when(n_tile * blocks.rows < live_ref[0])
    def _():
        n_R = _range(n_tile, blocks.rows)
        body = start(n_R)
        first = split * span
        end = jnp.minimum(first + span, pl.cdiv(V, blocks.cols))
        carry = jax.lax.fori_loop(
            first,
            end,
            lambda tile, carry: body(_range(tile, blocks.cols), carry),
            tuple(jnp.full(blocks.rows, x, jnp.float32) for x in init),
        )
        for ref, x_R in zip(out_refs, carry, strict=True):
            plgpu.store(ref.at[split, n_R], x_R, mask=n_R < N)


def d_logits(
    live_ref,
    chunk_ref,
    hidden_ref,
    head,
    target_ref,
    lse_ref,
    entropy_ref,
    d_logp_ref,
    d_entropy_ref,
    d_lse_ref,
    *out_refs,
    logits,
    blocks,
):
    """One tile of the cotangents of hidden @ head.T + bias."""

    def tile(n_R, v_Q):
        z_RQ, slope_RQ = _logits_tile(hidden_ref, head, n_R, v_Q, logits, blocks)
        d_logp_R, d_entropy_R = _values(d_logp_ref, n_R), _values(d_entropy_ref, n_R)
        logp_RQ = z_RQ - _values(lse_ref, n_R)[:, None]
        # hit * d_logp + p * (d_lse - d_logp - d_entropy * (logp + entropy))
        by_p_R = _values(d_lse_ref, n_R) - d_logp_R
        by_p_R -= d_entropy_R * _values(entropy_ref, n_R)
        d_z_RQ = _exp(logp_RQ) * (by_p_R[:, None] - d_entropy_R[:, None] * logp_RQ)
        hit_RQ = _values(target_ref, n_R)[:, None] == v_Q[None, :]
        return (d_z_RQ + jnp.where(hit_RQ, d_logp_R[:, None], 0.0)) * slope_RQ

    V = head.weight.shape[logits.vocab_dim]
    _write_d_logits(tile, live_ref, chunk_ref, out_refs, V, blocks)


def kl_d_logits(
    live_ref,
    chunk_ref,
    hidden_ref,
    head,
    teacher_hidden_ref,
    teacher_head,
    lse_ref,
    teacher_lse_ref,
    reverse_ref,
    d_reverse_ref,
    d_forward_ref,
    *out_refs,
    logits,
    teacher_logits,
    blocks,
):
    """As `d_logits`, of a student's divergences from its teacher."""

    def tile(n_R, v_Q):
        z_RQ, slope_RQ = _logits_tile(hidden_ref, head, n_R, v_Q, logits, blocks)
        teacher_z_RQ, _ = _logits_tile(
            teacher_hidden_ref, teacher_head, n_R, v_Q, teacher_logits, blocks
        )
        logp_RQ = z_RQ - _values(lse_ref, n_R)[:, None]
        teacher_logp_RQ = teacher_z_RQ - _values(teacher_lse_ref, n_R)[:, None]
        d_reverse_R1 = _values(d_reverse_ref, n_R)[:, None]
        d_forward_R1 = _values(d_forward_ref, n_R)[:, None]
        by_p_RQ = logp_RQ - teacher_logp_RQ - _values(reverse_ref, n_R)[:, None]
        d_z_RQ = _exp(logp_RQ) * (d_reverse_R1 * by_p_RQ + d_forward_R1)
        return (d_z_RQ - d_forward_R1 * _exp(teacher_logp_RQ)) * slope_RQ

    V = head.weight.shape[logits.vocab_dim]
    _write_d_logits(tile, live_ref, chunk_ref, out_refs, V, blocks)


def _write_d_logits(tile, live_ref, chunk_ref, out_refs, V, blocks) -> None:
    """Writes tile(n_R, v_Q), zero for masked tokens and beyond the vocabulary.

    The second ref, if any, gets the sum over the tile's tokens, for the bias.
    """
    N_padded, chunk = out_refs[0].shape
    n_tile, q_tile = _tile_of_program(N_padded // blocks.rows, chunk // blocks.cols)
    live, first = live_ref[0], chunk_ref[0] * chunk

    @pl.when((n_tile * blocks.rows < live) & (first + q_tile * blocks.cols < V))
    def _():
        n_R, q_Q = _range(n_tile, blocks.rows), _range(q_tile, blocks.cols)
        seen_RQ = (n_R < live)[:, None] & (first + q_Q < V)[None, :]
        d_z_RQ = jnp.where(seen_RQ, tile(n_R, first + q_Q), 0.0)
        at = out_refs[0].at[n_R[:, None], q_Q[None, :]]
        plgpu.store(at, d_z_RQ.astype(at.dtype))
        if len(out_refs) > 1:
            plgpu.store(out_refs[1].at[n_tile, q_Q], d_z_RQ.sum(axis=0))


def d_hidden(
    live_ref, chunk_ref, d_z_ref, weight_ref, before_ref, out_ref, *, logits, blocks
):
    """One tile of out[n, d] = before[n, d] + sum_q d_z[n, q] * weight[first + q, d]."""
    N, D = out_ref.shape
    V, chunk = weight_ref.shape[logits.vocab_dim], d_z_ref.shape[1]
    n_tile, d_tile = _tile_of_program(pl.cdiv(N, blocks.rows), pl.cdiv(D, blocks.cols))
    first = chunk_ref[0] * chunk

    @pl.when(n_tile * blocks.rows < live_ref[0])
    def _():
        n_R, d_J = _range(n_tile, blocks.rows), _range(d_tile, blocks.cols)

        def body(tile, sum_RJ):
            q_A = _range(tile, blocks.depth)
            d_z_RA = plgpu.load(d_z_ref.at[n_R[:, None], q_A[None, :]])
            if logits.layout == "VD":
                weight_AJ = _load(weight_ref, first + q_A, d_J)
                return sum_RJ + _dot(d_z_RA, weight_AJ, 1, 0)
            weight_JA = _load(weight_ref, d_J, first + q_A)
            return sum_RJ + _dot(d_z_RA, weight_JA, 1, 1)

        # The last chunk's tiles beyond the vocabulary are not written.
        tiles = _num_tiles(jnp.minimum(chunk, V - first), blocks.depth)
        sum_RJ = jax.lax.fori_loop(0, tiles, body, _no_sums(blocks))
        _store(out_ref, n_R, d_J, _load(before_ref, n_R, d_J) + sum_RJ)


def d_weight(
    live_ref, chunk_ref, d_z_ref, hidden_ref, before_ref, out_ref, *, logits, blocks
):
    """One tile of out[first + q, d] = sum_n d_z[n, q] * hidden[n, d], or transposed."""
    del before_ref  # is out_ref, whose other chunks stay as they are
    D, V, chunk = hidden_ref.shape[1], out_ref.shape[logits.vocab_dim], d_z_ref.shape[1]
    shape = (chunk, D) if logits.layout == "VD" else (D, chunk)
    row_tile, col_tile = _tile_of_program(
        pl.cdiv(shape[0], blocks.rows), pl.cdiv(shape[1], blocks.cols)
    )
    i_R, j_J = _range(row_tile, blocks.rows), _range(col_tile, blocks.cols)
    first = chunk_ref[0] * chunk

    def body(tile, sum_RJ):
        n_A = _range(tile, blocks.depth)
        if logits.layout == "VD":
            d_z_AR = plgpu.load(d_z_ref.at[n_A[:, None], i_R[None, :]])
            return sum_RJ + _dot(d_z_AR, _load(hidden_ref, n_A, j_J), 0, 0)
        d_z_AJ = plgpu.load(d_z_ref.at[n_A[:, None], j_J[None, :]])
        return sum_RJ + _dot(_load(hidden_ref, n_A, i_R), d_z_AJ, 0, 0)

    words = (row_tile * blocks.rows, col_tile * blocks.cols)[logits.vocab_dim]

    @pl.when(first + words < V)
    def _():
        tiles = _num_tiles(live_ref[0], blocks.depth)
        sum_RJ = jax.lax.fori_loop(0, tiles, body, _no_sums(blocks))
        if logits.layout == "VD":
            _store(out_ref, first + i_R, j_J, sum_RJ)
        else:
            _store(out_ref, i_R, first + j_J, sum_RJ)


# Tiles


def _tile_of_program(tiles_m: int, tiles_n: int) -> tuple[jax.Array, jax.Array]:
    """The program's (m, n): groups of `_GROUP` tiles m, one n of a group at a time."""
    program = pl.program_id(0)
    of_group = np.int32(_GROUP * tiles_n)
    group, at = jax.lax.div(program, of_group), jax.lax.rem(program, of_group)
    height = jnp.minimum(tiles_m - group * _GROUP, _GROUP)
    return group * _GROUP + jax.lax.rem(at, height), jax.lax.div(at, height)


def _logits_tile(hidden_ref, head, n_R, v_Q, logits, blocks):
    """(z_RQ of tokens n_R and words v_Q, its derivative by hidden @ head.T + bias)."""

    def body(tile, x_RQ):
        d_A = _range(tile, blocks.depth)
        hidden_RA = _load(hidden_ref, n_R, d_A)
        if logits.layout == "VD":
            return x_RQ + _dot(hidden_RA, _load(head.weight, v_Q, d_A), 1, 1)
        weight_AQ = _load(head.weight, d_A, v_Q, zero_rows=True)
        return x_RQ + _dot(hidden_RA, weight_AQ, 1, 0)

    tiles = pl.cdiv(hidden_ref.shape[1], blocks.depth)
    z_RQ = jax.lax.fori_loop(0, tiles, body, _no_sums(blocks))
    if head.bias_V is not None:
        z_RQ += _values(head.bias_V, v_Q).astype(jnp.float32)[None, :]
    slope_RQ = 1.0
    if logits.softcap:
        tanh_RQ = jnp.tanh(z_RQ / logits.softcap)
        z_RQ = logits.softcap * tanh_RQ
        slope_RQ = 1.0 - tanh_RQ * tanh_RQ
    if logits.temperature != 1.0:
        z_RQ /= logits.temperature
        slope_RQ /= logits.temperature
    return z_RQ, slope_RQ


def _no_sums(blocks):
    return jnp.zeros((blocks.rows, blocks.cols), jnp.float32)


def _num_tiles(length: jax.Array, size: int) -> jax.Array:
    return jax.lax.div(length + (size - 1), np.int32(size))


def _range(tile, size: int) -> jax.Array:
    return tile * size + jax.lax.iota(jnp.int32, size)


def _load(ref, i_R, j_J, *, zero_rows: bool = False):
    """ref[i_R, j_J] of a matrix that may end within the tile.

    Beyond the end of its second axis, which is the contiguous one, it reads zeros;
    beyond that of the first one the last row again, or zeros.
    """
    rows, cols = ref.shape
    mask = None
    if rows % len(i_R) and zero_rows:
        mask = (i_R < rows)[:, None]
    elif rows % len(i_R):
        i_R = jnp.minimum(i_R, rows - 1)
    if cols % len(j_J):
        inside = (j_J < cols)[None, :]
        mask = inside if mask is None else mask & inside
    at = ref.at[i_R[:, None], j_J[None, :]]
    if mask is None:
        return plgpu.load(at)
    return plgpu.load(at, mask=jnp.broadcast_to(mask, at.shape), other=0.0)


def _store(ref, i_R, j_J, x_RJ) -> None:
    mask = (i_R < ref.shape[0])[:, None] & (j_J < ref.shape[1])[None, :]
    plgpu.store(ref.at[i_R[:, None], j_J[None, :]], x_RJ.astype(ref.dtype), mask=mask)


def _values(ref, i_R):
    """ref[i_R] of a vector; its last value again beyond the end."""
    return plgpu.load(ref.at[jnp.minimum(i_R, len(ref) - 1)])


def _within(v_Q, V: int, z_RQ):
    """z_RQ, and below every logit beyond the vocabulary."""
    return z_RQ if V % len(v_Q) == 0 else jnp.where((v_Q < V)[None, :], z_RQ, _LOW)


def _dot(a, b, contract_a: int, contract_b: int):
    """The product in the wider of the two dtypes, summed in float32; float32 exact."""
    dtype = jnp.promote_types(a.dtype, b.dtype)
    return jax.lax.dot_general(
        a.astype(dtype),
        b.astype(dtype),
        (((contract_a,), (contract_b,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None,
        preferred_element_type=jnp.float32,
    )


def _exp(x):
    # One multiplication and the processor's own instruction.
    return jnp.exp2(x * _LOG2E)
