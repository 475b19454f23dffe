"""Attention in plain JAX: packed causal rows, and one new token against a cache.

Rows of at most one block are dense, [T, T] scores and all; longer ones go block by
block (`blockwise`).

Legend: B rows, T/S positions of queries/keys, H = K * R query heads, K key/value
heads, C channels of a head, W decode slots; of a paged cache, M pages of S positions, J
of a slot.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from . import blockwise
from .scoring import Scoring
from .spans import first_seen

# Stands for minus infinity in a mask: finite, so that a row with no visible key gives
# a uniform softmax rather than NaN (such rows are padding and never read).
_HIDDEN = -1e30


def forward(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segment_BT: jax.Array,
    window: jax.Array | None,
    *,
    scoring: Scoring,
    residuals: bool,
):
    """out_BTHC, or with `residuals` (out_BTHC, lse_BHT), of `packed_attention`.

    Args:
        window: the window where it is data; None: `scoring.window`.
    """
    width = scoring.window if window is None else window
    options: Any = {"scale": scoring.scale, "softcap": scoring.softcap}
    if q_BTHC.shape[1] > blockwise.BLOCK:
        first_BT = first_seen(segment_BT, width)
        out, lse = blockwise.forward(q_BTHC, k_BTKC, v_BTKC, first_BT, **options)
    else:
        out = dense(q_BTHC, k_BTKC, v_BTKC, segment_BT, width, **options)
        # A stand-in: the gradient of the dense form has no use for it.
        lse = jnp.zeros_like(q_BTHC[..., 0], jnp.float32).swapaxes(1, 2)
    return (out, lse) if residuals else out


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
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """(d_q, d_k, d_v) of `packed_attention`, from what `forward` took and gave."""
    width = scoring.window if window is None else window
    options: Any = {"scale": scoring.scale, "softcap": scoring.softcap}
    if q_BTHC.shape[1] > blockwise.BLOCK:
        first_BT = first_seen(segment_BT, width)
        kept = q_BTHC, k_BTKC, v_BTKC, first_BT, out_BTHC, lse_BHT
        return blockwise.backward(*kept, d_out_BTHC, **options)
    # Without the barrier the compiler would see that the forward pass has made these
    # scores already, and keep them.
    qkv = jax.lax.optimization_barrier((q_BTHC, k_BTKC, v_BTKC))
    again = functools.partial(dense, segment_BT=segment_BT, window=width, **options)
    return jax.vjp(again, *qkv)[1](d_out_BTHC)


def dense(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segment_BT: jax.Array,
    window: jax.Array | int | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
) -> jax.Array:
    """`packed_attention` with [T, T] scores of every head."""
    B, T, H, C = q_BTHC.shape
    K = k_BTKC.shape[2]
    q_BTKRC = q_BTHC.reshape(B, T, K, H // K, C) * scale
    score_BKRTS = jnp.einsum(
        "BTKRC,BSKC->BKRTS", q_BTKRC, k_BTKC, preferred_element_type=jnp.float32
    )
    seen_BTS = segment_BT[:, :, None] == segment_BT[:, None, :]
    ago_TS = jnp.arange(T)[:, None] - jnp.arange(T)[None, :]
    seen_BTS &= ago_TS >= 0
    if window is not None:
        seen_BTS &= ago_TS < window
    score_BKRTS = _capped(score_BKRTS, softcap)
    score_BKRTS = jnp.where(seen_BTS[:, None, None], score_BKRTS, _HIDDEN)
    weight_BKRTS = jax.nn.softmax(score_BKRTS, axis=-1).astype(v_BTKC.dtype)
    out_BTKRC = jnp.einsum("BKRTS,BSKC->BTKRC", weight_BKRTS, v_BTKC)
    return out_BTKRC.reshape(B, T, H, C)


def cache_attention(
    q_WHC: jax.Array,
    k_WKSC: jax.Array,
    v_WKSC: jax.Array,
    position_W: jax.Array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float = 0.0,
) -> jax.Array:
    """Attention of one new token a slot over its cache, up to and with its position.

    Args:
        q_WHC: queries.
        k_WKSC, v_WKSC: cache, S positions a slot; the new token is already written.
        position_W: int32 index of the new token.
        scale, window, softcap: as in `packed_attention`.

    Returns:
        out_WHC in the dtype of `q_WHC`; scores and softmax are float32.
    """
    W, H, C = q_WHC.shape
    K, S = k_WKSC.shape[1:3]
    q_WKRC = q_WHC.reshape(W, K, H // K, C) * scale
    score_WKRS = jnp.einsum(
        "WKRC,WKSC->WKRS", q_WKRC, k_WKSC, preferred_element_type=jnp.float32
    )
    ago_WS = position_W[:, None] - jnp.arange(S)[None, :]
    seen_WS = ago_WS >= 0
    if window is not None:
        seen_WS &= ago_WS < window
    score_WKRS = _capped(score_WKRS, softcap)
    score_WKRS = jnp.where(seen_WS[:, None, None], score_WKRS, _HIDDEN)
    weight_WKRS = jax.nn.softmax(score_WKRS, axis=-1).astype(v_WKSC.dtype)
    return jnp.einsum("WKRS,WKSC->WKRC", weight_WKRS, v_WKSC).reshape(W, H, C)


def paged(
    q_WHC: jax.Array,
    k_pages_KMSC: jax.Array,
    v_pages_KMSC: jax.Array,
    page_WJ: jax.Array,
    length_W: jax.Array,
    *,
    scoring: Scoring,
) -> jax.Array:
    """`paged_attention` over each slot's pages, gathered; one slot after another.

    A slot at a time, and of its pages only those that hold something it sees: pages of
    all slots at once would be a second cache.
    """
    W, H, C = q_WHC.shape
    K, _, S, _ = k_pages_KMSC.shape
    q_WKRC = q_WHC.reshape(W, K, H // K, C) * scoring.scale
    reach = 2**30 if scoring.window is None else scoring.window

    def one_slot(slot):
        q_KRC, page_J, length = slot
        oldest = jnp.maximum(length - reach, 0)

        def visit(j, carry):
            top_KR, sum_KR, out_KRC = carry
            k_KSC, v_KSC = (x[:, page_J[j]] for x in (k_pages_KMSC, v_pages_KMSC))
            score_KRS = _dot("KRC,KSC->KRS", q_KRC, k_KSC)
            at_S = j * S + jnp.arange(S)
            seen_S = (oldest <= at_S) & (at_S < length)
            score_KRS = jnp.where(seen_S, _capped(score_KRS, scoring.softcap), _HIDDEN)
            # What has not been written may be anything, and 0 * NaN is NaN.
            v_KSC = jnp.where(seen_S[:, None], v_KSC, 0)
            new_KR = jnp.maximum(top_KR, score_KRS.max(-1))
            weight_KRS = jnp.exp(score_KRS - new_KR[..., None])
            keep_KR = jnp.exp(top_KR - new_KR)
            sum_KR = sum_KR * keep_KR + weight_KRS.sum(-1)
            added_KRC = _dot("KRS,KSC->KRC", weight_KRS.astype(v_KSC.dtype), v_KSC)
            return new_KR, sum_KR, out_KRC * keep_KR[..., None] + added_KRC

        zero_KRC = jnp.zeros_like(q_KRC, jnp.float32)
        begin = zero_KRC[..., 0] + _HIDDEN, zero_KRC[..., 0], zero_KRC
        _, sum_KR, out_KRC = jax.lax.fori_loop(
            oldest // S, (length + S - 1) // S, visit, begin
        )
        return out_KRC / jnp.where(length > 0, sum_KR, 1)[..., None]

    out_WKRC = jax.lax.map(one_slot, (q_WKRC, page_WJ, length_W))
    return out_WKRC.reshape(W, H, C).astype(q_WHC.dtype)


def _capped(score, softcap):
    return softcap * jnp.tanh(score / softcap) if softcap else score


def _dot(letters, x, y):
    return jnp.einsum(letters, x, y, preferred_element_type=jnp.float32)
