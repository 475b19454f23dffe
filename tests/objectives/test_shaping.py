"""Length penalties: worked numbers, and the unit of length."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.objectives.shaping import group_length_reward, soft_overlong_penalty


def slow_penalty(length: int, max_tokens: int, buffer: float) -> float:
    if length <= max_tokens - buffer:
        return 0.0
    if length <= max_tokens:
        return ((max_tokens - buffer) - length) / buffer
    return -1.0


@pytest.mark.parametrize(
    ("max_tokens", "buffer", "penalties"),
    [
        (20, 4, {0: 0.0, 16: 0.0, 18: -0.5, 20: -1.0, 21: -1.0}),
        (20480, 4096, {16384: 0.0, 18432: -0.5, 20480: -1.0}),
        (100, 20, {80: 0.0, 81: -0.05, 90: -0.5, 100: -1.0, 101: -1.0, 110: -1.0}),
    ],
)
def test_the_penalty_has_the_worked_values(max_tokens, buffer, penalties):
    length_N = jnp.array(list(penalties))
    penalty_N = soft_overlong_penalty(length_N, max_tokens=max_tokens, buffer=buffer)
    assert penalty_N.dtype == jnp.float32
    np.testing.assert_allclose(penalty_N, list(penalties.values()), rtol=0, atol=1e-7)


@pytest.mark.parametrize("buffer", [1, 3.4, 17])
def test_the_penalty_matches_the_slow_version(buffer):
    penalty = functools.partial(soft_overlong_penalty, max_tokens=17, buffer=buffer)
    length_N = np.arange(25)
    slow_N = [slow_penalty(int(length), 17, buffer) for length in length_N]
    np.testing.assert_allclose(
        jax.jit(penalty)(jnp.asarray(length_N)), slow_N, rtol=0, atol=1e-6
    )


def test_a_buffer_of_zero_turns_the_penalty_off():
    penalty_N = soft_overlong_penalty(jnp.array([1, 9, 11]), max_tokens=10, buffer=0)
    np.testing.assert_array_equal(penalty_N, [0.0, 0.0, 0.0])


def test_length_is_counted_in_tokens_not_in_characters():
    # Two answers of eight tokens each; one is written with far longer words.
    texts = [["a"] * 8, ["extraordinarily"] * 8]
    length_N = jnp.array([len(tokens) for tokens in texts])
    short, long = soft_overlong_penalty(length_N, max_tokens=10, buffer=4)
    assert short == long == -0.5


@pytest.mark.parametrize("buffer", [-1, 11])
def test_a_buffer_outside_the_budget_is_refused(buffer):
    with pytest.raises(ValueError, match="buffer"):
        soft_overlong_penalty(jnp.array([1]), max_tokens=10, buffer=buffer)


def test_the_definitions_differ_by_a_factor_and_beyond_the_budget():
    length_N = jnp.array([8, 16, 18, 20, 22])

    def penalty(definition, factor):
        return soft_overlong_penalty(
            length_N, max_tokens=20, buffer=4, factor=factor, definition=definition
        )

    np.testing.assert_allclose(penalty("dapo", 1.0), [0, 0, -0.5, -1, -1], atol=1e-7)
    np.testing.assert_allclose(
        penalty("openrlhf", 0.5), [0, 0, -0.25, -0.5, -0.5], rtol=0, atol=1e-7
    )
    np.testing.assert_allclose(
        penalty("verl", 0.5), [0, 0, -0.25, -0.5, -0.75], rtol=0, atol=1e-7
    )


@pytest.mark.parametrize(
    ("definition", "factor", "message"),
    [("trl", 1.0, "one of dapo"), ("dapo", 0.5, "no factor")],
)
def test_a_definition_that_does_not_exist_is_refused(definition, factor, message):
    with pytest.raises(ValueError, match=message):
        soft_overlong_penalty(
            jnp.array([1]), max_tokens=4, buffer=2, factor=factor, definition=definition
        )


def slow_length_reward(length_N, correct_N, group_N, valid_N):
    reward_N = np.zeros(len(length_N))
    for n, length in enumerate(length_N):
        if not valid_N[n]:
            continue
        peers = [
            other
            for m, other in enumerate(length_N)
            if valid_N[m] and group_N[m] == group_N[n]
        ]
        if min(peers) == max(peers):
            continue
        lam = 0.5 - (length - min(peers)) / (max(peers) - min(peers))
        reward_N[n] = lam if correct_N[n] else min(0.0, lam)
    return reward_N


def test_the_length_reward_has_the_worked_values():
    reward_N = group_length_reward(
        jnp.array([4, 8, 6, 10]),
        jnp.array([1, 1, 0, 0]),
        jnp.zeros(4, jnp.int32),
        jnp.ones(4, bool),
        num_groups=1,
    )
    np.testing.assert_allclose(reward_N, [0.5, -1 / 6, 0.0, -0.5], rtol=0, atol=1e-6)


def test_the_length_reward_matches_the_slow_version():
    rng = np.random.default_rng(0)
    length_N, correct_N = rng.integers(1, 40, 17), rng.integers(0, 2, 17)
    group_N, valid_N = rng.integers(0, 5, 17), rng.integers(0, 4, 17) > 0
    length_N[group_N == 3] = 7  # a group that agrees
    reward = functools.partial(group_length_reward, num_groups=6)
    fast_N = jax.jit(reward)(*map(jnp.asarray, (length_N, correct_N, group_N, valid_N)))
    slow_N = slow_length_reward(length_N, correct_N, group_N, valid_N)
    np.testing.assert_allclose(fast_N, slow_N, rtol=0, atol=1e-6)
    assert not np.asarray(fast_N)[(group_N == 3) | ~valid_N].any()
