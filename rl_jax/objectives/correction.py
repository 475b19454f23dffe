"""Weights for tokens that the trainer's old policy did not quite draw.

The decoder that drew a token and the trainer that scores it differ: in numerics, and
in weights when samples are late. rho = exp(old_logp - sampler_logp) is how much
likelier the trainer found the token. A weight made of it multiplies the surrogate and
leaves KL and entropy terms alone. It never changes a denominator: a token or sample
that is masked here is a weight of zero, not a removal.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_jax.objectives.kl import LOG_RATIO_BOUND
from rl_jax.objectives.segments import Samples, sample_means, sample_sums

# What is compared with the bounds: a token's rho, or one number for all of a sample.
LEVELS: dict[str, Callable[[jax.Array, Samples], jax.Array]] = {
    "token": lambda log_rho_BT, samples: log_rho_BT,
    "product": sample_sums,
    "geometric": sample_means,
}


# The weight, from rho of the token, the number that is judged, and the bounds.
def _truncated(rho, judged, low, cap):
    return jnp.clip(judged, low, cap)


def _masked(rho, judged, low, cap):
    return jnp.where((judged >= low) & (judged <= cap), judged, 0.0)


def _kept(rho, judged, low, cap):
    return jnp.where((judged >= low) & (judged <= cap), 1.0, 0.0)


def _kept_with_rho(rho, judged, low, cap):
    return jnp.where((judged >= low) & (judged <= cap), rho, 0.0)


# Name: (what is judged, weight).
CORRECTIONS = {
    # TIS; Olmo 3: cap 2; Nemotron 3 Ultra: 0.2 to 5.
    "truncate": ("token", _truncated),
    # IcePop, GLM-5: 0.5 to 2, NeMo-RL: 0.5 to 5.
    "mask": ("token", _masked),
    # The mask alone, without the weight.
    "keep": ("token", _kept),
    # verl's rollout correction: cap 2.
    "sequence_truncate": ("product", _truncated),
    # TRL's default: cap 3. A product over a long answer is far from 1 even where
    # every token nearly agrees.
    "sequence_mask": ("product", _masked),
    # One number per token on average. NeMo-RL's example: 0.999 to 1.002, which allows
    # for noise of the decoder and for nothing else.
    "geometric_keep": ("geometric", _kept),
    # The same mask, and each token's own weight: "seq-mask-tis" of NeMo-RL, OpenRLHF.
    "geometric_mask": ("geometric", _kept_with_rho),
}


def sampler_weight(
    old_logp_BT: jax.Array,
    sampler_logp_BT: jax.Array,
    samples: Samples,
    *,
    kind: str,
    low: float,
    cap: float,
) -> jax.Array:
    """The weight that corrects for the sampler, a constant of the loss.

    Args:
        old_logp_BT: as the trainer scored the tokens before this batch's updates.
        sampler_logp_BT: as the decoder reported them. Both finite where the mask is 1;
            their difference is clamped to +-20, and so is its sum over a sample.
        samples: segments are read unless `kind` judges single tokens.
        kind: a name of `CORRECTIONS`.
        low, cap: bounds of what is judged, inclusive.

    Returns:
        weight_BT; anything finite where the mask is 0.

    Source: truncated importance sampling as in Olmo 3; GLM-5's "IcePop" mask; NeMo-RL
    and verl for those of whole samples.
    """
    level, weight = CORRECTIONS[kind]
    log_rho_BT = _clamped(jnp.where(samples.mask_BT, old_logp_BT - sampler_logp_BT, 0))
    judged_BT = _clamped(LEVELS[level](log_rho_BT, samples))
    weight_BT = weight(jnp.exp(log_rho_BT), jnp.exp(judged_BT), low, cap)
    return jax.lax.stop_gradient(weight_BT)


def off_policy_keep(
    logp_BT: jax.Array,
    sampler_logp_BT: jax.Array,
    adv_BT: jax.Array,
    samples: Samples,
    *,
    delta: float,
) -> jax.Array:
    """0 for samples with adv < 0 that the policy has moved far away from, else 1.

        drift = mean over the sample's tokens of (sampler_logp - logp)
        keep = 0 if adv < 0 and drift > delta else 1

    Positive drift: the policy finds the sample less likely than its sampler did. What
    is unlikely already need not be pushed down further, and such tokens have the
    noisiest gradients. It reacts to late samples and to the decoder's numerics alike.

    Args: as `sampler_weight`, with the policy in training as `logp_BT` (a constant
    here) and the advantage of each token.

    Source: DeepSeek-V3.2, arXiv:2512.02556, section 3.1, which does not give delta.
    """
    logp_BT = jax.lax.stop_gradient(logp_BT)
    drift_BT = sample_means(sampler_logp_BT - logp_BT, samples)
    return jnp.where((adv_BT < 0) & (drift_BT > delta), 0.0, 1.0)


def _clamped(log_ratio_BT: jax.Array) -> jax.Array:
    return jnp.clip(log_ratio_BT, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
