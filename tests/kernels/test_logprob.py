"""Log-probability and entropy by chunks: a slow twin, sharding, and memory.

Legend: N tokens, D model width, V vocabulary.
"""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.kernels.logprob import plain  # pyright: ignore[reportMissingImports]
from rl_jax.mesh import make_mesh

CHUNK = 5

token_logprob = plain.token_logprob


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(plain, "CHUNK", CHUNK)


def slow_token_logprob(hidden_ND, head_VD, target_N, temperature, softcap):
    """(logp, entropy, and the derivatives of both by the logits), float64."""
    N, V = len(hidden_ND), len(head_VD)
    logp_N, entropy_N = np.zeros(N), np.zeros(N)
    d_logp_NV, d_entropy_NV = np.zeros((N, V)), np.zeros((N, V))
    for n in range(N):
        x = [float(np.dot(hidden_ND[n].astype(np.float64), w)) for w in head_VD]
        slope = [1.0] * V
        if softcap:
            slope = [1 - math.tanh(logit / softcap) ** 2 for logit in x]
            x = [softcap * math.tanh(logit / softcap) for logit in x]
        z = [logit / temperature for logit in x]
        lse = max(z) + math.log(sum(math.exp(x - max(z)) for x in z))
        p = [math.exp(x - lse) for x in z]
        logp_N[n] = z[target_N[n]] - lse
        entropy_N[n] = -sum(p[v] * (z[v] - lse) for v in range(V))
        for v in range(V):
            hit = float(v == target_N[n])
            by_logit = slope[v] / temperature
            d_logp_NV[n, v] = (hit - p[v]) * by_logit
            d_entropy_NV[n, v] = -p[v] * (z[v] - lse + entropy_N[n]) * by_logit
    return logp_N, entropy_N, d_logp_NV, d_entropy_NV


def slow_value_and_grads(inputs, temperature=1.0, softcap=0.0):
    """Values, and gradients of sum(a * logp + b * entropy) by hidden and head."""
    hidden_ND, head_VD, target_N, a_N, b_N = inputs
    logp_N, entropy_N, d_logp_NV, d_entropy_NV = slow_token_logprob(
        hidden_ND, head_VD, target_N, temperature, softcap
    )
    d_z_NV = a_N[:, None] * d_logp_NV + b_N[:, None] * d_entropy_NV
    return logp_N, entropy_N, d_z_NV @ head_VD, d_z_NV.T @ hidden_ND


def value_and_grads(inputs, temperature=1.0, softcap=0.0, kernel=token_logprob):
    """As the slow one, from the kernel."""
    hidden_ND, head_VD, target_N, a_N, b_N = inputs

    def loss(hidden_ND, head_VD):
        logp_N, entropy_N = kernel(
            hidden_ND, head_VD, target_N, temperature=temperature, softcap=softcap
        )
        return (a_N * logp_N + b_N * entropy_N).sum(), (logp_N, entropy_N)

    # A new function each time: a traced program remembers the chunk size it had.
    (_, values), grads = jax.jit(
        jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    )(hidden_ND, head_VD)
    return *values, *grads


def random_inputs(N, V, D=3, seed=0):
    rng = np.random.default_rng(seed)
    target_N = rng.integers(0, V, N).astype(np.int32)
    target_N[0], target_N[-1] = 0, V - 1
    draw = [rng.normal(size=shape) for shape in ((N, D), (V, D), (N,), (N,))]
    hidden_ND, head_VD, a_N, b_N = (x.astype(np.float32) for x in draw)
    return hidden_ND, head_VD, target_N, a_N, b_N


@pytest.mark.parametrize(
    ("N", "V", "temperature", "softcap"),
    [
        (4, CHUNK - 1, 1.0, 0.0),
        (4, CHUNK, 1.0, 0.0),
        (4, 3 * CHUNK, 0.7, 0.0),
        (4, 3 * CHUNK + 2, 0.7, 1.3),
        (1, 2 * CHUNK + 1, 1.0, 2.0),
        (7, 1, 1.0, 0.0),
    ],
)
@pytest.mark.usefixtures("small_chunks")
def test_values_and_gradients_match_the_slow_version(N, V, temperature, softcap):
    inputs = random_inputs(N, V)
    got = value_and_grads(inputs, temperature, softcap)
    want = slow_value_and_grads(inputs, temperature, softcap)
    for fast, slow in zip(got, want, strict=True):
        assert fast.dtype == jnp.float32
        np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("temperature", "logp", "entropy"),
    [(1.0, -0.464369, 0.905959), (0.7, -0.305254, 0.742815)],
)
def test_the_worked_example_comes_out(temperature, logp, entropy):
    head_VD = jnp.array([[1.0], [2.0], [0.5]])
    got = token_logprob(
        jnp.ones((1, 1)), head_VD, jnp.array([1]), temperature=temperature
    )
    np.testing.assert_allclose(np.concatenate(got), [logp, entropy], rtol=0, atol=1e-6)


@pytest.mark.usefixtures("small_chunks")
def test_extreme_logits_stay_finite_and_exact():
    # One token ahead by 20,000 nats, ahead of its own chunk only, and all at -1e4.
    z_NV = np.full((3, 2 * CHUNK + 3), -1e4, np.float32)
    z_NV[0, 4] = 1e4
    z_NV[1, 7:9] = 1e4
    target_N = np.array([4, 8, 0], np.int32)
    one_N = np.ones(3, np.float32)
    inputs = (np.eye(3, dtype=np.float32), z_NV.T.copy(), target_N, one_N, one_N)
    fast, exact = value_and_grads(inputs), slow_value_and_grads(inputs)
    # float32 resolves 1e-3 at 1e4, and sums of it are as coarse.
    for i in (0, 1, 3):
        np.testing.assert_allclose(fast[i], exact[i], rtol=0, atol=4e-3)
    assert all(np.isfinite(x).all() for x in fast)


@pytest.mark.usefixtures("small_chunks")
def test_a_target_that_has_no_chance_has_its_true_logprob():
    z_NV = np.array([[1e4, 0.0, -1e4, 0.0, 0.0, -1e4]], np.float32)
    logp_N, entropy_N = token_logprob(
        jnp.ones((1, 1)), jnp.asarray(z_NV.T), jnp.array([2])
    )
    np.testing.assert_allclose(logp_N, [-2e4], rtol=0, atol=4e-3)
    np.testing.assert_allclose(entropy_N, [0.0], rtol=0, atol=4e-3)


@pytest.mark.usefixtures("small_chunks")
def test_bfloat16_inputs_are_near_and_keep_their_dtype_in_gradients():
    *floats, target_N, a_N, b_N = random_inputs(6, 2 * CHUNK + 1)
    low = [jnp.asarray(x, jnp.bfloat16) for x in floats]
    exact = [np.asarray(x, np.float32) for x in low]
    got = value_and_grads((*low, target_N, a_N, b_N))
    want = slow_value_and_grads((*exact, target_N, a_N, b_N))
    assert [x.dtype for x in got] == [jnp.float32] * 2 + [jnp.bfloat16] * 2
    for fast, slow in zip(got, want, strict=True):
        error = np.linalg.norm(np.asarray(fast, np.float64) - slow)
        assert error < 1e-2 * np.linalg.norm(slow)


@pytest.mark.usefixtures("small_chunks")
def test_sharded_over_rows_and_vocabulary_equals_unsharded():
    # Six rows of the head a shard: a whole chunk and a short one on each.
    mesh = make_mesh(1, 2, 4)
    inputs = random_inputs(6, 24)

    def sharded(hidden_ND, head_VD, target_N, temperature, softcap):
        def local(hidden_ND, head_VD, target_N):
            return token_logprob(
                hidden_ND,
                head_VD,
                target_N,
                temperature=temperature,
                softcap=softcap,
                vocab_axis="tensor",
                varying=("fsdp", "tensor"),
            )

        rows = jax.P("fsdp")
        return jax.shard_map(
            local,
            in_specs=(jax.P("fsdp", None), jax.P("tensor", None), rows),
            out_specs=(rows, rows),
        )(hidden_ND, head_VD, target_N)

    with jax.set_mesh(mesh):
        put = (jax.P("fsdp", None), jax.P("tensor", None), *[jax.P("fsdp")] * 3)
        laid_out = [
            jax.device_put(x, jax.NamedSharding(mesh, p))
            for x, p in zip(inputs, put, strict=True)
        ]
        got = value_and_grads(laid_out, 0.7, 1.5, sharded)
    assert got[2].sharding.spec == jax.P("fsdp", None)
    assert got[3].sharding.spec == jax.P("tensor", None)
    for fast, slow in zip(got, value_and_grads(inputs, 0.7, 1.5), strict=True):
        np.testing.assert_allclose(fast, slow, rtol=0, atol=1e-5)


def largest_array(hlo: str) -> int:
    """Elements of the largest array that a program's text mentions."""
    shapes = re.findall(r"\b(?:f32|bf16|s32|u32|pred)\[([\d,]+)\]", hlo)
    return max(math.prod(int(n) for n in shape.split(",")) for shape in shapes)


def test_the_logits_are_never_held():
    N, V, D = 512, 16384, 8
    shapes = [
        jax.ShapeDtypeStruct(shape, dtype)
        for shape, dtype in (((N, D), "f4"), ((V, D), "f4"), ((N,), "i4"))
    ]

    def compiled(kernel):
        def loss(hidden_ND, head_VD, target_N):
            logp_N, entropy_N = kernel(hidden_ND, head_VD, target_N)
            return (logp_N + 0.1 * entropy_N).sum()

        return (
            jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*shapes).compile()
        )

    def naive(hidden_ND, head_VD, target_N):
        logp_NV = jax.nn.log_softmax(hidden_ND @ head_VD.T)
        picked_N = jnp.take_along_axis(logp_NV, target_N[:, None], axis=1)[:, 0]
        return picked_N, -(jnp.exp(logp_NV) * logp_NV).sum(axis=1)

    def temporaries(program):
        return program.memory_analysis().temp_size_in_bytes

    chunked, whole = compiled(token_logprob), compiled(naive)
    # The naive program shows that both measures see the logits when they are there.
    assert largest_array(whole.as_text() or "") >= N * V
    assert temporaries(whole) >= N * V * 4
    assert largest_array(chunked.as_text() or "") <= max(N * plain.CHUNK, V * D)
    # A chunk's logits and a few arrays of their size, and the head's gradient.
    assert (
        temporaries(chunked) < (4 * N * plain.CHUNK + 2 * V * D) * 4 < N * V * 4 / 1.5
    )
