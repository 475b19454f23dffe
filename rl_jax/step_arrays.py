"""The arrays of one step folder, read and written by Orbax: a state, or its parameters.

Reading never executes anything. Which steps there are is in step_folders.py.
"""

from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax import serialization, traverse_util

from rl_jax import leaves, manifest, step_folders


def handler() -> ocp.CompositeCheckpointHandler:
    """The items that a step folder has."""
    return ocp.CompositeCheckpointHandler("state", "position")


def reader() -> ocp.Checkpointer:
    """Reads, or writes and waits; a context. All processes use it alike."""
    return ocp.Checkpointer(handler())


def read_state(
    path: epath.Path, abstract_tree: Any, *, only: str = "", cast: bool = False
) -> Any:
    """Arrays of the verified step `path` in the structure of `abstract_tree`.

    Args:
        only: compare and read only the leaves under this top-level key.
        cast: take the dtypes of `abstract_tree` instead of insisting on the saved.
    """
    targets = leaves.array_leaves(abstract_tree)
    for leaf_path, target in targets.items():
        leaves.check_sharding(leaf_path, target)
    table = manifest.read_leaves(path)
    leaves.check_fit(path, table, targets, only=only, cast=cast)
    wanted = {
        leaf_path: leaves.stored_target(target)
        for leaf_path, target in targets.items()
        if target.size
    }
    restored: dict[leaves.LeafPath, Any] = {}
    if wanted:
        tree = traverse_util.unflatten_dict(wanted)
        with reader() as orbax:
            found = orbax.restore(
                path,
                ocp.args.Composite(
                    state=ocp.args.PyTreeRestore(
                        tree,
                        restore_args=ocp.checkpoint_utils.construct_restore_args(tree),
                        partial_restore=True,
                    )
                ),
            )
        restored = traverse_util.flatten_dict(found["state"])
    flat: dict[leaves.LeafPath, Any] = traverse_util.flatten_dict(
        serialization.to_state_dict(abstract_tree), keep_empty_nodes=True
    )
    for leaf_path, target in targets.items():
        leaf = leaves.original(restored.pop(leaf_path, None), target)
        assert isinstance(leaf, jax.Array), (
            f"{leaves.leaf_name(leaf_path)} was not restored"
        )
        assert (leaf.shape, leaf.dtype) == (target.shape, target.dtype), leaf_path
        flat[leaf_path] = leaf
    assert not restored, f"restored more than was asked for: {list(restored)}"
    return serialization.from_state_dict(
        abstract_tree, traverse_util.unflatten_dict(flat)
    )


def copy_params(path: epath.Path, target: epath.Path, step: int) -> None:
    """Writes a step folder with the parameters alone; all of them fit in host memory.

    Each array is read back and compared. Touches no device.

    Args:
        path: a step folder that verifies, of a state with `params`.
        target: a folder that does not exist yet.
        step: the number that `target` will have in the end.

    Raises:
        OSError: if what was written does not read back as the same.
    """
    table = {
        name: leaf
        for name, leaf in manifest.read_leaves(path).items()
        if name.split("/")[0] == "params"
    }
    names = [name for name, (_, shape) in table.items() if 0 not in shape]
    arrays = _host_arrays(path, names)
    with reader() as orbax:
        orbax.save(
            target,
            ocp.args.Composite(
                state=ocp.args.PyTreeSave(traverse_util.unflatten_dict(arrays)),
                position=ocp.args.JsonSave(step_folders.position(path) or {}),
            ),
            custom_metadata=step_folders.WRITER,
        )
    for leaf_path, array in arrays.items():
        (again,) = _host_arrays(target, [leaves.leaf_name(leaf_path)]).values()
        if again.dtype != array.dtype or again.tobytes() != array.tobytes():
            raise OSError(f"{leaves.leaf_name(leaf_path)} in {target} reads as another")
    manifest.write(target, step, table)


def _host_arrays(
    path: epath.Path, names: list[str]
) -> dict[leaves.LeafPath, np.ndarray]:
    """Stored arrays by their leaf names, on the host."""
    wanted = {tuple(name.split("/")): np.zeros(()) for name in names}
    args = {p: ocp.RestoreArgs(restore_type=np.ndarray) for p in wanted}
    with reader() as orbax:
        found = orbax.restore(
            path,
            ocp.args.Composite(
                state=ocp.args.PyTreeRestore(
                    traverse_util.unflatten_dict(wanted),
                    restore_args=traverse_util.unflatten_dict(args),
                    partial_restore=True,
                )
            ),
        )
    flat: dict[leaves.LeafPath, Any] = traverse_util.flatten_dict(found["state"])
    return flat
