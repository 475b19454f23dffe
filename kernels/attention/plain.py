"""Attention in plain JAX: packed causal rows, and one new token against a cache.

Sizes are local inside `jax.shard_map`: rows and heads are divided, nothing is summed
across devices.

Legend: B rows, T/S positions of queries/keys, H = K * R query heads, K key/value
heads, C channels of a head, W decode slots.
"""

import jax
import jax.numpy as jnp

# Stands for minus infinity in a mask: finite, so that a row with no visible key gives
# a uniform softmax rather than NaN (such rows are padding and never read).
_HIDDEN = -1e30


def packed_attention(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segment_BT: jax.Array,
    window: jax.Array | int | None = None,
    *,
    scale: float,
    softcap: float = 0.0,
) -> jax.Array:
    """Causal attention within each segment of packed rows.

    Args:
        q_BTHC, k_BTKC, v_BTKC: queries, keys, values; H a multiple of K.
        segment_BT: int32 id of the sample at each position; 0 is padding.
        window: newest positions seen, the query's own among them; None: all.
        scale: times the scores, usually C ** -0.5.
        softcap: scores become softcap * tanh(score / softcap); 0: left as they are.

    Returns:
        out_BTHC in the dtype of `q_BTHC`; scores and softmax are float32.
    """
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


def _capped(score, softcap):
    return softcap * jnp.tanh(score / softcap) if softcap else score
