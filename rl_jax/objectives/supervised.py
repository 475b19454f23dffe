"""Losses on tokens that somebody else chose.

B counts packed rows: one row may hold several sequences, end to end.
"""

import jax
import jax.numpy as jnp


def cross_entropy(
    logp_BT: jax.Array, mask_BT: jax.Array, weight_BT: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Cross-entropy of the target tokens: -sum(weight * logp) where the mask is 1.

    The weights decide the average (see `aggregate.token_weights`): 1 / (masked tokens
    of the whole optimiser step) gives the token mean, in any split into micro-batches.

    Args:
        logp_BT: log-probabilities of the target tokens, nats; summed in float32 if
            narrower. The first token of each packed sequence has no prediction: its
            mask must be 0.
        mask_BT: bool, or 1 where a token counts. Nothing is read where it is 0: nan
            and -inf there change neither the value nor the gradient.
        weight_BT: the weight of each token.

    Returns:
        The loss, a scalar, and metrics that add up over micro-batches:
        "cross_entropy" (the loss itself) and "num_tokens" (masked tokens here).
        Without masked tokens all are 0.
    """
    keep_BT = mask_BT != 0
    logp_BT = logp_BT.astype(jnp.promote_types(logp_BT.dtype, jnp.float32))
    logp_BT = jnp.where(keep_BT, logp_BT, 0.0)
    weight_BT = jnp.where(keep_BT, weight_BT.astype(logp_BT.dtype), 0.0)
    loss = -jnp.sum(weight_BT * logp_BT)
    metrics = {
        "cross_entropy": jax.lax.stop_gradient(loss),
        "num_tokens": jnp.sum(keep_BT).astype(loss.dtype),
    }
    return loss, metrics
