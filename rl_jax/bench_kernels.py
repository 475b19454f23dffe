"""The speed and memory of kernels, against bare matmuls and the forms they replace.

What runs is the implementation of this machine's platform. Memory is what the compiler
plans for temporaries, beyond arguments and results.

Legend: N tokens, D model width, V vocabulary, B rows, T/S positions, H = K * R query
heads, K key/value heads, C channels of a head.
"""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.bench_figures import Figure
from rl_jax.kernels import advantage  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.attention import (  # pyright: ignore[reportMissingImports]
    packed_attention,
)
from rl_jax.kernels.logprob import (  # pyright: ignore[reportMissingImports]
    token_kl,
    token_logprob,
)

REPEATS = 10  # of what takes only milliseconds


class Sizes(NamedTuple):
    """What is measured: by default the head and the heads of SmolLM2-135M."""

    N: int = 2048
    D: int = 576
    V: int = 49152
    T: int = 4096
    H: int = 9
    K: int = 3
    C: int = 64
    B: int = 32  # packed rows of T / 2 tokens, for the advantages


class Call(NamedTuple):
    """A compiled program and what it is called on."""

    program: Any
    arguments: tuple[jax.Array, ...]


def figures(rounds: int, sizes: Sizes | None = None) -> list[Figure]:
    """All of them."""
    print(f"platform     {jax.default_backend()}, jax {jax.__version__}")
    sizes = sizes or Sizes()
    return [
        *logprob_figures(rounds, sizes),
        *attention_figures(rounds, sizes),
        *advantage_figures(rounds, sizes),
    ]


def logprob_figures(rounds: int, sizes: Sizes) -> list[Figure]:
    """Log-probability and KL against the matmuls that they cannot do without."""
    N, D, V = sizes[:3]
    rng = np.random.default_rng(0)
    hidden_ND = jnp.asarray(rng.normal(size=(N, D)), jnp.float32)
    weight_VD = jnp.asarray(rng.normal(size=(V, D)) * D**-0.5, jnp.float32)
    target_N = jnp.asarray(rng.integers(0, V, N), jnp.int32)
    head = (hidden_ND, weight_VD)
    logits = compiled(lambda h_ND, w_VD: h_ND @ w_VD.T, *head)
    z_NV = logits.program(*head)
    grads = (
        compiled(lambda z_NV, w_VD: z_NV @ w_VD, z_NV, weight_VD),
        compiled(lambda z_NV, h_ND: z_NV.T @ h_ND, z_NV, hidden_ND),
    )
    forward = compiled(token_logprob, *head, target_N)
    backward = compiled(gradients_of(token_logprob, 2), *head, target_N)
    few = functools.partial(token_logprob, mask_N=jnp.arange(N) % 4 == 0)
    few = compiled(gradients_of(few, 2), *head, target_N)
    kl = compiled(gradients_of(token_kl, 2), *head, *head)
    naive = compiled(naive_logprob, *head, target_N)
    naive_backward = compiled(gradients_of(naive_logprob, 2), *head, target_N)

    forward_secs, speed = compared(rounds, [forward], [logits])
    backward_secs, backward_speed = compared(
        rounds, [backward], [logits, logits, *grads]
    )
    _, few_speed = compared(rounds, [few], [backward])
    _, kl_speed = compared(rounds, [kl], [logits] * 4 + [*grads])
    size = f"N={N:,} D={D:,} V={V:,}"
    rate = 2 * N * D * V / 1e9 / (forward_secs * speed)
    return [
        Figure(f"matmul {size}", rate, "GFLOP/s"),
        Figure("log-probability, forward", 1e3 * forward_secs, "ms"),
        Figure("  bare matmul / it", speed, "x", 0.95),
        Figure("log-probability, with gradients", 1e3 * backward_secs, "ms"),
        Figure("  four bare matmuls / it", backward_speed, "x", 0.8),
        Figure("  all tokens / a quarter of them", few_speed, "x"),
        Figure("  memory, forward: naive / it", saved(naive, forward), "x", 20),
        Figure("  memory: naive / it", saved(naive_backward, backward), "x", 20),
        Figure("KL with gradients: six bare matmuls / it", kl_speed, "x"),
    ]


def attention_figures(rounds: int, sizes: Sizes) -> list[Figure]:
    """Packed attention against scores of a whole row at once."""
    _, _, _, T, H, K, C, _ = sizes
    rng = np.random.default_rng(1)
    shapes = ((1, T, H, C), (1, T, K, C), (1, T, K, C))
    qkv = [jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes]
    one_BT = jnp.ones((1, T), jnp.int32)
    eight_BT = jnp.arange(T)[None] // -(-T // 8) + 1
    forms = [
        functools.partial(f, scale=C**-0.5) for f in (packed_attention, naive_attention)
    ]
    found = []
    for name, change in (("forward", lambda f, _: f), ("with gradients", gradients_of)):
        ours, naive = (compiled(change(form, 3), *qkv, one_BT) for form in forms)
        packed = Call(ours.program, (*qkv, eight_BT))
        secs, speed = compared(rounds, [ours], [naive])
        _, packed_speed = compared(rounds, [packed], [ours])
        found += [
            Figure(f"attention T={T:,} H={H} K={K} C={C}, {name}", 1e3 * secs, "ms"),
            Figure("  naive / it", speed, "x", 1),
            Figure("  memory: naive / it", saved(naive, ours), "x", 10),
            Figure("  one sample in the row / eight", packed_speed, "x"),
        ]
    return found


def advantage_figures(rounds: int, sizes: Sizes) -> list[Figure]:
    """Time of the recursions and of group centring; they have no bound but memory."""
    B, T = sizes.B, sizes.T // 2
    rng = np.random.default_rng(2)
    reward_BT, value_BT = (
        jnp.asarray(rng.normal(size=(B, T)), jnp.float32) for _ in range(2)
    )
    segment_BT = jnp.broadcast_to(jnp.arange(T) // 300 + 1, (B, T))
    mask_BT = jnp.asarray(rng.random((B, T)) < 0.8)
    rows = (segment_BT, mask_BT)
    reward_N, group_N = reward_BT.reshape(-1), jnp.arange(B * T) // 8
    gae = functools.partial(advantage.gae, gamma=0.99, lam=0.95)
    returns = functools.partial(advantage.discounted_returns, gamma=0.99)
    group = functools.partial(
        advantage.group_advantage,
        num_groups=-(-B * T // 8),
        centre="group_mean",
        scale="group_std",
    )
    calls = {
        "GAE": compiled(gae, reward_BT, value_BT, *rows),
        "discounted returns": compiled(returns, reward_BT, *rows),
        "group advantages": compiled(group, reward_N, group_N, group_N >= 0),
    }
    found = []
    for name, call in calls.items():
        secs, _ = compared(rounds, [call] * REPEATS, [call])
        unit = "ns/sample" if "group" in name else "ns/token"
        found.append(Figure(f"{name}, {B * T:,}", 1e9 * secs / (REPEATS * B * T), unit))
    return found


def compiled(function: Callable[..., Any], *arguments: jax.Array) -> Call:
    """The jitted function, for these arguments."""
    return Call(jax.jit(function).lower(*arguments).compile(), arguments)


def gradients_of(function: Callable[..., Any], num: int) -> Callable[..., Any]:
    """The sum of all that it gives, and its gradients by the first `num` arguments."""

    def loss(*arguments):
        # Unequal weights, so that nothing cancels.
        found = jax.tree.leaves(function(*arguments))
        return sum((0.3**i) * x.sum() for i, x in enumerate(found))

    return jax.value_and_grad(loss, argnums=tuple(range(num)))


def compared(
    rounds: int, calls: Sequence[Call], bound: Sequence[Call]
) -> tuple[float, float]:
    """(seconds that `calls` take, how much longer `bound` takes), medians of rounds."""
    _secs([*calls, *bound])  # so that none is the first
    times = [(_secs(bound), _secs(calls)) for _ in range(rounds)]
    secs = statistics.median(of_calls for _, of_calls in times)
    return secs, statistics.median(x / of_calls for x, of_calls in times)


def _secs(calls):
    start = time.perf_counter()
    for program, arguments in calls:
        jax.block_until_ready(program(*arguments))
    return time.perf_counter() - start


def saved(naive: Call, call: Call) -> float:
    """How many times the temporaries of `call` the naive form has."""
    sizes = [c.program.memory_analysis().temp_size_in_bytes for c in (naive, call)]
    return sizes[0] / max(sizes[1], 1)


def naive_logprob(
    hidden_ND: jax.Array, weight_VD: jax.Array, target_N: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """(logp_N, entropy_N) from all logits at once."""
    logp_NV = jax.nn.log_softmax(hidden_ND @ weight_VD.T)
    logp_N = jnp.take_along_axis(logp_NV, target_N[:, None], axis=1)[:, 0]
    return logp_N, -(jnp.exp(logp_NV) * logp_NV).sum(axis=1)


def naive_attention(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segment_BT: jax.Array,
    *,
    scale: float,
) -> jax.Array:
    """Causal attention within segments from scores of every pair of positions."""
    B, T, H, C = q_BTHC.shape
    K = k_BTKC.shape[2]
    q_BTKRC = q_BTHC.reshape(B, T, K, H // K, C)
    score_BKRTS = jnp.einsum("BTKRC,BSKC->BKRTS", q_BTKRC, k_BTKC) * scale
    seen_BTS = segment_BT[:, :, None] == segment_BT[:, None, :]
    seen_BTS &= jnp.tril(jnp.ones((T, T), bool))
    score_BKRTS = jnp.where(seen_BTS[:, None, None], score_BKRTS, -1e30)
    p_BKRTS = jax.nn.softmax(score_BKRTS, axis=-1)
    return jnp.einsum("BKRTS,BSKC->BTKRC", p_BKRTS, v_BTKC).reshape(B, T, H, C)
