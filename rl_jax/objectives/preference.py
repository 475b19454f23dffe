"""Losses on pairs of replies to one prompt, of which one was preferred (DPO and kin).

N counts pairs. Everything is made of four numbers a pair: the log-probability of the
chosen and of the rejected reply, summed over its tokens, under the policy and under a
frozen reference. The latter are constants: compute them once and keep them.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_jax.errors import ConfigError
from rl_jax.objectives.checking import check_name, check_number


@dataclasses.dataclass(frozen=True)
class PreferenceLoss:
    """The choices that make a preference loss. Hashable: may be a static argument."""

    kind: str = "sigmoid"  # see LOSSES
    beta: float = 0.1  # strength of the pull to the reference
    label_smoothing: float = 0.0  # share of pairs thought to be labelled the wrong way
    average: str = "sum"  # of a reply's tokens: "sum", or "mean" (length-normalised)
    nll_coef: float = 0.0  # weight of the chosen reply's mean negative log-probability
    mask_special: bool = False  # special tokens are not compared, but are in that mean


PRESETS: dict[str, PreferenceLoss] = {
    # arXiv:2305.18290, equation 7; beta as in TRL and in most of the paper.
    "dpo": PreferenceLoss(),
    # Mitchell, "A note on DPO with noisy preferences"; the share is ours.
    "cdpo": PreferenceLoss(label_smoothing=0.1),
    # Tulu 3, arXiv:2411.15124, section 5.1; Olmo 3. h is a number a token, hence beta.
    "dpo_norm": PreferenceLoss(beta=5.0, average="mean"),
    # Llama 3, arXiv:2407.21783, section 4.1.4. That its likelihood term, which is to
    # keep the format, has the tokens of the format is how we read it.
    "llama3": PreferenceLoss(nll_coef=0.2, mask_special=True),
    # arXiv:2310.12036, equation 17: sums. TRL and AReaL take means.
    "ipo": PreferenceLoss(kind="ipo"),
    "ipo_mean": PreferenceLoss(kind="ipo", average="mean"),
    # SLiC-HF, arXiv:2305.10425, in terms of the reference as TRL has it.
    "hinge": PreferenceLoss(kind="hinge"),
}


def _sigmoid(h_N: jax.Array, spec: PreferenceLoss) -> jax.Array:
    right_N = -jax.nn.log_sigmoid(spec.beta * h_N)
    wrong_N = -jax.nn.log_sigmoid(-spec.beta * h_N)
    return (1 - spec.label_smoothing) * right_N + spec.label_smoothing * wrong_N


def _ipo(h_N: jax.Array, spec: PreferenceLoss) -> jax.Array:
    return jnp.square(h_N - 1 / (2 * spec.beta))


def _hinge(h_N: jax.Array, spec: PreferenceLoss) -> jax.Array:
    return jax.nn.relu(1 - spec.beta * h_N)


LOSSES: dict[str, Callable[[jax.Array, PreferenceLoss], jax.Array]] = {
    "sigmoid": _sigmoid,
    "ipo": _ipo,
    "hinge": _hinge,
}
AVERAGES = ("sum", "mean")


def preference_loss(
    chosen_logp_N: jax.Array,
    rejected_logp_N: jax.Array,
    chosen_ref_logp_N: jax.Array,
    rejected_ref_logp_N: jax.Array,
    chosen_tokens_N: jax.Array,
    rejected_tokens_N: jax.Array,
    weight_N: jax.Array,
    special_logp_N: jax.Array | None = None,
    special_tokens_N: jax.Array | None = None,
    *,
    spec: PreferenceLoss,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """How far the policy is from preferring each chosen reply as much as it should.

        h = (chosen_logp - chosen_ref_logp) - (rejected_logp - rejected_ref_logp)

        "sigmoid"  -(1 - label_smoothing) log sigmoid(beta h)
                   - label_smoothing log sigmoid(-beta h)
        "ipo"      (h - 1 / (2 beta))^2
        "hinge"    max(0, 1 - beta h)

        loss = sum(weight * (that + nll_coef * nll))
        nll = -(chosen_logp + special_logp) / (chosen_tokens + special_tokens)

    With average "mean", each of the four in h is first divided by its reply's tokens.
    Gradients reach the policy's two alone.

    Args:
        chosen_logp_N, rejected_logp_N: summed over the reply's tokens under the policy,
            nats (`segments.sample_totals`). Computed in float32 if they are narrower.
        chosen_ref_logp_N, rejected_ref_logp_N: the same under the reference.
        chosen_tokens_N, rejected_tokens_N: how many tokens were summed.
        weight_N: of each pair, 1 / pairs of the optimiser step for their mean. 0 for a
            pair that is padding: nothing else of it is read.
        special_logp_N, special_tokens_N: of the tokens of the chosen reply that
            `mask_special` leaves out of the others; None: there are none.
        spec: static.

    Returns:
        The loss, a scalar of at least float32, and metrics, which add up over
        micro-batches as it does and are weighted as it is: "preference_loss" (without
        the likelihood term), "nll", "accuracy" (h > 0), "reward_chosen" and
        "reward_rejected" (beta times the log-ratio, of the same average as in h),
        "reward_margin", "logp_chosen" and "logp_rejected" (sums over tokens).

    Raises:
        ConfigError: (a ValueError) if `spec` is not valid.
    """
    validate(spec)
    counts_N = weight_N != 0

    def masked(x_N: jax.Array, fill: float) -> jax.Array:
        x_N = x_N.astype(jnp.promote_types(x_N.dtype, jnp.float32))
        return jnp.where(counts_N, x_N, fill)

    chosen_N, rejected_N = masked(chosen_logp_N, 0.0), masked(rejected_logp_N, 0.0)
    chosen_ref_N = jax.lax.stop_gradient(masked(chosen_ref_logp_N, 0.0))
    rejected_ref_N = jax.lax.stop_gradient(masked(rejected_ref_logp_N, 0.0))
    chosen_tokens_N = masked(chosen_tokens_N, 1.0)
    rejected_tokens_N = masked(rejected_tokens_N, 1.0)

    chosen_ratio_N = chosen_N - chosen_ref_N
    rejected_ratio_N = rejected_N - rejected_ref_N
    if spec.average == "mean":
        chosen_ratio_N /= chosen_tokens_N
        rejected_ratio_N /= rejected_tokens_N
    h_N = chosen_ratio_N - rejected_ratio_N
    loss_N = LOSSES[spec.kind](h_N, spec)
    nll_N = -chosen_N / chosen_tokens_N
    if special_logp_N is not None and special_tokens_N is not None:
        whole_N = chosen_N + masked(special_logp_N, 0.0)
        nll_N = -whole_N / (chosen_tokens_N + masked(special_tokens_N, 0.0))
    means = {
        "preference_loss": loss_N,
        "nll": nll_N,
        "accuracy": h_N > 0,
        "reward_chosen": spec.beta * chosen_ratio_N,
        "reward_rejected": spec.beta * rejected_ratio_N,
        "reward_margin": spec.beta * h_N,
        "logp_chosen": chosen_N,
        "logp_rejected": rejected_N,
    }
    metrics = {name: jnp.sum(weight_N * x_N) for name, x_N in means.items()}
    if spec.nll_coef:
        loss_N += spec.nll_coef * nll_N
    return jnp.sum(weight_N * loss_N), jax.lax.stop_gradient(metrics)


def validate(spec: PreferenceLoss) -> None:
    """Raises ConfigError, at most three lines, unless the spec makes sense."""
    owner = "preference loss"
    check_name("kind", owner, spec.kind, tuple(LOSSES))
    check_name("average", owner, spec.average, AVERAGES)
    for field, low, high, usual, expected in (
        ("beta", math.ulp(0.0), math.inf, 0.1, "more than 0"),
        ("label_smoothing", 0.0, 0.5, 0.1, "0.0 to 0.5"),
        ("nll_coef", 0.0, math.inf, 0.2, "0.0 to inf"),
    ):
        value = getattr(spec, field)
        check_number(field, owner, value, low, high, usual=usual, expected=expected)
    if spec.label_smoothing and spec.kind != "sigmoid":
        raise ConfigError(
            f"label_smoothing of the preference loss is {spec.label_smoothing}, its "
            f"kind {spec.kind!r}.\nExpected kind='sigmoid': the others have none.\n"
            "Write label_smoothing=0.0."
        )
