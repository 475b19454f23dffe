"""Meshes and the table from logical axes to mesh axes."""

import re
import types

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from rl_jax.errors import ConfigError
from rl_jax.mesh import (
    BATCH_AXES,
    MESH_AXES,
    RULES,
    TENSOR_AXIS,
    _placed,
    check_divides,
    is_lead,
    make_mesh,
    sharding,
    spec,
)


def test_a_mesh_has_explicit_axes_in_the_order_of_the_table():
    mesh = make_mesh(2, 2, 2)
    assert mesh.axis_names == MESH_AXES == ("replica", "fsdp", "tensor")
    assert mesh.axis_types == (AxisType.Explicit,) * 3
    assert mesh.devices.shape == (2, 2, 2)
    assert mesh.devices.ravel().tolist() == jax.devices()


@pytest.mark.parametrize(
    ("replica", "tensor", "fsdp"), [(1, 1, 8), (2, 1, 4), (1, 2, 4), (2, 4, 1)]
)
def test_minus_one_takes_the_devices_that_are_left(replica, tensor, fsdp):
    assert make_mesh(replica, -1, tensor).shape["fsdp"] == fsdp


def test_a_mesh_can_be_made_of_some_devices():
    mesh = make_mesh(1, -1, 1, devices=jax.devices()[:3])
    assert dict(mesh.shape) == {"replica": 1, "fsdp": 3, "tensor": 1}


@pytest.mark.parametrize("sizes", [(1, 3, 1), (3, -1, 1), (1, -1, 16), (2, 2, 1)])
def test_sizes_that_do_not_make_up_the_devices_are_refused(sizes):
    with pytest.raises(ConfigError) as error:
        make_mesh(*sizes)
    message = str(error.value)
    assert "this process group has 8" in message
    assert "--config.mesh.fsdp=-1" in message
    assert message.count("\n") < 3


def chips(num_slices=1):
    """Stand-ins for slices of 4 x 4 chips, in the order of hosts of 2 x 2."""
    places = [
        (2 * host_x + x, 2 * host_y + y)
        for host_y in range(2)
        for host_x in range(2)
        for y in range(2)
        for x in range(2)
    ]
    one = [
        types.SimpleNamespace(
            platform="tpu",
            device_kind="TPU v5 lite",
            slice_index=index,
            coords=(*place, 0),
            core_on_chip=0,
        )
        for index in range(num_slices)
        for place in places
    ]
    return np.array(one, object)


def longest_step(row):
    """Most links between one of a ring of chips and the next."""
    places = np.array([chip.coords for chip in row])
    return np.abs(places - np.roll(places, 1, axis=0)).sum(1).max()


def test_chips_of_an_axis_are_near_each_other():
    plain = chips()
    assert longest_step(plain) > 1
    assert longest_step(_placed(plain, (1, 16, 1)).ravel()) == 1
    for axis in (1, 2):
        rows = np.moveaxis(_placed(plain, (1, 4, 4)), axis, -1).reshape(4, 4)
        # A line of four: the last is three links from the first.
        assert [longest_step(row) for row in rows] == [3] * 4


@pytest.mark.parametrize("replica", [2, 4])
def test_slices_are_apart_along_replica(replica):
    placed = _placed(chips(2), (replica, 4, 8 // replica))
    found = [{chip.slice_index for chip in part.ravel()} for part in placed]
    assert found == [{0}] * (replica // 2) + [{1}] * (replica // 2)


@pytest.mark.parametrize(
    ("num_slices", "sizes"), [(2, (1, 32, 1)), (1, (1, 1, 16)), (1, (1, 8, 2))]
)
def test_any_sizes_give_a_mesh_of_all_chips(num_slices, sizes):
    given = chips(num_slices)
    placed = _placed(given, sizes)
    assert placed.shape == sizes
    assert {id(x) for x in placed.ravel()} == {id(x) for x in given}


def test_spec_looks_logical_axes_up_in_order():
    assert spec("batch", "time", "heads") == jax.P(BATCH_AXES, None, TENSOR_AXIS)
    assert spec("vocab", "embed") == jax.P("tensor", "fsdp")
    assert spec() == jax.P()
    with pytest.raises(KeyError):
        spec("no_such_axis")


def test_every_rule_names_axes_of_the_mesh():
    for axes in RULES.values():
        named = (axes,) if isinstance(axes, str) else axes or ()
        assert set(named) <= set(MESH_AXES)


def test_sharding_lays_an_array_out():
    mesh = make_mesh(2, 2, 2)
    x = jax.device_put(
        jax.numpy.zeros((4, 3, 2)), sharding(mesh, "batch", "time", "ffn")
    )
    assert {s.data.shape for s in x.addressable_shards} == {(1, 3, 1)}


def test_sizes_that_divide_pass():
    mesh = make_mesh(2, 2, 2)
    check_divides(
        mesh,
        {
            "slots": ("batch", 4, ""),
            "heads": ("heads", 6, ""),
            "width": ("embed", 2, ""),
            "time": ("time", 7, ""),
        },
    )


@pytest.mark.parametrize(
    ("logical", "size", "parts"), [("batch", 6, 4), ("heads", 3, 2), ("embed", 5, 2)]
)
def test_a_size_that_does_not_divide_names_the_axes_and_the_next_that_would(
    logical, size, parts
):
    with pytest.raises(ConfigError) as error:
        check_divides(make_mesh(2, 2, 2), {"the_size": (logical, size, "the.key")})
    message = str(error.value)
    axes = RULES[logical]
    assert (axes if isinstance(axes, str) else " x ".join(axes or ())) in message
    assert f"the_size={size} does not divide by {parts}" in message
    assert f"`--config.the.key={-(-size // parts) * parts}`" in message
    assert message.count("\n") < 3


@pytest.mark.parametrize(
    ("logical", "size", "mesh", "words"),
    [
        ("kv_heads", 6, (1, 2, 4), ["tensor=2`", "fsdp=-1`", "tensor, 1, 2, 3, 6"]),
        ("embed", 12, (1, 8, 1), ["fsdp=4`", "replica=2`", "fsdp, 1, 2, 3, 4, 6, 12"]),
    ],
)
def test_what_a_model_is_made_of_is_told_with_a_mesh_that_fits(
    logical, size, mesh, words
):
    with pytest.raises(ConfigError) as error:
        check_divides(make_mesh(*mesh), {"it": (logical, size, "")}, key="rl.rollout")
    message = str(error.value)
    for word in words:
        assert word in message
    assert "--config.rl.rollout." in message and message.count("\n") < 3
    # What it says to write does fit.
    found = re.findall(r"--config\.rl\.rollout\.(\w+)=(-?\d+)", message)
    sizes = dict(zip(MESH_AXES, mesh, strict=True))
    sizes |= {axis: int(size) for axis, size in found}
    check_divides(make_mesh(**sizes), {"it": (logical, size, "")})


def test_a_single_process_leads():
    assert is_lead()
