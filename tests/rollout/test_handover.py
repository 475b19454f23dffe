"""Weights from one mesh to another of the same eight devices."""

import jax
import numpy as np
import pytest

from rl_jax.mesh import make_mesh, sharding
from rl_jax.models.params import init_params, num_params
from rl_jax.models.spec import ModelSpec
from rl_jax.rollout import handover
from rl_jax.rollout.engine import Engine
from rl_jax.rollout.programs import EngineSpec
from rl_jax.rollout.sample import Request

MODEL = ModelSpec(
    num_layers=2,
    width=16,
    num_heads=8,
    num_kv_heads=8,
    head_dim=4,
    ffn_width=24,
    vocab_size=40,
)
SPEC = EngineSpec(
    num_slots=8,
    max_prompt_tokens=4,
    max_new_tokens=6,
    prefill_rows=8,
    decode_steps=4,
    stop_ids=(3,),
)
TRAINER = (1, 8, 1)
SAMPLERS = [(8, 1, 1), (1, 1, 8), (1, 2, 4)]


@pytest.fixture(scope="module")
def params():
    return init_params(MODEL, make_mesh(*TRAINER), seed=0)


def by_hand(before, after):
    """`received_bytes` with sets of places."""
    total = 0
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        number = np.arange(x.size).reshape(x.shape)
        held = {s.device: set(number[s.index].flat) for s in x.addressable_shards}
        for s in y.addressable_shards:
            new = set(number[s.index].flat) - held[s.device]
            total += len(new) * x.dtype.itemsize
    return total


@pytest.mark.parametrize("sizes", SAMPLERS)
def test_the_copy_has_the_same_numbers_where_the_table_says(params, sizes):
    mesh = make_mesh(*sizes)
    copy = handover.laid_out(params, MODEL, mesh)
    assert handover.lies_on(copy, mesh) and not handover.lies_on(params, mesh)
    for x, y in zip(jax.tree.leaves(params), jax.tree.leaves(copy), strict=True):
        np.testing.assert_array_equal(x, y)
    assert copy.embed_VD.sharding == sharding(mesh, "vocab", "embed")
    assert handover.received_bytes(params, copy) == by_hand(params, copy) > 0


def test_whole_copies_everywhere_cost_what_each_device_lacked(params):
    copy = handover.laid_out(params, MODEL, make_mesh(8))
    divided = sum(x.size for x in jax.tree.leaves(params) if any(x.sharding.spec))
    assert divided > 0.9 * num_params(MODEL)
    assert handover.received_bytes(params, copy) == 7 * divided * 4


def drawn(engine, params, version=0):
    for i in range(6):
        engine.submit(Request(i, (1, 2, i), num_samples=3, max_new_tokens=6))
    samples = []
    while engine.busy:
        samples += engine.poll(params, version)
    return {(s.request, s.index): s for s in samples}


@pytest.fixture(scope="module")
def plain(params):
    """What the engine draws on the trainer's mesh."""
    engine = Engine(MODEL, SPEC, make_mesh(*TRAINER), seed=0)
    found = drawn(engine, params)
    assert engine.handover_bytes == 0 == engine.handover_secs
    return found


@pytest.mark.parametrize("sizes", SAMPLERS)
def test_an_engine_on_another_mesh_draws_the_same_samples(params, plain, sizes):
    engine = Engine(MODEL, SPEC, make_mesh(*sizes), seed=0)
    with jax.set_mesh(make_mesh(*TRAINER)):  # as a stage has it
        found = drawn(engine, params)
    assert found.keys() == plain.keys()
    for key, want in plain.items():
        np.testing.assert_array_equal(found[key].tokens, want.tokens)
        np.testing.assert_allclose(
            found[key].sampler_logp, want.sampler_logp, rtol=1e-5, atol=1e-6
        )


def test_weights_are_handed_over_once_a_rollout_and_then_forgotten(params):
    engine = Engine(MODEL, SPEC, make_mesh(8), seed=0)
    drawn(engine, params)
    once = engine.handover_bytes
    copy = handover.laid_out(params, MODEL, make_mesh(8))
    assert once == handover.received_bytes(params, copy)
    assert engine.handover_secs > 0
    assert engine._held is None and engine._given is None
    drawn(engine, params)
    assert engine.handover_bytes == 2 * once


def test_new_weights_in_the_midst_of_a_rollout_are_handed_over_too(params):
    other = init_params(MODEL, make_mesh(*TRAINER), seed=1)
    engine = Engine(MODEL, SPEC, make_mesh(8), seed=0)
    long = Request(0, (1, 2), num_samples=8, max_new_tokens=6)
    engine.submit(long)
    samples = engine.poll(params, 0)
    once = engine.handover_bytes
    while engine.busy:
        samples += engine.poll(other, 1)
    assert engine.handover_bytes == 2 * once
    assert {int(v) for s in samples for v in s.version} == {-1, 0, 1}
