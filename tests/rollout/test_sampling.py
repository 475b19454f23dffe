"""Draws of one token a row: frequencies, truncation, and what they do not depend on.

Legend: W rows, V vocabulary.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.rollout import sampling

V = 5
NUM_DRAWS = 4000
# The 0.999 quantile of chi-square by degrees of freedom.
CHI_SQUARE = {1: 10.83, 2: 13.82, 3: 16.27, 4: 18.47}

draw = jax.jit(sampling.draw, static_argnames=("top_k", "top_p"))


@functools.cache
def keys(count, seed=0):
    return jax.random.key_data(jax.random.split(jax.random.key(seed), count))


def softmax(z_V):
    p_V = np.exp(z_V - np.max(z_V))
    return p_V / p_V.sum()


def logits(W, seed=0):
    return np.random.default_rng(seed).normal(size=(W, V)).astype(np.float32) * 2


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "kept"),
    [
        (1.0, 0, 1.0, [0, 1, 2, 3, 4]),
        (0.5, 0, 1.0, [0, 1, 2, 3, 4]),
        (1.0, 3, 1.0, [0, 1, 3]),
        (1.0, 0, 0.8, [1, 3]),
        (2.0, 0, 0.75, [0, 1, 3]),  # mass is counted after temperature
    ],
)
def test_frequencies_are_those_of_the_kept_softmax(temperature, top_k, top_p, kept):
    z_V = np.array([0.3, 1.4, -1.0, 2.0, -0.2], np.float32)
    token_W, _ = draw(
        np.tile(z_V, (NUM_DRAWS, 1)),
        keys(NUM_DRAWS),
        np.full((NUM_DRAWS,), temperature, np.float32),
        top_k=top_k,
        top_p=top_p,
    )
    count_V = np.bincount(token_W, minlength=V)
    assert set(np.flatnonzero(count_V)) <= set(kept)
    expected = NUM_DRAWS * softmax(z_V[kept] / temperature)
    statistic = ((count_V[kept] - expected) ** 2 / expected).sum()
    assert statistic < CHI_SQUARE[len(kept) - 1]


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 0.9, {0, 1, 2}),
        (0, 0.8, {0, 1}),
        (0, 0.5, {0}),
        (0, 0.01, {0}),
        (0, 1.0, {0, 1, 2, 3}),
        (1, 1.0, {0}),
        (2, 1.0, {0, 1}),
        (7, 1.0, {0, 1, 2, 3}),
        (3, 0.8, {0, 1}),  # of the mass that top-k leaves
        (2, 0.9, {0, 1}),
    ],
)
def test_the_kept_set_is_that_of_the_worked_example(top_k, top_p, kept):
    z_WV = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32))
    order = np.array([2, 0, 3, 1])
    for permutation in (np.arange(4), order):
        shuffled_WV = z_WV[:, permutation]
        got_V = np.asarray(
            sampling.truncate(jnp.asarray(shuffled_WV), top_k=top_k, top_p=top_p)
        )[0]
        finite = np.isfinite(got_V)
        assert set(permutation[finite].tolist()) == kept
        np.testing.assert_array_equal(got_V[finite], shuffled_WV[0, finite])


def test_temperature_zero_takes_the_likeliest_token_with_its_logprob():
    z_WV = logits(7)
    token_W, logp_W = draw(z_WV, keys(7), np.zeros(7, np.float32))
    np.testing.assert_array_equal(token_W, z_WV.argmax(axis=1))
    want = [np.log(softmax(z_V.astype(np.float64)).max()) for z_V in z_WV]
    np.testing.assert_allclose(logp_W, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (2, 1.0), (0, 0.6)])
def test_logprobs_are_those_of_the_whole_softmax_over_temperature(top_k, top_p):
    W = 7
    z_WV, temperature_W = logits(W), np.linspace(0.4, 1.6, W).astype(np.float32)
    token_W, logp_W = draw(z_WV, keys(W), temperature_W, top_k=top_k, top_p=top_p)
    assert (token_W.dtype, logp_W.dtype) == (jnp.int32, jnp.float32)
    for w in range(W):
        p_V = softmax(z_WV[w].astype(np.float64) / temperature_W[w])
        want = np.log(p_V[token_W[w]])
        np.testing.assert_allclose(logp_W[w], want, rtol=0, atol=1e-5)


def test_a_draw_does_not_depend_on_its_neighbours():
    W = 7
    z_WV = logits(W)
    temperature_W = np.array([0, 1, 0.5, 1, 2, 0, 1], np.float32)
    key_data_W2 = np.asarray(keys(W))
    whole = draw(z_WV, key_data_W2, temperature_W)
    order = np.random.default_rng(1).permutation(W)
    permuted = draw(z_WV[order], key_data_W2[order], temperature_W[order])
    for got, want in zip(permuted, whole, strict=True):
        np.testing.assert_array_equal(got, np.asarray(want)[order])


def test_a_key_decides_a_draw():
    z_WV = np.tile(logits(1), (7, 1))
    one_W = np.ones(7, np.float32)
    key_data_W2 = np.asarray(keys(7))
    same_W, _ = draw(z_WV, np.tile(key_data_W2[:1], (7, 1)), one_W)
    assert len(set(np.asarray(same_W).tolist())) == 1
    other_W, _ = draw(z_WV, key_data_W2, one_W)
    assert len(set(np.asarray(other_W).tolist())) > 1
