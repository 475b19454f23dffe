"""Per-token estimates of a KL divergence from one sampled token.

Two functions, because the value and the gradient of an estimator are different
questions. `kl_estimate` is the estimator itself; `kl_loss` is what a loss should
add. Neither masks nor averages: the caller does both.
"""

import jax
import jax.numpy as jnp

KINDS = ("k1", "k2", "k3")

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
    raise ValueError(f"unknown KL estimator {kind!r}: expected one of {KINDS}")


def kl_loss(logp: jax.Array, ref_logp: jax.Array, *, kind: str) -> jax.Array:
    """The KL term of a loss: the value of `kind`, with a gradient that can be used.

    k2 and k3 are differentiated as they are. The gradient of k1 does not contain
    the reference at all (it is 1 for every token), so as a loss it regularises
    nothing; here k1 keeps its value and takes the gradient of k2, which over tokens
    drawn from the policy is the exact gradient of KL(policy || ref).

    The reference is a constant: no gradient reaches `ref_logp`.

    Args, returns, raises: as `kl_estimate`.
    """
    ref_logp = jax.lax.stop_gradient(ref_logp)
    value = kl_estimate(logp, ref_logp, kind=kind)
    if kind != "k1":
        return value
    slope = kl_estimate(logp, ref_logp, kind="k2")
    return jax.lax.stop_gradient(value) + (slope - jax.lax.stop_gradient(slope))
