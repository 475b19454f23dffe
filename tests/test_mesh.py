"""Meshes and the table from logical axes to mesh axes."""

import jax
import pytest
from jax.sharding import AxisType

from rl_jax.errors import ConfigError
from rl_jax.mesh import (
    BATCH_AXES,
    MESH_AXES,
    RULES,
    TENSOR_AXIS,
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
def test_a_size_that_does_not_divide_names_itself_and_the_way_out(logical, size, parts):
    with pytest.raises(ConfigError) as error:
        check_divides(
            make_mesh(2, 2, 2), {"the_size": (logical, size, "--config.this=4")}
        )
    message = str(error.value)
    assert f"the_size={size}" in message
    assert f"multiple of {parts}" in message
    assert "--config.this=4" in message
    assert message.count("\n") < 3


def test_a_single_process_leads():
    assert is_lead()
