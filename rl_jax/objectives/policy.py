"""The policy-gradient loss: one function for every method.

    loss = sum over tokens of weight * (correction * surrogate
                                        + kl_coef * kl - entropy_coef * entropy)

Methods differ in a few independent choices, held by a `PolicyLoss` (policy_spec.py);
presets.py has the named ones. Each choice is a small function in a table:

    surrogate and ratio   surrogate.py, which is to be held against the papers
    correction            correction.py, for a sampler that is not quite the trainer
    kl                    kl.py
    weight                aggregate.py
    advantage             advantage.py, returns.py

B counts packed rows: one row may hold several samples, so every argument is per token.
"""

import math

import jax
import jax.numpy as jnp

from rl_jax.objectives import correction, surrogate
from rl_jax.objectives.kl import LOG_RATIO_BOUND, kl_estimate, kl_loss
from rl_jax.objectives.policy_check import validate
from rl_jax.objectives.policy_spec import PolicyLoss
from rl_jax.objectives.presets import COMPAT, PRESETS
from rl_jax.objectives.segments import Samples
from rl_jax.objectives.surrogate import Tokens

__all__ = [
    "COMPAT",
    "PRESETS",
    "PolicyLoss",
    "needs_agreeing_groups",
    "needs_segments",
    "policy_loss",
    "validate",
]


def needs_segments(spec: PolicyLoss) -> bool:
    """True if the loss sums over the tokens of a sample."""
    level, _ = correction.CORRECTIONS[spec.correction]
    return (
        spec.ratio != "token"
        or spec.surrogate in surrogate.OF_SAMPLES
        or (spec.sampler_cap > 0 and level != "token")
        or spec.off_policy_delta > 0
    )


def needs_agreeing_groups(spec: PolicyLoss) -> bool:
    """True if samples of a group whose rewards agree have a gradient all the same.

    If not, they need not be computed on: their advantage is 0. They are still counted
    in the weights.
    """
    own_baseline = spec.centre in ("group_mean", "leave_one_out")
    others = spec.kl_coef or spec.entropy_coef or spec.tau
    return not own_baseline or spec.whiten != "none" or bool(others)


def policy_loss(
    logp_BT: jax.Array,
    entropy_BT: jax.Array,
    old_logp_BT: jax.Array,
    sampler_logp_BT: jax.Array,
    ref_logp_BT: jax.Array | None,
    adv_BT: jax.Array,
    mask_BT: jax.Array,
    weight_BT: jax.Array,
    segment_BT: jax.Array | None = None,
    *,
    spec: PolicyLoss,
    num_tokens: jax.Array | int,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss of one micro-batch, summed with a weight per token.

    Gradients reach `logp_BT` and `entropy_BT` only. Log-ratios are clamped to +-20.

    Sums over a sample are local to its row: a mesh may divide the rows, and the same
    function works inside `jax.shard_map` over rows, whose caller then adds up the loss
    and the metrics over their axes. Positions must not be divided.

    Args:
        logp_BT: log-probabilities of the drawn tokens under the policy in training.
            All floating inputs are computed on in float32 if they are narrower.
        entropy_BT: entropy of the policy at each position, nats.
        old_logp_BT: as the trainer computed them when the batch's updates began. With
            one update a batch, pass `logp_BT` itself: the ratio is then 1.
        sampler_logp_BT: as the decoder reported them when it drew the tokens.
        ref_logp_BT: under the frozen reference; None if no KL is in the loss.
        adv_BT: the advantage of each token.
        mask_BT: bool, or 1 where the policy chose the token and it is to be trained.
            Nothing is read where it is 0: nan and -inf there change neither the
            values nor the gradients.
        weight_BT: the weight of each token, from the whole optimiser batch
            (`aggregate.token_weights`).
        segment_BT: integers, the same along the positions of one sample and found
            nowhere else in its row. May be None unless `needs_segments(spec)`.
        spec: static.
        num_tokens: masked tokens of the whole optimiser batch, for the metrics alone.

    Returns:
        The loss, a scalar of at least float32, and metrics. Both add up over
        micro-batches, except metrics that end in "_max" or "_min", which combine by
        max and min. All but "policy_loss" are means (or extremes) over tokens:

        - "policy_loss": the part of the loss that is neither KL nor entropy bonus.
        - "entropy"; "kl": the estimate of `spec.kl`, absent without a reference.
        - "ratio_mean", "ratio_max", "ratio_min": of r, as clamped.
        - "clip_low_fraction": adv < 0 and r < 1 - clip_low; "clip_high_fraction":
          adv > 0 and r > 1 + clip_high; "clip_fraction": either. Under "clip" these
          tokens have no gradient, under "cispo" a bounded one. All are 0 under
          surrogates without such bounds.
        - "sampler_gap_mean", "sampler_gap_max": |old_logp - sampler_logp|, nats.
        - "sampler_kl": KL(sampler || trainer), by k3.
        - "sampler_weight_mean": the correction in use, 1 without one.
        - "sampler_masked_fraction": correction 0; absent if the correction cannot be.

        Without masked tokens everything is 0 but "ratio_min", which is then the
        largest ratio there can be and so never wins against another micro-batch.

    Raises:
        ConfigError: (a ValueError) if `spec` is not valid.
        ValueError: if the spec needs a reference or segments and there are none.
    """
    validate(spec)
    kl_in_loss = spec.kl_coef > 0 and spec.kl_place == "loss"
    if kl_in_loss and ref_logp_BT is None:
        raise ValueError(f"kl_coef={spec.kl_coef} needs ref_logp_BT, got None")
    if needs_segments(spec) and segment_BT is None:
        raise ValueError("this loss sums over samples and needs segment_BT, got None")
    keep_BT = mask_BT != 0
    samples = Samples(keep_BT, segment_BT)

    # Inputs are masked, not outputs: 0 * nan is nan, also in a gradient.
    def masked(x_BT: jax.Array) -> jax.Array:
        x_BT = x_BT.astype(jnp.promote_types(x_BT.dtype, jnp.float32))
        return jnp.where(keep_BT, x_BT, 0.0)

    def constant(x_BT: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(masked(x_BT))

    logp_BT, entropy_BT = masked(logp_BT), masked(entropy_BT)
    old_logp_BT, sampler_logp_BT = constant(old_logp_BT), constant(sampler_logp_BT)
    adv_BT, weight_BT = constant(adv_BT), constant(weight_BT)

    below_BT = old_logp_BT if spec.denominator == "old" else sampler_logp_BT
    log_ratio_BT = jnp.clip(logp_BT - below_BT, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    ratio_BT = surrogate.ratio(log_ratio_BT, samples, kind=spec.ratio)
    held_BT = surrogate.held(ratio_BT, spec.ratio_floor, spec.ratio_cap or math.inf)
    tokens = Tokens(logp_BT, log_ratio_BT, held_BT, adv_BT, samples)
    surrogate_BT = surrogate.SURROGATES[spec.surrogate](tokens, spec)

    correction_BT = _correction(tokens, old_logp_BT, sampler_logp_BT, spec)
    surrogate_BT *= correction_BT
    loss_BT = surrogate_BT
    if spec.entropy_coef:
        loss_BT -= spec.entropy_coef * entropy_BT

    low_BT, high_BT = surrogate.beyond(tokens, spec)
    means = {
        "entropy": entropy_BT,
        "ratio_mean": ratio_BT,
        "clip_low_fraction": low_BT,
        "clip_high_fraction": high_BT,
        "clip_fraction": low_BT | high_BT,
        "sampler_weight_mean": correction_BT,
        # The tokens come from the sampler, so the sampler stands first.
        "sampler_kl": kl_estimate(sampler_logp_BT, old_logp_BT, kind="k3"),
        "sampler_gap_mean": jnp.abs(old_logp_BT - sampler_logp_BT),
    }
    if spec.off_policy_delta or (spec.sampler_cap and spec.correction != "truncate"):
        means["sampler_masked_fraction"] = correction_BT == 0
    if ref_logp_BT is not None:
        means["kl"] = kl_loss(
            logp_BT, constant(ref_logp_BT), kind=spec.kl, drawn_logp=below_BT
        )
        if kl_in_loss:
            loss_BT += spec.kl_coef * means["kl"]
    metrics = {
        "policy_loss": jnp.sum(weight_BT * surrogate_BT),
        "ratio_max": jnp.max(jnp.where(keep_BT, ratio_BT, 0.0)),
        "ratio_min": jnp.min(jnp.where(keep_BT, ratio_BT, _LARGEST_RATIO)),
        "sampler_gap_max": jnp.max(means["sampler_gap_mean"]),
    }
    for name, x_BT in means.items():
        total = jnp.sum(jnp.where(keep_BT, x_BT, 0.0))
        metrics[name] = total / jnp.maximum(num_tokens, 1)
    return jnp.sum(weight_BT * loss_BT), jax.lax.stop_gradient(metrics)


_LARGEST_RATIO = math.exp(LOG_RATIO_BOUND)


def _correction(
    tokens: Tokens,
    old_logp_BT: jax.Array,
    sampler_logp_BT: jax.Array,
    spec: PolicyLoss,
) -> jax.Array:
    """What the surrogate is multiplied by, a constant; see correction.py."""
    weight_BT = jnp.ones_like(tokens.ratio_BT)
    if spec.sampler_cap:
        weight_BT = correction.sampler_weight(
            *(old_logp_BT, sampler_logp_BT, tokens.samples),
            kind=spec.correction,
            low=spec.sampler_low,
            cap=spec.sampler_cap,
        )
    if spec.off_policy_delta:
        weight_BT *= correction.off_policy_keep(
            *(tokens.logp_BT, sampler_logp_BT, tokens.adv_BT, tokens.samples),
            delta=spec.off_policy_delta,
        )
    return weight_BT
