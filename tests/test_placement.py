"""Arrays in pinned host memory, and back; and machines that have none."""

import types

import jax
import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax import learner as learners
from rl_jax import placement
from rl_jax.errors import ConfigError
from rl_jax.mesh import make_mesh
from rl_jax.models.params import abstract_params, init_params
from rl_jax.placement import HOST


@pytest.fixture(scope="module")
def mesh():
    mesh = make_mesh(2, 4, 1)
    with jax.set_mesh(mesh):
        yield mesh


def kinds(tree):
    return {x.sharding.memory_kind for x in jax.tree.leaves(tree)}


def params_of(mesh, seed=0):
    return init_params(tiny.MODEL, mesh, seed)


def test_there_and_back_an_array_is_the_same_and_divided_the_same(mesh):
    params = params_of(mesh)
    there = placement.to_host(params)
    back = placement.to_device(there)
    assert kinds(params) == kinds(back) == {"device"} and kinds(there) == {HOST}
    for tree in (there, back):
        jax.tree.map(np.testing.assert_array_equal, tree, params)
        jax.tree.map(lambda a, b: _same_spec(a, b), tree, params)


def _same_spec(a, b):
    assert a.sharding.spec == b.sharding.spec


def test_what_is_on_the_devices_is_not_copied(mesh):
    params = params_of(mesh)
    assert placement.to_device(params) is params
    assert placement.to_device(None) is None


def test_shapes_on_the_host_are_those_of_the_arrays_there(mesh):
    like = placement.on_host(abstract_params(tiny.MODEL, mesh))
    there = placement.to_host(params_of(mesh))
    for a, b in zip(jax.tree.leaves(like), jax.tree.leaves(there), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
        assert a.sharding.memory_kind == HOST


@pytest.mark.parametrize("move", [placement.to_host, lambda tree: tree])
def test_a_new_reference_is_where_the_old_one_was(mesh, move):
    old, new = move(params_of(mesh)), params_of(mesh, seed=1)
    kind = kinds(old)
    found = learners.replaced(old, new)
    assert kinds(found) == kind and kinds(new) == {"device"}
    jax.tree.map(np.testing.assert_array_equal, found, new)
    assert all(x.is_deleted() for x in jax.tree.leaves(old))
    assert not any(x.is_deleted() for x in jax.tree.leaves(new))


def test_a_device_without_such_memory_is_one_error_with_the_override(mesh):
    placement.check(mesh, "rl.optim.host")  # these have it
    memory = types.SimpleNamespace(kind="device")
    device = types.SimpleNamespace(
        device_kind="abacus", addressable_memories=lambda: [memory]
    )
    (fake,) = tiny.anything(types.SimpleNamespace(local_devices=[device]))
    with pytest.raises(ConfigError) as caught:
        placement.check(fake, "rl.optim.host")
    message = str(caught.value)
    assert "config.rl.optim.host is True, but abacus has no memory" in message
    assert "--config.rl.optim.host=false" in message.lower()
    assert len(message.splitlines()) <= 3
