"""What each method minimises at a token: the formulas of the papers.

A surrogate is a function of one token's ratio, advantage and log-probability, written
as a loss. `policy.py` masks, corrects, weighs and sums. To add a paper's, write its
function here, put it in `SURROGATES`, and add a row to presets.py.

In the formulas sg(x) is x without gradient, clip(r) is r bounded to
[1 - clip_low, 1 + clip_high], A is the advantage and r the ratio of `RATIOS`.

Legend: B packed rows, T positions of a row.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_jax.objectives.kl import LOG_RATIO_BOUND
from rl_jax.objectives.policy_spec import PolicyLoss
from rl_jax.objectives.segments import (
    Samples,
    sample_counts,
    sample_means,
    sample_sums,
)


class Tokens(NamedTuple):
    """What a surrogate may read, [B, T] each, 0 where the mask is 0.

    Attributes:
        logp_BT: log-probability under the policy in training.
        log_ratio_BT: the token's own log(policy / denominator), within +-20.
        ratio_BT: r, held to [ratio_floor, ratio_cap].
        adv_BT: the advantage.
        samples: to sum over the tokens of a sample.
    """

    logp_BT: jax.Array
    log_ratio_BT: jax.Array
    ratio_BT: jax.Array
    adv_BT: jax.Array
    samples: Samples


def _same(x_BT: jax.Array, samples: Samples) -> jax.Array:
    return x_BT


def _token_of_sequence(x_BT: jax.Array, samples: Samples) -> jax.Array:
    # The value of the sample's mean, with the gradient of the token's own ratio.
    mean_BT = jax.lax.stop_gradient(sample_means(x_BT, samples))
    return mean_BT + (x_BT - jax.lax.stop_gradient(x_BT))


# log r, from the log-ratio x of each token.
RATIOS: dict[str, Callable[[jax.Array, Samples], jax.Array]] = {
    "token": _same,  # x
    # The mean of x over the sample: GSPO, arXiv:2507.18071, equation 7.
    "sequence": sample_means,
    # sg(that mean) + x - sg(x): GSPO-token, equation 14.
    "sequence_token": _token_of_sequence,
    # The sum of x over the sample, without its length: TRL's RLOO.
    "sequence_sum": sample_sums,
}


def ratio(log_ratio_BT: jax.Array, samples: Samples, *, kind: str) -> jax.Array:
    """r of every token; its logarithm is clamped to +-20."""
    x_BT = RATIOS[kind](log_ratio_BT, samples)
    return jnp.exp(jnp.clip(x_BT, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def held(x: jax.Array, low: float, high: float) -> jax.Array:
    """x within bounds; without gradient outside, with all of it on a bound.

    `jnp.clip` halves the gradient where x ties with a bound, as it does on policy when
    a bound is 1.
    """
    outside = (x < low) | (x > high)
    return jnp.where(outside, jax.lax.stop_gradient(jnp.clip(x, low, high)), x)


def beyond(tokens: Tokens, spec: PolicyLoss) -> tuple[jax.Array, jax.Array]:
    """Tokens already moved past the lower, and the upper, bound as A asks."""
    if spec.surrogate not in BOUNDED:
        nowhere_BT = jnp.zeros_like(tokens.ratio_BT, bool)
        return nowhere_BT, nowhere_BT
    low_BT = (tokens.adv_BT < 0) & (tokens.ratio_BT < 1.0 - spec.clip_low)
    high_BT = (tokens.adv_BT > 0) & (tokens.ratio_BT > 1.0 + spec.clip_high)
    return low_BT, high_BT


def clip(tokens: Tokens, spec: PolicyLoss) -> jax.Array:
    """-min(r A, clip(r) A). PPO, arXiv:1707.06347, equation 7.

    With ratio_cap = c it is the dual clip, arXiv:1912.09729: r is held to c, so that
    where A < 0 the loss is at most -c A and then has no gradient; where A > 0 the
    bound comes first. TRL's delta is the same.
    """
    low_BT, high_BT = beyond(tokens, spec)
    bounded_BT = jnp.clip(tokens.ratio_BT, 1.0 - spec.clip_low, 1.0 + spec.clip_high)
    # Written with `where` because the gradient of a minimum is split where its
    # arguments tie, as they do on a bound.
    stopped_BT = jax.lax.stop_gradient(bounded_BT)
    return -jnp.where(low_BT | high_BT, stopped_BT, tokens.ratio_BT) * tokens.adv_BT


def unbounded(tokens: Tokens, spec: PolicyLoss) -> jax.Array:
    """-r A: REINFORCE with importance weights."""
    return -tokens.ratio_BT * tokens.adv_BT


def cispo(tokens: Tokens, spec: PolicyLoss) -> jax.Array:
    """-sg(clip(r)) A logp. MiniMax-M1, arXiv:2506.13585, equations 4 and 5.

    Every token keeps a gradient; only its weight is bounded, relative to 1.
    """
    weight_BT = jnp.clip(tokens.ratio_BT, 1.0 - spec.clip_low, 1.0 + spec.clip_high)
    return -jax.lax.stop_gradient(weight_BT) * tokens.adv_BT * tokens.logp_BT


def capped(tokens: Tokens, spec: PolicyLoss) -> jax.Array:
    """-sg(min(r, ratio_cap)) A logp. ScaleRL, arXiv:2510.13786, section 4.

    `cispo` with an absolute cap on one side; TRL calls this one CISPO.
    """
    return -jax.lax.stop_gradient(tokens.ratio_BT) * tokens.adv_BT * tokens.logp_BT


def dropped(tokens: Tokens, spec: PolicyLoss) -> jax.Array:
    """-sg(r if 1 - clip_low < r < 1 + clip_high else 0) A logp. GLM-5, agentic RL.

    Tokens outside are dropped whatever the sign of A.
    """
    low, high = 1.0 - spec.clip_low, 1.0 + spec.clip_high
    inside_BT = (tokens.ratio_BT > low) & (tokens.ratio_BT < high)
    weight_BT = jax.lax.stop_gradient(jnp.where(inside_BT, tokens.ratio_BT, 0.0))
    return -weight_BT * tokens.adv_BT * tokens.logp_BT


def kimi_k15(tokens: Tokens, spec: PolicyLoss) -> jax.Array:
    """-A logp + tau/2 LR^2 / n. Kimi k1.5, arXiv:2501.12599, section 2.3.2.

    LR is the sum of the log-ratios of the sample's n tokens. Its share of a sample's
    pull towards the old policy is the same for each token, so that a sum over tokens
    (aggregate "seq_mean_token_sum") is the paper's loss.
    """
    sum_BT = sample_sums(tokens.log_ratio_BT, tokens.samples)
    pull_BT = jnp.square(sum_BT) / sample_counts(tokens.samples)
    return -tokens.adv_BT * tokens.logp_BT + spec.tau / 2 * pull_BT


def kimi_k25(tokens: Tokens, spec: PolicyLoss) -> jax.Array:
    """-clip(r) A + tau x^2, x the log-ratio of the token. Kimi K2.5, section 4.

    Without a minimum: outside the bounds A has no gradient whatever its sign, and only
    the pull back is left.
    """
    r_BT = held(tokens.ratio_BT, 1.0 - spec.clip_low, 1.0 + spec.clip_high)
    return -r_BT * tokens.adv_BT + spec.tau * jnp.square(tokens.log_ratio_BT)


def kimi_k2(tokens: Tokens, spec: PolicyLoss) -> jax.Array:
    """(A - tau LR)^2 / n. Kimi K2, arXiv:2507.20534, section 3.2.3.

    2 tau times the gradient of `kimi_k15`.
    """
    sum_BT = sample_sums(tokens.log_ratio_BT, tokens.samples)
    short_BT = tokens.adv_BT - spec.tau * sum_BT
    return jnp.square(short_BT) / sample_counts(tokens.samples)


def sapo(tokens: Tokens, spec: PolicyLoss) -> jax.Array:
    """-A 4/t sigmoid(t (r - 1)), t = tau if A > 0 else tau_negative. arXiv:2511.20347.

    A soft bound: on policy the gradient of -r A, fading as r leaves 1.
    """
    tau_BT = jnp.where(tokens.adv_BT > 0, spec.tau, spec.tau_negative)
    gate_BT = 4 / tau_BT * jax.nn.sigmoid(tau_BT * (tokens.ratio_BT - 1))
    return -gate_BT * tokens.adv_BT


SURROGATES: dict[str, Callable[[Tokens, PolicyLoss], jax.Array]] = {
    "clip": clip,
    "none": unbounded,
    "cispo": cispo,
    "capped": capped,
    "dropped": dropped,
    "kimi_k15": kimi_k15,
    "kimi_k25": kimi_k25,
    "kimi_k2": kimi_k2,
    "sapo": sapo,
}

# Those that read clip_low and clip_high, and those that sum over a sample's tokens.
BOUNDED = ("clip", "cispo", "dropped", "kimi_k25")
OF_SAMPLES = ("kimi_k15", "kimi_k2")
# Those that read tau, which must then be positive.
WITH_TAU = ("kimi_k15", "kimi_k25", "kimi_k2", "sapo")
