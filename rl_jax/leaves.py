"""The leaves of a state as a checkpoint sees them: named, described, storable.

A path is a tuple of string keys from `flax.serialization.to_state_dict`: integer keys
become their digits, fields of dataclasses and NamedTuples their names.
"""

import collections
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization, traverse_util

from rl_jax.errors import ConfigError

LeafPath = tuple[str, ...]


def array_leaves(tree: Any) -> dict[LeafPath, Any]:
    """The arrays (or their ShapeDtypeStructs) of `tree` by their path of string keys.

    Empty containers and None hold nothing to save and come back from the target.
    """
    state_dict = serialization.to_state_dict(tree)
    leaves = {}
    for path, leaf in traverse_util.flatten_dict(state_dict).items():
        if leaf is None:
            continue
        if not isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct):
            raise TypeError(
                f"State leaf {leaf_name(path)} is a {type(leaf).__name__}; a "
                "checkpoint holds arrays only. Wrap a number in jnp.asarray."
            )
        leaves[path] = leaf
    # Orbax names an array by its keys joined with dots, and would mix up two.
    counts = collections.Counter(map(".".join, leaves))
    if doubled := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"Two state leaves are both stored as {doubled[0]}.")
    return leaves


def leaf_name(path: LeafPath) -> str:
    return "/".join(path)


def describe(leaf: Any) -> list:
    """[dtype, shape] as the manifest has it; a key array is e.g. ["key<fry>", [8]]."""
    return [str(leaf.dtype), list(leaf.shape)]


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def stored(leaf: Any) -> Any:
    """The array to save for `leaf`: a typed PRNG key's uint32 data, else itself."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def stored_target(target: Any) -> jax.ShapeDtypeStruct:
    """What to ask Orbax for, so that `original` gives `target` back."""
    like = jax.ShapeDtypeStruct(target.shape, target.dtype)
    if _is_key(target):
        # uint32 data with one more axis at the end, which the spec leaves whole.
        like = jax.eval_shape(jax.random.key_data, like)
    return jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=target.sharding)


def original(array: jax.Array | None, target: Any) -> jax.Array | None:
    """Undoes `stored`. Orbax refuses arrays without elements: they are made anew."""
    if target.size == 0:
        zeros = np.zeros(target.shape, target.dtype)
        return jax.make_array_from_callback(
            target.shape, target.sharding, lambda index: zeros[index]
        )
    if array is not None and _is_key(target):
        # Under jit, as device_put refuses keys that several processes share.
        wrap = functools.partial(jax.random.wrap_key_data, dtype=target.dtype)
        return jax.jit(wrap, out_shardings=target.sharding)(array)
    return array


def check_fit(
    path: str | os.PathLike,
    table: dict[str, list],
    targets: dict[LeafPath, Any],
    *,
    only: str,
    cast: bool,
) -> None:
    """Raises ConfigError if `path` does not hold the leaves of `targets`.

    Args:
        path: named in the message.
        table: the manifest's {leaf name: [dtype, shape]}.
        targets: what is to be restored, by path.
        only: compare only the leaves under this top-level key; "" for all.
        cast: let dtypes differ (never those of keys).
    """
    saved = {
        name: spec
        for name, spec in table.items()
        if not only or name.split("/")[0] == only
    }
    wanted = {leaf_name(leaf): describe(target) for leaf, target in targets.items()}
    differ = []
    for name in sorted(saved | wanted):
        have, want = saved.get(name), wanted.get(name)
        if have and want and cast and "key<" not in have[0] + want[0]:
            have, want = have[1:], want[1:]
        if have != want:
            differ.append(name)
    if not differ:
        return
    name = differ[0]
    more = f" (and {len(differ) - 1} more leaves)" if len(differ) > 1 else ""
    raise ConfigError(
        f"{path} does not fit this config: {name} is {_spec_text(saved.get(name))} "
        f"there{more}.\nExpected {_spec_text(wanted.get(name))}.\n"
        "Use the model and optimiser settings that wrote it, or another --workdir."
    )


def _spec_text(spec: list | None) -> str:
    return f"{spec[0]}{spec[1]}" if spec else "absent"


def check_sharding(leaf_path: LeafPath, target: Any) -> None:
    sharding = getattr(target, "sharding", None)
    if sharding is None or isinstance(
        getattr(sharding, "mesh", None), jax.sharding.AbstractMesh
    ):
        raise ValueError(
            f"Restoring {leaf_name(leaf_path)} needs a sharding on real devices, got "
            f"{sharding}. Give jax.ShapeDtypeStruct(shape, dtype, sharding=...)."
        )
