"""Losses that draw a student to a teacher.

    hard       cross-entropy on what the teacher wrote: supervised.py
    soft       KL of the two over the whole vocabulary, from kernels/logprob's
               `token_kl`, or over the teacher's likeliest tokens
    on policy  tokens that the student drew, each with the teacher's log-probability as
               its advantage: a policy loss, see `OnPolicy` and `PRESETS`

Student and teacher read the very same token ids, outputs of tools included; only
tokens that the student chose (mask 1) count, the end-of-sequence token among them.

Legend: B packed rows, T positions, K tokens kept of the vocabulary, N tokens,
V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp

from rl_jax.objectives import presets
from rl_jax.objectives.policy import policy_loss
from rl_jax.objectives.policy_spec import PolicyLoss


def soft_loss(
    kl_BT: jax.Array,
    mask_BT: jax.Array,
    weight_BT: jax.Array,
    *,
    temperature: float = 1.0,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """temperature^2 * sum(weight * kl) where the mask is 1.

    The square makes up for the temperature that both distributions were softened by:
    gradients of logits would shrink with it (Hinton et al., arXiv:1503.02531, 2).

    Args:
        kl_BT: KL of each token's two distributions, at that temperature: forward (the
            student covers what the teacher may say), or reverse on the student's own
            tokens (it says only what the teacher would). Nothing is read where the
            mask is 0.
        weight_BT: of each token, from the whole optimiser batch; several teachers'
            shares are in it too.

    Returns:
        The loss and "distillation_loss", a metric that adds up as it does.
    """
    kl_BT = kl_BT.astype(jnp.promote_types(kl_BT.dtype, jnp.float32))
    weight_BT = jnp.where(mask_BT != 0, weight_BT, 0.0)
    loss = temperature**2 * jnp.sum(weight_BT * jnp.where(mask_BT != 0, kl_BT, 0.0))
    return loss, {"distillation_loss": jax.lax.stop_gradient(loss)}


RESTS = ("bucket", "renormalised", "dropped")


def top_k_kl(
    logp_BTK: jax.Array, teacher_logp_BTK: jax.Array, *, rest: str = "bucket"
) -> jax.Array:
    """Forward KL, teacher to student, over tokens that were kept of the vocabulary.

        kl = sum over kept of p * (log p - log q)    p the teacher's, q the student's

    rest
    "bucket"        plus the same for all other tokens as one: at most the full KL
    "renormalised"  p and q made to sum to 1 over those kept
    "dropped"       nothing: as verl. Where teacher and student agree the gradient is
                    not 0 but goes on adding to the tokens kept.

    Args:
        logp_BTK: the student's log-probabilities, over its whole vocabulary, of
        teacher_logp_BTK: the teacher's K likeliest tokens, and theirs. A constant.

    Returns:
        kl_BT, at least float32.

    Raises:
        ValueError: if `rest` is unknown.
    """
    if rest not in RESTS:
        raise ValueError(f"unknown rest {rest!r}: expected one of {RESTS}")
    dtype = jnp.promote_types(logp_BTK.dtype, jnp.float32)
    q_BTK = logp_BTK.astype(dtype)
    p_BTK = jax.lax.stop_gradient(teacher_logp_BTK.astype(dtype))
    if rest == "renormalised":
        q_BTK, p_BTK = jax.nn.log_softmax(q_BTK), jax.nn.log_softmax(p_BTK)
    kl_BT = jnp.sum(jnp.exp(p_BTK) * (p_BTK - q_BTK), -1)
    if rest != "bucket":
        return kl_BT
    q_BT, p_BT = _log_rest(q_BTK), _log_rest(p_BTK)
    return kl_BT + jnp.exp(p_BT) * (p_BT - q_BT)


def _log_rest(logp_BTK: jax.Array) -> jax.Array:
    """log(1 - sum of probabilities), of 1e-7 at least: rounding may leave nothing."""
    rest_BT = 1.0 - jnp.sum(jnp.exp(logp_BTK), -1)
    return jnp.log(jnp.maximum(rest_BT, 1e-7))


def jensen_shannon(
    logp_NV: jax.Array, teacher_logp_NV: jax.Array, *, beta: float
) -> jax.Array:
    """Generalised Jensen-Shannon divergence over a whole vocabulary, in memory.

        m = beta * teacher + (1 - beta) * student
        beta * KL(teacher || m) + (1 - beta) * KL(student || m)

    beta 0 is by definition KL(teacher || student), beta 1 KL(student || teacher).

    Args:
        logp_NV: log-probabilities that sum to 1 over V, float32 or wider.
        teacher_logp_NV: the same; a constant.

    Returns:
        divergence_N.

    Source: GKD, arXiv:2306.13649, section 3, with the ends as TRL has them.
    """
    if not 0 <= beta <= 1:
        raise ValueError(f"beta must be in [0, 1], got {beta}")
    teacher_logp_NV = jax.lax.stop_gradient(teacher_logp_NV)

    def kl(p_NV: jax.Array, q_NV: jax.Array) -> jax.Array:
        return jnp.sum(jnp.exp(p_NV) * (p_NV - q_NV), -1)

    if beta == 0:
        return kl(teacher_logp_NV, logp_NV)
    if beta == 1:
        return kl(logp_NV, teacher_logp_NV)
    mixed_NV = jnp.logaddexp(
        teacher_logp_NV + jnp.log(beta), logp_NV + jnp.log1p(-beta)
    )
    of_teacher, of_student = kl(teacher_logp_NV, mixed_NV), kl(logp_NV, mixed_NV)
    return beta * of_teacher + (1 - beta) * of_student


@dataclasses.dataclass(frozen=True)
class OnPolicy:
    """Distillation of tokens that the student drew. Hashable.

    adv = coef * held(teacher_logp - student_logp) + outcome * (advantage of rewards)
    """

    loss: PolicyLoss  # what is done with the advantage
    minus: str  # whose student_logp: of the "sampler", "old" or the "policy" itself
    coef: float = 1.0
    bound: float = 0.0  # the difference is held to +- this, nats; 0: not at all
    outcome: float = 0.0  # weight of the advantage of rewards; 0: none are needed


PRESETS: dict[str, OnPolicy] = {
    # Thinking Machines, "On-policy distillation" (2025), and tinker-cookbook: each
    # token answers for its own KL alone.
    "opd": OnPolicy(
        dataclasses.replace(presets.PRESETS["reinforce"], centre="none"),
        minus="sampler",
    ),
    # MiMo-V2-Flash's report, section 4.4, equations 5 to 9. Ours: the bounds of the
    # ratio, 1/2 and 2, and the weight of the outcome. (On a bound we drop, it keeps.)
    "mopd": OnPolicy(
        dataclasses.replace(
            presets.PRESETS["glm5_agentic"],
            scale="group_std",
            clip_low=0.5,
            clip_high=1.0,
            aggregate="seq_mean_token_mean",
        ),
        minus="policy",
        outcome=0.1,
    ),
    # Nemotron 3 Ultra's report, asynchronous MOPD. The bounds are ours: 0.2 and 0.28 as
    # in its RL, 1/2 and 2 for the mask.
    "async_mopd": OnPolicy(
        dataclasses.replace(presets.PRESETS["glm5"], aggregate="token_mean"),
        minus="old",
    ),
    # Kimi K3's report, section 4.1: Kimi K2.5's loss. The bound is ours.
    "kimi_k3": OnPolicy(presets.PRESETS["kimi_k25"], minus="policy", bound=5.0),
    # GLM-5's report, cross-stage distillation: its loss of reasoning RL.
    "glm5": OnPolicy(presets.PRESETS["glm5"], minus="policy"),
}


def teacher_advantage(
    teacher_logp_BT: jax.Array,
    student_logp_BT: jax.Array,
    outcome_adv_BT: jax.Array | None,
    *,
    spec: OnPolicy,
) -> jax.Array:
    """The advantage of each token in `OnPolicy`, a constant.

    Minus the sampled-token estimate of the reverse KL: its policy gradient is, in the
    mean over tokens drawn, that of KL(student || teacher) of the next token.

    Raises:
        ValueError: if `spec.outcome` is not 0 and there is no outcome.
    """
    ahead_BT = teacher_logp_BT - student_logp_BT
    if spec.bound:
        ahead_BT = jnp.clip(ahead_BT, -spec.bound, spec.bound)
    adv_BT = spec.coef * ahead_BT
    if spec.outcome:
        if outcome_adv_BT is None:
            raise ValueError(f"outcome={spec.outcome} needs outcome_adv_BT, got None")
        adv_BT += spec.outcome * outcome_adv_BT
    return jax.lax.stop_gradient(adv_BT)


def on_policy_loss(
    logp_BT: jax.Array,
    entropy_BT: jax.Array,
    old_logp_BT: jax.Array,
    sampler_logp_BT: jax.Array,
    teacher_logp_BT: jax.Array,
    outcome_adv_BT: jax.Array | None,
    mask_BT: jax.Array,
    weight_BT: jax.Array,
    segment_BT: jax.Array | None = None,
    *,
    spec: OnPolicy,
    num_tokens: jax.Array | int,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """`policy_loss` with the teacher's advantage. The gradient takes it as a constant.

    Args: as `policy_loss`, and
        teacher_logp_BT: the teacher's log-probability of each token. Not read where
            the mask is 0.
        outcome_adv_BT: the advantage of rewards; None if `spec.outcome` is 0.

    Returns:
        As `policy_loss`, and the metric "reverse_kl": the mean over tokens of
        student_logp - teacher_logp.
    """
    student_BT = {"sampler": sampler_logp_BT, "old": old_logp_BT, "policy": logp_BT}
    if spec.minus not in student_BT:
        raise ValueError(f"minus is {spec.minus!r}: expected one of {[*student_BT]}")
    below_BT = jax.lax.stop_gradient(student_BT[spec.minus])
    loss, metrics = policy_loss(
        *(logp_BT, entropy_BT, old_logp_BT, sampler_logp_BT, None),
        teacher_advantage(teacher_logp_BT, below_BT, outcome_adv_BT, spec=spec),
        *(mask_BT, weight_BT, segment_BT),
        spec=spec.loss,
        num_tokens=num_tokens,
    )
    gap_BT = jnp.where(mask_BT != 0, below_BT - teacher_logp_BT, 0.0)
    reverse_kl = jnp.sum(gap_BT.astype(loss.dtype)) / jnp.maximum(num_tokens, 1)
    return loss, metrics | {"reverse_kl": jax.lax.stop_gradient(reverse_kl)}
