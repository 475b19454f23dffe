"""KL estimators: worked numbers, gradients over a whole vocabulary, extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_cases import (
    LOGP as SAMPLES,
)
from policy_cases import (
    REF,
    ZERO_ADV,
    assert_close,
    loss_and_grads,
    make,
)

from rl_jax.objectives.kl import ESTIMATORS, KINDS, kl_estimate, kl_loss

LOGP = [-0.50, -1.20, -0.30, -0.90, -0.40, -1.50, -0.20, -0.70, -2.00]
REF_LOGP = [-0.60, -1.10, -0.50, -0.80, -0.80, -1.20, -0.50, -0.90, -1.00]


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def slow_kl(logp: float, ref_logp: float, kind: str) -> float:
    ratio = np.exp(np.float64(ref_logp) - np.float64(logp))
    if kind == "k1":
        return -np.log(ratio)
    if kind == "k2":
        return 0.5 * np.log(ratio) ** 2
    return (ratio - 1) - np.log(ratio)


@pytest.mark.parametrize(
    ("kind", "mean"), [("k1", -0.033333), ("k2", 0.080556), ("k3", 0.103547)]
)
def test_estimators_have_the_worked_means(kind, mean, dtype):
    kl = kl_estimate(jnp.array(LOGP, dtype), jnp.array(REF_LOGP, dtype), kind=kind)
    assert kl.dtype == dtype
    np.testing.assert_allclose(kl.mean(), mean, rtol=0, atol=1e-6)


def test_k3_has_the_worked_values_and_gradients(dtype):
    logp, ref = jnp.array(LOGP[:3], dtype), jnp.array(REF_LOGP[:3], dtype)
    value = kl_estimate(logp, ref, kind="k3")
    grad = jax.grad(lambda x: kl_estimate(x, ref, kind="k3").sum())(logp)
    np.testing.assert_allclose(value, [0.004837, 0.005171, 0.018731], rtol=0, atol=1e-6)
    np.testing.assert_allclose(grad, [0.095163, -0.105171, 0.181269], rtol=0, atol=1e-6)


def test_estimators_have_the_values_a_peer_reports(dtype):
    logp = jnp.array([-1.0, -0.5, -0.7, -2.0, -0.3, -1.1], dtype)
    ref = jnp.array([-1.1, -0.6, -0.9, -1.5, -0.3, -1.4], dtype)
    means = [kl_estimate(logp, ref, kind=kind).mean() for kind in ESTIMATORS]
    np.testing.assert_allclose(means, [0.033333, 0.033333, 0.036324], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_estimators_match_the_slow_version(kind):
    rng = np.random.default_rng(0)
    logp_BT, ref_BT = -rng.exponential(2.0, (2, 3, 5)).astype(np.float32)
    kl_BT = kl_estimate(jnp.asarray(logp_BT), jnp.asarray(ref_BT), kind=kind)
    slow_BT = np.vectorize(slow_kl)(logp_BT, ref_BT, kind)
    # Absolute part: log-probabilities near 10 carry an error of 1e-6 in float32.
    np.testing.assert_allclose(kl_BT, slow_BT, rtol=1e-5, atol=2e-6)


def test_k3_keeps_its_digits_where_the_policies_nearly_agree():
    logp, ref = jnp.float32(0.0), jnp.float32(-1e-4)
    value = kl_estimate(logp, ref, kind="k3")
    # exp(x) - 1 - x is 0 or 6e-8 in float32; the truth is 5e-9.
    np.testing.assert_allclose(value, slow_kl(0.0, -1e-4, "k3"), rtol=1e-2)


# Over a vocabulary of three: what the estimators mean when tokens are drawn from the
# policy, and when they are drawn from another one.
POLICY_V = np.array([0.5, 0.3, 0.2])
REF_V = np.array([0.4, 0.4, 0.2])
OTHER_V = np.array([0.6, 0.3, 0.1])
KL_GRAD_V = [0.098938, -0.093885, -0.005053]


def expected_gradient(term, kind, drawn_V):
    """The mean over drawn tokens of the gradient of a term to the logits."""
    known = {"drawn_logp": jnp.log(drawn_V)} if term is kl_loss else {}

    def mean_term(logits_V):
        logp_V = jax.nn.log_softmax(logits_V)
        return jnp.sum(drawn_V * term(logp_V, jnp.log(REF_V), kind=kind, **known))

    return jax.grad(mean_term)(jnp.log(POLICY_V))


def test_k1_and_k3_estimate_the_divergence_itself():
    with jax.enable_x64(True):
        for kind in ("k1", "k3"):
            kl_V = kl_estimate(jnp.log(POLICY_V), jnp.log(REF_V), kind=kind)
            np.testing.assert_allclose(POLICY_V @ kl_V, 0.025267, rtol=0, atol=1e-6)
        kl_V = kl_estimate(jnp.log(POLICY_V), jnp.log(REF_V), kind="k3")
        np.testing.assert_allclose(OTHER_V @ kl_V, 0.027582, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("term", "kind", "drawn_V", "grad_V"),
    [
        (kl_estimate, "k1", POLICY_V, [0.0, 0.0, 0.0]),
        (kl_estimate, "k2", POLICY_V, KL_GRAD_V),
        (kl_estimate, "k3", POLICY_V, [0.1, -0.1, 0.0]),
        (kl_estimate, "k3", OTHER_V, [0.11, -0.106, -0.004]),
        (kl_loss, "k1", POLICY_V, KL_GRAD_V),
        (kl_loss, "k2", POLICY_V, KL_GRAD_V),
        (kl_loss, "k3", POLICY_V, [0.1, -0.1, 0.0]),
        (kl_loss, "k3_unbiased", POLICY_V, KL_GRAD_V),
        (kl_loss, "k3_unbiased", OTHER_V, KL_GRAD_V),
        (kl_loss, "k1_unbiased", OTHER_V, KL_GRAD_V),
    ],
)
def test_expected_gradients_are_those_of_the_theory(term, kind, drawn_V, grad_V):
    with jax.enable_x64(True):
        grad = expected_gradient(term, kind, drawn_V)
        np.testing.assert_allclose(grad, grad_V, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_the_loss_term_has_the_value_of_its_estimator(kind, dtype):
    logp, ref = jnp.array(LOGP, dtype), jnp.array(REF_LOGP, dtype)
    np.testing.assert_array_equal(
        kl_loss(logp, ref, kind=kind), kl_estimate(logp, ref, kind=kind)
    )


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_the_gradient_of_the_loss_term_depends_on_the_reference(kind):
    logp, ref = jnp.array(LOGP), jnp.array(REF_LOGP)

    def grad(ref):
        return jax.grad(lambda x: kl_loss(x, ref, kind=kind).sum())(logp)

    assert np.all(np.abs(grad(ref) - grad(ref - 0.5)) > 0.1)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_no_gradient_reaches_the_reference(kind):
    logp, ref = jnp.array(LOGP), jnp.array(REF_LOGP)
    grad = jax.grad(lambda f: kl_loss(logp, f, kind=kind).sum())(ref)
    np.testing.assert_array_equal(grad, np.zeros(9))


def test_the_unbiased_terms_estimate_the_divergence_from_another_policys_tokens():
    with jax.enable_x64(True):
        for kind in ("k1_unbiased", "k3_unbiased"):
            logp_V, ref_V, drawn_V = map(jnp.log, (POLICY_V, REF_V, OTHER_V))
            kl_V = kl_loss(logp_V, ref_V, kind=kind, drawn_logp=drawn_V)
            np.testing.assert_allclose(OTHER_V @ kl_V, 0.025267, rtol=0, atol=1e-6)


SAMPLER = [-0.75, -1.05, -0.28, -0.55, -1.00, -1.42, -0.61, -2.00, -1.61]


def test_the_unbiased_k3_has_the_worked_values_and_gradients(dtype):
    arrays = (jnp.array(x, dtype) for x in (LOGP, REF_LOGP, SAMPLER))
    logp, ref, drawn = arrays

    def term(logp):
        return kl_loss(logp, ref, kind="k3_unbiased", drawn_logp=drawn)

    value, grad = term(logp), jax.grad(lambda x: term(x).sum())(logp)
    np.testing.assert_allclose(value[:3], [0.006211, 0.004451, 0.018360], atol=1e-6)
    np.testing.assert_allclose(grad[:3], [0.128403, -0.086071, 0.196040], atol=1e-6)
    np.testing.assert_allclose(value.mean(), 0.091486, rtol=0, atol=1e-6)
    # Its gradient in closed form.
    closed = jnp.exp(logp - drawn) * (logp - ref)
    np.testing.assert_allclose(grad, closed, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "mean"), [("k3_unbiased", 0.041450), ("k1_unbiased", 0.244615)]
)
def test_the_unbiased_terms_have_the_values_a_peer_reports(kind, mean, dtype):
    logp = jnp.array([-1.0, -0.5, -0.7, -2.0, -0.3, -1.1], dtype)
    ref = jnp.array([-1.1, -0.6, -0.9, -1.5, -0.3, -1.4], dtype)
    old = jnp.array([-1.2, -0.9, -0.5, -1.0, -0.3, -2.5], dtype)
    kl = kl_loss(logp, ref, kind=kind, drawn_logp=old)
    np.testing.assert_allclose(kl.mean(), mean, rtol=0, atol=1e-6)


def test_the_unbiased_terms_want_to_know_who_drew_the_tokens():
    with pytest.raises(ValueError, match="drawn_logp"):
        kl_loss(jnp.zeros(1), jnp.zeros(1), kind="k3_unbiased")
    with pytest.raises(ValueError, match="'k2_unbiased'"):
        kl_loss(jnp.zeros(1), jnp.zeros(1), kind="k2_unbiased")


@pytest.mark.parametrize("kind", ["k1_unbiased", "k3_unbiased"])
def test_the_unbiased_terms_stay_finite_at_any_distance(kind):
    logp = jnp.array([-1000.0, -1.0, -1.0])
    others = jnp.array([-1.0, -1000.0, -1.0])

    def total(x, ref, drawn):
        return kl_loss(x, ref, kind=kind, drawn_logp=drawn).sum()

    for ref, drawn in ((others, logp), (logp, others), (others, others)):
        value, grad = jax.value_and_grad(total)(logp, ref, drawn)
        assert np.isfinite(value) and np.all(np.isfinite(grad))


def test_k3_stays_finite_at_any_distance():
    logp = jnp.array([-1000.0, -1.0, -1.0])
    ref = jnp.array([-1.0, -1000.0, -jnp.inf])
    value, grad = jax.value_and_grad(lambda x: kl_loss(x, ref, kind="k3").sum())(logp)
    assert np.isfinite(value) and np.all(np.isfinite(grad))


def test_bfloat16_is_widened_before_the_exponential():
    logp, ref = jnp.array(LOGP, jnp.bfloat16), jnp.array(REF_LOGP, jnp.bfloat16)
    narrow = kl_estimate(logp, ref, kind="k3")
    wide = kl_estimate(logp.astype(jnp.float32), ref.astype(jnp.float32), kind="k3")
    assert narrow.dtype == jnp.float32
    np.testing.assert_array_equal(narrow, wide)


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="'k4'"):
        kl_estimate(jnp.zeros(1), jnp.zeros(1), kind="k4")


# In the policy loss.


@pytest.mark.parametrize(
    ("kind", "mean"), [("k1", -0.033333), ("k2", 0.080556), ("k3", 0.103547)]
)
def test_the_kl_metric_is_the_token_mean_of_the_estimator(kind, mean, dtype):
    spec = make(kl=kind, kl_coef=0.5, aggregate="token_mean")
    loss, _, metrics, _ = loss_and_grads(spec, dtype)
    np.testing.assert_allclose(metrics["kl"], mean, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        loss - metrics["policy_loss"], 0.5 * mean, rtol=0, atol=1e-6
    )


def test_k1_is_reported_with_the_gradient_of_k2(dtype):
    spec = make(kl="k1", kl_coef=2.0, aggregate="token_mean")
    _, grad, _, _ = loss_and_grads(spec, dtype, adv=ZERO_ADV)
    expected = [
        2.0 * (np.array(a) - np.array(b)) / 9 for a, b in zip(SAMPLES, REF, strict=True)
    ]
    assert_close(grad, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_another_reference_gives_another_gradient(kind):
    spec = make(kl=kind, kl_coef=1.0)
    _, grad, _, _ = loss_and_grads(spec)
    moved = [[f - 0.5 for f in x] for x in REF]
    _, other, _, _ = loss_and_grads(spec, ref=moved)
    for grad_T, other_T in zip(grad, other, strict=True):
        assert np.all(np.abs(grad_T - other_T) > 0.01)


@pytest.mark.parametrize("denominator", ["old", "sampler"])
def test_the_unbiased_term_weighs_by_the_ratio_in_use(denominator, dtype):
    spec = make(
        kl="k3_unbiased",
        kl_coef=1.0,
        aggregate="token_mean",
        denominator=denominator,
    )
    _, grad, metrics, _ = loss_and_grads(spec, dtype, adv=ZERO_ADV)
    if denominator == "sampler":
        np.testing.assert_allclose(metrics["kl"], 0.091486, rtol=0, atol=1e-6)
        assert_close(grad[:1], [np.array([0.128403, -0.086071, 0.196040]) / 9])
    else:
        assert abs(float(metrics["kl"]) - 0.091486) > 0.005


@pytest.mark.parametrize("place", ["reward", "return"])
def test_a_kl_in_the_reward_is_not_in_the_loss_but_measured(place):
    spec = make(kl_coef=0.5, kl_place=place)
    loss, grad, metrics, _ = loss_and_grads(spec)
    plain, plain_grad, plain_metrics, _ = loss_and_grads(make())
    assert loss == plain and metrics["kl"] == plain_metrics["kl"]
    assert_close(grad, plain_grad, atol=0)
