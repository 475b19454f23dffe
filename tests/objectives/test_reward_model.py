"""Losses of reward models: worked numbers, rankings of any size, padding."""

import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.objectives.reward_model import (
    MARGINS,
    Ranking,
    pair_ranking,
    pointwise_loss,
    ranking_loss,
)

jitted_loss = jax.jit(jax.value_and_grad(ranking_loss, has_aux=True))


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def slow_loss(score_PK, rank_PK, valid_PK, margin_PKK, weight_P) -> float:
    total = 0.0
    for p, score_K in enumerate(np.asarray(score_PK, np.float64)):
        losses = [
            math.log1p(math.exp(score_K[j] - score_K[i] + margin_PKK[p][i][j]))
            for i in range(len(score_K))
            for j in range(len(score_K))
            if rank_PK[p][i] < rank_PK[p][j] and valid_PK[p][i] and valid_PK[p][j]
        ]
        total += weight_P[p] * (sum(losses) / len(losses) if losses else 0.0)
    return total


@pytest.mark.parametrize(
    ("margin", "loss", "slope"), [(0.0, 0.371101, None), (1.0, 0.798139, -0.549834)]
)
def test_a_pair_has_the_worked_values(margin, loss, slope, dtype):
    ranking = pair_ranking(1)._replace(margin_PKK=jnp.full((1, 2, 2), margin, dtype))
    (found, metrics), grad_PK = jitted_loss(
        jnp.array([[1.2, 0.4]], dtype), ranking, jnp.ones(1, dtype)
    )
    assert found.dtype == dtype
    np.testing.assert_allclose(found, loss, rtol=0, atol=1e-6)
    if slope is not None:
        np.testing.assert_allclose(grad_PK, [[slope, -slope]], rtol=0, atol=1e-6)
    np.testing.assert_allclose(metrics["accuracy"], 1.0)
    np.testing.assert_allclose(metrics["score_margin"], 0.8, rtol=0, atol=1e-6)


def test_three_ranked_replies_have_the_worked_value(dtype):
    ranking = Ranking(jnp.array([[0, 1, 2]]), jnp.ones((1, 3), bool))
    scores = jnp.array([[2.0, 1.0, 0.5]], dtype)
    (found, _), _ = jitted_loss(scores, ranking, jnp.ones(1, dtype))
    np.testing.assert_allclose(found, 0.329584, rtol=0, atol=1e-6)


P, K = 3, 4


@hypothesis.given(seed=st.integers(0, 9999))
@hypothesis.settings(max_examples=25, deadline=None)
def test_values_match_the_slow_version_and_padding_is_not_read(seed):
    rng = np.random.default_rng(seed)
    score_PK = rng.normal(size=(P, K)).astype(np.float32)
    rank_PK = rng.integers(0, 3, (P, K))
    valid_PK = rng.uniform(size=(P, K)) < 0.7
    margin_PKK = rng.uniform(0, 2, (P, K, K)).astype(np.float32)
    weight_P = np.array([0.5, 0.2, 0.0], np.float32)
    expected = slow_loss(score_PK, rank_PK, valid_PK, margin_PKK, weight_P)
    score_PK[~valid_PK], score_PK[2] = np.nan, np.inf
    ranking = Ranking(*map(jnp.array, (rank_PK, valid_PK, margin_PKK)))
    (loss, metrics), grad_PK = jitted_loss(
        jnp.array(score_PK), ranking, jnp.array(weight_P)
    )
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-6)
    assert np.all(np.isfinite(grad_PK)) and 0 <= metrics["accuracy"] <= 0.7 + 1e-6
    np.testing.assert_array_equal(np.asarray(grad_PK)[~valid_PK], 0.0)
    # Only differences of scores matter.
    np.testing.assert_allclose(np.sum(grad_PK, 1), 0.0, rtol=0, atol=1e-6)


def test_replies_of_one_rank_teach_nothing():
    ranking = Ranking(jnp.zeros((1, 3), int), jnp.ones((1, 3), bool))
    (loss, metrics), grad_PK = jitted_loss(
        jnp.array([[3.0, 1.0, 2.0]]), ranking, jnp.ones(1)
    )
    assert loss == metrics["accuracy"] == 0
    np.testing.assert_array_equal(grad_PK, np.zeros((1, 3)))


def test_equal_scores_are_half_right():
    (_, metrics), _ = jitted_loss(jnp.zeros((1, 2)), pair_ranking(1), jnp.ones(1))
    assert metrics["accuracy"] == 0.5


def test_margins_grow_with_the_rating():
    for margins in MARGINS.values():
        assert list(margins) == sorted(margins, reverse=True) and margins[-1] == 0


@pytest.mark.parametrize(("label", "loss"), [(1, 0.403186), (0, 1.103186)])
def test_a_reply_judged_alone_has_the_worked_value(label, loss, dtype):
    scores, labels = jnp.array([0.7, jnp.nan], dtype), jnp.array([label, jnp.nan])
    (found, metrics), grad_N = jax.value_and_grad(pointwise_loss, has_aux=True)(
        scores, labels, jnp.array([1.0, 0.0], dtype)
    )
    np.testing.assert_allclose(found, loss, rtol=0, atol=1e-6)
    assert metrics["accuracy"] == label
    slope = 1 / (1 + math.exp(-0.7)) - label
    np.testing.assert_allclose(grad_N, [slope, 0.0], rtol=0, atol=1e-6)


def test_scores_far_apart_stay_finite():
    (loss, _), grad_PK = jitted_loss(
        jnp.array([[-1e4, 1e4]]), pair_ranking(1), jnp.ones(1)
    )
    assert math.isfinite(loss) and np.all(np.isfinite(grad_PK))
