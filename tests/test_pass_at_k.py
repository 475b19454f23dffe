"""pass@k against all subsets, and intervals that mean something."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_jax.pass_at_k import mean_with_interval, pass_at_k


def slow_pass_at_k(num_samples, num_correct, k):
    """The share of all choices of k samples that have a right one."""
    right = [i < num_correct for i in range(num_samples)]
    choices = list(itertools.combinations(right, k))
    return sum(any(choice) for choice in choices) / len(choices)


@given(st.integers(1, 9), st.data())
def test_pass_at_k_equals_the_count_over_all_choices(n, data):
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(slow_pass_at_k(n, c, k), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "c", "k", "want"),
    [
        (8, 2, 1, 0.25),
        (8, 2, 4, 0.785714),
        (8, 3, 1, 0.375),
        (8, 3, 4, 0.928571),
        (8, 2, 7, 1.0),  # only 6 are wrong
        (8, 0, 8, 0.0),
        (8, 8, 1, 1.0),
        (1, 1, 1, 1.0),
    ],
)
def test_pass_at_k_equals_the_worked_numbers(n, c, k, want):
    assert pass_at_k(n, c, k) == pytest.approx(want, abs=1e-6)


def test_many_samples_do_not_overflow():
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("k", [0, -1, 9])
def test_more_tries_than_samples_are_refused(k):
    with pytest.raises(ValueError, match="k from 1 to num_samples=8"):
        pass_at_k(8, 2, k)


# Intervals.


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_interval_holds_the_mean_and_stays_within_the_values(values):
    mean, low, high = mean_with_interval(values)
    assert mean == pytest.approx(np.mean(values), abs=1e-12)
    slack = 1e-12
    assert min(values) - slack <= low <= mean + slack
    assert mean - slack <= high <= max(values) + slack


def test_the_interval_is_that_of_the_normal_approximation_for_many_prompts():
    x = np.random.default_rng(0).random(400)
    mean, low, high = mean_with_interval(list(x))
    half = 1.96 * x.std() / np.sqrt(len(x))
    # The ends of 2000 resamples vary by about 3 % of the width.
    assert low == pytest.approx(mean - half, abs=0.1 * half)
    assert high == pytest.approx(mean + half, abs=0.1 * half)


def test_more_prompts_give_a_narrower_interval():
    widths = []
    for count in (10, 100, 1000):
        _, low, high = mean_with_interval([0.0, 1.0] * (count // 2))
        widths.append(high - low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2] > 0


def test_the_interval_is_the_same_each_time():
    values = list(np.random.default_rng(0).random(30))
    assert mean_with_interval(values) == mean_with_interval(values)
    assert mean_with_interval(values) != mean_with_interval(values, seed=1)


def test_prompts_that_agree_leave_no_doubt():
    assert mean_with_interval([0.5] * 7) == (0.5, 0.5, 0.5)
