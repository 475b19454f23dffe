"""Policy-gradient losses: one spec, one function, and the named methods as a table.

The methods differ in a few independent choices, held by `PolicyLoss`. Adding a method
is adding a row to `PRESETS`. B counts packed rows: one row may hold several samples,
so every argument is per token.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from rl_jax.errors import ConfigError
from rl_jax.objectives import advantage, aggregate
from rl_jax.objectives.kl import KINDS, LOG_RATIO_BOUND, kl_estimate, kl_loss


@dataclasses.dataclass(frozen=True)
class PolicyLoss:
    """The choices that make a policy loss. Hashable, so it can be a static argument.

    Fields that shape the rollouts rather than the loss are here too, because they
    belong to the method: `advantage`, `dynamic_sampling` and `overlong_buffer`.
    """

    advantage: str  # "group_std", "group_mean", "batch_std": see advantage.py
    denominator: str  # the ratio is policy over "old" (trainer) or "sampler" (decoder)
    bound: str  # "clip" (PPO), "cispo" (clipped weight, no gradient in it), "none"
    clip_low: float  # the ratio is bounded to [1 - clip_low, 1 + clip_high];
    clip_high: float  # clip_low >= 1 means no lower bound
    aggregate: str  # how tokens are averaged: see aggregate.py
    kl: str  # estimator of KL(policy || reference): "k1", "k2", "k3", see kl.py
    kl_coef: float = 0.0  # 0: the reference is not needed
    sampler_cap: float = 0.0  # C of the weight min(exp(old - sampler), C); 0: no weight
    entropy_coef: float = 0.0  # positive rewards entropy
    dynamic_sampling: bool = False  # replace prompts whose samples all score the same
    overlong_buffer: float = 0.0  # fraction of max_new_tokens, see shaping.py; 0: off


PRESETS: dict[str, PolicyLoss] = {
    # arXiv:2402.03300, equation 3, and DeepSeek-R1, arXiv:2501.12948, section 2.2.1,
    # which has a k3 term of 0.001; ours is 0 so that no reference is loaded unasked.
    "grpo": PolicyLoss(
        advantage="group_std",
        denominator="old",
        bound="clip",
        clip_low=0.2,
        clip_high=0.2,
        aggregate="seq_mean_token_mean",
        kl="k3",
    ),
    # arXiv:2503.14476, section 3: a wider upper bound, a token mean, no KL.
    "dapo": PolicyLoss(
        advantage="group_std",
        denominator="old",
        bound="clip",
        clip_low=0.2,
        clip_high=0.28,
        aggregate="token_mean",
        kl="k3",
        dynamic_sampling=True,
        overlong_buffer=0.2,
    ),
    # MiniMax-M1, arXiv:2506.13585, section 3.1: no lower bound; the upper one is not
    # published. 5 in all is the middle of what ScaleRL, arXiv:2510.13786, found equal.
    "cispo": PolicyLoss(
        advantage="group_std",
        denominator="old",
        bound="cispo",
        clip_low=1.0,
        clip_high=4.0,
        aggregate="token_mean",
        kl="k3",
    ),
    # arXiv:2503.20783: neither the spread nor the length of a sample divides.
    "dr_grpo": PolicyLoss(
        advantage="group_mean",
        denominator="old",
        bound="clip",
        clip_low=0.2,
        clip_high=0.2,
        aggregate="seq_sum_const",
        kl="k3",
    ),
}

_NAMES = {
    "advantage": advantage.SCALES,
    "denominator": ("old", "sampler"),
    "bound": ("clip", "cispo", "none"),
    "aggregate": aggregate.MODES,
    "kl": KINDS,
}

# Field: (smallest, largest, a usual value). With a clip_high of 10 and more only the
# upper bound still acts; the first stage of R1 was trained so, hence no ceiling.
_NUMBERS = {
    "clip_low": (0.0, math.inf, 0.2),
    "clip_high": (0.0, math.inf, 0.2),
    "kl_coef": (0.0, math.inf, 0.001),
    "sampler_cap": (0.0, math.inf, 2.0),
    "entropy_coef": (-math.inf, math.inf, 0.0),
    "overlong_buffer": (0.0, 1.0, 0.2),
}


def validate(spec: PolicyLoss) -> None:
    """Checks names and numbers, before anything is compiled.

    Raises:
        ConfigError: (a ValueError) with the field, its value and what may stand there.
    """
    for field, names in _NAMES.items():
        value = getattr(spec, field)
        if value not in names:
            raise ConfigError(
                f"{field} of the objective is {value!r}.\n"
                f"Expected one of: {', '.join(names)}.\n"
                f"Write for example {field}={names[0]!r}."
            )
    for field, (low, high, usual) in _NUMBERS.items():
        value = getattr(spec, field)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and low <= value <= high):
            raise ConfigError(
                f"{field} of the objective is {value!r}.\n"
                f"Expected a finite number in [{low}, {high}].\n"
                f"Write for example {field}={usual}."
            )
    if not isinstance(spec.dynamic_sampling, bool):
        raise ConfigError(
            f"dynamic_sampling of the objective is {spec.dynamic_sampling!r}.\n"
            "Expected True or False."
        )
    if spec.denominator == "sampler" and spec.sampler_cap:
        raise ConfigError(
            f"sampler_cap of the objective is {spec.sampler_cap}, its denominator "
            "'sampler'.\nThat ratio corrects for the sampler already: expected only "
            "one of the two.\nWrite sampler_cap=0.0 or denominator='old'."
        )


def policy_loss(
    logp_BT: jax.Array,
    entropy_BT: jax.Array,
    old_logp_BT: jax.Array,
    sampler_logp_BT: jax.Array,
    ref_logp_BT: jax.Array | None,
    adv_BT: jax.Array,
    mask_BT: jax.Array,
    weight_BT: jax.Array,
    *,
    spec: PolicyLoss,
    num_tokens: jax.Array | int,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss of one micro-batch, summed with a weight per token.

        r = exp(logp - old_logp), or exp(logp - sampler_logp): `spec.denominator`
        bounded = clip(r, 1 - clip_low, 1 + clip_high)

        "clip"   surrogate = -min(r * adv, bounded * adv)
        "cispo"  surrogate = -stop_gradient(bounded) * adv * logp
        "none"   surrogate = -r * adv

        correction = stop_gradient(min(exp(old_logp - sampler_logp), sampler_cap))
        loss = sum(weight * (correction * surrogate + kl_coef * kl
                             - entropy_coef * entropy))

    Gradients reach `logp_BT` and `entropy_BT` only. Log-ratios are clamped to +-20.

    Args:
        logp_BT: log-probabilities of the drawn tokens under the policy in training.
            All floating inputs are computed on in float32 if they are narrower.
        entropy_BT: entropy of the policy at each position, nats.
        old_logp_BT: as the trainer computed them when the batch's updates began. With
            one update a batch, pass `logp_BT` itself: the ratio is then 1.
        sampler_logp_BT: as the decoder reported them when it drew the tokens.
        ref_logp_BT: under the frozen reference; None if `spec.kl_coef` is 0.
        adv_BT: the advantage of each token.
        mask_BT: bool, or 1 where the policy chose the token and it is to be trained.
            Nothing is read where it is 0: nan and -inf there change neither the
            values nor the gradients.
        weight_BT: the weight of each token, from the whole optimiser batch
            (`aggregate.token_weights`).
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
          tokens have no gradient, under "cispo" a bounded one; under "none" all are 0.
        - "sampler_gap_mean", "sampler_gap_max": |old_logp - sampler_logp|, nats.
        - "sampler_kl": KL(sampler || trainer), by k3.
        - "sampler_weight_mean": the correction in use, 1 without `sampler_cap`.

        Without masked tokens everything is 0 but "ratio_min", which is then the
        largest ratio there can be and so never wins against another micro-batch.

    Raises:
        ConfigError: (a ValueError) if `spec` is not valid.
        ValueError: if `spec.kl_coef` is not 0 and there is no reference.

    Source: PPO, arXiv:1707.06347, equation 7 ("clip"); MiniMax-M1, arXiv:2506.13585,
    section 3.1 ("cispo"); truncated importance sampling of the sampler as in Olmo 3.
    """
    validate(spec)
    if spec.kl_coef and ref_logp_BT is None:
        raise ValueError(f"kl_coef={spec.kl_coef} needs ref_logp_BT, got None")
    keep_BT = mask_BT != 0

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
    ratio_BT = _ratio(logp_BT, below_BT)
    low_BT, high_BT = _clipped(ratio_BT, adv_BT, spec=spec)
    surrogate_BT = _surrogate(
        ratio_BT, adv_BT, logp_BT, clipped_BT=low_BT | high_BT, spec=spec
    )
    correction_BT = jnp.ones_like(ratio_BT)
    if spec.sampler_cap:
        rho_BT = _ratio(old_logp_BT, sampler_logp_BT)
        correction_BT = jnp.minimum(rho_BT, spec.sampler_cap)
        surrogate_BT *= correction_BT
    loss_BT = surrogate_BT
    if spec.entropy_coef:
        loss_BT -= spec.entropy_coef * entropy_BT
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
    if ref_logp_BT is not None:
        means["kl"] = kl_loss(logp_BT, constant(ref_logp_BT), kind=spec.kl)
        if spec.kl_coef:
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


def _ratio(above_BT: jax.Array, below_BT: jax.Array) -> jax.Array:
    return jnp.exp(jnp.clip(above_BT - below_BT, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def _clipped(
    ratio_BT: jax.Array, adv_BT: jax.Array, *, spec: PolicyLoss
) -> tuple[jax.Array, jax.Array]:
    """Tokens already moved past the lower, and the upper, bound as adv asks."""
    if spec.bound == "none":
        return jnp.zeros_like(ratio_BT, bool), jnp.zeros_like(ratio_BT, bool)
    low_BT = (adv_BT < 0) & (ratio_BT < 1.0 - spec.clip_low)
    high_BT = (adv_BT > 0) & (ratio_BT > 1.0 + spec.clip_high)
    return low_BT, high_BT


def _surrogate(
    ratio_BT: jax.Array,
    adv_BT: jax.Array,
    logp_BT: jax.Array,
    *,
    clipped_BT: jax.Array,
    spec: PolicyLoss,
) -> jax.Array:
    if spec.bound == "none":
        return -ratio_BT * adv_BT
    bounded_BT = jax.lax.stop_gradient(
        jnp.clip(ratio_BT, 1.0 - spec.clip_low, 1.0 + spec.clip_high)
    )
    if spec.bound == "cispo":
        return -bounded_BT * adv_BT * logp_BT
    # Equal to -min(ratio * adv, bounded * adv). Written with `where` because the
    # gradient of a minimum is split where its arguments tie, as they do on a bound.
    return -jnp.where(clipped_BT, bounded_BT, ratio_BT) * adv_BT
