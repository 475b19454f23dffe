"""One device and many give the same training and the same samples, laid out as said.

Legend: B rows, T positions, N samples.
"""

import dataclasses
import functools
import json
import os
import re
import socket
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from rl_jax import learner as learners
from rl_jax.data.packing import Piece, pack
from rl_jax.learner import Batch, Outcome, State, init_state, make_learner, to_device
from rl_jax.mesh import make_mesh, sharding, spec
from rl_jax.models import decoder
from rl_jax.models.params import Params, layout, map_layout, num_params
from rl_jax.models.spec import Attention, ModelSpec
from rl_jax.objectives.policy import PRESETS
from rl_jax.rollout import engine as engines
from rl_jax.rollout import programs
from rl_jax.rollout.engine import Engine
from rl_jax.rollout.programs import EngineSpec
from rl_jax.rollout.sample import Request, Sample

# With every kind of weight, each of which has its own way to be divided.
MODEL = ModelSpec(
    num_layers=2,
    width=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    ffn_width=24,
    vocab_size=34,
    attention=(Attention(window=4), Attention()),
    qkv_bias=True,
    qk_norm="whole",
    post_norm=True,
    final_softcap=9.0,
)
T, V = 11, MODEL.vocab_size
LOSS = dataclasses.replace(PRESETS["grpo"], entropy_coef=0.01)
ENGINE = EngineSpec(
    num_slots=8,
    max_prompt_tokens=5,
    max_new_tokens=6,
    prefill_rows=8,
    decode_steps=4,
    stop_ids=(7,),
)
ONE_DEVICE = (1, 1, 1)
# fsdp x tensor; replica x fsdp x tensor; fsdp alone.
MESHES = [(1, 4, 2), (2, 2, 2), pytest.param((1, 8, 1), marks=pytest.mark.slow)]


@dataclasses.dataclass(frozen=True)
class Run:
    """What one mesh made of the same weights, rows and requests."""

    mesh: Mesh
    batch: Batch
    supervised: Params
    supervised_loss: float
    policy: Params
    policy_metrics: dict[str, float]
    state: State
    grad_norm: float
    samples: dict[tuple[int, int], Sample]
    engine: Engine


def random_params(mesh):
    rng = np.random.default_rng(0)

    def one(leaf):
        x = rng.normal(size=leaf.shape) * (leaf.fan_in or 9) ** -0.5
        x = (x + (leaf.fan_in == 0)).astype(np.float32)
        return jax.device_put(x, sharding(mesh, *leaf.axes))

    return map_layout(one, MODEL)


def random_rows():
    rng = np.random.default_rng(1)
    pieces = []
    for i, n in enumerate([12, 5, 7, 9, 4, 8, 12, 10, 11, 6, 3, 9]):
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
    packed = pack(pieces, T, 8)
    assert len(packed.token_BT) == 8
    reward_N = rng.normal(size=len(pieces)).astype(np.float32)
    return packed, Outcome(
        reward_N=reward_N,
        group_N=np.array([piece.group for piece in pieces], np.int32),
        valid_N=np.ones(len(pieces), bool),
        weight_N=np.full_like(reward_N, 1 / packed.mask_BT.sum()),
    )


REQUESTS = [
    Request(id=i, prompt=tuple(range(i, i + n)), num_samples=k, max_new_tokens=6)
    for i, (n, k) in enumerate([(5, 4), (1, 3), (3, 2), (2, 4)])
]


@functools.cache
def run(sizes: tuple[int, int, int]) -> Run:
    """A gradient of each kind, an optimiser step, and samples of the new weights."""
    count = sizes[0] * sizes[1] * sizes[2]
    mesh = make_mesh(*sizes, devices=jax.devices()[:count])
    tx, schedule = learners.optimiser(
        MODEL,
        lr=1e-2,
        schedule="constant",
        warmup_steps=0,
        total_steps=3,
        final_lr_fraction=1.0,
        weight_decay=0.1,
        b1=0.9,
        b2=0.95,
        # Large: a small one makes Adam's first step the sign of the gradient, and
        # rounding decides the sign of a gradient that is nearly zero.
        eps=1e-3,
        clip_norm=0.5,
    )
    learner = make_learner(MODEL, tx, schedule, loss=LOSS, num_groups=8)
    packed, outcome = random_rows()
    num_tokens = int(packed.mask_BT.sum())
    with jax.set_mesh(mesh):
        state = init_state(random_params(mesh), tx)
        batch = to_device(packed, mesh)
        zero = learner.zero_gradient
        supervised, supervised_metrics = learner.supervised_gradient(
            state.params, zero(state.params), batch, outcome.weight_N, num_tokens
        )
        policy, policy_metrics = learner.policy_gradient(
            state.params, zero(state.params), batch, outcome, num_tokens
        )
        kept = jax.jit(lambda grads: jax.tree.map(jnp.copy, grads))(policy)
        state, metrics = learner.apply_gradient(state, policy)
        engines._programs.cache_clear()  # which engines of other meshes share
        engine = Engine(MODEL, ENGINE, mesh, seed=0)
        for request in REQUESTS:
            engine.submit(request)
        samples = []
        while engine.busy:
            samples.extend(engine.poll(state.params, 1))
    return Run(
        mesh=mesh,
        batch=batch,
        supervised=supervised,
        supervised_loss=float(supervised_metrics["cross_entropy"]),
        policy=kept,
        policy_metrics={k: float(x) for k, x in policy_metrics.items()},
        state=state,
        grad_norm=float(metrics["grad_norm"]),
        samples={(s.request, s.index): s for s in samples},
        engine=engine,
    )


@pytest.fixture(params=MESHES, ids=lambda sizes: "x".join(map(str, sizes)))
def many(request):
    return run(request.param)


@pytest.fixture
def one():
    return run(ONE_DEVICE)


def assert_near(got: Any, want: Any) -> None:
    def check(path, a, b):
        np.testing.assert_allclose(
            np.asarray(a), np.asarray(b), rtol=0, atol=1e-5, err_msg=str(path)
        )

    jax.tree_util.tree_map_with_path(check, got, want)


def test_supervised_gradients_are_those_of_one_device(one, many):
    assert many.supervised_loss == pytest.approx(one.supervised_loss, rel=0, abs=1e-5)
    assert_near(many.supervised, one.supervised)
    assert np.abs(one.supervised.embed_VD).max() > 1e-3


def test_policy_gradients_are_those_of_one_device(one, many):
    assert many.policy_metrics.keys() == one.policy_metrics.keys()
    for name, value in many.policy_metrics.items():
        assert value == pytest.approx(one.policy_metrics[name], rel=0, abs=1e-5), name
    assert_near(many.policy, one.policy)
    assert np.abs(one.policy.embed_VD).max() > 1e-3


def test_an_update_gives_the_weights_of_one_device(one, many):
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=0, abs=1e-5)
    assert_near(many.state, one.state)
    # It moved by more than the tolerance, and clipping was at work.
    assert one.grad_norm > 0.5
    before = random_params(one.mesh)
    assert np.abs(one.state.params.embed_VD - before.embed_VD).max() > 1e-3


def test_samples_are_those_of_one_device(one, many):
    assert many.samples.keys() == one.samples.keys()
    assert len(one.samples) == sum(r.num_samples for r in REQUESTS)
    for key, want in one.samples.items():
        got = many.samples[key]
        np.testing.assert_array_equal(got.tokens, want.tokens)
        np.testing.assert_allclose(
            got.sampler_logp, want.sampler_logp, rtol=0, atol=1e-5
        )


# Layouts.


def assert_laid_out(x: jax.Array, wanted: jax.P) -> None:
    """Fails unless an array has this partition spec, trailing axes filled in."""
    assert isinstance(x.sharding, jax.NamedSharding)
    got = tuple(x.sharding.spec) + (None,) * (x.ndim - len(x.sharding.spec))
    assert got == tuple(wanted) + (None,) * (x.ndim - len(wanted))


SPECS = map_layout(lambda leaf: spec(*leaf.axes), MODEL)


def test_weights_gradients_and_moments_are_laid_out_as_the_table_says(many):
    moments = [
        x
        for x in jax.tree.leaves(many.state.opt_state, is_leaf=_is_params)
        if _is_params(x)
    ]
    assert len(moments) == 2
    for tree in (many.state.params, many.supervised, many.policy, *moments):
        jax.tree.map(assert_laid_out, tree, SPECS)


def _is_params(x):
    return isinstance(x, Params)


def test_rows_cache_and_slots_are_laid_out_as_the_table_says(many):
    rows = spec("batch", "time")
    for x in jax.tree.leaves(many.batch):
        assert_laid_out(x, rows)
    for x in jax.tree.leaves(many.engine._cache):
        assert_laid_out(x, decoder.cache_spec())
    for x in jax.tree.leaves(many.engine._slots):
        assert_laid_out(x, programs.slot_spec(x))


def test_every_device_holds_its_share_and_no_more(many):
    shape = many.mesh.shape
    parts = {None: 1, "fsdp": shape["fsdp"], "tensor": shape["tensor"]}

    def check(x, leaf):
        share = leaf.size // np.prod([parts[axis] for axis in spec(*leaf.axes)])
        assert {s.data.size for s in x.addressable_shards} == {share}

    sized = map_layout(lambda leaf: _Sized(leaf.axes, int(np.prod(leaf.shape))), MODEL)
    for tree in (many.state.params, many.policy):
        jax.tree.map(check, tree, sized)
    for x in jax.tree.leaves(many.engine._cache):
        assert {s.data.size for s in x.addressable_shards} == {x.size // 8}


@dataclasses.dataclass(frozen=True)
class _Sized:
    """Axes of a weight and how many numbers it holds."""

    axes: tuple[str, ...]
    size: int


def test_nothing_large_is_replicated_unless_the_table_says_so(many):
    said = {
        leaf.shape
        for leaf in jax.tree.leaves(layout(MODEL), is_leaf=lambda x: hasattr(x, "axes"))
        if not any(spec(*leaf.axes))
    }
    state = (many.state, many.policy, many.batch)
    engine = (many.engine._cache, many.engine._slots)
    for x in jax.tree.leaves((state, engine)):
        if x.is_fully_replicated and x.size > 0.01 * num_params(MODEL):
            assert x.shape in said


def test_samples_come_from_two_programs_compiled_once(many):
    assert many.engine._admit._cache_size() == 1
    assert many.engine._decode._cache_size() == 1


# Two processes, one device each.


def _port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


@pytest.mark.slow
def test_two_processes_give_the_updates_and_samples_of_one_device(one):
    address = f"localhost:{_port()}"
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        # One device each, not conftest's eight.
        "XLA_FLAGS": re.sub(r"\S+device_count=\d+", "", os.environ["XLA_FLAGS"]),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    running = [
        subprocess.Popen(
            [sys.executable, __file__, address, str(process)],
            env=env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for process in range(2)
    ]
    try:
        said = [process.communicate(timeout=200) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (out, err) in zip(running, said, strict=True):
        assert process.returncode == 0, err[-4000:]
        found = json.loads(out.splitlines()[-1])
        want = _summary(one)
        assert found["tokens"] == want["tokens"]
        for name in ("numbers", "logps"):
            # Among the numbers are norms of a few hundred: 1e-5 of those is the bound.
            np.testing.assert_allclose(found[name], want[name], rtol=1e-5, atol=1e-4)


def _summary(found: Run) -> dict[str, list]:
    """What a process can say of a run whose arrays it holds half of."""
    weights = jax.jit(lambda tree: [jnp.abs(x).sum() for x in jax.tree.leaves(tree)])
    with jax.set_mesh(found.mesh):
        sums = [float(x) for x in weights(found.state.params)]
    samples = [found.samples[key] for key in sorted(found.samples)]
    return {
        "numbers": [
            found.supervised_loss,
            found.policy_metrics["policy_loss"],
            found.policy_metrics["ratio_max"],
            found.grad_norm,
            *sums,
        ],
        "tokens": [s.tokens.tolist() for s in samples],
        "logps": [float(x) for s in samples for x in s.sampler_logp],
    }


def _one_of_two(address: str, process: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, int(process))
    print(json.dumps(_summary(run((1, 2, 1)))), flush=True)


if __name__ == "__main__":
    _one_of_two(*sys.argv[1:])
