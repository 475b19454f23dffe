"""Advantages of groups of samples, GAE and discounted returns of packed rows.

Advantages are constants of a loss: no gradient flows through these functions.

Inside a program with an explicit mesh they are called within `jax.shard_map`. Arrays
of [N], one number a sample, are short and needed whole: replicated. Arrays of [B, T]
may be divided over rows, never along them. There is no communication inside.

Legend: N samples, B packed rows, T positions of a row.
"""

import jax
import jax.numpy as jnp

from ..platform import choose, forms

CENTRES = ("group_mean", "leave_one_out", "batch_mean", "none")
SCALES = (
    "group_std",
    "group_sample_std",
    "batch_std",
    "batch_sample_std",
    "varying_std",
    "none",
)

# Scales over the batch, as scales of one group that holds it.
_AS_ONE_GROUP = {
    "batch_std": "group_std",
    "batch_sample_std": "group_sample_std",
    "varying_std": "group_std",
    "none": "none",
}


def group_advantage(
    reward_N: jax.Array,
    group_N: jax.Array,
    valid_N: jax.Array,
    *,
    num_groups: int,
    centre: str,
    scale: str,
    eps: float = 1e-6,
    implementation: str | None = None,
) -> jax.Array:
    """Takes a baseline from each reward, then divides by a spread.

        adv[n] = (reward[n] - baseline[n]) / (spread[n] + eps)

    centre      baseline
    "group_mean"     mean reward of n's group
    "leave_one_out"  mean reward of the others in n's group
    "batch_mean"     mean reward of the batch
    "none"           0

    scale       spread
    "group_std"         deviation of the rewards of n's group
    "group_sample_std"  the same with Bessel's correction: divided by count - 1
    "batch_std"         deviation of all centred rewards of the batch
    "batch_sample_std"  the same with Bessel's correction
    "varying_std"       "batch_std" after groups whose rewards agree were left out, as
                        if they were not valid
    "none"              adv is the centred reward

    Only valid samples count. Where the rewards that a centre or a scale looks at (a
    group's, or the batch's) agree, adv is exactly 0: also for a group of one.

    Args:
        reward_N: any real dtype; computed in float32 unless it is float64. Not read
            where invalid (it may be nan).
        group_N: integer in [0, num_groups), in any order; not read where invalid.
        valid_N: bool, or nonzero where the sample has a reward.
        num_groups: static bound on the ids; may exceed the number of groups.
        centre, scale: one of `CENTRES`, one of `SCALES`.
        eps: in reward units, positive.
        implementation: see `platform.choose`.

    Returns:
        adv_N, float32 (float64 if rewards are); 0 where invalid.

    Raises:
        ValueError: for an unknown name, or an `eps` that is not positive.
    """
    if centre not in CENTRES:
        raise ValueError(f"unknown centre {centre!r}: expected one of {CENTRES}")
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}: expected one of {SCALES}")
    if not eps > 0:
        raise ValueError(f"eps must be positive, got {eps}")
    reward_N, group_N, valid_N = _samples(reward_N, group_N, valid_N)
    one_N = jnp.zeros_like(group_N)

    def local(reward_N, group_N, valid_N, num_groups, centre, scale):
        return _group(
            *(reward_N, group_N, valid_N, num_groups, centre, scale, eps),
            implementation=implementation,
        )

    if centre in ("group_mean", "leave_one_out"):
        return local(reward_N, group_N, valid_N, num_groups, centre, scale)[0]
    # The whole batch is a group like any other.
    centre = "group_mean" if centre == "batch_mean" else "none"
    if scale == "varying_std":
        valid_N = local(reward_N, group_N, valid_N, num_groups, "none", "none")[1]
    if scale in _AS_ONE_GROUP:
        scale = _AS_ONE_GROUP[scale]
        return local(reward_N, one_N, valid_N, 1, centre, scale)[0]
    centred_N = local(reward_N, one_N, valid_N, 1, centre, "none")[0]
    return local(centred_N, group_N, valid_N, num_groups, "none", scale)[0]


def group_varies(
    reward_N: jax.Array,
    group_N: jax.Array,
    valid_N: jax.Array,
    *,
    num_groups: int,
    implementation: str | None = None,
) -> jax.Array:
    """Says which samples are valid and in a group whose valid rewards differ.

    Compares the largest with the smallest, since a standard deviation of equal rewards
    is not exactly zero in floating point.

    Args: as `group_advantage`.

    Returns:
        bool_N.
    """
    reward_N, group_N, valid_N = _samples(reward_N, group_N, valid_N)
    return _group(
        *(reward_N, group_N, valid_N, num_groups, "none", "none", 1.0),
        implementation=implementation,
    )[1]


def gae(
    reward_BT: jax.Array,
    value_BT: jax.Array,
    segment_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    gamma: float,
    lam: float,
    bootstrap_BT: jax.Array | None = None,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimates and value targets over packed rows.

        delta[t]  = reward[t] + gamma * value[next] - value[t]
        adv[t]    = delta[t] + gamma * lam * adv[next]
        return[t] = adv[t] + value[t]

    next is the next token of the segment whose mask is 1: masked tokens (a prompt,
    the output of a tool) neither discount nor add. After the last one the value is
    the bootstrap and the advantage is 0.

    Args:
        reward_BT: reward a token; any real dtype, computed in float32 unless it is
            float64. Not read where the mask is 0.
        value_BT: value of the state in which the token was chosen; the same.
        segment_BT: integers, equal along the run of tokens of one sample, different
            from those of its neighbours.
        mask_BT: bool, or nonzero for tokens that the policy chose.
        gamma, lam: discount and trace decay, in [0, 1].
        bootstrap_BT: read at the last position of each segment, whatever its mask: the
            value of the state after it, for a sample that was cut off. None: 0.
        implementation: see `platform.choose`.

    Returns:
        (adv_BT, return_BT), both 0 where the mask is 0.

    Raises:
        ValueError: if `gamma` or `lam` is outside [0, 1], or shapes differ.

    Source: arXiv:1506.02438, equation 16.
    """
    _check_unit(gamma=gamma, lam=lam)
    reward_BT, value_BT, bootstrap_BT, segment_BT, mask_BT = _rows(
        segment_BT, mask_BT, reward_BT, value_BT, bootstrap_BT
    )
    adv_BT = _choose(
        "gae",
        *(reward_BT, value_BT, segment_BT, mask_BT, bootstrap_BT),
        gamma=gamma,
        lam=lam,
        implementation=implementation,
    )
    return adv_BT, jnp.where(mask_BT, adv_BT + value_BT, 0.0)


def discounted_returns(
    reward_BT: jax.Array,
    segment_BT: jax.Array,
    mask_BT: jax.Array,
    *,
    gamma: float,
    bootstrap_BT: jax.Array | None = None,
    implementation: str | None = None,
) -> jax.Array:
    """Discounted sums of the rewards from each token to the end of its segment.

        return[t] = reward[t] + gamma * return[next],  0 where the mask is 0

    Args, Raises: as `gae`; the bootstrap stands for return[next] at the end.
    """
    _check_unit(gamma=gamma)
    reward_BT, _, bootstrap_BT, segment_BT, mask_BT = _rows(
        segment_BT, mask_BT, reward_BT, reward_BT, bootstrap_BT
    )
    return _choose(
        "discounted_returns",
        *(reward_BT, segment_BT, mask_BT, bootstrap_BT),
        gamma=gamma,
        implementation=implementation,
    )


def _group(
    reward_N, group_N, valid_N, num_groups, centre, scale, eps, *, implementation
):
    return _choose(
        "group_advantage",
        *(reward_N, group_N, valid_N),
        num_groups=num_groups,
        centre=centre,
        scale=scale,
        eps=eps,
        implementation=implementation,
    )


def _choose(function, *args, implementation, **static):
    return choose(
        *args, implementation=implementation, **forms(__name__, function, **static)
    )


def _wide(x, dtype):
    return jax.lax.stop_gradient(x.astype(dtype))


def _samples(reward_N, group_N, valid_N):
    dtype = jnp.promote_types(reward_N.dtype, jnp.float32)
    return _wide(reward_N, dtype), group_N.astype(jnp.int32), valid_N != 0


def _rows(segment_BT, mask_BT, reward_BT, value_BT, bootstrap_BT):
    arrays = [segment_BT, mask_BT, reward_BT, value_BT]
    arrays += [] if bootstrap_BT is None else [bootstrap_BT]
    shapes = {x.shape for x in arrays}
    if len(shapes) > 1 or reward_BT.ndim != 2:
        raise ValueError(f"expected arrays of one shape [B, T], got {sorted(shapes)}")
    dtype = jnp.promote_types(
        jnp.promote_types(reward_BT.dtype, value_BT.dtype), jnp.float32
    )
    if bootstrap_BT is None:
        bootstrap_BT = jnp.zeros_like(reward_BT)
    floats = (_wide(x, dtype) for x in (reward_BT, value_BT, bootstrap_BT))
    return *floats, segment_BT.astype(jnp.int32), mask_BT != 0


def _check_unit(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 <= number <= 1:
            raise ValueError(f"{name} must be in [0, 1], got {number}")
