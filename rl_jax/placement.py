"""What stays in the pinned memory of the hosts, and is on the devices while it is used.

An array there is divided as its like on the devices is, and each part lies with the
host of its device: only `memory_kind` differs. Scalars stay on the devices.
"""

import functools
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from rl_jax.faults import fault

Tree = TypeVar("Tree")

HOST = "pinned_host"


def check(mesh: Mesh, key: str) -> None:
    """Raises ConfigError if a device of this process has no pinned memory on its host.

    Args:
        key: of the config that asks for it, without "config.".
    """
    for device in mesh.local_devices:
        if HOST not in (kinds := memory_kinds(device)):
            raise fault(
                f"config.{key} is True, but {device.device_kind} has no memory of the "
                f"kind {HOST!r}, only {', '.join(kinds)}",
                (key, False),
            )


def memory_kinds(device: Any) -> list[str]:
    """The kinds of memory that a device can reach."""
    return [memory.kind for memory in device.addressable_memories()]


def on_host(like: Tree) -> Tree:
    """`jax.ShapeDtypeStruct`s with NamedShardings, with the hosts' memory in these."""

    def one(x: Any) -> Any:
        if not x.ndim:
            return x
        sharding = x.sharding.with_memory_kind(HOST)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(one, like)


def to_host(tree: Tree) -> Tree:
    """A copy in the hosts' memory. Returns before it is made."""
    return _moved(tree, space=jax.memory.Space.Host)


def to_device(tree: Tree) -> Tree:
    """A copy on the devices of what is on the hosts; what is there already, itself.

    Returns before it is made. Its memory is free again when nothing refers to it.
    """
    if not any(is_on_host(x) for x in jax.tree.leaves(tree)):
        return tree
    return _moved(tree, space=jax.memory.Space.Device)


def is_on_host(x: jax.Array) -> bool:
    """Whether an array is in the hosts' pinned memory."""
    return x.sharding.memory_kind == HOST


# Compiled, as `jax.device_put` may have several processes compare whole arrays.
@functools.partial(jax.jit, static_argnames="space")
def _moved(tree: Tree, space: Any) -> Tree:
    return moved(tree, space)


def moved(tree: Tree, space: Any) -> Tree:
    """The arrays of a tree in a `jax.memory.Space`, inside of a compiled program."""
    return jax.tree.map(lambda x: jax.device_put(x, space) if x.ndim else x, tree)
