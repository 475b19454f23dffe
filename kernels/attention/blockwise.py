"""Packed attention block by block in plain JAX: no [T, T] array, forward or backward.

Each block of queries visits the blocks of keys that hold something it sees, keeping a
running maximum, sum and output; the backward pass makes the weights again from the
log-normaliser. A loop's bounds are data: blocks of other segments, beyond the window or
of later positions cost nothing, row by row.

Source: FlashAttention-2, arXiv:2307.08691, algorithms 1 and 2.

Legend: B rows, T positions, H = K * R query heads, K key/value heads, C channels of a
head; Z = B * K pairs of row and key/value head, U blocks of a row, J positions of a
block, Q = R * J queries of a block: those of all heads that share its keys.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from .spans import key_blocks, query_blocks

# Positions of a (square) block. On 2 cores, C = 64, forward and backward: rows of 256
# in four segments took 37 ms in blocks of 128 and 52 in blocks of 256 (70 if dense),
# rows of 512 47 and 49 (148); one segment of 4,096 took 1.0 s and 0.7 (5.3).
BLOCK = 128
_LARGE_BLOCK, _LARGE_FROM = 256, 1024
# Stands for minus infinity: a hidden score against a maximum that is hidden as well
# must not give a NaN.
_HIDDEN = -1e30


def forward(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    first_BT: jax.Array,
    *,
    scale: float,
    softcap: float = 0.0,
    block: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Attention of each query t over the positions first[t] to t.

    Args:
        first_BT: as `spans.first_seen` gives it.
        scale, softcap: as in `packed_attention`.
        block: positions of a block; None: by T, which may be anything.

    Returns:
        (out_BTHC in the dtype of `q_BTHC`; log-normaliser lse_BHT, float32)
    """
    B, T, _, C = q_BTHC.shape
    K = k_BTKC.shape[2]
    block = block or _block(T)
    first_BT = _to_whole_blocks(first_BT, block)
    q_ZUQC, k_ZUJC, v_ZUJC = _blocks(q_BTHC * scale, k_BTKC, v_BTKC, block=block)
    Z, U = k_ZUJC.shape[:2]
    oldest_BU, newest_BU = key_blocks(first_BT, block, block)

    def one_block(task):
        z, u = task // U, task % U
        q_QC = q_ZUQC[z, u]

        def visit(j, carry):
            top_Q, sum_Q, out_QC = carry
            score_QJ, _ = _scores(q_QC, k_ZUJC[z, j], softcap)
            seen_QJ = _seen(first_BT, z // K, u, j, score_QJ.shape)
            score_QJ = jnp.where(seen_QJ, score_QJ, _HIDDEN)
            new_Q = jnp.maximum(top_Q, score_QJ.max(-1))
            weight_QJ = jnp.exp(score_QJ - new_Q[:, None])
            keep_Q = jnp.exp(top_Q - new_Q)
            sum_Q = sum_Q * keep_Q + weight_QJ.sum(-1)
            added_QC = _dot("QJ,JC->QC", weight_QJ.astype(v_BTKC.dtype), v_ZUJC[z, j])
            return new_Q, sum_Q, out_QC * keep_Q[:, None] + added_QC

        zero_QC = jnp.zeros_like(q_QC, jnp.float32)
        begin = zero_QC[:, 0] + _HIDDEN, zero_QC[:, 0], zero_QC
        top_Q, sum_Q, out_QC = jax.lax.fori_loop(
            oldest_BU[z // K, u], newest_BU[z // K, u] + 1, visit, begin
        )
        out_QC = (out_QC / sum_Q[:, None]).astype(q_BTHC.dtype)
        return out_QC, top_Q + jnp.log(sum_Q)

    out, lse = jax.lax.map(one_block, jnp.arange(Z * U, dtype=jnp.int32))
    out_BTHC = _rows(out.reshape(Z, U, -1, C), B, T, block)
    lse_BTH1 = _rows(lse.reshape(Z, U, -1, 1), B, T, block)
    return out_BTHC, lse_BTH1[..., 0].swapaxes(1, 2)


class _Queries(NamedTuple):
    """What the backward pass reads of blocks of queries; mean is d_out . out."""

    q: jax.Array
    d_out: jax.Array
    mean: jax.Array
    lse: jax.Array


def backward(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    first_BT: jax.Array,
    out_BTHC: jax.Array,
    lse_BHT: jax.Array,
    d_out_BTHC: jax.Array,
    *,
    scale: float,
    softcap: float = 0.0,
    block: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(d_q, d_k, d_v) in the dtypes of q, k, v, from what `forward` gave."""
    B, T = first_BT.shape
    K = k_BTKC.shape[2]
    block = block or _block(T)
    first_BT = _to_whole_blocks(first_BT, block)
    mean_BTH = (d_out_BTHC.astype(jnp.float32) * out_BTHC).sum(-1)
    lse_BTH = lse_BHT.swapaxes(1, 2)
    q_ZUQC, d_out_ZUQC, mean_ZUQ1, lse_ZUQ1, k_ZUJC, v_ZUJC = _blocks(
        q_BTHC * scale,
        d_out_BTHC,
        mean_BTH[..., None],
        lse_BTH[..., None],
        k_BTKC,
        v_BTKC,
        block=block,
    )
    queries = _Queries(q_ZUQC, d_out_ZUQC, mean_ZUQ1, lse_ZUQ1)
    U = k_ZUJC.shape[1]
    oldest_BU, newest_BU = query_blocks(first_BT, block, block)

    def one_head(z):
        def one_block(j, carry):
            dq_UQC, dk_UJC, dv_UJC = carry
            k_JC, v_JC = k_ZUJC[z, j], v_ZUJC[z, j]

            def visit(u, carry):
                dq_UQC, dk_JC, dv_JC = carry
                shape = q_ZUQC.shape[2], block
                seen_QJ = _seen(first_BT, z // K, u, j, shape)
                of_block = _Queries(*(x[z, u] for x in queries))
                dq_QC, more_dk_JC, more_dv_JC = _gradients(
                    of_block, k_JC, v_JC, seen_QJ, softcap
                )
                return dq_UQC.at[u].add(dq_QC), dk_JC + more_dk_JC, dv_JC + more_dv_JC

            zeros = (jnp.zeros_like(x, jnp.float32) for x in (k_JC, v_JC))
            dq_UQC, dk_JC, dv_JC = jax.lax.fori_loop(
                oldest_BU[z // K, j], newest_BU[z // K, j] + 1, visit, (dq_UQC, *zeros)
            )
            dk_UJC = dk_UJC.at[j].set(dk_JC.astype(dk_UJC.dtype))
            dv_UJC = dv_UJC.at[j].set(dv_JC.astype(dv_UJC.dtype))
            return dq_UQC, dk_UJC, dv_UJC

        zero_UQC = jnp.zeros_like(q_ZUQC[0], jnp.float32)
        begin = zero_UQC, jnp.zeros_like(k_ZUJC[0]), jnp.zeros_like(v_ZUJC[0])
        dq_UQC, dk_UJC, dv_UJC = jax.lax.fori_loop(0, U, one_block, begin)
        return (dq_UQC * scale).astype(q_BTHC.dtype), dk_UJC, dv_UJC

    grads = jax.lax.map(one_head, jnp.arange(B * K, dtype=jnp.int32))
    dq_BTHC, dk_BTKC, dv_BTKC = (_rows(x, B, T, block) for x in grads)
    return dq_BTHC, dk_BTKC, dv_BTKC


def _block(T):
    return BLOCK if T < _LARGE_FROM else _LARGE_BLOCK


def _gradients(queries, k_JC, v_JC, seen_QJ, softcap):
    """One block of queries against one of keys: d_q (of scaled queries), d_k, d_v."""
    q_QC, d_out_QC, mean_Q1, lse_Q1 = queries
    score_QJ, slope_QJ = _scores(q_QC, k_JC, softcap)
    weight_QJ = jnp.where(seen_QJ, jnp.exp(score_QJ - lse_Q1), 0)
    dv_JC = _dot("QJ,QC->JC", weight_QJ.astype(d_out_QC.dtype), d_out_QC)
    d_weight_QJ = _dot("QC,JC->QJ", d_out_QC, v_JC)
    d_score_QJ = weight_QJ * (d_weight_QJ - mean_Q1)
    if slope_QJ is not None:
        d_score_QJ *= slope_QJ
    d_score_QJ = d_score_QJ.astype(q_QC.dtype)
    dk_JC = _dot("QJ,QC->JC", d_score_QJ, q_QC)
    return _dot("QJ,JC->QC", d_score_QJ, k_JC), dk_JC, dv_JC


def _scores(q_QC, k_JC, softcap):
    """Scores of scaled queries, and their slope where they are capped."""
    score_QJ = _dot("QC,JC->QJ", q_QC, k_JC)
    if not softcap:
        return score_QJ, None
    part_QJ = jnp.tanh(score_QJ / softcap)
    return softcap * part_QJ, 1 - part_QJ * part_QJ


def _seen(first_BT, b, u, j, shape):
    """Whether the queries of block u see the keys of block j, in row b; `shape` QJ."""
    num_queries, block = shape
    first_J = jax.lax.dynamic_slice(first_BT, (b, u * block), (1, block))[0]
    at_J = jnp.arange(block, dtype=jnp.int32)
    first_Q = jnp.tile(first_J, num_queries // block)
    query_Q = jnp.tile(u * block + at_J, num_queries // block)
    key_J = j * block + at_J
    return (first_Q[:, None] <= key_J) & (key_J <= query_Q[:, None])


def _dot(letters, x, y):
    return jnp.einsum(letters, x, y, preferred_element_type=jnp.float32)


def _to_whole_blocks(first_BT, block):
    """A query that is added beyond the row's end sees itself alone."""
    B, T = first_BT.shape
    added_T = jnp.arange(T, T + -T % block, dtype=jnp.int32)
    added_BT = jnp.broadcast_to(added_T, (B, added_T.size))
    return jnp.concatenate([first_BT, added_BT], axis=1)


def _blocks(*arrays_BTHC, block):
    """Each [B, T, H, C] as [Z, U, Q, C]; zeros are added beyond the row's end.

    The last of them are keys and values, whose H is K.
    """
    K = arrays_BTHC[-1].shape[2]
    for x_BTHC in arrays_BTHC:
        B, T, H, C = x_BTHC.shape
        x_BTHC = jnp.pad(x_BTHC, ((0, 0), (0, -T % block), (0, 0), (0, 0)))
        x = x_BTHC.reshape(B, -1, block, K, H // K, C).transpose(0, 3, 1, 4, 2, 5)
        yield x.reshape(B * K, -1, H // K * block, C)


def _rows(x_ZUQC, B, T, block):
    """The inverse of `_blocks`."""
    Z, U, Q, C = x_ZUQC.shape
    x = x_ZUQC.reshape(B, Z // B, U, Q // block, block, C).transpose(0, 2, 4, 1, 3, 5)
    return x.reshape(B, U * block, -1, C)[:, :T]
