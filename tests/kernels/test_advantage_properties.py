"""What advantages and returns must satisfy whatever the samples and segments are."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.kernels import advantage  # pyright: ignore[reportMissingImports]

N, T, SAMPLES, LENGTH = 12, 14, 5, 4
EPS = 0.25  # large, so that rounding is not blown up where rewards nearly agree

# Multiples of 1/4, and of little size: sums of a few are exact in float32.
numbers = st.integers(-8, 8).map(lambda n: n / 4)
names = st.tuples(st.sampled_from(advantage.CENTRES), st.sampled_from(advantage.SCALES))
samples = st.lists(
    st.tuples(numbers, st.integers(0, 3), st.booleans()), min_size=N, max_size=N
)
unit = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
quick = hypothesis.settings(max_examples=60, deadline=None)


@functools.cache
def compiled(centre, scale, num_groups):
    """One program for each pair of names; sizes are the same in every example."""
    return jax.jit(
        functools.partial(
            advantage.group_advantage,
            num_groups=num_groups,
            centre=centre,
            scale=scale,
            eps=EPS,
            implementation="plain",
        )
    )


def of(pair, drawn, num_groups=4):
    reward_N, group_N, valid_N = (np.array(x) for x in zip(*drawn, strict=True))
    reward_N = np.where(valid_N, reward_N, np.nan).astype(np.float32)
    return np.asarray(compiled(*pair, num_groups)(reward_N, group_N, valid_N))


@hypothesis.given(names, samples, st.permutations(range(N)))
@quick
def test_permuting_samples_permutes_advantages(pair, drawn, order):
    permuted_N = of(pair, [drawn[n] for n in order])
    # 1e-5: sums of squares run in another order.
    np.testing.assert_allclose(permuted_N, of(pair, drawn)[order], rtol=0, atol=1e-5)


@hypothesis.given(names, samples, st.permutations(range(4)))
@quick
def test_what_a_group_is_called_changes_nothing(pair, drawn, called):
    renamed = [(reward, called[group], valid) for reward, group, valid in drawn]
    np.testing.assert_allclose(of(pair, renamed), of(pair, drawn), rtol=0, atol=1e-5)


@hypothesis.given(names, samples, st.integers(0, N), samples)
@quick
def test_invalid_samples_and_empty_groups_change_nothing(pair, drawn, at, others):
    others = [(reward, group, False) for reward, group, _ in others]
    found_N = of(pair, drawn[:at] + others + drawn[at:], num_groups=9)
    left_N = np.concatenate([found_N[:at], found_N[at + N :]])
    np.testing.assert_array_equal(found_N[at : at + N], np.zeros(N))
    np.testing.assert_allclose(left_N, of(pair, drawn), rtol=0, atol=1e-5)


@hypothesis.given(names, samples, numbers)
@quick
def test_rewards_that_are_all_higher_have_the_same_centred_advantages(pair, drawn, by):
    hypothesis.assume(pair[0] != "none")
    higher = [(reward + by, group, valid) for reward, group, valid in drawn]
    np.testing.assert_allclose(of(pair, higher), of(pair, drawn), rtol=0, atol=1e-5)


@hypothesis.given(samples)
@quick
def test_centred_advantages_of_a_group_cancel(drawn):
    for centre in ("group_mean", "leave_one_out"):
        for scale in advantage.SCALES:
            adv_N = of((centre, scale), drawn)
            for group in range(4):
                inside_N = [valid and g == group for _, g, valid in drawn]
                np.testing.assert_allclose(adv_N[inside_N].sum(), 0, rtol=0, atol=2e-5)


@hypothesis.given(samples)
@quick
def test_leaving_one_out_widens_the_group_mean_by_g_over_g_minus_one(drawn):
    wide_N, mean_N = (of((c, "none"), drawn) for c in ("leave_one_out", "group_mean"))
    for n, (_, group, valid) in enumerate(drawn):
        size = sum(v and g == group for _, g, v in drawn)
        if valid and size > 1:
            expected = mean_N[n] * size / (size - 1)
            np.testing.assert_allclose(wide_N[n], expected, rtol=0, atol=1e-5)


# A sample is a list of tokens (reward, value, mask) and a bootstrap.
token = st.tuples(numbers, numbers, st.booleans())
sequence = st.tuples(st.lists(token, min_size=1, max_size=LENGTH), numbers)
sequences = st.lists(sequence, min_size=1, max_size=SAMPLES)


def packed(rows):
    """[SAMPLES, T] arrays of rows of sequences, padding at the end."""
    reward_BT, value_BT = np.full((2, SAMPLES, T), np.nan, np.float32)
    bootstrap_BT = np.full((SAMPLES, T), np.nan, np.float32)
    segment_BT, mask_BT = np.zeros((SAMPLES, T), int), np.zeros((SAMPLES, T), bool)
    for b, row in enumerate(rows):
        t = 0
        for k, (tokens, bootstrap) in enumerate(row):
            for reward, value, live in tokens:
                if live:
                    reward_BT[b, t], value_BT[b, t] = reward, value
                segment_BT[b, t], mask_BT[b, t] = k + 1, live
                t += 1
            bootstrap_BT[b, t - 1] = bootstrap
    return reward_BT, value_BT, segment_BT, mask_BT, bootstrap_BT


def in_rows(drawn):
    """First come, first served, into as many rows as it takes."""
    rows, room = [[]], T
    for tokens, bootstrap in drawn:
        if len(tokens) > room:
            rows, room = [*rows, []], T
        rows[-1].append((tokens, bootstrap))
        room -= len(tokens)
    return rows


@functools.cache
def recursions(gamma, lam):
    @jax.jit
    def both(reward_BT, value_BT, segment_BT, mask_BT, bootstrap_BT):
        options = dict(gamma=gamma, bootstrap_BT=bootstrap_BT, implementation="plain")
        rows = segment_BT, mask_BT
        adv_BT, target_BT = advantage.gae(
            reward_BT, value_BT, *rows, lam=lam, **options
        )
        total_BT = advantage.discounted_returns(reward_BT, *rows, **options)
        return jnp.stack([adv_BT, target_BT, total_BT])

    return both


def per_sequence(rows, gamma, lam):
    """(adv, target, return) of each token, sequence by sequence in order."""
    arrays = packed(rows)
    all_3BT = np.asarray(recursions(gamma, lam)(*arrays))
    found = []
    for b, row in enumerate(rows):
        t = 0
        for tokens, _ in row:
            found.append(all_3BT[:, b, t : t + len(tokens)])
            t += len(tokens)
        np.testing.assert_array_equal(all_3BT[:, b, t:], 0)
    return found


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@hypothesis.given(sequences, unit, unit)
@quick
def test_how_sequences_share_rows_changes_nothing(drawn, gamma, lam):
    alone = per_sequence([[one] for one in drawn], gamma, lam)
    assert_same(per_sequence(in_rows(drawn), gamma, lam), alone)


@hypothesis.given(sequences, st.permutations(range(SAMPLES)), unit, unit)
@quick
def test_permuting_sequences_permutes_their_returns(drawn, order, gamma, lam):
    order = [k for k in order if k < len(drawn)]
    permuted = per_sequence(in_rows([drawn[k] for k in order]), gamma, lam)
    straight = per_sequence(in_rows(drawn), gamma, lam)
    assert_same(permuted, [straight[k] for k in order])


@hypothesis.given(sequence, st.integers(0, LENGTH), st.integers(1, 5), unit, unit)
@quick
def test_masked_tokens_in_a_sequence_change_nothing(one, at, more, gamma, lam):
    tokens, bootstrap = one
    at = min(at, len(tokens))
    wider = tokens[:at] + [(9.0, 9.0, False)] * more + tokens[at:]
    (found,) = per_sequence([[(wider, bootstrap)]], gamma, lam)
    expected = per_sequence([[one]], gamma, lam)
    np.testing.assert_array_equal(found[:, at : at + more], 0)
    assert_same([np.delete(found, slice(at, at + more), axis=1)], expected)


@hypothesis.given(sequences)
@quick
def test_undiscounted_advantages_are_the_return_to_go_less_the_value(drawn):
    for (tokens, bootstrap), found in zip(
        drawn, per_sequence(in_rows(drawn), 1.0, 1.0), strict=True
    ):
        for t, (_, value, live) in enumerate(tokens):
            if live:
                later = sum(r for r, _, m in tokens[t:] if m) + bootstrap
                np.testing.assert_array_equal(
                    found[:, t], [later - value, later, later]
                )


@hypothesis.given(sequences, unit)
@quick
def test_without_a_trace_advantages_are_temporal_differences(drawn, gamma):
    for (tokens, bootstrap), found in zip(
        drawn, per_sequence(in_rows(drawn), gamma, 0.0), strict=True
    ):
        for t, (reward, value, live) in enumerate(tokens):
            if live:
                after = [v for _, v, m in tokens[t + 1 :] if m] + [bootstrap]
                delta = reward + gamma * after[0] - value
                np.testing.assert_allclose(found[0, t], delta, rtol=0, atol=1e-6)


@hypothesis.given(sequences, unit)
@quick
def test_with_a_full_trace_the_target_of_the_critic_is_the_return(drawn, gamma):
    for found in per_sequence(in_rows(drawn), gamma, 1.0):
        np.testing.assert_allclose(found[1], found[2], rtol=0, atol=1e-5)
