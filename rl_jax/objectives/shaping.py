"""Changes to a reward that depend on how a sample was written, not on its answer.

Here N counts samples (completions), not tokens.
"""

import jax
import jax.numpy as jnp


def soft_overlong_penalty(
    length_N: jax.Array, *, max_tokens: int, buffer: float
) -> jax.Array:
    """A penalty that grows over the last `buffer` tokens of the budget.

        0                                        if length <= max_tokens - buffer
        (max_tokens - buffer - length) / buffer  up to max_tokens
        -1                                       beyond

    Args:
        length_N: completion lengths in tokens (not characters), counting the
            end-of-sequence token.
        max_tokens: the generation budget, tokens.
        buffer: tokens, in [0, max_tokens]; 0 turns the penalty off. A recipe gives a
            fraction of the budget: multiply first.

    Returns:
        penalty_N in [-1, 0], at least float32, to be added to the reward.

    Raises:
        ValueError: if `buffer` lies outside [0, max_tokens].

    Source: DAPO, arXiv:2503.14476, section 3.4, equation 13; there max_tokens is
    20480, buffer 4096 and the reward +1 or -1.
    """
    if not 0 <= buffer <= max_tokens:
        raise ValueError(
            f"buffer must lie in [0, max_tokens={max_tokens}] tokens, got {buffer}"
        )
    length_N = length_N.astype(jnp.promote_types(length_N.dtype, jnp.float32))
    if buffer == 0:
        return jnp.zeros_like(length_N)
    return jnp.clip((max_tokens - buffer - length_N) / buffer, -1.0, 0.0)
