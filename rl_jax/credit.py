"""Advantages of tokens, for losses whose samples do not have one number each.

A KL in the reward needs the policy's and the reference's log-probabilities before there
are advantages, and whitening needs all tokens of a step before there is any of them.

Legend: B rows of a micro-batch, T positions, N samples of a step.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax

from rl_jax.learner import Batch, Outcome, advantages, per_token
from rl_jax.mesh import BATCH_AXES, spec
from rl_jax.objectives.advantage import discounted_returns
from rl_jax.objectives.policy_spec import PolicyLoss
from rl_jax.objectives.returns import reward_kl, token_rewards, whitened, whitening
from rl_jax.objectives.segments import Samples, sample_totals


def is_by_token(loss: PolicyLoss) -> bool:
    """True if the tokens of a sample may differ in what they are worth."""
    in_reward = loss.kl_coef > 0 and loss.kl_place != "loss"
    return loss.whiten != "none" or in_reward


def with_advantages(
    batches: Sequence[Batch], outcome: Outcome, *, loss: PolicyLoss, num_groups: int
) -> list[Batch]:
    """The micro-batches of a step, each with the advantage of its tokens.

    Args:
        batches: all of the step, with `old_logp_BT`, and with `ref_logp_BT` if there
            is a KL.
        outcome: of the samples of the step; weights are not read.
    """
    if loss.kl_coef > 0 and loss.kl_place == "reward":
        N = len(outcome.reward_N)
        totals = [_sample_kl(b, kind=loss.kl, num_samples=N) for b in batches]
        reward_N = outcome.reward_N - loss.kl_coef * sum(totals)
        outcome = dataclasses.replace(outcome, reward_N=reward_N)
    adv_N = advantages(outcome, loss=loss, num_groups=num_groups)
    coef = loss.kl_coef if loss.kl_place == "return" else 0.0
    adv = [_returns(adv_N, b, kind=loss.kl, coef=coef) for b in batches]
    mean, spread = whitening(adv, [b.mask_BT for b in batches], kind=loss.whiten)
    return [
        dataclasses.replace(b, adv_BT=whitened(adv_BT, mean, spread))
        for b, adv_BT in zip(batches, adv, strict=True)
    ]


@functools.partial(jax.jit, static_argnames=("kind", "num_samples"))
def _sample_kl(batch: Batch, *, kind: str, num_samples: int) -> jax.Array:
    """The KL that each sample pays for in these rows, whole on every device."""

    def local(old_logp_BT, ref_logp_BT, mask_BT, sample_BT):
        samples = Samples(mask_BT, None)
        kl_BT = reward_kl(old_logp_BT, ref_logp_BT, samples, kind=kind)
        total_N = sample_totals(kl_BT, mask_BT, sample_BT, num_samples=num_samples)
        return jax.lax.psum(total_N, BATCH_AXES)

    rows = spec("batch", "time")
    return jax.shard_map(local, in_specs=rows, out_specs=jax.P())(
        batch.old_logp_BT, batch.ref_logp_BT, batch.mask_BT, batch.sample_BT
    )


@functools.partial(jax.jit, static_argnames=("kind", "coef"))
def _returns(adv_N: jax.Array, batch: Batch, *, kind: str, coef: float) -> jax.Array:
    """What a sample is worth at each of its tokens, less the KL still to come."""
    adv_BT = per_token(adv_N, batch)
    if not coef:
        return adv_BT

    def local(adv_BT, old_logp_BT, ref_logp_BT, mask_BT, segment_BT):
        samples = Samples(mask_BT, segment_BT)
        reward_BT = token_rewards(
            *(adv_BT, old_logp_BT, ref_logp_BT, samples), kind=kind, coef=coef
        )
        return discounted_returns(reward_BT, segment_BT, mask_BT)

    rows = spec("batch", "time")
    return jax.shard_map(local, in_specs=rows, out_specs=rows)(
        *(adv_BT, batch.old_logp_BT, batch.ref_logp_BT),
        *(batch.mask_BT, batch.segment_BT),
    )
