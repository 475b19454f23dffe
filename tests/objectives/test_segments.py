"""Sums over the samples of packed rows: a slow twin, gradients, divided rows."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.objectives.segments import (
    Samples,
    last_counted,
    running_sums,
    sample_counts,
    sample_means,
    sample_sums,
    sample_totals,
)

B, T = 3, 11


def random_rows(seed, dtype: type = np.float32):
    """x and samples: rows cut at random, some tokens masked, garbage under the mask."""
    rng = np.random.default_rng(seed)
    cuts_BT = np.cumsum(rng.uniform(size=(B, T)) < 0.3, 1) + 1
    segment_BT = np.where(np.arange(T) < rng.integers(0, T + 1, (B, 1)), cuts_BT, 0)
    mask_BT = (rng.uniform(size=(B, T)) < 0.7) & (segment_BT > 0)
    x_BT = np.where(mask_BT, rng.normal(size=(B, T)), np.nan).astype(dtype)
    return jnp.array(x_BT), Samples(jnp.array(mask_BT), jnp.array(segment_BT))


def slow(x_BT, samples, meet) -> np.ndarray:
    """The sum at (b, t) of x at (b, s), over s of the same sample where meet(s, t)."""
    x_BT, mask_BT, segment_BT = map(np.asarray, (x_BT, *samples))
    total_BT = np.zeros((B, T), np.float64)
    for b in range(B):
        for t in range(T):
            for s in range(T):
                same = segment_BT[b, s] == segment_BT[b, t]
                if same and mask_BT[b, s] and meet(s, t):
                    total_BT[b, t] += x_BT[b, s]
    return total_BT


all_sums = jax.jit(
    lambda x_BT, samples: (
        sample_sums(x_BT, samples),
        running_sums(x_BT, samples),
        running_sums(x_BT, samples, reverse=True),
        sample_counts(samples),
        sample_means(x_BT, samples),
        last_counted(samples),
    )
)


@hypothesis.given(seed=st.integers(0, 10_000))
@hypothesis.settings(max_examples=30, deadline=None)
def test_sums_match_the_slow_version(seed):
    x_BT, samples = random_rows(seed)
    sums, before, after, counts, means, last = all_sums(x_BT, samples)
    for actual, meet in [
        (sums, lambda s, t: True),
        (before, lambda s, t: s <= t),
        (after, lambda s, t: s >= t),
    ]:
        np.testing.assert_allclose(actual, slow(x_BT, samples, meet), atol=2e-6)
    ones_BT = np.ones((B, T))
    counted = slow(ones_BT, samples, lambda s, t: True)
    np.testing.assert_array_equal(counts, np.maximum(counted, 1))
    np.testing.assert_allclose(means, sums / np.maximum(counted, 1), atol=1e-6)
    left = slow(ones_BT, samples, lambda s, t: s > t)
    np.testing.assert_array_equal(last, np.asarray(samples.mask_BT) & (left == 0))


def test_all_positions_of_a_sample_get_the_very_same_sum():
    for seed in range(10):
        x_BT, samples = random_rows(seed)
        sums_BT = np.asarray(all_sums(x_BT, samples)[0])
        for b, segment_T in enumerate(np.asarray(samples.segment_BT)):
            for segment in set(segment_T) - {0}:
                assert len(set(sums_BT[b, segment_T == segment])) == 1


def test_a_long_row_does_not_blur_a_short_sample():
    # In float32 a running sum of the row would be off by 0.5 at its end.
    x_BT = jnp.concatenate([jnp.full((1, 4096), 3e3), jnp.full((1, 4), 0.1)], 1)
    segment_BT = jnp.array([[1] * 4096 + [2] * 4])
    samples = Samples(jnp.ones((1, 4100), bool), segment_BT)
    sums_BT = jax.jit(sample_sums)(x_BT, samples)
    np.testing.assert_allclose(sums_BT[0, -4:], 0.4, rtol=0, atol=1e-7)


def test_gradients_are_sums_over_the_sample_too():
    x_BT, samples = random_rows(3)
    y_BT = jnp.array(np.random.default_rng(4).normal(size=(B, T)))
    grad_BT = jax.jit(jax.grad(lambda x: (y_BT * sample_sums(x, samples)).sum()))(x_BT)
    everywhere = Samples(jnp.ones_like(samples.mask_BT), samples.segment_BT)
    expected_BT = slow(y_BT, everywhere, lambda s, t: True)
    expected_BT = np.where(samples.mask_BT, expected_BT, 0.0)
    np.testing.assert_allclose(grad_BT, expected_BT, atol=2e-6)


def test_divided_rows_need_no_communication():
    mesh = jax.make_mesh((3,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    x_BT, samples = random_rows(5)
    whole = all_sums(x_BT, samples)
    rows = jax.P("rows", None)
    with jax.set_mesh(mesh):
        arguments = jax.device_put((np.asarray(x_BT), samples), rows)
        parts = all_sums(*arguments)
        for part, one in zip(parts, whole, strict=True):
            assert jax.typeof(part).sharding.spec == rows
            np.testing.assert_array_equal(part, one)
        text = all_sums.lower(*arguments).compile().as_text() or ""
    for word in ("all-reduce", "all-gather", "all-to-all", "collective-permute"):
        assert f" {word}" not in text, word


def test_totals_by_sample_id_match_the_slow_version():
    rng = np.random.default_rng(6)
    x_BT, mask_BT = rng.normal(size=(B, T)), rng.uniform(size=(B, T)) < 0.6
    sample_BT = rng.integers(0, 5, (B, T))
    expected_N = [x_BT[mask_BT & (sample_BT == n)].sum() for n in range(7)]
    x_BT[~mask_BT], sample_BT[~mask_BT] = np.nan, 99
    total_N = sample_totals(
        *(jnp.array(x) for x in (x_BT, mask_BT, sample_BT)), num_samples=7
    )
    np.testing.assert_allclose(total_N, expected_N, rtol=0, atol=1e-6)


def test_sums_without_segments_are_refused():
    with pytest.raises(ValueError, match="segment_BT"):
        sample_sums(jnp.zeros((1, 2)), Samples(jnp.ones((1, 2), bool), None))
