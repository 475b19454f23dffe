"""Attention over packed rows and over a cache, against slow loops.

Legend: B rows, T/S positions, H = K * R query heads, K key/value heads, C channels,
W decode slots.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.kernels import attention  # pyright: ignore[reportMissingImports]

H, K, C = 6, 2, 4

packed_attention = jax.jit(functools.partial(attention.packed_attention, scale=C**-0.5))
cache_attention = jax.jit(functools.partial(attention.cache_attention, scale=C**-0.5))


def slow_attention(q_THC, k_SKC, v_SKC, sees, scale=C**-0.5, softcap=0.0):
    """Softmax attention in float64; query t sees key s if `sees(t, s)`."""
    out_THC = np.zeros(q_THC.shape, np.float64)
    for t in range(len(q_THC)):
        for h in range(q_THC.shape[1]):
            k = h // (q_THC.shape[1] // k_SKC.shape[1])  # queries of a group adjoin
            keys = [s for s in range(len(k_SKC)) if sees(t, s)]
            score = np.array([np.dot(q_THC[t, h], k_SKC[s, k]) for s in keys])
            score *= scale
            if softcap:
                score = softcap * np.tanh(score / softcap)
            weight = np.exp(score)
            weight /= weight.sum()
            for w, s in zip(weight, keys, strict=True):
                out_THC[t, h] += w * v_SKC[s, k]
    return out_THC


def random_qkv(B, T, seed=0, num_kv=K):
    rng = np.random.default_rng(seed)
    shapes = ((B, T, H, C), (B, T, num_kv, C), (B, T, num_kv, C))
    return [rng.normal(size=s).astype(np.float32) for s in shapes]


SEGMENTS = np.array([[1, 1, 1, 2, 2, 3, 0], [1, 1, 1, 1, 1, 1, 1], [0] * 7], np.int32)


@pytest.mark.parametrize("num_kv", [1, K, H])
def test_packed_attention_matches_the_slow_version(num_kv):
    q, k, v = random_qkv(3, 7, num_kv=num_kv)
    got_BTHC = packed_attention(q, k, v, SEGMENTS)
    assert got_BTHC.shape == q.shape
    for b, segment in enumerate(SEGMENTS):
        want_THC = slow_attention(
            q[b].astype(np.float64),
            k[b].astype(np.float64),
            v[b].astype(np.float64),
            lambda t, s, segment=segment: s <= t and segment[s] == segment[t],
        )
        np.testing.assert_allclose(got_BTHC[b], want_THC, rtol=0, atol=1e-5)


@pytest.mark.parametrize("window", [1, 2, 4, np.int32(3)])
def test_windows_soft_caps_and_scales_match_the_slow_version(window):
    q, k, v = random_qkv(1, 7, seed=5)
    options = {"scale": 0.9, "softcap": 1.5}
    packed = jax.jit(functools.partial(attention.packed_attention, **options))
    segment = SEGMENTS[1]
    got_THC = packed(q, k, v, segment[None], window)[0]
    want_THC = slow_attention(
        q[0].astype(np.float64),
        k[0].astype(np.float64),
        v[0].astype(np.float64),
        lambda t, s: s <= t < s + window,
        **options,
    )
    np.testing.assert_allclose(got_THC, want_THC, rtol=0, atol=1e-5)
    # One new token against a cache that is longer than what is written.
    at_W = np.array([0, 3, 6], np.int32)
    rows = [np.repeat(np.swapaxes(x, 1, 2), 3, axis=0) for x in (k, v)]
    cached = functools.partial(attention.cache_attention, window=int(window), **options)
    got_WHC = jax.jit(cached)(q[0, at_W], *rows, at_W)
    np.testing.assert_allclose(got_WHC, want_THC[at_W], rtol=0, atol=1e-5)


def test_packed_equals_each_segment_alone():
    q, k, v = random_qkv(1, 7, seed=1)
    packed_THC = packed_attention(q, k, v, SEGMENTS[:1])[0]
    spans = ((0, 3), (3, 5), (5, 6))
    # Each segment at the start of a row of its own, and padding behind it.
    alone_q, alone_k, alone_v = (
        np.concatenate([np.roll(x, -start, axis=1) for start, _ in spans])
        for x in (q, k, v)
    )
    alone_BT = np.array([[t < b - a for t in range(7)] for a, b in spans], np.int32)
    alone_BTHC = packed_attention(alone_q, alone_k, alone_v, alone_BT)
    for b, (start, stop) in enumerate(spans):
        np.testing.assert_allclose(
            packed_THC[start:stop], alone_BTHC[b, : stop - start], rtol=0, atol=1e-6
        )


def test_a_row_of_padding_is_finite_in_values_and_gradients():
    q, k, v = random_qkv(1, 5, seed=2)
    padding = np.zeros((1, 5), np.int32)

    def loss(q, k, v):
        return (packed_attention(q, k, v, padding) ** 2).sum()

    value, grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(q, k, v)
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() for g in grads)


def test_later_positions_and_other_segments_have_zero_gradient():
    q, k, v = random_qkv(1, 7, seed=3)

    def loss(k, v):
        # Position 4 is the second and last of segment 2, which starts at 3.
        return packed_attention(q, k, v, SEGMENTS[:1])[0, 4].sum()

    for grad in jax.jit(jax.grad(loss, argnums=(0, 1)))(k, v):
        felt_T = np.abs(np.asarray(grad[0])).sum(axis=(1, 2)) > 0
        np.testing.assert_array_equal(felt_T, [0, 0, 0, 1, 1, 0, 0])


def test_cache_attention_equals_the_last_row_of_packed_attention():
    S = 6
    q, k, v = random_qkv(3, S, seed=4)
    position_W = np.array([0, 3, 5], np.int32)
    want_BTHC = packed_attention(q, k, v, np.ones((3, S), np.int32))
    # What stands beyond the position is left over from an older sample.
    beyond = np.arange(S)[None, :, None, None] > position_W[:, None, None, None]
    k_WKSC, v_WKSC = (np.where(beyond, 1e3, x).swapaxes(1, 2) for x in (k, v))
    rows = np.arange(3), position_W
    got_WHC = cache_attention(q[rows], k_WKSC, v_WKSC, position_W)
    np.testing.assert_allclose(got_WHC, np.asarray(want_BTHC)[rows], rtol=0, atol=1e-6)


def test_bfloat16_is_near_and_comes_back_as_bfloat16():
    exact = random_qkv(1, 7, seed=5)
    low = [jnp.asarray(x, jnp.bfloat16) for x in exact]
    got = packed_attention(*low, SEGMENTS[:1])
    want = packed_attention(*exact, SEGMENTS[:1])
    assert got.dtype == jnp.bfloat16
    error = np.linalg.norm(np.asarray(got, np.float32) - want)
    assert error < 1e-2 * np.linalg.norm(want)
