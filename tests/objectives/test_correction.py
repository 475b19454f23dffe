"""Corrections for the sampler: worked numbers of weights, losses and gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_cases import (
    ADV,
    LOGP,
    OLD,
    PEER_LOGP,
    PEER_OLD,
    SAMPLER,
    ZERO_ADV,
    assert_close,
    loss_and_grads,
    make,
    pack,
    packed_masks,
    unpack,
)

from rl_jax.objectives.correction import CORRECTIONS, off_policy_keep, sampler_weight
from rl_jax.objectives.kl import kl_estimate
from rl_jax.objectives.segments import Samples, sample_means


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


RHO = [
    [1.051271, 1.051271, 0.980199],
    [0.951229, 1.105171],
    [1.020201, 1.010050, 3.669297, 1.010050],
]
PRODUCTS = [1.083287, 1.051271, 3.819044]

PEER_SAMPLER = [[-1.25, -0.8], [-0.5, -2.2, -0.3, -2.0]]
PEER_RHO = [[1.051271, 0.904837], [1.0, 3.320117, 1.0, 0.606531]]


def weights(kind, low, cap, old=OLD, sampler=SAMPLER):
    mask_BT, segment_BT = packed_masks(old)
    weight_BT = sampler_weight(
        jnp.array(pack(old, np.nan)),
        jnp.array(pack(sampler, -np.inf)),
        Samples(mask_BT != 0, segment_BT),
        kind=kind,
        low=low,
        cap=cap,
    )
    assert np.all(np.isfinite(weight_BT))
    return unpack(weight_BT, old)


def by_sample(numbers, of=RHO):
    return [[x] * len(x_T) for x, x_T in zip(numbers, of, strict=True)]


@pytest.mark.parametrize(
    ("kind", "low", "cap", "expected"),
    [
        ("truncate", 0.0, 2.0, [*RHO[:2], [1.020201, 1.010050, 2.0, 1.010050]]),
        ("truncate", 1.0, 2.0, [[1.051271] * 2 + [1.0], [1.0, 1.105171]]),
        ("mask", 0.5, 2.0, [*RHO[:2], [1.020201, 1.010050, 0.0, 1.010050]]),
        ("keep", 0.5, 2.0, [[1.0] * 3, [1.0] * 2, [1.0, 1.0, 0.0, 1.0]]),
        ("sequence_truncate", 0.0, 2.0, by_sample([*PRODUCTS[:2], 2.0])),
        ("sequence_truncate", 0.0, 9.0, by_sample(PRODUCTS)),
        ("sequence_mask", 0.0, 3.0, by_sample([*PRODUCTS[:2], 0.0])),
        # The geometric means are 1.027025, 1.025315 and 1.397940.
        ("geometric_keep", 1.0, 1.027, by_sample([0.0, 1.0, 0.0])),
        ("geometric_keep", 1.026, 1.398, by_sample([1.0, 0.0, 1.0])),
        ("geometric_mask", 1.0, 1.03, [*RHO[:2], [0.0] * 4]),
    ],
)
def test_weights_have_the_worked_values(kind, low, cap, expected):
    assert_close(weights(kind, low, cap)[: len(expected)], expected)


@pytest.mark.parametrize(
    ("kind", "low", "cap", "expected"),
    [
        ("truncate", 0.0, 2.0, [PEER_RHO[0], [1.0, 2.0, 1.0, 0.606531]]),
        ("mask", 0.7, 2.0, [PEER_RHO[0], [1.0, 0.0, 1.0, 0.0]]),
        ("sequence_truncate", 0.0, 9.0, by_sample([0.951229, 2.013753], PEER_RHO)),
        ("sequence_truncate", 0.0, 2.0, by_sample([0.951229, 2.0], PEER_RHO)),
        ("sequence_mask", 0.0, 2.0, by_sample([0.951229, 0.0], PEER_RHO)),
        # The geometric means are 0.975310 and 1.191246.
        ("geometric_mask", 0.9754, 1.1913, [[0.0] * 2, PEER_RHO[1]]),
        ("geometric_mask", 0.9753, 1.1912, [PEER_RHO[0], [0.0] * 4]),
    ],
)
def test_weights_have_the_values_of_peers(kind, low, cap, expected):
    assert_close(weights(kind, low, cap, PEER_OLD, PEER_SAMPLER), expected)


@pytest.mark.parametrize("kind", CORRECTIONS)
def test_a_sampler_that_agrees_needs_no_correction(kind):
    assert_close(weights(kind, 0.5, 2.0, OLD, OLD), by_sample([1.0] * 3), atol=0)


@pytest.mark.parametrize("kind", CORRECTIONS)
def test_weights_stay_finite_and_bounded_at_any_distance(kind):
    far = [[-300.0] * len(x) for x in OLD]
    for old, sampler in ((far, SAMPLER), (OLD, far)):
        for weight_T in weights(kind, 0.0, 2.0, old, sampler):
            assert np.all((weight_T >= 0) & (weight_T <= 2.0))


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [("seq_mean_token_mean", -0.458159), ("token_mean", -0.638646)],
)
def test_a_capped_sampler_weight_has_the_worked_values(aggregate, expected, dtype):
    spec = make("dapo", aggregate=aggregate, sampler_cap=2.0)
    loss, _, metrics, _ = loss_and_grads(spec, dtype)
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-6)
    # The cap bites on one token only: 3.669297 becomes 2.
    mean = np.mean(np.minimum(sum(RHO, []), 2.0))
    np.testing.assert_allclose(metrics["sampler_weight_mean"], mean, rtol=0, atol=1e-6)
    assert "sampler_masked_fraction" not in metrics


def test_a_masked_sampler_weight_has_the_worked_value_and_gradient(dtype):
    loss, grad, metrics, _ = loss_and_grads(make("glm5"), dtype)
    np.testing.assert_allclose(loss, -0.324825, rtol=0, atol=1e-6)
    expected = [
        [-0.142669, -0.095634, -0.108911],
        [0.000000, 0.151843],
        [-0.061541, 0.000000, 0.000000, -0.045137],
    ]
    assert_close(grad, expected)
    np.testing.assert_allclose(
        metrics["sampler_masked_fraction"], 1 / 9, rtol=0, atol=1e-7
    )


def test_the_sampler_weight_multiplies_the_gradient_and_not_the_kl_term():
    spec = make("dapo", aggregate="seq_mean_token_sum", sampler_cap=2.0)
    _, plain, _, _ = loss_and_grads(dataclasses.replace(spec, sampler_cap=0.0))
    _, capped, _, _ = loss_and_grads(spec)
    assert_close(
        [capped[2]], [plain[2] * np.array([1.020201, 1.010050, 2.0, 1.010050])]
    )
    kl = [
        loss_and_grads(dataclasses.replace(s, kl_coef=0.5), adv=ZERO_ADV)[1]
        for s in (spec, dataclasses.replace(spec, sampler_cap=0.0))
    ]
    assert_close(kl[0], kl[1], atol=0)


def test_the_drift_from_the_sampler_has_the_worked_values():
    for logp, sampler, expected in [
        (LOGP, SAMPLER, [-0.026667, -0.125, -0.31]),
        (PEER_LOGP, PEER_SAMPLER, [-0.275, -0.225]),
        (PEER_LOGP, PEER_OLD, [-0.30, -0.05]),
    ]:
        mask_BT, segment_BT = packed_masks(logp)
        drift_BT = sample_means(
            jnp.array(pack(sampler, 0.0) - pack(logp, 0.0)),
            Samples(mask_BT != 0, segment_BT),
        )
        assert_close(unpack(drift_BT, logp), by_sample(expected, logp))


@pytest.mark.parametrize(
    ("logp", "adv", "kept"),
    [
        ([-2.0, -3.0], -1.0, 0.0),
        ([-2.0, -3.0], 1.0, 1.0),
        ([-1.2, -1.6], -1.0, 1.0),
    ],
)
def test_only_bad_samples_that_drifted_far_are_left_out(logp, adv, kept):
    mask_BT = jnp.array([[True, True, False]])
    keep_BT = off_policy_keep(
        jnp.array([[*logp, 0.0]]),
        jnp.array([[-1.0, -1.5, 0.0]]),
        jnp.full((1, 3), adv),
        Samples(mask_BT, jnp.array([[1, 1, 0]])),
        delta=1.0,
    )
    np.testing.assert_array_equal(keep_BT[0, :2], [kept, kept])


def test_a_sample_left_out_has_no_gradient_but_its_kl_term_has(dtype):
    # The second sample has a negative advantage; its drift is moved to 0.375.
    sampler = [SAMPLER[0], [-0.05, -0.50], SAMPLER[2]]
    spec = make("deepseek_v32", off_policy_delta=0.3, kl_coef=0.0)
    _, grad, metrics, _ = loss_and_grads(spec, dtype, sampler=sampler)
    assert np.all(grad[1] == 0) and np.any(grad[2] != 0)
    np.testing.assert_allclose(
        metrics["sampler_masked_fraction"], 2 / 9, rtol=0, atol=1e-7
    )
    with_kl = dataclasses.replace(spec, kl_coef=0.1)
    _, both, _, _ = loss_and_grads(with_kl, dtype, sampler=sampler)
    _, only_kl, _, _ = loss_and_grads(with_kl, dtype, sampler=sampler, adv=ZERO_ADV)
    assert_close([both[1]], [only_kl[1]], atol=0)
    assert np.all(only_kl[1] != 0)
    # It is left out of the sum, not of the count: the others weigh what they did.
    wide = dataclasses.replace(spec, off_policy_delta=9.0)
    _, unmasked, _, _ = loss_and_grads(wide, dtype, sampler=sampler)
    assert_close([grad[0], grad[2]], [unmasked[0], unmasked[2]], atol=0)


def test_the_gap_to_the_sampler_has_the_worked_means():
    old, sampler = (jnp.array(sum(x, [])) for x in (OLD, SAMPLER))
    for kind, mean in [("k1", -0.163333), ("k3", 0.153193)]:
        kl = kl_estimate(sampler, old, kind=kind)
        np.testing.assert_allclose(kl.mean(), mean, rtol=0, atol=1e-6)


def test_the_weight_is_a_constant_of_the_loss():
    mask_BT, segment_BT = packed_masks(OLD)
    samples = Samples(mask_BT != 0, segment_BT)

    def total(old_BT, logp_BT):
        weight_BT = sampler_weight(
            *(old_BT, jnp.array(pack(SAMPLER, 0.0)), samples),
            kind="sequence_truncate",
            low=0.0,
            cap=9.0,
        )
        keep_BT = off_policy_keep(
            *(logp_BT, jnp.array(pack(SAMPLER, 0.0)), jnp.array(pack(ADV, 0.0))),
            samples,
            delta=0.1,
        )
        return (weight_BT * keep_BT).sum()

    arrays = jnp.array(pack(OLD, 0.0)), jnp.array(pack(LOGP, 0.0))
    for grad_BT in jax.grad(total, argnums=(0, 1))(*arrays):
        np.testing.assert_array_equal(grad_BT, jnp.zeros_like(grad_BT))
