"""What saving costs: seconds of training lost to a checkpoint, and host memory.

The state is parameters and two moments, made up; the step is matrix products that take
about a tenth of a second, with the state donated as in training. What is lost to a save
is how much longer the steps took until it was on the disk than as many without one.
"""

import functools
import gc
import pathlib
import statistics
import tempfile
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.bench_figures import Figure
from rl_jax.checkpoint import Checkpointer
from rl_jax.metrics import memory_bytes

_WIDTH = 1024  # of the weights; a multiple of what any mesh axis divides by
_STEP_SECS = 0.1
_SAVES = 50

State = dict[str, Any]


def figures(rounds: int, megabytes: int, folder: str = "") -> list[Figure]:
    """Time lost to a save of that many MB, then memory over many saves.

    Args:
        folder: where to write, e.g. on a mounted bucket; "": a temporary folder.
    """
    with tempfile.TemporaryDirectory(dir=folder or None) as workdir:
        root = pathlib.Path(workdir)
        return [
            *time_figures(rounds, megabytes, root / "time"),
            *memory_figures(_SAVES, megabytes, root / "memory"),
        ]


def new_state(megabytes: int) -> State:
    """Parameters and moments of float32, `megabytes` together."""
    count = max(round(megabytes * 1e6 / (3 * 4 * _WIDTH**2)), 1)
    rng = np.random.default_rng(0)

    def part(scale: float) -> list[jax.Array]:
        draw = functools.partial(rng.normal, size=(_WIDTH, _WIDTH), scale=scale)
        return [jnp.asarray(draw(), jnp.float32) for _ in range(count)]

    return {
        "params": {str(i): w for i, w in enumerate(part(_WIDTH**-0.5))},
        "opt_state": {"mu": part(0.1), "nu": part(0.1)},
    }


@functools.partial(jax.jit, static_argnames="products", donate_argnames="state")
def _step(state: State, products: int) -> State:
    """A state whose every leaf differs, after that many matrix products."""
    w = state["params"]["0"]
    x = jax.lax.fori_loop(0, products, lambda _, x: jnp.tanh(x @ w), w)
    return jax.tree.map(lambda leaf: leaf + 1e-6 * x, state)


def _ran(state: State, products: int, count: int) -> tuple[State, float]:
    """The state after `count` steps, and the seconds of each."""
    began = time.monotonic()
    for _ in range(count):
        state = jax.block_until_ready(_step(state, products))
    return state, (time.monotonic() - began) / count


def _products(state: State) -> tuple[State, int]:
    """How many matrix products make a step of about _STEP_SECS."""
    products = 1
    while True:
        state, _ = _ran(state, products, 1)  # compiles
        state, secs = _ran(state, products, 2)
        if secs > _STEP_SECS / 2 or products > 2**16:
            return state, products
        products *= 2


def time_figures(rounds: int, megabytes: int, folder: pathlib.Path) -> list[Figure]:
    """Medians over rounds; each compares steps with and without a save."""
    state, products = _products(new_state(megabytes))
    size = sum(x.nbytes for x in jax.tree.leaves(state)) / 1e6
    called, written, lost, ratio, plain = [], [], [], [], []
    with Checkpointer(folder, keep=1, log=lambda line: None) as checkpointer:
        checkpointer.save(0, state, {})  # the first save also starts threads
        checkpointer.wait()
        for i in range(rounds):
            state, before = _ran(state, products, 5)
            began = time.monotonic()
            checkpointer.save(i + 1, state, {"step": i})
            called.append(time.monotonic() - began)
            steps, on_disk = 0, 0.0
            while steps < 5 or not on_disk:
                state, _ = _ran(state, products, 1)
                steps += 1
                if not on_disk and checkpointer.poll():
                    on_disk = time.monotonic() - began
            took = time.monotonic() - began
            state, after = _ran(state, products, 5)
            # Half before and half after: the machine may become busier meanwhile.
            each = (before + after) / 2
            plain.append(each)
            written.append(on_disk)
            lost.append(took - steps * each)
            ratio.append(took / (steps * each))
    median = statistics.median
    return [
        Figure("checkpoint: size of the state", size, "MB"),
        Figure("  a step without a save", 1e3 * median(plain), "ms"),
        Figure("  save() returns after", 1e3 * median(called), "ms"),
        Figure("  it is on the disk and verified after", 1e3 * median(written), "ms"),
        Figure(
            "  of which save() takes",
            median(a / b for a, b in zip(called, written, strict=True)),
            "",
            0.5,
            at_most=True,
        ),
        Figure("  training lost to a save", 1e3 * median(lost), "ms"),
        Figure("  steps during a save, against those without", median(ratio), "x"),
    ]


def memory_figures(saves: int, megabytes: int, folder: pathlib.Path) -> list[Figure]:
    """Host memory of this process after some saves and after many, 13 at least."""
    state, seen = new_state(megabytes), []
    with Checkpointer(folder, keep=2, log=lambda line: None) as checkpointer:
        for i in range(saves):
            state = jax.block_until_ready(_step(state, 1))
            checkpointer.save(i, state, {"step": i})
            checkpointer.wait()
            gc.collect()
            seen.append(memory_bytes() / 1e6)
    # Means, as it goes up and down by some per cent from one save to the next.
    settled, last = statistics.mean(seen[3:8]), statistics.mean(seen[-5:])
    return [
        Figure("memory: of the process, mean of saves 4 to 8", settled, "MB"),
        Figure(f"  mean of saves {saves - 4} to {saves}", last, "MB"),
        Figure("  most of all", max(seen), "MB"),
        Figure("  growth", 100 * (last / settled - 1), "%", 2.0, at_most=True),
    ]
