"""The speed of the GPU's kernels, against their plain forms and bare matmuls.

Legend: N tokens, D model width, V vocabulary, B rows, T positions.
"""

import functools

import jax
import jax.numpy as jnp

from rl_jax.bench_figures import Figure
from rl_jax.bench_kernels import compared, compiled, gradients_of
from rl_jax.kernels import advantage  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.logprob import (  # pyright: ignore[reportMissingImports]
    token_logprob,
)

# (N, D, V): heads of an 8B and a 1.7B model of two families.
SHAPES = ((8192, 4096, 151_936), (8192, 2048, 128_256))
ROWS = (8, 8192)  # (B, T)
REPEATS = 10  # of what takes only microseconds


def figures(
    rounds: int,
    shapes: tuple[tuple[int, int, int], ...] = SHAPES,
    rows: tuple[int, int] = ROWS,
    implementation: str | None = None,
) -> list[Figure]:
    """bfloat16 log-probabilities of each shape, and advantages of packed rows.

    Args:
        rounds: how often everything is measured; the figures are medians.
        implementation: of the kernels that are measured; None: this platform's.
    """
    # The kind of GPU in the mesh decides the sizes of tiles.
    axis_types = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("all",), axis_types, devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        found = []
        for shape in shapes:
            found += _logprob(rounds, *shape, implementation)
        return found + _advantages(rounds, *rows, implementation)


def _logprob(rounds, N, D, V, implementation):
    keys = jax.random.split(jax.random.key(0), 3)
    hidden_ND = jax.random.normal(keys[0], (N, D), jnp.bfloat16)
    weight_VD = jax.random.normal(keys[1], (V, D), jnp.bfloat16) * D**-0.5
    target_N = jax.random.randint(keys[2], N, 0, V)
    args = (hidden_ND, weight_VD, target_N)
    matmul = compiled(lambda h_ND, w_VD: h_ND @ w_VD.T, hidden_ND, weight_VD)
    found = []
    for name, change, num in (
        ("forward", lambda f: f, 1),
        ("with gradients", lambda f: gradients_of(f, 2), 4),
    ):
        ours, plain = (
            compiled(change(functools.partial(token_logprob, implementation=i)), *args)
            for i in (implementation, "plain")
        )
        secs, to_plain = compared(rounds, [ours], [plain])
        _, to_matmul = compared(rounds, [ours], [matmul] * num)
        found += [
            Figure(f"bf16 N={N} D={D} V={V}, {name}", 1e3 * secs, "ms"),
            Figure(
                "  rate of its matmuls", 2 * num * N * D * V / secs / 1e12, "TFLOP/s"
            ),
            Figure(f"  bare matmuls ({num}) / it", to_matmul, "x"),
            Figure("  plain form / it", to_plain, "x"),
        ]
    return found


def _advantages(rounds, B, T, implementation):
    keys = jax.random.split(jax.random.key(1), 3)
    reward_BT, value_BT = (jax.random.normal(key, (B, T)) for key in keys[:2])
    mask_BT = jax.random.bernoulli(keys[2], 0.8, (B, T))
    segment_BT = jnp.broadcast_to(jnp.arange(T) // 300 + 1, (B, T))
    reward_N, group_N = reward_BT.reshape(-1), jnp.arange(B * T) // 8
    gae = functools.partial(advantage.gae, gamma=0.99, lam=0.95)
    group = functools.partial(
        advantage.group_advantage,
        num_groups=-(-B * T // 8),
        centre="group_mean",
        scale="group_std",
    )
    found = []
    for name, function, args in (
        (f"GAE, {B} x {T} tokens", gae, (reward_BT, value_BT, segment_BT, mask_BT)),
        (
            f"group advantages, {B * T} samples",
            group,
            (reward_N, group_N, group_N >= 0),
        ),
    ):
        ours, plain = (
            compiled(functools.partial(function, implementation=i), *args)
            for i in (implementation, "plain")
        )
        secs, to_plain = compared(rounds, [ours] * REPEATS, [plain] * REPEATS)
        found += [
            Figure(name, 1e6 * secs / REPEATS, "us"),
            Figure("  plain form / it", to_plain, "x"),
        ]
    return found
