"""Moments on the hosts: the same steps, a layer at a time, in place.

With a CPU's default options they are the same to the bit. With the faster compilation
that tests are given (tests/conftest.py), jax 0.10 drops the barriers before it fuses,
and a few weights differ by the last bit: `assert_close`.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_optimiser import adamw

import tiny_stage as tiny
from rl_jax import host_moments
from rl_jax.learner import init_state, make_learner
from rl_jax.mesh import make_mesh, sharding
from rl_jax.models.params import Leaf, map_layout
from rl_jax.placement import HOST

MODEL = dataclasses.replace(tiny.MODEL, num_layers=3, vocab_size=18)
OPTIM: dict[str, Any] = {
    "schedule": "cosine",
    "warmup_steps": 2,
    "total_steps": 5,
    "final_lr_fraction": 0.1,
    "weight_decay": 0.1,
    "eps": 1e-8,
    "clip_norm": 1.0,
}
MESHES = {"one": (1, 1, 1), "eight": (2, 2, 2)}


@pytest.fixture(
    params=["eight", pytest.param("one", marks=pytest.mark.slow)], scope="module"
)
def mesh(request):
    sizes = MESHES[request.param]
    mesh = make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    with jax.set_mesh(mesh):
        yield mesh


def random_tree(mesh, seed, scale=1.0, dtype=np.float32):
    rng = np.random.default_rng(seed)

    def one(leaf: Leaf) -> jax.Array:
        x = jnp.asarray(rng.normal(size=leaf.shape) * scale, dtype)
        return jax.device_put(np.asarray(x), sharding(mesh, *leaf.axes))

    # Two heads for keys and values, so that they divide by the mesh.
    model = dataclasses.replace(MODEL, num_kv_heads=2)
    return map_layout(one, model)


def steps(mesh, *, host, dtype=np.float32, **changes):
    """(states after each of four steps on the host, the last one, program)"""
    model = dataclasses.replace(MODEL, num_kv_heads=2, tie_embeddings=True)
    tx, schedule = adamw(model, **OPTIM | changes, host=host)
    program = make_learner(model, tx, schedule).apply_gradient
    state, found = init_state(random_tree(mesh, 0, dtype=dtype), tx), []
    # Norms of about 30 and of 0.03: clipped, and not.
    for k, scale in enumerate((1.0, 1e-3, 1.0, 1e-3)):
        before = state
        state, _ = program(before, random_tree(mesh, 9 + k, scale))
        # Later ones are kept by the copies below, which on a CPU are the same memory.
        assert k or all(x.is_deleted() for x in jax.tree.leaves(before))
        found.append(jax.device_get(state))
    return found, state, program


def assert_close(a, b):
    def one(x, y):
        x, y = np.asarray(x, np.float32), np.asarray(y, np.float32)
        np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-7)

    jax.tree.map(one, a, b)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": jnp.bfloat16},
        pytest.param({"clip_norm": 0.0}, marks=pytest.mark.slow),
        pytest.param({"weight_decay": 0.0}, marks=pytest.mark.slow),
    ],
    ids=lambda changes: next(iter(changes), "all"),
)
def test_steps_are_the_same_wherever_the_moments_are(mesh, changes):
    there, state, program = steps(mesh, host=True, **changes)
    here, _, _ = steps(mesh, host=False, **changes)
    for a, b in zip(there, here, strict=True):
        assert_close(a, b)
    assert program._cache_size() == 1
    assert not np.array_equal(there[0].params.embed_VD, there[1].params.embed_VD)


def test_arrays_of_the_optimiser_are_on_the_host_and_nothing_else(mesh):
    _, state, _ = steps(mesh, host=True)
    kinds = {x.sharding.memory_kind for x in jax.tree.leaves(state.params)}
    assert kinds == {"device"}
    for x in jax.tree.leaves(state.opt_state):
        assert x.sharding.memory_kind == (HOST if x.ndim else "device"), x.shape
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.ndim]
    weights = jax.tree.leaves(state.params)
    assert len(moments) == 2 * len(weights)
    for x, weight in zip(moments, [*weights, *weights], strict=True):
        assert (x.shape, x.sharding.spec) == (weight.shape, weight.sharding.spec)


def test_a_state_begun_on_the_devices_may_go_on_from_the_hosts(mesh):
    model = dataclasses.replace(MODEL, num_kv_heads=2)
    trees = [
        jax.tree.structure(
            jax.eval_shape(
                adamw(model, **OPTIM, host=host)[0].init,
                random_tree(mesh, 0),
            )
        )
        for host in (False, True)
    ]
    assert trees[0] == trees[1]


def test_only_stacked_weights_are_taken_by_layer(mesh):
    taken = jax.tree.map(host_moments._is_stacked, random_tree(mesh, 0))
    assert taken.layers.w_q_LDHC and taken.layers.w_down_LFD
    assert not taken.embed_VD and not taken.norm_D
    assert not taken.layers.attn_norm_LD
