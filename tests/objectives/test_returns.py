"""Rewards of tokens and whitening: worked numbers, slow twins, splits of a batch."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_cases import LOGP, OLD, REF, assert_close, pack, packed_masks, unpack

from rl_jax.objectives.advantage import discounted_returns
from rl_jax.objectives.returns import (
    reward_kl,
    sample_penalty,
    token_rewards,
    whitened,
    whitening,
)
from rl_jax.objectives.segments import Samples

REWARD = [[1.0] * 3, [0.0] * 2, [1.0] * 4]


def packed(ragged):
    return jnp.array(pack(ragged, np.nan))


def samples_of(ragged):
    mask_BT, segment_BT = packed_masks(ragged)
    return Samples(mask_BT != 0, segment_BT)


def rewards(coef, kind="k1"):
    return token_rewards(
        *(packed(REWARD), packed(OLD), packed(REF), samples_of(OLD)),
        kind=kind,
        coef=coef,
    )


def test_a_reward_with_a_kl_penalty_has_the_worked_values():
    assert_close([unpack(rewards(0.05), OLD)[0]], [[0.005, -0.005, 0.99]])


def test_without_a_penalty_only_the_last_token_has_a_reward_and_no_reference_is_read():
    reward_BT = token_rewards(
        *(packed(REWARD), packed(OLD), None, samples_of(OLD)), kind="k1", coef=0.0
    )
    assert_close(unpack(reward_BT, OLD), [[0, 0, 1], [0, 0], [0, 0, 0, 1]], atol=0)
    with pytest.raises(ValueError, match="ref_logp_BT"):
        token_rewards(
            *(packed(REWARD), packed(OLD), None, samples_of(OLD)), kind="k1", coef=0.1
        )


def test_the_last_token_is_the_last_that_counts():
    # The output of a tool may follow it, or stand between.
    mask_BT = jnp.array([[False, True, False, True, False, False, True, False]])
    segment_BT = jnp.array([[1, 1, 1, 1, 1, 2, 2, 0]])
    reward_BT = jnp.array([[3.0] * 5 + [4.0] * 2 + [np.nan]])
    got_BT = token_rewards(
        *(reward_BT, reward_BT, None, Samples(mask_BT, segment_BT)),
        kind="k1",
        coef=0.0,
    )
    np.testing.assert_array_equal(got_BT, [[0, 0, 0, 3, 0, 0, 4, 0]])


RETURNS = [[0.98, 0.97, 0.98], [-0.01, 0.01], [1.07, 1.05, 1.04, 1.06]]
WHITE = [
    [0.435451, 0.411984, 0.435451],
    [-1.887825, -1.840890],
    [0.646658, 0.599723, 0.576256, 0.623191],
]


def test_reinforce_plus_plus_has_the_worked_advantages():
    mask_BT, segment_BT = packed_masks(OLD)
    return_BT = jax.jit(discounted_returns)(rewards(0.1), segment_BT, mask_BT)
    assert_close(unpack(return_BT, OLD), RETURNS)
    mean, spread = whitening([return_BT], [mask_BT], kind="token_std")
    np.testing.assert_allclose([mean, spread], [0.794444, 0.426122], rtol=0, atol=1e-6)
    # 3e-6: six decimals of a spread that divides.
    assert_close(unpack(whitened(return_BT, mean, spread), OLD), WHITE, atol=3e-6)


def test_the_penalty_of_a_sample_is_the_sum_over_its_tokens():
    penalty_BT = sample_penalty(*(packed(OLD), packed(REF), samples_of(OLD)), kind="k1")
    expected = [
        [sum(np.subtract(a, b))] * len(a) for a, b in zip(OLD, REF, strict=True)
    ]
    assert_close(unpack(penalty_BT, OLD), expected)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_a_penalty_is_a_constant_and_reads_nothing_under_the_mask(kind):
    samples = samples_of(OLD)

    def total(old_BT, ref_BT):
        return reward_kl(old_BT, ref_BT, samples, kind=kind).sum()

    arrays = packed(OLD), packed(REF)
    assert np.isfinite(total(*arrays)) and total(*arrays) != 0
    for grad_BT in jax.grad(total, argnums=(0, 1))(*arrays):
        np.testing.assert_array_equal(grad_BT, np.zeros((2, 7)))


GAE = [0.7465, 0.47, 0.6]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token_std", [1.248366, -1.199671, -0.048695]),
        ("token_sample_std", [1.019286, -0.979527, -0.039759]),
        ("none", GAE),
    ],
)
def test_whitening_has_the_worked_values(kind, expected):
    adv = jnp.array([*GAE, np.nan])
    white = whitened(adv, *whitening([adv], [jnp.array([1, 1, 1, 0])], kind=kind))
    # 4e-6: three nearly equal numbers in float32, over a spread of a tenth.
    np.testing.assert_allclose(white[:3], expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("tokens", [1, 5])
def test_baseline_advantages_of_equal_lengths_are_those_of_a_peer(tokens):
    rewards = np.array([[1, 0, 0, 1], [1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]])
    centred = jnp.array((rewards - rewards.mean(1, keepdims=True)).ravel(), "float32")
    counts = jnp.full(16, tokens)
    kind = "token_sample_std" if tokens == 1 else "token_std"
    white = whitened(centred, *whitening([centred], [counts], kind=kind))
    expected = np.array([1.224745, -1.224745, -1.224745, 1.224745])
    if tokens == 5:
        expected = expected * np.sqrt(16 / 15)
    np.testing.assert_allclose(white[:4], expected, rtol=0, atol=1e-5)
    if tokens == 1:
        found = np.asarray(white)[[4, 6, 8, 9, 12]]
        expected = [0.612372, -1.837117, 1.837117, -0.612372, 0.0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@hypothesis.given(
    counts=st.lists(st.integers(0, 5), min_size=6, max_size=6),
    seed=st.integers(0, 999),
    kind=st.sampled_from(["token_std", "token_sample_std"]),
)
@hypothesis.settings(max_examples=20, deadline=None)
def test_whitening_counts_every_token_and_any_split_of_them(counts, seed, kind):
    adv_N = np.random.default_rng(seed).normal(3.0, 2.0, 6).astype(np.float32)
    tokens = np.repeat(adv_N.astype(np.float64), counts)
    mean, spread = whitening([jnp.array(adv_N)], [jnp.array(counts)], kind=kind)
    halves = [jnp.array(adv_N[:2]), jnp.array(adv_N[2:])]
    parts = whitening(halves, [jnp.array(counts[:2]), jnp.array(counts[2:])], kind=kind)
    np.testing.assert_allclose(parts, (mean, spread), rtol=1e-5, atol=1e-6)
    assert spread > 0
    ddof = kind == "token_sample_std"
    if len(tokens) > ddof:
        expected = [tokens.mean(), np.sqrt(tokens.var(ddof=int(ddof)) + 1e-8)]
        np.testing.assert_allclose([mean, spread], expected, rtol=1e-5, atol=1e-5)


def test_an_unknown_whitening_is_refused():
    with pytest.raises(ValueError, match="'batch'"):
        whitening([jnp.zeros(2)], [jnp.ones(2)], kind="batch")


def test_scoring_the_policy_itself_costs_no_reward():
    reward_BT = token_rewards(
        *(packed(REWARD), packed(LOGP), packed(LOGP), samples_of(LOGP)),
        kind="k3",
        coef=0.5,
    )
    assert_close(unpack(reward_BT, LOGP), [[0, 0, 1], [0, 0], [0, 0, 0, 1]], atol=0)
