"""Drawing one token a row from logits."""

import jax
import jax.numpy as jnp


def draw(
    logits_WV: jax.Array,
    key_data_W2: jax.Array,
    temperature_W: jax.Array,
    *,
    top_k: int = 0,
    top_p: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """Draws a token from each row, and says how likely it was.

    Each row has a key of its own, so that a draw does not depend on its neighbours.

    Args:
        logits_WV: float32.
        key_data_W2: uint32 key data of each row's draw.
        temperature_W: float32; 0 takes the likeliest token.
        top_k: keep only the k likeliest tokens; 0 keeps all.
        top_p: keep the smallest set of likeliest tokens whose mass reaches it (the
            token that crosses it is kept).

    Returns:
        (token_W int32, logp_W float32). `logp` is taken from the same float32
        logits over temperature (over 1 where temperature is 0), before top-k and
        top-p: it is what the trainer recomputes.
    """
    greedy_W = temperature_W == 0
    z_WV = logits_WV / jnp.where(greedy_W, 1.0, temperature_W)[:, None]
    allowed_WV = truncate(z_WV, top_k=top_k, top_p=top_p)

    def one(key_data_2, allowed_V):
        noise_V = jax.random.gumbel(
            jax.random.wrap_key_data(key_data_2), allowed_V.shape, jnp.float32
        )
        return jnp.argmax(allowed_V + noise_V)

    drawn_W = jax.vmap(one)(key_data_W2, allowed_WV)
    token_W = jnp.where(greedy_W, jnp.argmax(z_WV, axis=-1), drawn_W).astype(jnp.int32)
    z_token_W = jnp.take_along_axis(z_WV, token_W[:, None], axis=-1)[:, 0]
    return token_W, z_token_W - jax.nn.logsumexp(z_WV, axis=-1)


def truncate(z_WV: jax.Array, *, top_k: int, top_p: float) -> jax.Array:
    """Logits with minus infinity outside the kept set; see `draw`."""
    if top_k <= 0 and top_p >= 1:
        return z_WV
    V = z_WV.shape[-1]
    sorted_WV = jnp.sort(z_WV, axis=-1, descending=True)
    floor_W = jnp.full(z_WV.shape[:1], -jnp.inf)
    if 0 < top_k < V:
        floor_W = jnp.maximum(floor_W, sorted_WV[:, top_k - 1])
        sorted_WV = jnp.where(jnp.arange(V) < top_k, sorted_WV, -jnp.inf)
    if top_p < 1:
        p_WV = jax.nn.softmax(sorted_WV, axis=-1)
        before_WV = jnp.cumsum(p_WV, axis=-1) - p_WV
        kept_WV = jnp.where(before_WV < top_p, sorted_WV, jnp.inf)
        floor_W = jnp.maximum(floor_W, kept_WV.min(axis=-1))
    return jnp.where(z_WV >= floor_W[:, None], z_WV, -jnp.inf)
