"""Tokens that count, moved to the front: the rest then fill whole tiles.

Legend: N tokens.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Live(NamedTuple):
    """How tokens are moved; without a mask they stay, and all of them count.

    Attributes:
        num: int32 scalar, tokens that count.
        mask_N: bool, or None.
        order_N: which token comes first, second, ...; those that count lead, in their
            order.
        place_N: where each token has gone.
    """

    num: jax.Array
    mask_N: jax.Array | None = None
    order_N: jax.Array | None = None
    place_N: jax.Array | None = None


def live_tokens(mask_N: jax.Array | None, N: int) -> Live:
    """From a mask of any dtype; 0 does not count."""
    if mask_N is None:
        return Live(jnp.int32(N))
    mask_N = mask_N != 0
    num = mask_N.sum(dtype=jnp.int32)
    before_N = jnp.cumsum(mask_N, dtype=jnp.int32) - 1
    beyond_N = num + jnp.cumsum(~mask_N, dtype=jnp.int32) - 1
    order_N = jnp.argsort(~mask_N, stable=True)
    return Live(num, mask_N, order_N, jnp.where(mask_N, before_N, beyond_N))


def front(live: Live, x: jax.Array) -> jax.Array:
    """[N, ...] with the tokens that count first, and zeros (never NaN) after them."""
    if live.order_N is None:
        return x
    counts_N = jnp.arange(x.shape[0]) < live.num
    return _where(counts_N, _taken(x, live.order_N))


def back(live: Live, x: jax.Array) -> jax.Array:
    """[N, ...] in the tokens' own order again, zeros where they do not count."""
    if live.place_N is None:
        return x
    return _where(live.mask_N, _taken(x, live.place_N))


def _taken(x, index_N):
    return jnp.asarray(x).at[index_N].get(mode="promise_in_bounds")


def _where(mask_N, x):
    return jnp.where(mask_N.reshape(-1, *[1] * (x.ndim - 1)), x, 0)
