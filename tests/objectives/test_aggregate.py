"""Token weights: each mode against its formula, ragged groups, empty batches."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.objectives.aggregate import MODES, token_weights

jitted_weights = jax.jit(
    token_weights, static_argnames=("mode", "num_groups", "constant")
)


def slow_aggregate(loss_NT, group_N, valid_N, mode, constant) -> float:
    """One number from ragged per-token losses, as the papers write it."""
    samples = [(g, x) for g, x, valid in zip(group_N, loss_NT, valid_N) if valid]
    if not samples or not any(len(x_T) for _, x_T in samples):
        return 0.0
    if mode == "token_mean":
        return sum(sum(x_T) for _, x_T in samples) / sum(len(x_T) for _, x_T in samples)
    if mode == "seq_mean_token_mean":
        means = [sum(x_T) / len(x_T) if len(x_T) else 0.0 for _, x_T in samples]
        return sum(means) / len(means)
    if mode == "seq_mean_token_sum":
        return sum(sum(x_T) for _, x_T in samples) / len(samples)
    if mode == "seq_sum_const":
        return sum(sum(x_T) for _, x_T in samples) / (len(samples) * constant)
    prompts = sorted({g for g, _ in samples})
    total = 0.0
    for prompt in prompts:
        tokens = [x for g, x_T in samples if g == prompt for x in x_T]
        total += sum(tokens) / len(tokens) if tokens else 0.0
    return total / len(prompts)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_mean", [1 / 9, 1 / 9, 1 / 9]),
        ("seq_mean_token_mean", [1 / 9, 1 / 6, 1 / 12]),
        ("seq_mean_token_sum", [1 / 3, 1 / 3, 1 / 3]),
        ("seq_sum_const", [1 / 12, 1 / 12, 1 / 12]),
        ("prompt_mean", [1 / 10, 1 / 10, 1 / 8]),
    ],
)
def test_weights_of_three_samples_of_two_prompts(mode, expected):
    weight_N = jitted_weights(
        jnp.array([3, 2, 4]),
        jnp.array([0, 0, 1]),
        jnp.ones(3, bool),
        mode=mode,
        num_groups=2,
        constant=4,
    )
    assert weight_N.shape == (3,) and weight_N.dtype == jnp.float32
    np.testing.assert_allclose(weight_N, expected, rtol=0, atol=1e-7)


@hypothesis.given(
    tokens=st.lists(st.integers(0, 6), min_size=7, max_size=7),
    groups=st.lists(st.integers(0, 4), min_size=7, max_size=7),
    valid=st.lists(st.booleans(), min_size=7, max_size=7),
    mode=st.sampled_from(MODES),
    seed=st.integers(0, 99),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_weighted_sums_match_the_slow_version(tokens, groups, valid, mode, seed):
    rng = np.random.default_rng(seed)
    loss_NT = [rng.normal(size=num) for num in tokens]
    weight_N = jitted_weights(
        jnp.array(tokens),
        jnp.array(groups),
        jnp.array(valid),
        mode=mode,
        num_groups=5,
        constant=8.0,
    )
    assert np.all(np.isfinite(weight_N)) and np.all(np.asarray(weight_N) >= 0)
    loss = sum(float(w) * sum(x_T) for w, x_T in zip(weight_N, loss_NT, strict=True))
    slow = slow_aggregate(loss_NT, groups, valid, mode, 8.0)
    np.testing.assert_allclose(loss, slow, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_what_stands_at_an_invalid_sample_is_never_read(mode):
    def weights(tokens_N, group_N):
        return jitted_weights(
            jnp.array(tokens_N),
            jnp.array(group_N),
            jnp.array([1, 0, 1, 0]),
            mode=mode,
            num_groups=3,
            constant=5,
        )

    weight_N = weights([3, 0, 4, 0], [0, 0, 2, 2])
    np.testing.assert_array_equal(weight_N, weights([3, 99, 4, -7], [0, -1, 2, 50]))
    assert weight_N[1] == weight_N[3] == 0


@pytest.mark.parametrize("mode", MODES)
def test_permuting_samples_permutes_weights(mode):
    tokens_N = jnp.array([3, 2, 4, 1, 5])
    group_N = jnp.array([0, 1, 0, 2, 2])
    valid_N = jnp.array([True, True, True, False, True])
    order_N = jnp.array([4, 2, 0, 1, 3])
    kwargs = {"mode": mode, "num_groups": 3, "constant": 5}
    weight_N = jitted_weights(tokens_N, group_N, valid_N, **kwargs)
    permuted_N = jitted_weights(
        tokens_N[order_N], group_N[order_N], valid_N[order_N], **kwargs
    )
    np.testing.assert_array_equal(permuted_N, weight_N[order_N])


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_without_samples_has_zero_weights(mode):
    for tokens_N, valid_N in [([3, 2], [0, 0]), ([0, 0], [1, 1])]:
        weight_N = jitted_weights(
            jnp.array(tokens_N),
            jnp.array([0, 1]),
            jnp.array(valid_N),
            mode=mode,
            num_groups=2,
            constant=4,
        )
        np.testing.assert_array_equal(weight_N, [0.0, 0.0])


def test_a_sample_without_tokens_still_counts_as_a_sample():
    weight_N = jitted_weights(
        jnp.array([4, 0]),
        jnp.array([0, 0]),
        jnp.array([True, True]),
        mode="seq_mean_token_mean",
        num_groups=1,
        constant=0,
    )
    np.testing.assert_allclose(weight_N, [1 / 8, 0.0], rtol=0, atol=1e-7)


def test_large_batches_do_not_overflow_a_count():
    # 65536 samples of 65536 tokens: a product of 2^32, which int32 cannot hold.
    weight_N = jitted_weights(
        jnp.full(65536, 65536),
        jnp.zeros(65536, int),
        jnp.ones(65536, bool),
        mode="seq_mean_token_mean",
        num_groups=1,
        constant=0,
    )
    np.testing.assert_allclose(weight_N[0], 2.0**-32, rtol=1e-6)


def test_unknown_modes_and_missing_constants_are_refused():
    arrays = jnp.array([1]), jnp.array([0]), jnp.array([True])
    with pytest.raises(ValueError, match="'mean'"):
        token_weights(*arrays, mode="mean", num_groups=1, constant=1)
    with pytest.raises(ValueError, match="constant"):
        token_weights(*arrays, mode="seq_sum_const", num_groups=1, constant=0)
