"""What samples and tokens were worth: group advantages, and returns with a critic.

The formulas are in rl_jax/kernels/advantage; here are the papers' names for them.

    method                 centre           scale
    GRPO                   "group_mean"     "group_std"
    GRPO of verl, NeMo-RL  "group_mean"     "group_sample_std"
    Dr. GRPO               "group_mean"     "none"
    RLOO                   "leave_one_out"  "none"
    ScaleRL                "group_mean"     "varying_std"
    REINFORCE++            "batch_mean"     "batch_std", of whole samples: for
                                            statistics of tokens see returns.py
    REINFORCE++-baseline   "group_mean"     "batch_std"

No mesh is known here. Under an explicit mesh, call these inside `jax.shard_map`: with
arrays of N samples replicated, and arrays of [B, T] divided over rows if at all.

Legend: N samples, B packed rows, T positions of a row.
"""

import jax

from rl_jax.kernels import advantage as kernel  # pyright: ignore[reportMissingImports]

# Earlier names, for callers that know no centre: "group_mean" is no division, and
# "batch_std" is over all that is valid.
SCALES = ("group_std", "group_mean", "batch_std")


def group_varies(
    reward_N: jax.Array, group_N: jax.Array, valid_N: jax.Array, *, num_groups: int
) -> jax.Array:
    """Says which samples are valid and belong to a group whose rewards differ.

    The others can teach nothing: their advantage is zero.

    Args: as `group_advantage`.

    Returns:
        bool_N; False for invalid samples.

    Source: DAPO, arXiv:2503.14476, section 3.2 (dynamic sampling).
    """
    return kernel.group_varies(reward_N, group_N, valid_N, num_groups=num_groups)


def group_advantage(
    reward_N: jax.Array,
    group_N: jax.Array,
    valid_N: jax.Array,
    *,
    num_groups: int,
    scale: str,
    centre: str = "group_mean",
    eps: float = 1e-6,
) -> jax.Array:
    """Takes a baseline from each reward, then divides by a spread.

        adv[n] = (reward[n] - baseline[n]) / (spread[n] + eps)

    Groups are given as ids: they may be ragged, in any order, or empty. A group whose
    rewards agree, a group of one and an invalid sample get exactly 0; with a baseline
    or a spread of the whole batch it is the batch that has to agree.

    Args:
        reward_N: rewards, any range; computed in float32 if narrower. What stands at
            an invalid sample (nan, say) is never read.
        group_N: integer group id in [0, num_groups), the same for samples of one
            prompt; not read where the sample is invalid.
        valid_N: bool, or 1 where the sample has a reward. An invalid sample counts in
            no mean and gets 0.
        num_groups: a static bound on the ids; may exceed the number of groups.
        scale: "group_std", "group_sample_std", "batch_std", "batch_sample_std",
            "varying_std" or "none"; and "group_mean", which is "none".
        centre: "group_mean", "leave_one_out", "batch_mean" or "none".
        eps: in reward units, added to the spread (not a floor). It matters only
            where rewards nearly agree.

    Returns:
        adv_N, at least float32; no gradient flows through it.

    Raises:
        ValueError: if a name is unknown or `eps` is not positive.

    Source: GRPO, arXiv:2402.03300, section 4.1 (it leaves open what the deviation is
    divided by); Dr. GRPO, arXiv:2503.20783; RLOO, arXiv:2402.14740, section 3.3;
    ScaleRL, arXiv:2510.13786, which drops groups that agree; REINFORCE++,
    arXiv:2501.03262.
    """
    return kernel.group_advantage(
        *(reward_N, group_N, valid_N),
        num_groups=num_groups,
        centre=centre,
        scale="none" if scale == "group_mean" else scale,
        eps=eps,
    )


def gae(
    reward_BT: jax.Array,
    value_BT: jax.Array,
    segment_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    gamma: float = 1.0,
    lam: float = 0.95,
    bootstrap_BT: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimates, and targets of the critic, of packed rows.

        delta[t]  = reward[t] + gamma * value[next] - value[t]
        adv[t]    = delta[t] + gamma * lam * adv[next]
        return[t] = adv[t] + value[t]

    next is the next token of the sample whose mask is 1: the output of a tool neither
    discounts nor adds. After the last one value[next] is the bootstrap and adv[next] 0.

    Args:
        reward_BT: reward of each token, see returns.py. Not read where the mask is 0.
        value_BT: the critic's value of the state in which the token was chosen; the
            same.
        segment_BT: integers, equal along the run of positions of one sample.
        mask_BT: bool, or 1 for tokens that the policy chose.
        gamma: in [0, 1].
        lam: in [0, 1]; 1 is the return less the value, 0 is delta. 0.95 is Tulu 3's.
        bootstrap_BT: read at the last position of each segment, whatever its mask: the
            value of the state after it, for a sample that was cut off. None: 0 for
            all, as an outcome reward already speaks of the whole answer.

    Returns:
        (adv_BT, return_BT), at least float32, both 0 where the mask is 0; no gradient
        flows through them.

    Raises:
        ValueError: if shapes differ, or a number is outside [0, 1].

    Source: arXiv:1506.02438, equation 16; InstructGPT, arXiv:2203.02155, for gamma.
    """
    return kernel.gae(
        *(reward_BT, value_BT, segment_BT, mask_BT),
        gamma=gamma,
        lam=lam,
        bootstrap_BT=bootstrap_BT,
    )


def discounted_returns(
    reward_BT: jax.Array,
    segment_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    gamma: float = 1.0,
    bootstrap_BT: jax.Array | None = None,
) -> jax.Array:
    """Discounted sums of the rewards from each token to the end of its sample.

        return[t] = reward[t] + gamma * return[next]

    Args, raises: as `gae`; the bootstrap stands for return[next] after the last token.

    Returns:
        return_BT, at least float32, 0 where the mask is 0.

    Source: REINFORCE++, arXiv:2501.03262 (with the KL in the reward, gamma 1).
    """
    return kernel.discounted_returns(
        *(reward_BT, segment_BT, mask_BT), gamma=gamma, bootstrap_BT=bootstrap_BT
    )
