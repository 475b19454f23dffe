"""Which keys a query of a packed row sees: every position of one span.

The positions of a sample adjoin, so the keys that query t sees are those from first[t]
to t, and first never falls along a row. One int32 a position stands for the causal
mask, the segments and the window at once, and says which blocks can be left out.

Legend: B rows, T positions, U blocks of a row.
"""

import jax
import jax.numpy as jnp


def first_seen(segment_BT: jax.Array, window: jax.Array | int | None) -> jax.Array:
    """Oldest position that each query sees, int32 [B, T].

    Args:
        segment_BT: int32, equal along the adjoining positions of a sample; 0 is
            padding, whose queries see themselves alone: finite, and next to no work.
        window: newest positions seen, the query's own among them; None: all.
    """
    at_T = jnp.arange(segment_BT.shape[1], dtype=jnp.int32)
    begins_BT = segment_BT != jnp.roll(segment_BT, 1, axis=1)
    begins_BT |= at_T == 0
    first_BT = jax.lax.cummax(jnp.where(begins_BT, at_T, 0), axis=1)
    if window is not None:
        first_BT = jnp.maximum(first_BT, at_T - (window - 1))
    return jnp.where(segment_BT == 0, at_T, first_BT)


def key_blocks(
    first_BT: jax.Array, query_block: int, key_block: int
) -> tuple[jax.Array, jax.Array]:
    """(first, last) block of keys that each block of queries sees, int32 [B, U]."""
    T = first_BT.shape[1]
    first_BU = first_BT[:, ::query_block] // key_block
    newest_U = jnp.arange(query_block - 1, T + query_block - 1, query_block)
    last_U = jnp.minimum(newest_U, T - 1).astype(jnp.int32) // key_block
    return first_BU, jnp.broadcast_to(last_U, first_BU.shape)


def query_blocks(
    first_BT: jax.Array, query_block: int, key_block: int
) -> tuple[jax.Array, jax.Array]:
    """(first, last) block of queries that sees each block of keys, int32 [B, U]."""
    oldest_U = jnp.arange(0, first_BT.shape[1], key_block, dtype=jnp.int32)
    newest_U = oldest_U + (key_block - 1)
    # `first` never falls along a row: the queries that do not begin after a key.
    count_BU = (first_BT[:, None, :] <= newest_U[None, :, None]).sum(
        -1, dtype=jnp.int32
    )
    first_BU = jnp.broadcast_to(oldest_U // query_block, count_BU.shape)
    return first_BU, (count_BU - 1) // query_block
