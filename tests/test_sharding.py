"""One device and many give the same training and the same samples, laid out as said.

Legend: B rows, T positions, V vocabulary, N drawn tokens.
"""

import dataclasses
import functools
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from launched import free_port
from sharded_steps import (
    MESHES,
    MODEL,
    ONE_DEVICE,
    TOLERANCE,
    B,
    Sizes,
    Step,
    T,
    V,
    assert_laid_out,
    assert_same_step,
    assert_weights_laid_out,
    difference,
    mesh_of,
    name_of,
    print_row,
    random_rows,
    step,
    updater,
    wrongly_whole,
)

from rl_jax.data.packing import Packed, Piece, pack
from rl_jax.learner import to_device
from rl_jax.mesh import spec
from rl_jax.models import decoder
from rl_jax.models.params import layout, map_layout, num_params
from rl_jax.rollout import engine as engines
from rl_jax.rollout import programs
from rl_jax.rollout.engine import Engine
from rl_jax.rollout.programs import EngineSpec
from rl_jax.rollout.sample import TRAIN_STREAM, Request, Sample
from tiny_stage import random_params

ENGINE = EngineSpec(
    num_slots=8,
    max_prompt_tokens=5,
    max_new_tokens=6,
    prefill_rows=8,
    decode_steps=4,
    stop_ids=(7,),
)
SEED = 0
REQUESTS = [
    Request(id=i, prompt=tuple(range(i, i + n)), num_samples=k, max_new_tokens=6)
    for i, (n, k) in enumerate([(5, 4), (1, 3), (3, 2), (2, 4)])
]


@dataclasses.dataclass(frozen=True)
class Run:
    """What one mesh made of the same weights, rows and requests."""

    supervised: Step
    policy: Step
    samples: dict[tuple[int, int], Sample]
    engine: Engine


@functools.cache
def run(sizes: Sizes) -> Run:
    """A step of each kind, and samples of the weights after the second."""
    mesh = mesh_of(sizes)
    _, learner = updater(MODEL)
    packed, outcome = random_rows()
    num_tokens = int(packed.mask_BT.sum())
    with jax.set_mesh(mesh):
        reference = random_params(mesh, 5, MODEL)
        batch = to_device(packed, mesh)
        ref_logp_BT = learner.score(reference, batch)
        batch = dataclasses.replace(batch, ref_logp_BT=ref_logp_BT)
        supervised, policy = (
            step(
                mesh,
                random_params(mesh, 0, MODEL),
                updater(MODEL),
                gradient,
                logps=ref_logp_BT,
                held=(batch, reference),
            )
            for gradient in (
                lambda params, grads: learner.supervised_gradient(
                    params, grads, batch, outcome.weight_N, num_tokens
                ),
                lambda params, grads: learner.policy_gradient(
                    params, grads, batch, outcome, num_tokens
                ),
            )
        )
        engines._programs.cache_clear()  # which engines of other meshes share
        engine = Engine(MODEL, ENGINE, mesh, seed=SEED)
        for request in REQUESTS:
            engine.submit(request)
        samples = []
        while engine.busy:
            samples.extend(engine.poll(policy.state.params, 1))
    return Run(supervised, policy, {(s.request, s.index): s for s in samples}, engine)


@pytest.fixture(params=MESHES, ids=name_of)
def many(request):
    return run(request.param)


@pytest.fixture
def one():
    return run(ONE_DEVICE)


# Steps.


def test_a_supervised_step_is_that_of_one_device(one, many):
    assert_same_step("pretrain, sft", many.supervised, one.supervised)


def test_a_policy_step_is_that_of_one_device(one, many):
    assert_same_step("rl", many.policy, one.policy)
    assert one.policy.grad_norm > 0.5  # clipping is at work
    assert one.policy.metrics["kl"] > 1e-2


def test_a_gradient_that_is_missing_is_found(one, many):
    layers = many.policy.grads.layers
    missing = jnp.zeros_like(layers.b_k_LKC)
    got = dataclasses.replace(layers, b_k_LKC=missing)
    assert difference(got, one.policy.grads.layers) == 1
    with pytest.raises(AssertionError, match="b_k_LKC compares zeros"):
        difference(layers, got)


# Samples.


@functools.cache
def drawn_rows() -> Packed:
    """One device's samples, numbered in the order of their keys."""
    pieces = [
        Piece(s.tokens, s.policy_mask, s.sampler_logp, sample=i)
        for i, (_, s) in enumerate(sorted(run(ONE_DEVICE).samples.items()))
    ]
    packed = pack(pieces, T, B)
    assert len(packed.token_BT) == B
    return packed


@functools.cache
def recomputed(sizes: Sizes) -> np.ndarray:
    """logp_BT of one device's samples, by a mesh's own weights after its update."""
    mesh = mesh_of(sizes)
    with jax.set_mesh(mesh):
        batch = to_device(drawn_rows(), mesh)
        params = run(sizes).policy.state.params
        return np.asarray(updater(MODEL)[1].score(params, batch))


@jax.jit
def logits_of(params, batch):
    hidden_BTD = decoder.hidden_states(
        params, batch.token_BT, batch.position_BT, batch.segment_BT, MODEL
    )
    head_VD = decoder.gather_head(params, MODEL)
    z_BTV = jnp.einsum("BTD,VD->BTV", hidden_BTD, head_VD, precision="highest")
    return MODEL.final_softcap * jnp.tanh(z_BTV / MODEL.final_softcap)


@jax.jit
def noise_of(id_N3, drawn_N):
    """noise_NV that the engine adds to the logits of a sample's so-manieth draw."""

    def one(key_data_2, drawn):
        key = jax.random.fold_in(jax.random.wrap_key_data(key_data_2), drawn)
        return jax.random.gumbel(key, (V,), jnp.float32)

    return jax.vmap(one)(programs.slot_keys(SEED, id_N3), drawn_N)


@functools.cache
def leads() -> dict[tuple[int, int], np.ndarray]:
    """By how much the best perturbed logit of each draw is ahead of the next best."""
    keys, rows, mesh = (
        sorted(run(ONE_DEVICE).samples),
        drawn_rows(),
        mesh_of(ONE_DEVICE),
    )
    with jax.set_mesh(mesh):
        params = run(ONE_DEVICE).policy.state.params
        z_BTV = np.asarray(logits_of(params, to_device(rows, mesh)))
    at = np.nonzero(rows.mask_BT)
    sample_N = rows.sample_BT[at]
    last_of_prompt_N = [len(REQUESTS[keys[i][0]].prompt) - 1 for i in sample_N]
    drawn_N = rows.position_BT[at] - np.array(last_of_prompt_N)
    id_N3 = np.array([(TRAIN_STREAM, *keys[i]) for i in sample_N], np.uint32)
    perturbed_NV = z_BTV[at] + np.asarray(noise_of(id_N3, drawn_N))
    np.testing.assert_array_equal(perturbed_NV.argmax(1), rows.target_BT[at])
    second_N, best_N = np.sort(perturbed_NV)[:, -2:].T
    # The positions of a sample follow each other in its row.
    return {key: (best_N - second_N)[sample_N == i] for i, key in enumerate(keys)}


def test_samples_are_those_of_one_device_up_to_a_tie(one, many):
    assert many.samples.keys() == one.samples.keys()
    assert len(one.samples) == sum(r.num_samples for r in REQUESTS)
    compared, worst, ties = 0, 0.0, 0
    for key, want in one.samples.items():
        got, (tied,) = many.samples[key], np.nonzero(leads()[key] < 1e-4)
        # From a tie on, rounding decides.
        until = np.nonzero(want.policy_mask)[0][tied[0]] if len(tied) else None
        np.testing.assert_array_equal(got.tokens[:until], want.tokens[:until])
        worst = max(
            worst, difference(got.sampler_logp[:until], want.sampler_logp[:until])
        )
        compared, ties = compared + want.policy_mask[:until].sum(), ties + len(tied)
    print_row(
        name_of(tuple(many.policy.mesh.shape.values())),
        "samples",
        f"{compared} tokens the same, {ties} ties",
        f"drawn log-probs {worst:.1e}",
    )
    assert worst <= TOLERANCE
    assert compared > 50 and ties <= 1


def test_log_probabilities_of_samples_are_recomputed_as_on_one_device(many):
    sizes = tuple(many.policy.mesh.shape.values())
    found = difference(recomputed(sizes), recomputed(ONE_DEVICE))
    print_row(name_of(sizes), "samples", f"recomputed log-probs {found:.1e}")
    assert found <= TOLERANCE
    rows = drawn_rows()
    drawn_BT = np.where(rows.mask_BT, rows.sampler_logp_BT, 0)
    assert difference(recomputed(sizes), drawn_BT) <= TOLERANCE


# Layouts.


def test_weights_gradients_and_moments_are_laid_out_as_the_table_says(many):
    for found in (many.supervised, many.policy):
        assert_weights_laid_out(found, layout(MODEL))


def test_rows_cache_and_slots_are_laid_out_as_the_table_says(many):
    batch, _ = many.policy.held
    for x in jax.tree.leaves(batch):
        assert_laid_out(x, spec("batch", "time"))
    for x in jax.tree.leaves(many.engine._cache):
        assert_laid_out(x, decoder.cache_spec())
    for x in jax.tree.leaves(many.engine._slots):
        assert_laid_out(x, programs.slot_spec(x))


def test_every_device_holds_its_share_and_no_more(many):
    shape = many.policy.mesh.shape
    parts = {None: 1, "fsdp": shape["fsdp"], "tensor": shape["tensor"]}

    def check(x, leaf):
        share = leaf.size // np.prod([parts[axis] for axis in spec(*leaf.axes)])
        assert {s.data.size for s in x.addressable_shards} == {share}

    sized = map_layout(lambda leaf: _Sized(leaf.axes, int(np.prod(leaf.shape))), MODEL)
    for tree in (many.policy.state.params, many.policy.grads):
        jax.tree.map(check, tree, sized)
    for x in jax.tree.leaves(many.engine._cache):
        assert {s.data.size for s in x.addressable_shards} == {x.size // 8}


@dataclasses.dataclass(frozen=True)
class _Sized:
    """Axes of a weight and how many numbers it holds."""

    axes: tuple[str, ...]
    size: int


def test_nothing_large_is_replicated_unless_the_table_says_so(many):
    engine = (many.engine._cache, many.engine._slots)
    for found in (many.supervised, many.policy):
        held = (found.state, found.before, found.grads, found.held, engine)
        assert wrongly_whole(held, found.mesh, num_params(MODEL)) == []


def test_a_replicated_matrix_is_found(many):
    """The test above can fail."""
    policy = many.policy
    everywhere = jax.NamedSharding(policy.mesh, jax.P())

    def found(tree, **whole):
        whole = {name: jax.device_put(x, everywhere) for name, x in whole.items()}
        tree = dataclasses.replace(tree, **whole)
        return wrongly_whole(tree, policy.mesh, num_params(MODEL))

    layers = policy.grads.layers
    assert found(layers, w_up_LDF=layers.w_up_LDF) == [".w_up_LDF"]
    assert found(policy.grads, embed_VD=policy.grads.embed_VD) == [".embed_VD"]
    cache = many.engine._cache
    assert found(cache, v=cache.v) == [".v[0]", ".v[1]"]


def test_samples_come_from_two_programs_compiled_once(many):
    assert many.engine._admit._cache_size() == 1
    assert many.engine._decode._cache_size() == 1


# Two processes, one device each.


@pytest.mark.slow
def test_two_processes_give_the_updates_and_samples_of_one_device(one):
    address = f"localhost:{free_port()}"
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
    with jax.set_mesh(found.policy.mesh):
        sums = [float(x) for x in weights(found.policy.state.params)]
    samples = [found.samples[key] for key in sorted(found.samples)]
    return {
        "numbers": [
            found.supervised.metrics["cross_entropy"],
            found.policy.metrics["policy_loss"],
            found.policy.metrics["ratio_max"],
            found.policy.grad_norm,
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
