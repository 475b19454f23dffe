"""Preference losses: worked numbers, slow twin, padding, what is refused."""

import dataclasses
import functools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.errors import ConfigError
from rl_jax.objectives.preference import (
    PRESETS,
    PreferenceLoss,
    preference_loss,
    validate,
)

jitted_loss = jax.jit(
    jax.value_and_grad(preference_loss, argnums=(0, 1, 2, 3), has_aux=True),
    static_argnames="spec",
)
# chosen and rejected log-probabilities, the reference's, tokens of each.
PAIR = (-10.0, -11.0, -12.0, -10.0, 5, 4)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def evaluate(spec, *pairs, weights=None, dtype="float32"):
    floats = [jnp.array([p[i] for p in pairs], dtype) for i in range(4)]
    tokens = [jnp.array([p[i] for p in pairs]) for i in (4, 5)]
    weights = [1 / len(pairs)] * len(pairs) if weights is None else weights
    (loss, metrics), grads = jitted_loss(
        *floats, *tokens, jnp.array(weights, dtype), spec=spec
    )
    assert loss.dtype == dtype and loss.shape == ()
    return float(loss), metrics, grads


def slow_loss(spec, chosen, rejected, chosen_ref, rejected_ref, n_chosen, n_rejected):
    by = (n_chosen, n_rejected) if spec.average == "mean" else (1, 1)
    h = (chosen - chosen_ref) / by[0] - (rejected - rejected_ref) / by[1]
    right, wrong = (math.log1p(math.exp(x * spec.beta * h)) for x in (-1, 1))
    smoothing = spec.label_smoothing
    loss = {
        "sigmoid": (1 - smoothing) * right + smoothing * wrong,
        "ipo": (h - 1 / (2 * spec.beta)) ** 2,
        "hinge": max(0.0, 1 - spec.beta * h),
    }[spec.kind]
    return loss - spec.nll_coef * chosen / n_chosen


@pytest.mark.parametrize(
    ("spec", "loss", "slope"),
    [
        (PRESETS["dpo"], 0.554355, -0.042556),
        (PRESETS["cdpo"], 0.584355, None),
        (PRESETS["dpo_norm"], 0.038041, -0.037327),
        (PRESETS["ipo"], 4.0, -4.0),
        (PRESETS["hinge"], 0.7, -0.1),
        (PRESETS["llama3"], 0.954355, -0.042556 - 0.2 / 5),
    ],
)
def test_losses_have_the_worked_values_and_gradients(spec, loss, slope, dtype):
    found, _, grads = evaluate(spec, PAIR, dtype=dtype)
    np.testing.assert_allclose(found, loss, rtol=0, atol=1e-6)
    if slope is not None:
        np.testing.assert_allclose(grads[0], [slope], rtol=0, atol=1e-6)
    for grad_N in grads[2:]:  # the reference is a constant
        np.testing.assert_array_equal(grad_N, [0.0])


def test_special_tokens_are_in_the_likelihood_and_nowhere_else(dtype):
    spec, one = PRESETS["llama3"], functools.partial(jnp.array, dtype=dtype)
    pair: Any = [one([x]) for x in (*PAIR, 1.0)]

    def loss(special_logp_N):
        special = {"special_logp_N": special_logp_N, "special_tokens_N": one([1])}
        return preference_loss(*pair, **special, spec=spec)

    (found, metrics), slope = jax.value_and_grad(loss, has_aux=True)(one([-2.0]))
    # -(-10 - 2) / (5 + 1), weighted by 0.2, beside the worked value without it.
    np.testing.assert_allclose(metrics["nll"], 2.0, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found, 0.554355 + 0.2 * 2.0, rtol=0, atol=1e-6)
    np.testing.assert_allclose(slope, [-0.2 / 6], rtol=0, atol=1e-7)
    np.testing.assert_allclose(metrics["logp_chosen"], -10.0, rtol=0, atol=1e-6)


def test_ipo_by_token_has_the_value_of_a_peer(dtype):
    # Log-ratios of 2 and -1 over 4 and 6 tokens.
    pair = (-10.0, -11.0, -12.0, -10.0, 4, 6)
    found, *_ = evaluate(PRESETS["ipo_mean"], pair, dtype=dtype)
    np.testing.assert_allclose(found, 18.777778, rtol=0, atol=3e-6)


def test_metrics_have_the_worked_values():
    _, metrics, _ = evaluate(PRESETS["llama3"], PAIR)
    expected = {
        "preference_loss": 0.554355,
        "nll": 2.0,
        "accuracy": 1.0,
        "reward_chosen": 0.2,
        "reward_rejected": -0.1,
        "reward_margin": 0.3,
        "logp_chosen": -10.0,
        "logp_rejected": -11.0,
    }
    assert set(metrics) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=0, atol=1e-6)


numbers = st.floats(-30, 0, width=32)
pairs = st.tuples(
    numbers, numbers, numbers, numbers, st.integers(1, 9), st.integers(1, 9)
)


@pytest.mark.parametrize("name", PRESETS)
@hypothesis.given(drawn=st.lists(pairs, min_size=3, max_size=3))
@hypothesis.settings(max_examples=15, deadline=None)
def test_values_match_the_slow_version(name, drawn):
    spec = PRESETS[name]
    with jax.enable_x64(True):
        loss, *_ = evaluate(spec, *drawn, dtype="float64")
    expected = np.mean([slow_loss(spec, *pair) for pair in drawn])
    # rtol: IPO squares numbers of up to 100.
    np.testing.assert_allclose(loss, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", PRESETS)
def test_gradients_match_differences_of_the_slow_version(name):
    spec, step = PRESETS[name], 1e-6
    with jax.enable_x64(True):
        _, _, grads = evaluate(spec, PAIR, dtype="float64")
    for i in (0, 1):
        up, down = list(PAIR), list(PAIR)
        up[i], down[i] = PAIR[i] + step, PAIR[i] - step
        slope = (slow_loss(spec, *up) - slow_loss(spec, *down)) / (2 * step)
        np.testing.assert_allclose(grads[i], [slope], rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", PRESETS)
def test_a_pair_of_weight_zero_is_not_read(name):
    nan = math.nan
    other = (-3.0, -5.0, -4.0, -4.0, 2, 3)
    alone, metrics, grads = evaluate(PRESETS[name], PAIR, other, weights=[0.5, 0.5])
    padded = evaluate(
        PRESETS[name],
        *(PAIR, other, (nan, -math.inf, nan, nan, 0, 0)),
        weights=[0.5, 0.5, 0.0],
    )
    np.testing.assert_allclose(padded[0], alone, rtol=0, atol=1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(padded[1][name], value, rtol=0, atol=1e-6)
    for grad_N, padded_N in zip(grads, padded[2], strict=True):
        np.testing.assert_array_equal(padded_N, [*grad_N, 0.0])


def test_split_batches_add_up():
    pairs = [PAIR, (-3.0, -5.0, -4.0, -4.0, 2, 3), (-8.0, -2.0, -7.0, -2.5, 6, 1)]
    whole, metrics, _ = evaluate(PRESETS["llama3"], *pairs)
    parts = [evaluate(PRESETS["llama3"], pair, weights=[1 / 3]) for pair in pairs]
    np.testing.assert_allclose(sum(p[0] for p in parts), whole, rtol=0, atol=1e-6)
    for name, value in metrics.items():
        total = sum(float(p[1][name]) for p in parts)
        np.testing.assert_allclose(total, value, rtol=0, atol=2e-6)


def test_extreme_log_ratios_stay_finite():
    for chosen in (-1e4, 0.0):
        for spec in PRESETS.values():
            loss, _, grads = evaluate(spec, (chosen, -5000.0, -5000.0, -1.0, 5, 4))
            assert math.isfinite(loss) and np.isfinite(grads[0]).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "sppo"},
        {"average": "token"},
        {"beta": 0.0},
        {"beta": float("nan")},
        {"label_smoothing": 0.6},
        {"nll_coef": -0.1},
        {"nll_coef": True},
        {"kind": "ipo", "label_smoothing": 0.1},
    ],
)
def test_a_bad_choice_is_named_in_three_lines_or_fewer(changes):
    with pytest.raises(ConfigError) as caught:
        validate(dataclasses.replace(PreferenceLoss(), **changes))
    message = str(caught.value)
    field, value = list(changes.items())[-1]
    assert field in message and str(value) in message
    assert len(message.splitlines()) <= 3
