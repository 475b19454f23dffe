"""Cross-entropy: worked numbers, padding, micro-batches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.objectives.aggregate import token_weights
from rl_jax.objectives.supervised import cross_entropy

# Two sequences packed into one row, with two positions of garbage behind them.
LOGP_BT = np.array([[-0.50, -1.20, -0.30, -0.90, -0.40, np.nan, -np.inf]])
SAMPLE_BT = np.array([[0, 0, 0, 1, 1, 0, 0]])


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def slow_cross_entropy(logp_BT, mask_BT, weight_BT) -> float:
    loss = 0.0
    for b, row_T in enumerate(logp_BT):
        for t, logp in enumerate(row_T):
            if mask_BT[b][t]:
                loss -= float(weight_BT[b][t]) * float(logp)
    return loss


@pytest.mark.parametrize(
    ("mask", "mode", "expected"),
    [
        ([1, 1, 1, 1, 1, 0, 0], "token_mean", 0.66),
        ([1, 1, 1, 1, 1, 0, 0], "seq_mean_token_mean", 0.658333),
        ([1, 1, 1, 1, 1, 0, 0], "sum", 3.3),
        ([0, 1, 1, 1, 0, 0, 0], "token_mean", 0.8),
        ([0, 1, 1, 1, 0, 0, 0], "seq_mean_token_mean", 0.825),
    ],
)
def test_the_loss_has_the_worked_values(mask, mode, expected, dtype):
    mask_BT = np.array([mask])
    weight_BT = jnp.ones(mask_BT.shape, dtype)
    if mode != "sum":
        tokens_N = [mask_BT[SAMPLE_BT == n][:3].sum() for n in range(2)]
        weight_N = token_weights(
            jnp.array(tokens_N),
            jnp.arange(2),
            jnp.ones(2, bool),
            mode=mode,
            num_groups=2,
            constant=0.0,
        )
        weight_BT = weight_N[SAMPLE_BT]
    logp_BT = jnp.array(LOGP_BT, dtype)
    loss, metrics = jax.jit(cross_entropy)(logp_BT, jnp.array(mask_BT), weight_BT)
    assert loss.dtype == dtype
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(metrics["cross_entropy"], expected, rtol=0, atol=1e-6)
    assert metrics["num_tokens"] == mask_BT.sum()


def random_batch(seed=0):
    rng = np.random.default_rng(seed)
    logp_BT = -rng.exponential(1.0, (3, 5)).astype(np.float32)
    mask_BT = rng.integers(0, 2, (3, 5)).astype(bool)
    weight_BT = rng.uniform(0.1, 1.0, (3, 5)).astype(np.float32)
    return logp_BT, mask_BT, weight_BT


def test_the_loss_matches_the_slow_version():
    batch = random_batch()
    loss, _ = jax.jit(cross_entropy)(*map(jnp.asarray, batch))
    np.testing.assert_allclose(loss, slow_cross_entropy(*batch), rtol=0, atol=1e-5)


def test_the_gradient_is_minus_the_weight_and_zero_where_masked():
    logp_BT, mask_BT, weight_BT = random_batch()
    for garbage in (np.nan, -np.inf):
        logp_BT[~mask_BT] = garbage
        grad_BT = jax.grad(
            lambda x_BT: cross_entropy(x_BT, jnp.array(mask_BT), jnp.array(weight_BT))[
                0
            ]
        )(jnp.array(logp_BT))
        np.testing.assert_array_equal(grad_BT, np.where(mask_BT, -weight_BT, 0.0))


def test_garbage_weights_outside_the_mask_change_nothing():
    logp_BT, mask_BT, weight_BT = random_batch()
    clean, _ = jax.jit(cross_entropy)(*map(jnp.asarray, (logp_BT, mask_BT, weight_BT)))
    weight_BT[~mask_BT] = np.nan
    dirty, _ = jax.jit(cross_entropy)(*map(jnp.asarray, (logp_BT, mask_BT, weight_BT)))
    assert clean == dirty


def test_micro_batches_add_up_to_the_batch():
    logp_BT, mask_BT, weight_BT = map(jnp.asarray, random_batch())
    whole, metrics = jax.jit(cross_entropy)(logp_BT, mask_BT, weight_BT)
    parts = [
        cross_entropy(logp_BT[b : b + 1], mask_BT[b : b + 1], weight_BT[b : b + 1])
        for b in range(3)
    ]
    np.testing.assert_allclose(sum(p[0] for p in parts), whole, rtol=0, atol=1e-6)
    for name, value in metrics.items():
        total = sum(p[1][name] for p in parts)
        np.testing.assert_allclose(total, value, rtol=0, atol=1e-6)


def test_a_batch_without_tokens_gives_zero():
    nan_BT = jnp.full((2, 3), jnp.nan)
    mask_BT = jnp.zeros((2, 3), bool)
    loss, metrics = jax.jit(cross_entropy)(nan_BT, mask_BT, nan_BT)
    assert loss == metrics["cross_entropy"] == metrics["num_tokens"] == 0.0


def test_bfloat16_is_widened_before_the_sum():
    logp_BT = jnp.full((1, 4096), -1.0, jnp.bfloat16)
    ones_BT = jnp.ones((1, 4096), jnp.bfloat16)
    loss, _ = jax.jit(cross_entropy)(logp_BT, ones_BT, ones_BT / 4096)
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, 1.0, rtol=0, atol=1e-6)
