"""Averages of weights: worked numbers, slow twins, and what must not be averaged."""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.models import merging

WEIGHT = st.floats(0, 10, allow_subnormal=False)


def slow_merge(trees, weights):
    """Number by number, in float64."""
    merged = {}
    for name in trees[0]:
        leaf = np.zeros(trees[0][name].shape, np.float64)
        for index in np.ndindex(leaf.shape):
            for tree, weight in zip(trees, weights, strict=True):
                leaf[index] += weight * float(tree[name][index])
        merged[name] = leaf
    return merged


def random_trees(num, seed=0):
    rng = np.random.default_rng(seed)

    def leaf(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return [{"w_FD": leaf(3, 2), "b_F": leaf(3)} for _ in range(num)]


@pytest.mark.parametrize("array", [np.float32, jnp.float32])
def test_the_worked_numbers(array):
    leaves = [array(x) for x in (1.0, 3.0, 5.0)]
    found = merging.merge(leaves, (0.5, 0.25, 0.25))
    assert float(found) == 2.5


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 4), st.integers(0, 100), st.data())
def test_a_merge_matches_the_slow_version(num, seed, data):
    trees = random_trees(num, seed)
    weights = data.draw(st.lists(st.floats(0, 2), min_size=num, max_size=num))
    found, want = merging.merge(trees, weights), slow_merge(trees, weights)
    for name, leaf in want.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], leaf, rtol=0, atol=1e-5)


def test_jax_and_numpy_give_the_same():
    trees = random_trees(3)
    weights = (0.2, 0.3, 0.5)
    ours = merging.merge(trees, weights)
    jitted = jax.jit(lambda *t: merging.merge(t, weights))(*trees)
    for name, leaf in ours.items():
        np.testing.assert_allclose(jitted[name], leaf, rtol=0, atol=1e-6)


def test_sums_are_made_in_float32_and_come_out_in_the_first_type():
    # In bfloat16 each 1/256 would vanish beside 1.
    small = ml_dtypes.bfloat16(2.0**-8)
    leaves = [np.full(3, x, ml_dtypes.bfloat16) for x in (1.0, small, small)]
    found = merging.merge(leaves, (1.0, 1.0, 1.0))
    assert found.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found.astype(np.float32), [1 + 2.0**-7] * 3)
    mixed = [leaves[0].astype(np.float32), leaves[1]]
    assert merging.merge(mixed, (0.5, 0.5)).dtype == np.float32


def test_counters_and_masks_are_not_averaged():
    trees = [
        {"w": np.array([x], np.float32), "step": np.int32(n), "mask": np.array([n > 5])}
        for x, n in ((1.0, 3), (2.0, 10))
    ]
    merged = merging.merge(trees, (0.5, 0.5))
    assert (merged["w"], merged["step"], merged["mask"]) == (1.5, 3, False)
    newer = merging.ema(trees[0], trees[1], 0.5)
    assert (newer["w"], newer["step"], newer["mask"]) == (1.5, 10, True)


def test_a_model_merged_with_itself_is_itself():
    (tree,) = random_trees(1)
    for weights in ((1.0,), (0.5, 0.5), (0.25, 0.75), (0.0, 1.0)):
        found = merging.merge([tree] * len(weights), weights)
        jax.tree.map(np.testing.assert_array_equal, found, tree)


def test_the_order_of_the_models_changes_rounding_only():
    trees = random_trees(3)
    found = merging.merge(trees, (0.2, 0.3, 0.5))
    other = merging.merge(trees[::-1], (0.5, 0.3, 0.2))
    for name in found:
        np.testing.assert_allclose(found[name], other[name], rtol=0, atol=1e-6)


def test_no_trees_and_too_few_weights_are_refused():
    for trees, weights in (([], ()), ([np.zeros(1)], (0.5, 0.5))):
        with pytest.raises(ValueError, match="merge got"):
            merging.merge(trees, weights)


# Weights.


@given(st.lists(WEIGHT, min_size=1, max_size=6).filter(lambda w: sum(w) > 1e-6))
def test_normalised_weights_keep_their_shares_and_sum_to_one(weights):
    found = merging.normalised(weights)
    assert math.fsum(found) == pytest.approx(1.0, abs=1e-12)
    for share, weight in zip(found, weights, strict=True):
        assert share * math.fsum(weights) == pytest.approx(weight, abs=1e-9)


@pytest.mark.parametrize(
    "weights", [(0.0, 0.0), (1.0, -0.1), (math.inf, 1.0), (math.nan, 1.0)]
)
def test_weights_that_make_no_average_are_refused(weights):
    with pytest.raises(ValueError, match="expected none below 0"):
        merging.normalised(weights)


# Moving averages.


@given(st.integers(1, 8), st.floats(0, 1))
def test_the_weights_of_a_moving_average_are_those_of_making_it(num, decay):
    average = {"w": np.eye(num)[0]}  # which tree each part comes from
    for j in range(1, num):
        average = {"w": decay * average["w"] + (1 - decay) * np.eye(num)[j]}
    found = merging.ema_weights(num, decay)
    np.testing.assert_allclose(found, average["w"], rtol=0, atol=1e-12)
    assert math.fsum(found) == pytest.approx(1.0, abs=1e-12)


def test_a_moving_average_of_many_steps_matches_the_slow_one():
    rng = np.random.default_rng(0)
    params = [rng.normal(size=5).astype(np.float32) for _ in range(12)]
    average, slow = jnp.asarray(params[0]), params[0].astype(np.float64)
    for new in params[1:]:
        average = merging.ema(average, jnp.asarray(new), 0.9)
        slow = 0.9 * slow + (1 - 0.9) * new
    np.testing.assert_allclose(average, slow, rtol=0, atol=1e-6)
    merged = merging.merge(params, merging.ema_weights(12, 0.9))
    np.testing.assert_allclose(merged, slow, rtol=0, atol=1e-6)


def test_a_decay_outside_of_0_to_1_is_refused():
    for decay in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="0 <= decay <= 1"):
            merging.ema(np.zeros(1), np.zeros(1), decay)
