"""What a token is worth, where that differs within a sample.

With a KL penalty in the reward, or a critic, rewards belong to tokens:

    reward_BT = token_rewards(...)                         one a sample, KL at each
    adv_BT = discounted_returns(reward_BT, ...), or gae    kernels/advantage
    adv_BT = whitened(adv_BT, *whitening([adv_BT], [mask_BT], kind=...))

Legend: B packed rows, T positions of a row, N samples.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rl_jax.objectives.kl import kl_estimate
from rl_jax.objectives.segments import Samples, last_counted, sample_sums

WHITENS = ("none", "token_std", "token_sample_std")
# verl's, under the root.
_EPS = 1e-8


def reward_kl(
    old_logp_BT: jax.Array,
    ref_logp_BT: jax.Array,
    samples: Samples,
    *,
    kind: str,
) -> jax.Array:
    """The estimate of KL(old policy || reference) that a reward pays for, a token.

    A constant: it moves the policy through the advantage alone, where the estimator k1
    is unbiased. 0 where the mask is 0, whatever stands there.

    Args:
        kind: "k1", "k2" or "k3", see kl.py.
    """
    old_logp_BT = jnp.where(samples.mask_BT, old_logp_BT, 0.0)
    ref_logp_BT = jnp.where(samples.mask_BT, ref_logp_BT, 0.0)
    return jax.lax.stop_gradient(kl_estimate(old_logp_BT, ref_logp_BT, kind=kind))


def sample_penalty(
    old_logp_BT: jax.Array,
    ref_logp_BT: jax.Array,
    samples: Samples,
    *,
    kind: str,
) -> jax.Array:
    """The sum of `reward_kl` over each position's own sample.

    For methods that compare whole samples: kl_coef times this is taken from a sample's
    reward before its group is looked at (RLOO, arXiv:2402.14740, equation 3).
    """
    kl_BT = reward_kl(old_logp_BT, ref_logp_BT, samples, kind=kind)
    return sample_sums(kl_BT, samples)


def token_rewards(
    reward_BT: jax.Array,
    old_logp_BT: jax.Array,
    ref_logp_BT: jax.Array | None,
    samples: Samples,
    *,
    kind: str,
    coef: float,
) -> jax.Array:
    """Each sample's reward at its last counted token, less the KL at every one.

        reward[t] = -coef * kl[t] + (reward of the sample if t is its last token)

    Args:
        reward_BT: the reward of each position's own sample.
        ref_logp_BT: None if `coef` is 0.
        kind, coef: estimator and weight of the KL, see `reward_kl`.

    Returns:
        float32 (float64 if rewards are), 0 where the mask is 0.

    Source: InstructGPT, arXiv:2203.02155, equation 2, by token as its code and all
    later ones have it.
    """
    dtype = jnp.promote_types(reward_BT.dtype, jnp.float32)
    reward_BT = jnp.where(last_counted(samples), reward_BT.astype(dtype), 0.0)
    if not coef:
        return reward_BT
    if ref_logp_BT is None:
        raise ValueError(f"a KL in the reward, {coef}, needs ref_logp_BT, got None")
    kl_BT = reward_kl(old_logp_BT, ref_logp_BT, samples, kind=kind)
    return reward_BT - coef * kl_BT.astype(dtype)


def whitening(
    adv: Sequence[jax.Array], counts: Sequence[jax.Array], *, kind: str
) -> tuple[jax.Array, jax.Array]:
    """Mean and spread of the advantages of all tokens of an optimiser step.

        mean = sum(count * adv) / sum(count)
        var = sum(count * (adv - mean)^2) / sum(count)
        spread = sqrt(var + 1e-8)

    Every token weighs the same, so that a long sample weighs more than a short one.

    Args:
        adv: arrays of any shapes, together all of the step: one a micro-batch, or a
            single one of N samples.
        counts: of the same shapes, how many tokens have that advantage: a mask, or the
            tokens of each sample. Where it is 0, `adv` is not read.
        kind: "token_std", or "token_sample_std" to divide the variance by one less
            (verl's). "none" gives mean 0 and spread 1.

    Returns:
        (mean, spread), for `whitened`. Without any token: (0, a spread that is not 0).

    Source: REINFORCE++, arXiv:2501.03262.
    """
    if kind not in WHITENS:
        raise ValueError(f"unknown whitening {kind!r}: expected one of {WHITENS}")
    if kind == "none":
        return jnp.zeros(()), jnp.ones(())
    parts = [(jnp.where(n != 0, x, 0.0), n) for x, n in zip(adv, counts, strict=True)]
    # Counts are integers: they are added as such, and float32 would lose some.
    num = sum(jnp.sum(n.astype(jnp.int32)) for _, n in parts)
    mean = sum(jnp.sum(x * n) for x, n in parts) / jnp.maximum(num, 1)
    square = sum(jnp.sum(jnp.square(x - mean) * n) for x, n in parts)
    free = num - (kind == "token_sample_std")
    return mean, jnp.sqrt(square / jnp.maximum(free, 1) + _EPS)


def whitened(adv: jax.Array, mean: jax.Array, spread: jax.Array) -> jax.Array:
    """(adv - mean) / spread; a token that is masked out stays masked out."""
    return (adv - mean) / spread
