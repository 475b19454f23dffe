"""ScaleRL's curve: worked numbers, slow twins, and intervals that hold the truth."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.optimize  # comes with jax
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.scaling_fit import (
    Curve,
    NoRise,
    TooFewPoints,
    _least_squares,
    _limits,
    _neighbour_widening,
    _refined,
    _slopes,
    _student_widening,
    crossing,
    fit,
    score_at,
)

HIGHER = Curve(start=0.1, ceiling=0.6, steepness=1.5, midpoint=1000.0)
SOONER = Curve(start=0.1, ceiling=0.5, steepness=2.5, midpoint=10**2.3)
DOUBLING = np.array([100.0, 200, 400, 800, 1600, 3200])


def slow_score(curve, compute):
    R0, A, B, Cmid = curve
    return R0 + (A - R0) / (1 + (Cmid / compute) ** B)


# The curve.


@pytest.mark.parametrize(
    ("curve", "compute", "want"),
    [
        (HIGHER, 100, 0.115327),
        (HIGHER, 1000, 0.35),
        (HIGHER, 4000, 0.544444),
        (HIGHER, 300_000, 0.599904),
        (SOONER, 100, 0.160392),
        (SOONER, 300_000, 0.5),
    ],
)
def test_the_curve_equals_the_worked_numbers(curve, compute, want):
    assert score_at(curve, compute) == pytest.approx(want, abs=1e-6)


@given(
    st.floats(0.2, 8.0), st.floats(0.1, 1e9), st.floats(-1, 1), st.floats(1e-3, 1e12)
)
def test_the_curve_matches_the_formula(steepness, midpoint, start, compute):
    curve = Curve(start, start + 0.7, steepness, midpoint)
    want = slow_score(curve, compute)
    assert score_at(curve, compute) == pytest.approx(want, abs=1e-12)


def test_without_compute_the_score_is_the_start():
    assert score_at(HIGHER, 0.0) == 0.1
    np.testing.assert_array_equal(score_at(HIGHER, np.array([0.0, 1e300])), [0.1, 0.6])


def test_the_slopes_are_those_of_small_differences():
    x_Q = np.array([0.1, 0.6, math.log(1.5), math.log(1000.0)])
    compute_N = np.append(0.0, DOUBLING)
    got_NQ = _slopes(x_Q[None], compute_N)[0]
    for q in range(4):
        h = 1e-6 * np.eye(4)[q]
        values = [
            slow_score([*(x_Q + sign * h)[:2], *np.exp((x_Q + sign * h)[2:])], DOUBLING)
            for sign in (1, -1)
        ]
        want_N = (values[0] - values[1]) / 2e-6
        np.testing.assert_allclose(got_NQ[1:, q], want_N, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(got_NQ[0], [1, 0, 0, 0])


# The fit.


def test_points_without_noise_give_their_curve_back():
    score_N = score_at(HIGHER, DOUBLING)
    choices: list[dict[str, Any]]
    choices = [{"start": 0.1}, {}, {"ceiling": 0.6}, {"max_ceiling": 1.0}]
    for options in choices:
        found = fit(DOUBLING, score_N, num_resamples=100, **options)
        np.testing.assert_allclose(found.curve, HIGHER, rtol=1e-6, atol=0)
        assert found.noise < 1e-9
        assert found.interval("ceiling") == pytest.approx((0.6, 0.6), abs=1e-6)


def test_the_refinement_alone_finds_the_worked_curve_from_afar():
    limits = _limits(DOUBLING, np.array([0.1, 0.6]), 1.0)
    x_ZQ = np.array([[0.1, 0.5, 0.0, math.log(500)]])
    free_Q = np.array([False, True, True, True])
    score_ZN = score_at(HIGHER, DOUBLING)[None]
    x_Q = _refined(x_ZQ, DOUBLING, score_ZN, free_Q, limits)[0]
    assert x_Q[1] == pytest.approx(0.6, abs=1e-4)
    np.testing.assert_allclose(np.exp(x_Q[2:]), [1.5, 1000], rtol=1e-4)


def test_the_grid_of_the_paper_alone_would_miss_the_ceiling():
    """Its spacing is too coarse for these points: why the fit refines."""
    score_N = score_at(HIGHER, DOUBLING)
    best = (math.inf, (0.0, 0.0, 0.0))
    for A in np.arange(0.45, 0.8001, 0.005):
        for Cmid in np.linspace(100, 40_000, 100):

            def error(B):
                rest_N = slow_score((0.1, A, B, Cmid), DOUBLING) - score_N
                return float((rest_N**2).sum())

            # Most pairs are far off whatever B is: not worth a search.
            if min(error(B) for B in (1.0, 1.5, 2.0)) > 0.05:
                continue
            B: Any = scipy.optimize.minimize_scalar(
                error, bounds=(0.1, 5), method="bounded"
            )
            best = min(best, (float(B.fun), (A, B.x, Cmid)))
    want = (0.575, 1.605952, 906.060606)
    np.testing.assert_allclose(best[1], want, rtol=1e-4)
    ours = fit(DOUBLING, score_N, start=0.1, num_resamples=100)
    assert abs(ours.curve.ceiling - 0.6) < 1e-6 < abs(best[1][0] - 0.6)


def scipys_best(compute_N, score_N, limits, start):
    """The least sum of squares that scipy finds from many places."""
    low_Q, high_Q = limits
    free = slice(1 if start is not None else 0, 4)

    def residuals(x):
        curve = x if start is None else np.append(start, x)
        return slow_score((*curve[:2], *np.exp(curve[2:])), compute_N) - score_N

    rng = np.random.default_rng(0)
    costs = []
    for _ in range(12):
        x = rng.uniform(low_Q[free], high_Q[free])
        bounds = (low_Q[free], high_Q[free])
        costs.append(scipy.optimize.least_squares(residuals, x, bounds=bounds).cost)
    return 2 * min(costs)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("start", [None, 0.1])
def test_no_better_curve_is_found_by_scipy_from_many_places(seed, start):
    rng = np.random.default_rng(seed)
    truth = Curve(0.1, 0.6, rng.uniform(1, 3), rng.uniform(300, 5000))
    compute_N = np.sort(rng.uniform(50, 5000, 11))
    score_N = score_at(truth, compute_N) + 0.03 * rng.normal(size=11)
    seen = score_N if start is None else np.append(score_N, start)
    limits = _limits(compute_N, seen, 1.0)
    curve = _least_squares(compute_N, score_N[None], start, None, limits)[0]
    ours = ((slow_score(curve, compute_N) - score_N) ** 2).sum()
    assert ours <= scipys_best(compute_N, score_N, limits, start) * (1 + 1e-6)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_the_unit_of_compute_changes_the_midpoint_only(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    unit = 10 ** data.draw(st.floats(-3, 12))
    compute_N = np.linspace(0, 5000, 9)
    score_N = score_at(HIGHER, compute_N) + 0.01 * rng.normal(size=9)
    found = fit(compute_N, score_N, num_resamples=100).curve
    other = fit(unit * compute_N, score_N, num_resamples=100).curve
    np.testing.assert_allclose(other[:3], found[:3], rtol=1e-4, atol=0)
    assert other.midpoint / unit == pytest.approx(found.midpoint, rel=1e-4)


def test_the_order_of_the_points_does_not_change_the_curve():
    rng = np.random.default_rng(3)
    compute_N = np.linspace(100, 5000, 12)
    score_N = score_at(HIGHER, compute_N) + 0.02 * rng.normal(size=12)
    order_N = rng.permutation(12)
    found = fit(compute_N, score_N, num_resamples=100).curve
    other = fit(compute_N[order_N], score_N[order_N], num_resamples=100).curve
    np.testing.assert_allclose(other, found, rtol=1e-6)


def test_a_ceiling_that_is_given_stays():
    compute_N = np.linspace(0, 5000, 12)
    score_N = score_at(HIGHER, compute_N)
    score_N = score_N + 0.01 * np.random.default_rng(1).normal(size=12)
    found = fit(compute_N, score_N, ceiling=0.7, num_resamples=100)
    assert found.curve.ceiling == 0.7 and set(found.resamples[:, 1]) == {0.7}
    assert found.curve.midpoint > fit(compute_N, score_N).curve.midpoint


def test_no_ceiling_above_the_largest_possible_score_is_found():
    compute_N = np.linspace(0, 500, 12)  # far below the midpoint
    score_N = score_at(Curve(0.1, 0.9, 1.5, 2000), compute_N)
    score_N = score_N + 0.01 * np.random.default_rng(1).normal(size=12)
    found = fit(compute_N, score_N, max_ceiling=1.0, num_resamples=200)
    assert found.resamples[:, 1].max() <= 1.0 and found.is_open
    assert not fit(*noisy(0), num_resamples=200).is_open


def test_a_score_that_does_not_rise_is_refused():
    compute_N = np.linspace(0, 1000, 10)
    with pytest.raises(NoRise):
        fit(compute_N, 0.4 - 2e-4 * compute_N)


@pytest.mark.parametrize(
    ("options", "need"), [({}, 6), ({"start": 0.1}, 5), ({"ceiling": 0.6}, 5)]
)
def test_too_few_points_are_refused(options, need):
    compute_N = np.linspace(100, 3000, need)
    fit(compute_N, score_at(HIGHER, compute_N), num_resamples=100, **options)
    fewer_N = compute_N[1:]
    with pytest.raises(TooFewPoints, match=f"it takes {need} or more"):
        fit(fewer_N, score_at(HIGHER, fewer_N), **options)


# Its doubt.


def noisy(seed, N=16, noise=0.02, last=8000):
    rng = np.random.default_rng(seed)
    compute_N = np.linspace(0, last, N)
    return compute_N, score_at(HIGHER, compute_N) + noise * rng.normal(size=N)


def test_the_same_seed_gives_the_same_interval():
    points = noisy(0)
    one, two, other = (fit(*points, seed=seed) for seed in (0, 0, 1))
    assert one.interval("ceiling") == two.interval("ceiling")
    assert one.interval("ceiling") != other.interval("ceiling")
    assert one.curve == other.curve


def test_less_noise_gives_a_narrower_interval():
    widths = []
    for noise in (0.04, 0.02, 0.01):
        low, high = fit(*noisy(0, noise=noise)).interval("ceiling")
        widths.append(high - low)
    assert widths[0] > widths[1] > widths[2] > 0


def test_the_noise_is_that_of_the_points():
    found = [fit(*noisy(seed, N=40), num_resamples=100).noise for seed in range(8)]
    assert np.mean(found) == pytest.approx(0.02, rel=0.15)


def test_the_prediction_lies_in_its_interval_and_below_the_ceiling():
    found = fit(*noisy(0))
    value, low, high = found.predicted(80_000)
    assert low < value < high
    assert value < found.curve.ceiling
    assert value == pytest.approx(slow_score(found.curve, 80_000), abs=1e-12)


@pytest.mark.slow
def test_intervals_of_95_percent_hold_the_truth_about_that_often():
    for N, noise, last in ((9, 0.01, 5000), (60, 0.04, 5000)):
        held = []
        end = score_at(HIGHER, 10 * last)
        for seed in range(60):
            found = fit(
                *noisy(seed, N, noise, last), max_ceiling=1.0, num_resamples=200
            )
            low, high = found.interval("ceiling")
            _, below, above = found.predicted(10 * last)
            held.append((low <= 0.6 <= high, below <= end <= above))
        # 60 draws of 0.95 vary by 0.03; few points give intervals a little narrow.
        assert min(np.mean(held, axis=0)) > 0.85, (N, np.mean(held, axis=0))


def test_the_widening_is_that_of_students_t():
    from scipy import stats

    for spare, tolerance in ((2, 0.04), (3, 0.008), (5, 0.002), (20, 1e-5)):
        want = stats.t.ppf(0.975, spare) / stats.norm.ppf(0.975)
        assert _student_widening(spare) == pytest.approx(want, rel=tolerance)


def test_neighbours_that_err_alike_widen_as_much_as_a_long_series_says():
    rng = np.random.default_rng(0)
    residual_N = rng.normal(size=4000)
    assert _neighbour_widening(residual_N) == pytest.approx(1.0, abs=0.05)
    for i in range(1, 4000):
        residual_N[i] += 0.5 * residual_N[i - 1]
    # The spread of a mean of many, over what independent ones would have: sqrt(3).
    assert _neighbour_widening(residual_N) == pytest.approx(3**0.5, abs=0.1)
    assert _neighbour_widening(np.array([1.0, -1.0] * 5)) == 1.0
    assert _neighbour_widening(np.zeros(5)) == 1.0


# Two curves.


def test_the_sooner_recipe_wins_at_100_and_loses_at_300_000():
    assert score_at(SOONER, 100) > score_at(HIGHER, 100)
    assert score_at(SOONER, 300_000) < score_at(HIGHER, 300_000)
    turn = crossing(SOONER, HIGHER, 100, 300_000)
    assert turn is not None
    assert slow_score(SOONER, turn) == pytest.approx(slow_score(HIGHER, turn), abs=1e-9)
    assert crossing(HIGHER, SOONER, 100, 300_000) == pytest.approx(turn)


def test_curves_that_do_not_meet_have_no_crossing():
    above = HIGHER._replace(ceiling=0.7)
    assert crossing(above, HIGHER, 100, 1e6) is None
    assert crossing(SOONER, HIGHER, 100, 200) is None
