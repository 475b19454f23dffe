"""Optimiser steps of any stage on any mesh, and how two of them are compared.

Every size divides by 8, so that each axis of a mesh may have all 8 devices.

Legend: B rows, T positions, V vocabulary, N samples.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from tiny_optimiser import adamw

from rl_jax import learner as learners
from rl_jax.data.packing import Packed, Piece, pack
from rl_jax.learner import Learner, Outcome, State, init_state, make_learner
from rl_jax.mesh import make_mesh, spec
from rl_jax.models import decoder, reward_head
from rl_jax.models.params import Leaf, layout
from rl_jax.models.spec import Attention, ModelSpec
from rl_jax.objectives.policy import PRESETS
from rl_jax.optimiser import Optimiser

# With every kind of weight, each of which has its own way to be divided.
MODEL = ModelSpec(
    num_layers=2,
    width=16,
    num_heads=16,
    num_kv_heads=8,
    head_dim=2,
    ffn_width=24,
    vocab_size=40,
    attention=(Attention(window=4), Attention()),
    qkv_bias=True,
    qk_norm="whole",
    post_norm=True,
    attn_softcap=15.0,
    final_softcap=9.0,
)
# The kinds that exclude one of those.
UNTIED = dataclasses.replace(
    MODEL, tie_embeddings=False, qk_norm="head", post_norm=False, final_softcap=0.0
)
B, T, V = 16, 11, MODEL.vocab_size
LOSS = dataclasses.replace(PRESETS["grpo"], entropy_coef=0.01, kl_coef=0.05)

Sizes = tuple[int, int, int]  # of the axes replica, fsdp, tensor
ONE_DEVICE: Sizes = (1, 1, 1)
MESHES = [
    (2, 2, 2),
    *(
        pytest.param(sizes, marks=pytest.mark.slow)
        for sizes in [(1, 8, 1), (1, 4, 2), (1, 2, 4), (1, 1, 8)]
    ),
]

# Of the largest number of an array: 84 roundings of float32. Sums over devices are in
# another order than sums on one.
TOLERANCE = 1e-5


def name_of(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))


@functools.cache
def mesh_of(sizes: Sizes) -> Mesh:
    return make_mesh(*sizes, devices=jax.devices()[: math.prod(sizes)])


def random_rows() -> tuple[Packed, Outcome]:
    rng = np.random.default_rng(1)
    pieces = []
    lengths = [12, 5, 7, 9, 4, 8, 12, 10, 11, 6, 3, 9, 12, 12, 7, 11, 10, 4, 12, 8]
    for i, n in enumerate(lengths):
        logp = np.log(V) + rng.normal(size=n) * 0.3
        pieces.append(
            Piece(
                tokens=rng.integers(0, V, n).astype(np.int32),
                mask=np.arange(n) >= 2,
                sampler_logp=-logp.astype(np.float32),
                sample=i,
                group=i // 4,
            )
        )
    packed = pack(pieces, T, B)
    assert len(packed.token_BT) == B
    reward_N = rng.normal(size=len(pieces)).astype(np.float32)
    return packed, Outcome(
        reward_N=reward_N,
        group_N=np.array([piece.group for piece in pieces], np.int32),
        valid_N=np.ones(len(pieces), bool),
        weight_N=np.full_like(reward_N, 1 / packed.mask_BT.sum()),
    )


@functools.cache
def updater(model: ModelSpec, *, reward: bool = False) -> tuple[Optimiser, Learner]:
    """The optimiser of a policy, or of a reward model, and its programs."""
    decayed = reward_head.decayed(model) if reward else None
    tx, schedule = adamw(model, weight_decay=0.1, decayed=decayed)
    return tx, make_learner(model, tx, schedule, loss=LOSS, num_groups=8)


@dataclasses.dataclass(frozen=True)
class Step:
    """What one mesh made of the same weights and rows.

    Attributes:
        before: the weights that the gradients are of; `state` has those after.
        logps: log-probabilities, or scores, that the stage asks for besides.
        held: what else lies on the devices during the step.
    """

    mesh: Mesh
    before: Any
    grads: Any
    metrics: dict[str, float]
    state: State
    grad_norm: float
    logps: Any
    held: Any


_copied = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


def step(
    mesh: Mesh,
    params: Any,
    programs: tuple[Optimiser, Learner],
    gradient: Callable[[Any, Any], tuple[Any, learners.Metrics]],
    *,
    logps: Any,
    held: Any,
) -> Step:
    """One optimiser step; `gradient(params, zeros)` gives gradients and metrics."""
    tx, learner = programs
    before, state = _copied(params), init_state(params, tx)
    grads, metrics = gradient(before, learner.zero_gradient(before))
    kept = _copied(grads)
    state, applied = learner.apply_gradient(state, grads)
    return Step(
        mesh=mesh,
        before=before,
        grads=kept,
        metrics=learners.merge_metrics([metrics]),
        state=state,
        grad_norm=float(applied["grad_norm"]),
        logps=logps,
        held=held,
    )


# Comparing.


def difference(got: Any, want: Any, *, unseen: tuple[str, ...] = ()) -> float:
    """The largest over the arrays of two trees of max|got - want| / max|want|.

    Args:
        unseen: fields that are left out.
    """

    def one(path, a, b):
        name, a, b = jax.tree_util.keystr(path), *map(_float64, (a, b))
        assert a.shape == b.shape and np.isfinite(a).all(), name
        if name.endswith(unseen):
            return 0.0
        assert np.abs(b).max() > 0, f"{name} compares zeros"
        return float(np.abs(a - b).max() / np.abs(b).max())

    return max(jax.tree.leaves(jax.tree_util.tree_map_with_path(one, got, want)))


def _float64(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


def differences(got: Step, want: Step, unseen: tuple[str, ...]) -> dict[str, float]:
    """`difference` of each thing that a step makes."""
    zero = {name for name, value in want.metrics.items() if value == 0}
    assert not any(got.metrics[name] for name in zero)

    def numbers(found: Step):
        kept = {k: x for k, x in found.metrics.items() if k not in zero}
        return kept | {"grad_norm": found.grad_norm}

    return {
        "loss": difference(numbers(got), numbers(want)),
        "gradients": difference(got.grads, want.grads, unseen=unseen),
        "weights": difference(got.state.params, want.state.params),
        "moments": difference(got.state.opt_state, want.state.opt_state, unseen=unseen),
        "log-probs": difference(got.logps, want.logps),
    }


def assert_same_step(
    stage: str, got: Step, want: Step, *, unseen: tuple[str, ...] = ()
) -> None:
    """Fails if anything differs; prints by how much it does, for `pytest -s`.

    Args:
        unseen: weights that the loss does not see: their gradients are 0 but for
            rounding, which has nothing to be compared with.
    """
    found = differences(got, want, unseen)
    sizes = name_of(tuple(got.mesh.shape.values()))
    print_row(sizes, stage, *(f"{name} {x:.1e}" for name, x in found.items()))
    assert max(found.values()) <= TOLERANCE, found

    def check(path, grad, got_grad, before, after):
        name = jax.tree_util.keystr(path)
        if name.endswith(unseen):
            largest = max(np.abs(grad).max(), np.abs(got_grad).max())
            assert largest < 1e-6 * want.grad_norm, name
            return
        # It moved by far more than what may differ.
        moved = np.abs(after - before).max() / np.abs(before).max()
        assert moved > 30 * TOLERANCE, name

    trees = (want.grads, got.grads, want.before, want.state.params)
    jax.tree_util.tree_map_with_path(check, *jax.device_get(trees))


def print_row(*cells: str) -> None:
    print(f"\n| {' | '.join(cells)} |", end=" ")


# Layouts.


def assert_laid_out(x: jax.Array, wanted: jax.P) -> None:
    """Fails unless an array has this partition spec, trailing axes filled in."""
    assert isinstance(x.sharding, jax.NamedSharding)
    got = tuple(x.sharding.spec) + (None,) * (x.ndim - len(x.sharding.spec))
    assert got == tuple(wanted) + (None,) * (x.ndim - len(wanted))


def assert_weights_laid_out(found: Step, leaves: Any) -> None:
    """Weights, gradients and both moments as the table says of a tree of `Leaf`."""
    kind = type(leaves)
    moments = [
        x
        for x in jax.tree.leaves(
            found.state.opt_state, is_leaf=lambda x: isinstance(x, kind)
        )
        if isinstance(x, kind)
    ]
    assert len(moments) == 2
    for tree in (found.state.params, found.grads, *moments):
        jax.tree.map(
            lambda leaf, x: assert_laid_out(x, spec(*leaf.axes)),
            leaves,
            tree,
            is_leaf=_is_leaf,
        )


def _is_leaf(x):
    return isinstance(x, Leaf)


def wrongly_whole(tree: Any, mesh: Mesh, num_params: int) -> list[str]:
    """Arrays above 1 % of the weights that each device has whole, against the table.

    What an array is, is known by the name of the field that it is in, or that the
    tuple is in.
    """
    said, found = _said(), []
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        if x.size <= 0.01 * num_params or not x.sharding.is_fully_replicated:
            continue
        fields = [k.name for k in path if isinstance(k, jax.tree_util.GetAttrKey)]
        wanted = said.get(fields[-1]) if fields else None
        # An axis that has a single device divides nothing.
        if wanted is None or not jax.NamedSharding(mesh, wanted).is_fully_replicated:
            found.append(jax.tree_util.keystr(path))
    return found


@functools.cache
def _said() -> dict[str, jax.P]:
    """Field -> how its array is divided, by the table."""
    rows = [field.name for field in dataclasses.fields(learners.Batch)]
    said = dict.fromkeys(rows, spec("batch", "time"))
    said |= dict.fromkeys(("k", "v"), decoder.cache_spec())
    trees = (layout(MODEL), layout(UNTIED), reward_head.layout(MODEL))
    for path, leaf in jax.tree_util.tree_leaves_with_path(trees, is_leaf=_is_leaf):
        said[str(path[-1]).lstrip(".")] = spec(*leaf.axes)
    return said
