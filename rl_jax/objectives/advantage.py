"""Advantages of samples that answer the same prompt, without a critic.

Here N counts samples (completions), not tokens. Groups are given as ids, so they
may be ragged, in any order, or empty. Sums over ids need every sample at hand: under an
explicit mesh, pass these short arrays replicated.
"""

import jax
import jax.numpy as jnp

SCALES = ("group_std", "group_mean", "batch_std")


def group_varies(
    reward_N: jax.Array, group_N: jax.Array, valid_N: jax.Array, *, num_groups: int
) -> jax.Array:
    """Says which samples are valid and belong to a group whose rewards differ.

    The others can teach nothing: their advantage is zero. Compares the largest with
    the smallest reward of a group, since a standard deviation of equal rewards is
    not exactly zero in floating point.

    Args: as `group_advantage`.

    Returns:
        bool_N; False for invalid samples.

    Source: DAPO, arXiv:2503.14476, section 3.2 (dynamic sampling).
    """
    valid_N = valid_N != 0
    group_N = jnp.where(valid_N, group_N, 0)
    reward_N = reward_N.astype(jnp.promote_types(reward_N.dtype, jnp.float32))
    low_N = jax.ops.segment_min(
        jnp.where(valid_N, reward_N, jnp.inf), group_N, num_groups
    )[group_N]
    high_N = jax.ops.segment_max(
        jnp.where(valid_N, reward_N, -jnp.inf), group_N, num_groups
    )[group_N]
    return valid_N & (high_N > low_N)


def group_advantage(
    reward_N: jax.Array,
    group_N: jax.Array,
    valid_N: jax.Array,
    *,
    num_groups: int,
    scale: str,
    eps: float = 1e-6,
) -> jax.Array:
    """Centres each reward on the mean of its group, then divides by a spread.

        centred[n] = reward[n] - mean(reward of the valid samples of n's group)

        "group_mean"  adv = centred
        "group_std"   adv = centred / (std(n's group) + eps)
        "batch_std"   adv = centred / (sqrt(mean over valid samples centred^2) + eps)

    Standard deviations are population ones (ddof=0). A group whose rewards agree, a
    group of one and an empty group get exactly 0. In "batch_std" every valid sample
    counts in the spread, also those of a group that agrees: a caller that drops such
    groups, as ScaleRL does, says so in `valid_N` (see `group_varies`).

    Args:
        reward_N: rewards, any range; computed in float32 if narrower. What stands at
            an invalid sample (nan, say) is never read.
        group_N: integer group id in [0, num_groups), the same for samples of one
            prompt; not read where the sample is invalid.
        valid_N: bool, or 1 where the sample has a reward. An invalid sample counts in
            no mean and gets 0.
        num_groups: a static bound on the ids; may exceed the number of groups.
        scale: one of the names above.
        eps: in reward units, added to the spread (not a floor). It matters only
            where rewards nearly agree.

    Returns:
        adv_N, at least float32, with mean zero over the valid samples of a group.

    Raises:
        ValueError: if `scale` is unknown or `eps` is not positive.

    Source: GRPO, arXiv:2402.03300, section 4.1 ("group_std"; it leaves the ddof
    open); Dr. GRPO, arXiv:2503.20783 ("group_mean"); ScaleRL, arXiv:2510.13786
    ("batch_std").
    """
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}: expected one of {SCALES}")
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps}")
    valid_N = valid_N != 0
    varies_N = group_varies(reward_N, group_N, valid_N, num_groups=num_groups)
    reward_N = reward_N.astype(jnp.promote_types(reward_N.dtype, jnp.float32))
    reward_N = jnp.where(valid_N, reward_N, 0.0)
    group_N = jnp.where(valid_N, group_N, 0)
    ones_N = valid_N.astype(reward_N.dtype)

    def group_mean(x_N: jax.Array) -> jax.Array:
        """The mean over each sample's group, given back to the sample."""
        total = jax.ops.segment_sum(x_N, group_N, num_groups)
        count = jax.ops.segment_sum(ones_N, group_N, num_groups)
        return (total / jnp.maximum(count, 1))[group_N]

    # Where rewards agree, rounding of the mean would leave a residue of about 1e-8,
    # which a division by a spread just as small could turn into a large advantage.
    centred_N = jnp.where(varies_N, reward_N - group_mean(reward_N), 0.0)
    if scale == "group_mean":
        return centred_N
    if scale == "group_std":
        std_N = jnp.sqrt(group_mean(jnp.square(centred_N)))
        return centred_N / (std_N + eps)
    # The mean of centred_N is zero, group by group: its mean square is its variance.
    square = jnp.sum(jnp.square(centred_N)) / jnp.maximum(jnp.sum(ones_N), 1)
    return centred_N / (jnp.sqrt(square) + eps)
