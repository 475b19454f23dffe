"""Per-token estimates of a KL divergence from one sampled token.

Two functions, because the value and the gradient of an estimator are different
questions. `kl_estimate` is the estimator itself; `kl_loss` is what a loss should
add. Neither masks nor averages: the caller does both.
"""

import jax
import jax.numpy as jnp

ESTIMATORS = ("k1", "k2", "k3")
KINDS = (*ESTIMATORS, "k1_unbiased", "k3_unbiased")

# exp(20) is 4.9e8: far outside any ratio worth learning from, and still far inside
# float32. The same bound is used by verl, NeMo-RL and OpenRLHF.
LOG_RATIO_BOUND = 20.0


def kl_estimate(logp: jax.Array, ref_logp: jax.Array, *, kind: str) -> jax.Array:
    """Estimates KL(policy || ref) at tokens drawn from the policy.

    With x = ref_logp - logp:

        k1 = -x              unbiased, any sign
        k2 = x^2 / 2         biased, never negative
        k3 = exp(x) - x - 1  unbiased, never negative

    Differentiating the mean of an estimator does not always give the gradient of
    the KL: over tokens drawn from the policy, the gradient of k1 has mean zero,
    that of k2 is exactly the gradient of KL(policy || ref), and that of k3 is the
    gradient of the other direction, KL(ref || policy). See `kl_loss`.

    Args:
        logp: log-probabilities of the drawn tokens under the policy, any shape;
            computed in float32 if they are narrower.
        ref_logp: the same under the reference, same shape.
        kind: "k1", "k2" or "k3". In k3, x is first clamped to +-20, so that a
            reference that rules a token out gives a finite value (and no gradient).

    Returns:
        The estimate of every token, shaped like `logp`.

    Raises:
        ValueError: if `kind` is unknown.

    Source: J. Schulman, "Approximating KL divergence" (2020); k3 in GRPO,
    arXiv:2402.03300, equation 4.
    """
    logp = logp.astype(jnp.promote_types(logp.dtype, jnp.float32))
    x = ref_logp.astype(logp.dtype) - logp
    if kind == "k1":
        return -x
    if kind == "k2":
        return 0.5 * jnp.square(x)
    if kind == "k3":
        x = jnp.clip(x, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)
        # expm1: exp(x) - 1 loses every digit of k3 once |x| is below about 3e-4.
        return jnp.expm1(x) - x
    raise ValueError(f"unknown KL estimator {kind!r}: expected one of {ESTIMATORS}")


def kl_loss(
    logp: jax.Array,
    ref_logp: jax.Array,
    *,
    kind: str,
    drawn_logp: jax.Array | None = None,
) -> jax.Array:
    """The KL term of a loss: the value of `kind`, with a gradient that can be used.

    k2 and k3 are differentiated as they are. The gradient of k1 does not contain
    the reference at all (it is 1 for every token), so as a loss it regularises
    nothing; here k1 keeps its value and takes the gradient of k2, which over tokens
    drawn from the policy is the exact gradient of KL(policy || ref).

        k1_unbiased = exp(logp - drawn_logp) * k1
        k3_unbiased = exp(logp - drawn_logp) * k3

    weigh each token by how likely it has become, and are differentiated through both
    factors: over tokens drawn by drawn_logp, their means are KL(policy || ref) and its
    exact gradient, however far the policy has moved since.

    The reference and `drawn_logp` are constants: no gradient reaches them.

    Args:
        drawn_logp: log-probabilities under the policy that drew the tokens, for the
            unbiased kinds alone. That log-ratio is clamped to +-20.

    Returns, raises: as `kl_estimate`; ValueError too if `drawn_logp` is missing.

    Source: DeepSeek-V3.2, arXiv:2512.02556, section 3.1 ("k3_unbiased").
    """
    ref_logp = jax.lax.stop_gradient(ref_logp)
    estimator = kind.removesuffix("_unbiased")
    value = kl_estimate(logp, ref_logp, kind=estimator)
    if kind == "k1":
        slope = kl_estimate(logp, ref_logp, kind="k2")
        return jax.lax.stop_gradient(value) + (slope - jax.lax.stop_gradient(slope))
    if kind in ESTIMATORS:
        return value
    if kind not in KINDS:
        raise ValueError(f"unknown KL term {kind!r}: expected one of {KINDS}")
    if drawn_logp is None:
        raise ValueError(f"{kind} needs drawn_logp, got None")
    x = logp.astype(value.dtype) - jax.lax.stop_gradient(drawn_logp)
    return value * jnp.exp(jnp.clip(x, -LOG_RATIO_BOUND, LOG_RATIO_BOUND))
