"""Changes to a reward that depend on how long a sample is, not on its answer alone.

What looks at the text of one sample is a reward function (rewards/shaping.py); here are
formulas over a whole batch of lengths. N counts samples (completions), not tokens.
"""

import jax
import jax.numpy as jnp

OVERLONG = ("dapo", "openrlhf", "verl")


def soft_overlong_penalty(
    length_N: jax.Array,
    *,
    max_tokens: int,
    buffer: float,
    factor: float = 1.0,
    definition: str = "dapo",
) -> jax.Array:
    """A penalty that grows over the last `buffer` tokens of the budget.

        slope = (max_tokens - buffer - length) / buffer

        "dapo"      0 if slope > 0, slope up to max_tokens, -1 beyond
        "openrlhf"  factor * the same
        "verl"      factor * min(slope, 0): goes on falling beyond max_tokens

    The three agree for factor 1 as long as no sample is longer than the budget.

    Args:
        length_N: completion lengths in tokens (not characters), counting the
            end-of-sequence token.
        max_tokens: the generation budget, tokens.
        buffer: tokens, in [0, max_tokens]; 0 turns the penalty off. A recipe gives a
            fraction of the budget: multiply first.
        factor: what a sample of max_tokens loses, in reward units.
        definition: one of the names above.

    Returns:
        penalty_N, at most 0, at least float32, to be added to the reward.

    Raises:
        ValueError: if `buffer` lies outside [0, max_tokens], `definition` is unknown,
            or "dapo" is to have another factor than 1.

    Source: DAPO, arXiv:2503.14476, section 3.4, equation 13; there max_tokens is
    20480, buffer 4096 and the reward +1 or -1. TRL has the same. OpenRLHF's
    apply_overlong_penalty and verl's DAPO reward manager have the factor.
    """
    if definition not in OVERLONG:
        raise ValueError(
            f"definition must be one of {', '.join(OVERLONG)}, got {definition!r}"
        )
    if definition == "dapo" and factor != 1.0:
        raise ValueError(
            f"the definition 'dapo' has no factor, got {factor}; take 'openrlhf'"
        )
    if not 0 <= buffer <= max_tokens:
        raise ValueError(
            f"buffer must lie in [0, max_tokens={max_tokens}] tokens, got {buffer}"
        )
    length_N = length_N.astype(jnp.promote_types(length_N.dtype, jnp.float32))
    if buffer == 0:
        return jnp.zeros_like(length_N)
    lowest = -jnp.inf if definition == "verl" else -1.0
    return factor * jnp.clip((max_tokens - buffer - length_N) / buffer, lowest, 0.0)


def group_length_reward(
    length_N: jax.Array,
    correct_N: jax.Array,
    group_N: jax.Array,
    valid_N: jax.Array,
    *,
    num_groups: int,
) -> jax.Array:
    """Rewards the short among the answers to one prompt, and wrong ones at most 0.

        lam[n] = 0.5 - (length[n] - min) / (max - min)    over the group of n

        lam        if the answer is correct
        min(0, lam)  if it is wrong
        0          if all of the group are of one length

    A recipe multiplies it by a weight, and switches it on only after some steps of
    training without.

    Args:
        length_N: completion lengths in tokens.
        correct_N: bool, or 1 where the answer is right.
        group_N: integer group id in [0, num_groups), the same for samples of one
            prompt; not read where the sample is invalid.
        valid_N: bool, or 1 where the sample counts. An invalid one gets 0 and bounds
            no group.
        num_groups: a static bound on the ids.

    Returns:
        reward_N in [-0.5, 0.5], float32, to be added to the reward.

    Source: Kimi k1.5, arXiv:2501.12599, section 2.3.3.
    """
    valid_N = valid_N != 0
    group_N = jnp.where(valid_N, group_N, 0)
    length_N = length_N.astype(jnp.float32)
    low_N = jax.ops.segment_min(
        jnp.where(valid_N, length_N, jnp.inf), group_N, num_groups
    )[group_N]
    high_N = jax.ops.segment_max(
        jnp.where(valid_N, length_N, -jnp.inf), group_N, num_groups
    )[group_N]
    varies_N = valid_N & (high_N > low_N)
    # The difference of a group that agrees is replaced before it divides.
    span_N = jnp.where(varies_N, high_N - low_N, 1.0)
    lam_N = 0.5 - jnp.where(varies_N, length_N - low_N, 0.5) / span_N
    return jnp.where(correct_N != 0, lam_N, jnp.minimum(0.0, lam_N))
