"""Advantages: worked numbers, ragged groups, groups that agree, invalid samples.

The kernels below have tests of their own, in tests/kernels/test_advantage*.py.
"""

import functools

import advantage_reference as reference
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.objectives.advantage import (
    SCALES,
    discounted_returns,
    gae,
    group_advantage,
    group_varies,
)

jitted_advantage = jax.jit(
    group_advantage, static_argnames=("num_groups", "scale", "centre", "eps")
)
G0, G1, G2 = [1, 0, 0, 1], [1, 1, 1, 0], [1, 1, 1, 1]


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def advantages(
    *groups, scale, centre="group_mean", dtype="float32", eps=1e-6, valid=None
):
    """Advantages of whole groups, given and returned as rows of equal length."""
    reward_PG = np.array(groups, np.float64)
    P, G = reward_PG.shape
    valid_N = np.ones(P * G, bool) if valid is None else np.array(valid)
    adv_N = jitted_advantage(
        jnp.array(reward_PG.reshape(-1), dtype),
        jnp.array(np.repeat(np.arange(P), G)),
        jnp.array(valid_N),
        num_groups=P,
        scale=scale,
        centre=centre,
        eps=eps,
    )
    assert adv_N.dtype == dtype
    return np.asarray(adv_N).reshape(P, G)


def test_dividing_by_the_group_std_has_the_worked_values(dtype):
    adv_PG = advantages(G0, G1, G2, scale="group_std", dtype=dtype)
    expected_PG = [
        [0.999998, -0.999998, -0.999998, 0.999998],
        [0.577349, 0.577349, 0.577349, -1.732047],
        [0.0, 0.0, 0.0, 0.0],
    ]
    np.testing.assert_allclose(adv_PG, expected_PG, rtol=0, atol=1e-6)


def test_the_sample_deviation_has_the_worked_values(dtype):
    adv_PG = advantages(G0, G1, G2, scale="group_sample_std", dtype=dtype)
    expected_PG = [
        [0.866024, -0.866024, -0.866024, 0.866024],
        [0.499999, 0.499999, 0.499999, -1.499997],
        [0.0, 0.0, 0.0, 0.0],
    ]
    np.testing.assert_allclose(adv_PG, expected_PG, rtol=0, atol=1e-6)


def test_leaving_the_sample_out_of_its_baseline_has_the_worked_values(dtype):
    adv_PG = advantages(G0, G1, centre="leave_one_out", scale="none", dtype=dtype)
    expected_PG = [
        [0.666667, -0.666667, -0.666667, 0.666667],
        [0.333333, 0.333333, 0.333333, -1.0],
    ]
    np.testing.assert_allclose(adv_PG, expected_PG, rtol=0, atol=1e-6)


def test_whitening_whole_samples_has_mean_0_and_deviation_1(dtype):
    whitened = functools.partial(
        advantages, G0, G1, G2, centre="batch_mean", eps=1e-9, dtype=dtype
    )
    adv_PG = whitened(scale="batch_std")
    # Of 9 ones and 3 zeros the mean is 3/4 and the deviation sqrt(3)/4.
    high, low = np.sqrt([1 / 3, 3])
    expected_PG = np.where([G0, G1, G2], high, -low)
    np.testing.assert_allclose(adv_PG, expected_PG, rtol=0, atol=1e-6)
    adv_PG = whitened(scale="batch_sample_std")
    expected_PG *= np.sqrt(11 / 12)
    np.testing.assert_allclose(adv_PG, expected_PG, rtol=0, atol=1e-6)


def test_the_spread_of_groups_that_vary_has_the_worked_values(dtype):
    adv_PG = advantages(G0, G1, G2, scale="varying_std", dtype=dtype)
    two_PG = advantages(G0, G1, scale="batch_std", dtype=dtype)
    np.testing.assert_array_equal(adv_PG, [*two_PG, [0.0] * 4])


def test_earlier_names_of_scales_mean_a_group_mean_and_a_scale(dtype):
    earlier_PG = advantages(G0, G1, scale="group_mean", dtype=dtype)
    named_PG = advantages(G0, G1, scale="none", dtype=dtype)
    np.testing.assert_array_equal(earlier_PG, named_PG)


def test_centring_alone_has_the_worked_values(dtype):
    adv_PG = advantages(G0, G1, scale="group_mean", dtype=dtype)
    expected_PG = [[0.5, -0.5, -0.5, 0.5], [0.25, 0.25, 0.25, -0.75]]
    np.testing.assert_allclose(adv_PG, expected_PG, rtol=0, atol=1e-6)


def test_dividing_by_the_batch_std_has_the_worked_values(dtype):
    expected_PG = [
        [1.069045, -1.069045, -1.069045, 1.069045],
        [0.534522, 0.534522, 0.534522, -1.603567],
    ]
    adv_PG = advantages(G0, G1, scale="batch_std", dtype=dtype)
    # 4e-6: the worked values have no eps, which takes 2 parts in a million off.
    np.testing.assert_allclose(adv_PG, expected_PG, rtol=0, atol=4e-6)
    np.testing.assert_allclose(0.5 / adv_PG[0, 0], 0.467707, rtol=0, atol=2e-6)


def test_a_solved_prompt_widens_the_batch_std_only_if_it_is_kept(dtype):
    two_PG = advantages(G0, G1, scale="batch_std", dtype=dtype)
    kept_PG = advantages(G0, G1, G2, scale="batch_std", dtype=dtype)
    np.testing.assert_allclose(0.5 / kept_PG[0, 0], 0.381881, rtol=0, atol=2e-6)
    dropped_PG = advantages(
        G0, G1, G2, scale="batch_std", dtype=dtype, valid=[1] * 8 + [0] * 4
    )
    np.testing.assert_array_equal(dropped_PG, [*two_PG, [0.0] * 4])


A, B, C, D = [1, 0, 0, 1], [1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]


def test_advantages_equal_those_of_peers_with_the_same_rule(dtype):
    std_PG = advantages(A, B, C, D, scale="group_std", eps=1e-8, dtype=dtype)
    np.testing.assert_allclose(std_PG[0, :2], [1, -1], rtol=0, atol=1e-6)
    expected = [0.577350, -1.732051]
    np.testing.assert_allclose(std_PG[1, [0, 2]], expected, rtol=0, atol=1e-6)
    expected = [1.732051, -0.577350]
    np.testing.assert_allclose(std_PG[2, :2], expected, rtol=0, atol=1e-6)
    mean_PG = advantages(A, B, C, D, scale="group_mean", dtype=dtype)
    np.testing.assert_allclose(mean_PG[0, :2], [0.5, -0.5], rtol=0, atol=1e-6)
    np.testing.assert_allclose(mean_PG[1, [0, 2]], [0.25, -0.75], rtol=0, atol=1e-6)
    np.testing.assert_allclose(mean_PG[2, :2], [0.75, -0.25], rtol=0, atol=1e-6)
    # REINFORCE++-baseline whitens over the batch too, with ddof=1 over 16 samples.
    batch_PG = advantages(A, B, C, D, scale="batch_sample_std", dtype=dtype)
    np.testing.assert_allclose(batch_PG[0, 0], 1.224745, rtol=0, atol=5e-6)
    expected = [0.612372, -1.837117]
    np.testing.assert_allclose(batch_PG[1, [0, 2]], expected, rtol=0, atol=5e-6)
    for adv_PG in (std_PG, mean_PG, batch_PG):
        np.testing.assert_array_equal(adv_PG[3], np.zeros(4))


@hypothesis.given(
    rewards=st.lists(
        st.sampled_from([-1.0, 0.0, 0.1, 0.7, 1.0, 1.5]), min_size=9, max_size=9
    ),
    groups=st.lists(st.integers(0, 3), min_size=9, max_size=9),
    valid=st.lists(st.booleans(), min_size=9, max_size=9),
    scale=st.sampled_from(SCALES),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_ragged_groups_match_the_slow_version(rewards, groups, valid, scale):
    # An invalid sample has no reward: the code gets nan where the slow version skips.
    reward_N = np.where(valid, rewards, np.nan).astype(np.float32)
    adv_N = jitted_advantage(
        jnp.array(reward_N),
        jnp.array(groups),
        jnp.array(valid),
        num_groups=5,
        scale=scale,
    )
    slow_N = reference.slow_group_advantage(
        *(reward_N, groups, valid, "group_mean"),
        *("none" if scale == "group_mean" else scale, 1e-6),
    )
    np.testing.assert_allclose(adv_N, slow_N, rtol=0, atol=2e-5)
    for group in range(4):
        members = [
            float(a) for a, g, v in zip(adv_N, groups, valid) if v and g == group
        ]
        np.testing.assert_allclose(sum(members), 0.0, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 0.7, -3.3, 1e6])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_equal_rewards_give_exactly_zero(scale, reward, size):
    adv_PG = advantages([reward] * size, scale=scale)
    np.testing.assert_array_equal(adv_PG, np.zeros((1, size)))


@pytest.mark.parametrize("scale", SCALES)
def test_invalid_samples_get_zero_and_count_nowhere(scale):
    reward_N = jnp.array([1.0, jnp.nan, 0.0, 2.0, jnp.inf, 5.0])
    group_N = jnp.array([0, 0, 0, 1, -1, 1])
    valid_N = jnp.array([1, 0, 1, 1, 0, 1])
    adv_N = jitted_advantage(reward_N, group_N, valid_N, num_groups=4, scale=scale)
    left_N = jnp.array([0, 2, 3, 5])
    without_N = jitted_advantage(
        reward_N[left_N],
        group_N[left_N],
        jnp.ones(4, bool),
        num_groups=2,
        scale=scale,
    )
    np.testing.assert_array_equal(adv_N[left_N], without_N)
    assert adv_N[1] == adv_N[4] == 0
    assert np.all(np.asarray(without_N) != 0)


@pytest.mark.parametrize("scale", SCALES)
def test_a_batch_without_valid_samples_gives_zeros(scale):
    nan_N = jnp.full(5, jnp.nan)
    adv_N = jitted_advantage(
        nan_N, jnp.zeros(5, int), jnp.zeros(5, bool), num_groups=3, scale=scale
    )
    np.testing.assert_array_equal(adv_N, np.zeros(5))


@pytest.mark.parametrize("scale", SCALES)
def test_permuting_samples_permutes_advantages(scale):
    rng = np.random.default_rng(0)
    reward_N, group_N = rng.normal(size=11), rng.integers(0, 3, 11)
    valid_N, order_N = rng.integers(0, 2, 11), rng.permutation(11)

    def adv(index_N):
        return jitted_advantage(
            jnp.array(reward_N[index_N], jnp.float32),
            jnp.array(group_N[index_N]),
            jnp.array(valid_N[index_N]),
            num_groups=3,
            scale=scale,
        )

    # 1e-6: sums run in another order.
    np.testing.assert_allclose(
        adv(order_N), adv(np.arange(11))[order_N], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("scale", "factor"), [("group_std", 1), ("batch_std", 1), ("group_mean", 3)]
)
def test_scaling_all_rewards_scales_only_the_mean_centred_ones(scale, factor, dtype):
    adv_PG = advantages(G0, G1, scale=scale, eps=1e-12, dtype=dtype)
    larger_PG = advantages(
        np.multiply(G0, 3), np.multiply(G1, 3), scale=scale, eps=1e-12, dtype=dtype
    )
    np.testing.assert_allclose(larger_PG, factor * adv_PG, rtol=0, atol=1e-6)


def test_group_varies_drops_groups_that_agree_and_invalid_samples():
    reward_N = jnp.array([*G0, *G1, *G2, 0.1, 0.1, 0.1, jnp.nan])
    valid_N = jnp.array([True] * 15 + [False])
    varies_N = group_varies(
        reward_N, jnp.repeat(jnp.arange(4), 4), valid_N, num_groups=4
    )
    np.testing.assert_array_equal(varies_N, [True] * 8 + [False] * 8)


def test_group_varies_looks_only_at_valid_rewards():
    varies_N = group_varies(
        jnp.array([1.0, 1.0, 0.0]),
        jnp.zeros(3, int),
        jnp.array([True, True, False]),
        num_groups=1,
    )
    np.testing.assert_array_equal(varies_N, [False, False, False])


def test_rewards_narrower_than_float32_are_widened():
    for dtype in (jnp.bfloat16, jnp.int32, bool):
        adv_N = jitted_advantage(
            jnp.array(G1, dtype),
            jnp.zeros(4, int),
            jnp.ones(4, bool),
            num_groups=1,
            scale="group_std",
        )
        assert adv_N.dtype == jnp.float32
        np.testing.assert_allclose(adv_N[3], -1.732047, rtol=0, atol=1e-6)


def test_an_unknown_scale_and_a_zero_eps_are_refused():
    with pytest.raises(ValueError, match="'std'"):
        advantages(G0, scale="std")
    with pytest.raises(ValueError, match="eps"):
        advantages(G0, scale="group_std", eps=0.0)
    with pytest.raises(ValueError, match="'mean'"):
        advantages(G0, scale="none", centre="mean")


def of_row(*numbers):
    return jnp.array([numbers], jnp.float32)


def test_advantages_with_a_critic_have_the_worked_values():
    adv_BT, target_BT = gae(
        *(of_row(0, 0, 1), of_row(0.2, 0.5, 0.4)),
        *(jnp.ones((1, 3), int), jnp.ones((1, 3), bool)),
    )
    np.testing.assert_allclose(adv_BT, [[0.7465, 0.47, 0.6]], rtol=0, atol=1e-6)
    np.testing.assert_allclose(target_BT, [[0.9465, 0.97, 1.0]], rtol=0, atol=1e-6)


def test_the_output_of_a_tool_changes_no_advantage():
    adv_BT, target_BT = gae(
        *(of_row(0, 0, 0, 0, 1), of_row(0.2, 9, 9, 0.5, 0.4)),
        *(jnp.ones((1, 5), int), jnp.array([[1, 0, 0, 1, 1]])),
    )
    expected = [[0.7465, 0.0, 0.0, 0.47, 0.6]]
    np.testing.assert_allclose(adv_BT, expected, rtol=0, atol=1e-6)
    expected = [[0.9465, 0.0, 0.0, 0.97, 1.0]]
    np.testing.assert_allclose(target_BT, expected, rtol=0, atol=1e-6)


def test_a_sample_that_was_cut_off_has_the_worked_values():
    adv_BT, _ = gae(
        *(of_row(0, 0, 1), of_row(0.2, 0.5, 0.4)),
        *(jnp.ones((1, 3), int), jnp.ones((1, 3), bool)),
        gamma=0.9,
        lam=0.8,
        bootstrap_BT=of_row(7, 7, 0.3),
    )
    expected = [[0.600208, 0.4864, 0.87]]
    np.testing.assert_allclose(adv_BT, expected, rtol=0, atol=1e-6)


def test_returns_with_the_kl_in_the_reward_have_the_worked_values():
    # REINFORCE++ on three samples in two rows: beta 0.1, rewards 1, 0 and 1.
    old = [[-0.7, -1.0, -0.3], [-0.6, -0.9], [-1.4, -0.6, -0.7, -1.6]]
    ref = [[-0.6, -1.1, -0.5], [-0.8, -0.8], [-1.2, -0.5, -0.9, -1.0]]
    reward = [-0.1 * np.subtract(o, r) for o, r in zip(old, ref, strict=True)]
    for one, outcome in zip(reward, [1, 0, 1], strict=True):
        one[-1] += outcome
    pad = [np.nan]
    reward_BT = np.array([[*reward[0], *reward[1]], [*reward[2], *pad]], np.float32)
    segment_BT = jnp.array([[1, 1, 1, 2, 2], [1, 1, 1, 1, 0]])
    return_BT = discounted_returns(jnp.array(reward_BT), segment_BT, segment_BT > 0)
    expected_BT = [[0.98, 0.97, 0.98, -0.01, 0.01], [1.07, 1.05, 1.04, 1.06, 0.0]]
    np.testing.assert_allclose(return_BT, expected_BT, rtol=0, atol=1e-6)
