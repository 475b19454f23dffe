"""Checkpoints: saved in the background, verified file by file, restored on any mesh.

A step is one Orbax folder plus a manifest of ours:

    checkpoints/<step>/state/          every array, as a tree of string keys (Orbax)
    checkpoints/<step>/position/       where the run stands: a small JSON dict (Orbax)
    checkpoints/<step>/manifest.json   leaves, files, sizes and checksums (ours)

Orbax's own marks are not enough to trust a folder: an empty `7/` counts as its latest
step, and a copy between a disk and a bucket loses or fakes the commit mark. Here a step
exists once its manifest does, and the manifest is written last. Storage must be shared
by all processes. Loading reads arrays and JSON; it never executes anything.
"""

import functools
import json
import os
import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from flax import serialization, traverse_util
from jax.experimental import multihost_utils

from rl_jax import leaves, manifest
from rl_jax.errors import ConfigError
from rl_jax.mesh import is_lead

Tree = TypeVar("Tree")

# Written by Orbax at the top of a step folder; holds the writer's name that we pass.
_ORBAX_METADATA = "_CHECKPOINT_METADATA"
_WRITER = {"writer": "rl_jax"}
_STALE = re.compile(r"\d+\.orbax-checkpoint-tmp(-\d+)?")

_print = functools.partial(print, flush=True)


class Checkpointer:
    """Saves and restores one run's state; the only writer of its folder.

    `save` returns once the arrays are copied to host memory. A background thread
    waits for Orbax's commit, then process 0 writes the manifest and deletes what
    exceeds `keep`. An error in the background is raised by the next call.

    With several processes, every process makes the same calls in the same order.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        keep: int,
        log: Callable[[str], None] = _print,
    ):
        """Opens or creates `directory` and clears what an earlier crash left there.

        Args:
            directory: made absolute if relative; `gs://` passes through.
            keep: how many of the newest verified steps stay on disk.
            log: takes the one-line reports (skipped, removed); called by process 0.
        """
        if keep < 1:
            raise ConfigError(
                f"checkpoint.keep={keep} would delete every checkpoint.\n"
                "Write --config.checkpoint.keep=1 or more."
            )
        self._root = _absolute(directory)
        self._keep = keep
        self._is_main = is_lead()
        self._log = log if self._is_main else lambda line: None
        self._orbax = ocp.AsyncCheckpointer(_handler())
        self._finisher: threading.Thread | None = None
        self._error: BaseException | None = None
        if self._is_main:
            self._root.mkdir(parents=True, exist_ok=True)
            self._remove_stale()

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()

    def save(self, step: int, state: Any, position: dict[str, Any]) -> None:
        """Starts saving `state` as `step`; returns before it is on disk.

        Waits for an earlier save first. A step that is there and verifies is left as
        it is; one that does not is replaced (ours) or moved aside (not ours).

        Args:
            step: non-negative, the folder's name.
            state: pytree of jax or numpy arrays in flax dataclasses, dicts, tuples.
                Typed PRNG keys are stored as their uint32 data. May be donated
                to the next step as soon as this returns.
            position: strict JSON; equal on all processes.

        Raises:
            TypeError: if a leaf is no array, or `position` is not JSON.
        """
        json.dumps(position, allow_nan=False)  # an early error, not one in a thread
        arrays = leaves.array_leaves(state)
        self.wait()
        if self._is_main and self._root.joinpath(str(step)).exists():
            already_saved = not self._make_room(step)
        else:
            already_saved = False
        if _agree(int(already_saved)):
            return
        table = {leaves.leaf_name(p): leaves.describe(x) for p, x in arrays.items()}
        stored = {p: leaves.stored(x) for p, x in arrays.items() if x.size}
        self._orbax.save(
            self._root / str(step),
            ocp.args.Composite(
                state=ocp.args.PyTreeSave(traverse_util.unflatten_dict(stored)),
                position=ocp.args.JsonSave(position),
            ),
            custom_metadata=_WRITER,
        )
        # Not a daemon: a run that ends without close() still gets its manifest.
        self._finisher = threading.Thread(
            target=self._finish, args=(step, table), name="checkpoint_manifest"
        )
        self._finisher.start()

    def restore(self, abstract_state: Tree) -> tuple[int, Tree, dict] | None:
        """Restores the newest step that verifies; None if there is none.

        Args:
            abstract_state: the state's structure, with a `jax.ShapeDtypeStruct`
                that has a sharding (or an array) for every leaf. The mesh may
                differ from the one that saved.

        Returns:
            (step, state, position); the state has the given shardings.

        Raises:
            ConfigError: if the step was written with other leaves, shapes or dtypes.
        """
        self.wait()
        step = _newest(self._root, self._log) if self._is_main else None
        step = _agree(-1 if step is None else step)
        if step < 0:
            return None
        state = _read_state(self._root / str(step), abstract_state)
        with _reader() as reader:
            found = reader.restore(
                self._root / str(step),
                ocp.args.Composite(position=ocp.args.JsonRestore()),
            )
        return step, state, found["position"]

    def poll(self) -> bool:
        """Whether no save is in flight. Never waits; raises a failed save's error."""
        if self._finisher is not None and self._finisher.is_alive():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Waits until the last save is verified; raises the error if it failed."""
        if self._finisher is not None:
            self._finisher.join()
            self._finisher = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Waits for the last save, then lets go of Orbax's threads."""
        try:
            self.wait()
        finally:
            self._orbax.close()

    def _finish(self, step: int, table: dict[str, list]) -> None:
        """Background: Orbax's commit, then our manifest, then keep-N."""
        try:
            self._orbax.wait_until_finished()
            if self._is_main:
                manifest.write(self._root / str(step), step, table)
                self._prune(step)
        except BaseException as error:  # handed to the main thread by wait()
            self._error = error

    def _prune(self, newest: int) -> None:
        """Deletes our steps that are older than the newest `keep` whole ones.

        Runs only after the manifest of `newest`, which is known to be good; older
        ones are judged by their files' sizes, without reading them all again. Later
        ones were broken when this run stepped back behind them: they count for
        nothing, and are written again when training gets there.
        """
        steps = [step for step in _steps(self._root) if step <= newest]
        paths = [self._root / str(step) for step in steps]
        num_whole = 0
        for path in paths:
            if num_whole >= self._keep and _is_ours(path):
                _delete(path)
            elif not manifest.flaw(path, checksums=False):
                num_whole += 1

    def _make_room(self, step: int) -> bool:
        """Frees the name of `step`; False if a good checkpoint already has it."""
        path = self._root / str(step)
        reason = manifest.flaw(path)
        if not reason:
            return False
        if _is_ours(path):
            self._log(f"checkpoint {step} is written again: {reason}")
            _delete(path)
            return True
        aside = next(
            name
            for n in range(1, 1000)
            if not (name := self._root / f"{step}.aside{n}").exists()
        )
        self._log(f"checkpoint {step}: moved what was there to {aside}: {reason}")
        path.rename(aside)
        return True

    def _remove_stale(self) -> None:
        for path in sorted(self._root.iterdir()):
            if _STALE.fullmatch(path.name):
                self._log(f"removed unfinished checkpoint {path}")
                path.rmtree()


def latest_step(directory: str | os.PathLike) -> int | None:
    """The newest step in `directory` that verifies, or None. Reads every byte of it."""
    return _newest(_absolute(directory), lambda line: None)


def load_params(
    directory: str | os.PathLike, abstract_params: Tree, step: int | None = None
) -> Tree:
    """Restores only the `params` of a saved state; the optimiser is not read.

    Args:
        directory: a checkpoints folder, as given to `Checkpointer`.
        abstract_params: as for `Checkpointer.restore`. Its dtypes win: parameters
            saved as float32 can be loaded as bfloat16.
        step: which step; None takes the newest that verifies.

    Raises:
        ConfigError: if no such step verifies, or its parameters do not fit.
    """
    root = _absolute(directory)
    chosen = -1
    if is_lead():
        if step is None:
            newest = _newest(root, _print)
            chosen = -1 if newest is None else newest
        elif reason := manifest.flaw(root / str(step)):
            _print(f"checkpoint {step} in {root} cannot be used: {reason}")
        else:
            chosen = step
    chosen = _agree(chosen)
    if chosen < 0:
        wanted = "checkpoint" if step is None else f"checkpoint {step}"
        there = [str(s) for s in _steps(root)] or ["no steps at all"]
        raise ConfigError(
            f"No {wanted} that verifies in {root} (found: {', '.join(there)}).\n"
            "Expected the checkpoints folder of a stage that saved at least once."
        )
    tree = {"params": abstract_params}
    return _read_state(root / str(chosen), tree, only="params", cast=True)["params"]


def _read_state(
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
        with _reader() as reader:
            found = reader.restore(
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


def _newest(root: epath.Path, log: Callable[[str], None]) -> int | None:
    for step in _steps(root):
        reason = manifest.flaw(root / str(step))
        if not reason:
            return step
        log(f"checkpoint {step} in {root} skipped: {reason}")
    return None


def _steps(root: epath.Path) -> list[int]:
    """Every step folder, good or bad, newest first."""
    if not root.is_dir():
        return []
    names = [path.name for path in root.iterdir() if path.is_dir()]
    # "007" is not a name that we write.
    return sorted((int(n) for n in names if re.fullmatch(r"0|[1-9]\d*", n)))[::-1]


def _is_ours(path: epath.Path) -> bool:
    """Whether this module wrote the step folder, finished or not."""
    try:
        text = (path / _ORBAX_METADATA).read_text()
        return json.loads(text)["custom_metadata"] == _WRITER
    except (OSError, ValueError, KeyError, TypeError):
        return (path / manifest.NAME).exists()


def _delete(path: epath.Path) -> None:
    # The manifest goes first: a kill half-way must not leave what looks whole.
    (path / manifest.NAME).unlink(missing_ok=True)
    path.rmtree()


def _absolute(directory: str | os.PathLike) -> epath.Path:
    text = os.fspath(directory)
    if "://" in text:
        return epath.Path(text)
    return epath.Path(os.path.abspath(os.path.expanduser(text)))


def _agree(number: int) -> int:
    """Process 0's number, on every process."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))


def _handler() -> ocp.CompositeCheckpointHandler:
    return ocp.CompositeCheckpointHandler("state", "position")


def _reader() -> ocp.Checkpointer:
    return ocp.Checkpointer(_handler())
