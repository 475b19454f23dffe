"""Leaves: their names, their stored form, and what does not fit."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax import leaves
from rl_jax.errors import ConfigError


@flax.struct.dataclass
class Pair:
    left: Any
    right: tuple


def test_leaves_are_named_by_fields_indices_and_keys():
    tree = {"pair": Pair(np.zeros(2), (np.zeros(3), {7: np.zeros(4)})), "none": None}
    names = [leaves.leaf_name(path) for path in leaves.array_leaves(tree)]
    assert names == ["pair/left", "pair/right/0", "pair/right/1/7"]


def test_empty_optimiser_states_hold_no_leaves():
    assert leaves.array_leaves({"opt": (optax.EmptyState(), optax.EmptyState())}) == {}


def test_two_leaves_of_one_name_are_refused():
    with pytest.raises(ValueError, match="both stored as a.b"):
        leaves.array_leaves({"a.b": np.zeros(1), "a": {"b": np.zeros(1)}})


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_keys_are_stored_as_their_data_and_come_back(impl):
    keys_B = jax.random.split(jax.random.key(3, impl=impl), 3)
    data = leaves.stored(keys_B)
    target = leaves.stored_target(keys_B)
    assert (data.shape, data.dtype) == (target.shape, jnp.uint32)
    back_B = leaves.original(data, keys_B)
    assert back_B is not None and back_B.dtype == keys_B.dtype
    np.testing.assert_array_equal(jax.random.key_data(back_B), data)


def test_keys_of_another_kind_do_not_fit():
    table = {"key": leaves.describe(jax.random.key(0, impl="rbg"))}
    target = {("key",): jax.random.key(0, impl="threefry2x32")}
    with pytest.raises(ConfigError, match="key<rbg>"):
        leaves.check_fit("run/1", table, target, only="", cast=True)


def test_only_the_asked_for_part_has_to_fit():
    table = {"params/w": ["float32", [2]], "opt/mu": ["float32", [9]]}
    target = {("params", "w"): np.zeros(2, np.float32)}
    leaves.check_fit("run/1", table, target, only="params", cast=False)
    with pytest.raises(ConfigError, match="opt/mu is float32"):
        leaves.check_fit("run/1", table, target, only="", cast=False)
