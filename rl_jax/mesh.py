"""Devices to a mesh, and the one table from logical axes to mesh axes.

Model code names logical axes only; changing the parallelism edits `RULES`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from rl_jax.errors import ConfigError

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
) -> Mesh:
    """Mesh with Explicit axes (replica, fsdp, tensor) over `devices`.

    Args:
        replica: copies of the sharded model, across slices.
        fsdp: parts that rows and stored weights are divided into; -1 takes all
            devices that the other two leave.
        tensor: parts that heads, feed-forward width and vocabulary are divided into.
        devices: default all devices.
        key: of the config that says so, for messages.

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
    return Mesh(
        devices.reshape(replica, fsdp, tensor),
        MESH_AXES,
        axis_types=(AxisType.Explicit,) * 3,
    )


def check_divides(mesh: Mesh, sizes: dict[str, tuple[str, int, str]]) -> None:
    """Raises ConfigError unless every size divides by the mesh axes it is laid on.

    Args:
        sizes: name shown to the user -> (logical axis, size, override to try).
    """
    for name, (logical, size, override) in sizes.items():
        axes = RULES[logical]
        if axes is None:
            continue
        axes = (axes,) if isinstance(axes, str) else axes
        parts = int(np.prod([mesh.shape[a] for a in axes]))
        if size % parts:
            raise ConfigError(
                f"{name}={size} does not divide by {parts}, the size of the mesh axes "
                f"{' x '.join(axes)} it is laid on.\n"
                f"Use a multiple of {parts} or another mesh: {override}"
            )


def is_lead() -> bool:
    """True on the one process that writes files and prints."""
    return jax.process_index() == 0
