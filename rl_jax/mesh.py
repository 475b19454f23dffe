"""Devices to a mesh, and the one table from logical axes to mesh axes.

Model code names logical axes only; changing the parallelism edits `RULES`.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding

from rl_jax.errors import ConfigError
from rl_jax.faults import fault, multiple
from rl_jax.schema import override

MESH_AXES = ("replica", "fsdp", "tensor")

# Mesh axes that divide rows of a batch, slots of the engine and cache rows.
BATCH_AXES = ("replica", "fsdp")
# Mesh axis that divides heads, feed-forward width and vocabulary.
TENSOR_AXIS = "tensor"

RULES: dict[str, str | tuple[str, ...] | None] = {
    "batch": BATCH_AXES,
    "time": None,
    "width": None,  # model width of an activation, or of a gathered weight
    "embed": "fsdp",  # model width of a stored weight
    "heads": TENSOR_AXIS,
    "kv_heads": TENSOR_AXIS,
    "ffn": TENSOR_AXIS,
    "vocab": TENSOR_AXIS,
    "head_dim": None,
    "layers": None,
    "whole": None,  # replicated
}


def spec(*logical: str) -> jax.P:
    """Partition spec of an array whose axes have these logical names, in order."""
    return jax.P(*(RULES[name] for name in logical))


def sharding(mesh: Mesh, *logical: str) -> NamedSharding:
    """`spec` on a mesh."""
    return NamedSharding(mesh, spec(*logical))


def put(x: np.ndarray, mesh: Mesh, *logical: str) -> jax.Array:
    """An array that every process has whole, onto the mesh; see `sharding`.

    Of several processes each sends its own devices' part: nothing is exchanged.
    """
    where = sharding(mesh, *logical)
    if where.is_fully_addressable:
        return jax.device_put(x, where)
    # `jax.device_put` would have all processes compare the whole array first.
    return jax.make_array_from_callback(x.shape, where, lambda index: x[index])


def fetch(x: jax.Array) -> np.ndarray:
    """An array as every process has it whole; all of them call it together."""
    if not x.is_fully_addressable and not x.is_fully_replicated:
        x = _replicated(x)
    return np.asarray(x)


@jax.jit
def _replicated(x: jax.Array) -> jax.Array:
    return jax.reshard(x, jax.P())


def make_mesh(
    replica: int = 1,
    fsdp: int = -1,
    tensor: int = 1,
    devices: Sequence[Any] | np.ndarray | None = None,
    *,
    key: str = "config.mesh",
    ordered: bool = False,
) -> Mesh:
    """Mesh with Explicit axes (replica, fsdp, tensor) over `devices`.

    Args:
        replica: copies of the sharded model, across slices.
        fsdp: parts that rows and stored weights are divided into; -1 takes all
            devices that the other two leave.
        tensor: parts that heads, feed-forward width and vocabulary are divided into.
        devices: default all devices.
        key: of the config that says so, for messages.
        ordered: keep the order of `devices`; else TPUs are put so that those of an axis
            are near each other, and slices apart along `replica`.

    Raises:
        ConfigError: if the product is not the number of devices.
    """
    devices = np.asarray(jax.devices() if devices is None else devices).reshape(-1)
    if fsdp == -1:
        fsdp = max(1, len(devices) // (replica * tensor))
    if replica * fsdp * tensor != len(devices):
        raise ConfigError(
            f"mesh replica={replica} x fsdp={fsdp} x tensor={tensor} needs "
            f"{replica * fsdp * tensor} devices; this process group has {len(devices)}."
            "\nThe product must equal the number of devices; -1 for fsdp takes the "
            f"rest: --{key}.fsdp=-1"
        )
    sizes = (replica, fsdp, tensor)
    placed = devices.reshape(sizes) if ordered else _placed(devices, sizes)
    return Mesh(placed, MESH_AXES, axis_types=(AxisType.Explicit,) * 3)


def _placed(devices: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Devices in the shape of a mesh, so that those of an axis are near each other."""
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    plain = devices.reshape(sizes)
    # On TPUs alone has a device neighbours. An axis may go across slices if asked to.
    if devices[0].platform != "tpu" or sizes[0] % slices:
        return plain
    try:
        if slices == 1:
            return mesh_utils.create_device_mesh(sizes, devices.tolist())
        within = (sizes[0] // slices, *sizes[1:])
        return mesh_utils.create_hybrid_device_mesh(
            within, (slices, 1, 1), devices.tolist()
        )
    except NotImplementedError:
        # Two axes of the mesh share one of the machine: the plain order is nearer than
        # what `allow_split_physical_axes` makes (v5e:16x16 as 64 x 4: 4 hops, not 5).
        return plain


def check_divides(
    mesh: Mesh, sizes: dict[str, tuple[str, int, str]], *, key: str = "mesh"
) -> None:
    """Raises ConfigError unless every size divides by the mesh axes it is laid on.

    Args:
        sizes: name shown to the user -> (logical axis, size, key of the config that
            says so; empty for what a model is made of).
        key: of the config that says what mesh it is.
    """
    for name, (logical, size, own) in sizes.items():
        axes = RULES[logical]
        if axes is None:
            continue
        axes = (axes,) if isinstance(axes, str) else axes
        parts = math.prod(mesh.shape[axis] for axis in axes)
        if size % parts == 0:
            continue
        text = (
            f"{name}={size} does not divide by {parts}, the size of the mesh axes "
            f"{' x '.join(axes)} it is laid on"
        )
        if own:
            fit = multiple(size, parts)
            raise fault(text, (own, fit), note=f", a multiple of {parts}")
        (axis,), most = axes, math.gcd(size, parts)
        fits = [str(n) for n in range(1, size + 1) if size % n == 0]
        if axis == TENSOR_AXIS:
            rest = (f"{key}.fsdp", -1)
        else:
            rest = (f"{key}.replica", mesh.shape["replica"] * parts // most)
        raise ConfigError(
            f"{text}.\nWrite {override(f'{key}.{axis}', most)} and {override(*rest)}: "
            f"of {axis}, {', '.join(fits[:12])} would divide it."
        )


def is_lead() -> bool:
    """True on the one process that writes files and prints."""
    return jax.process_index() == 0
