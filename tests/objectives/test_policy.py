"""The policy loss: aggregation, entropy bonus, KL term and metrics in worked numbers.

Those of each method are in test_surrogate.py, those of the sampler's corrections in
test_correction.py, of KL terms in test_kl.py, of other trainers in test_presets.py.
Properties that hold for any batch are in test_policy_properties.py.
"""

import jax
import numpy as np
import pytest
from policy_cases import (
    OLD,
    SAMPLER,
    ZERO_ADV,
    assert_close,
    loss_and_grads,
    make,
)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("token_mean", -0.534944),
        ("seq_mean_token_mean", -0.383032),
        ("seq_mean_token_sum", -1.604832),
        ("seq_sum_const", -0.401208),
        ("prompt_mean", -0.556953),
    ],
)
def test_every_aggregation_has_the_worked_value(aggregate, expected, dtype):
    loss, *_ = loss_and_grads(make(aggregate=aggregate), dtype)
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-6)


def test_grpo_with_a_kl_term_has_the_worked_value(dtype):
    loss, *_ = loss_and_grads(make(kl_coef=0.001), dtype)
    np.testing.assert_allclose(loss, -0.382947, rtol=0, atol=1e-6)
    only_kl, *_ = loss_and_grads(make(kl_coef=1.0), dtype, adv=ZERO_ADV)
    np.testing.assert_allclose(only_kl, 0.084749, rtol=0, atol=1e-6)


def test_clipped_tokens_are_counted_by_the_sign_of_their_advantage(dtype):
    _, grad, metrics, _ = loss_and_grads(make(), dtype)
    assert sum(np.sum(g == 0) for g in grad) == 3
    for name, count in [("fraction", 3), ("low_fraction", 1), ("high_fraction", 2)]:
        np.testing.assert_allclose(
            metrics[f"clip_{name}"], count / 9, rtol=0, atol=1e-6
        )


def test_the_gap_to_the_sampler_is_measured(dtype):
    _, _, metrics, _ = loss_and_grads(make(), dtype)
    gaps = np.abs(np.array(sum(OLD, [])) - np.array(sum(SAMPLER, [])))
    for name, value in [
        ("sampler_gap_mean", np.mean(gaps)),
        ("sampler_gap_max", 1.3),
        ("sampler_kl", 0.153193),
        ("sampler_weight_mean", 1.0),
    ]:
        np.testing.assert_allclose(metrics[name], value, rtol=0, atol=1e-6)


def test_the_entropy_bonus_lowers_the_loss_and_reaches_the_entropy(dtype):
    without, _, _, _ = loss_and_grads(make(), dtype)
    loss, _, metrics, grad = loss_and_grads(make(entropy_coef=0.1), dtype)
    # Entropies are 0.6, 0.5 and 0.7; each sample weighs a third.
    np.testing.assert_allclose(loss - without, -0.1 * 0.6, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        metrics["entropy"], (3 * 0.6 + 2 * 0.5 + 4 * 0.7) / 9, rtol=0, atol=1e-6
    )
    assert_close(grad, [[-0.1 / 9] * 3, [-0.1 / 6] * 2, [-0.1 / 12] * 4])
