"""Checkpoints: saved in the background, verified file by file, restored on any mesh.

A step is one Orbax folder plus a manifest of ours:

    checkpoints/<step>/state/          every array, as a tree of string keys (Orbax)
    checkpoints/<step>/position/       where the run stands: a small JSON dict (Orbax)
    checkpoints/<step>/manifest.json   leaves, files, sizes and checksums (ours)

Orbax's own marks are not enough to trust a folder: an empty `7/` counts as its latest
step, and a copy between a disk and a bucket loses or fakes the commit mark. Here a step
exists once its manifest does, and the manifest is written last. Storage must be shared
by all processes. Loading reads arrays and JSON; it never executes anything.

For people there is a command, in checkpoint_command.py:

    python -m rl_jax.checkpoint list | verify | copy
"""

if __name__ == "__main__":  # before the imports: most of it needs no jax
    import sys

    from rl_jax import checkpoint_command, command_line

    sys.exit(command_line.exit_on_config_error(checkpoint_command.main, sys.argv[1:]))

import functools
import json
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import traverse_util
from jax.experimental import multihost_utils

from rl_jax import host_memory, leaves, manifest, step_arrays, step_folders
from rl_jax.errors import ConfigError
from rl_jax.mesh import is_lead

Tree = TypeVar("Tree")

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
        self._root = step_folders.absolute(directory)
        self._keep = keep
        self._is_main = is_lead()
        self._log = log if self._is_main else lambda line: None
        self._orbax = ocp.AsyncCheckpointer(step_arrays.handler())
        self._finisher: threading.Thread | None = None
        self._error: BaseException | None = None
        if self._is_main:
            self._root.mkdir(parents=True, exist_ok=True)
            step_folders.remove_stale(self._root, self._log)

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
            custom_metadata=step_folders.WRITER,
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
        step = step_folders.newest(self._root, self._log) if self._is_main else None
        step = _agree(-1 if step is None else step)
        if step < 0:
            return None
        state = step_arrays.read_state(self._root / str(step), abstract_state)
        with step_arrays.reader() as reader:
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
            host_memory.give_back()  # the copies of the arrays
        except BaseException as error:  # handed to the main thread by wait()
            self._error = error

    def _prune(self, newest: int) -> None:
        """Deletes our steps that are older than the newest `keep` whole ones.

        Runs only after the manifest of `newest`, which is known to be good; older
        ones are judged by their files' sizes, without reading them all again. Later
        ones were broken when this run stepped back behind them: they count for
        nothing, and are written again when training gets there.
        """
        steps = [step for step in step_folders.steps(self._root) if step <= newest]
        paths = [self._root / str(step) for step in steps]
        num_whole = 0
        for path in paths:
            if num_whole >= self._keep and step_folders.is_ours(path):
                step_folders.delete(path)
            elif not manifest.flaw(path, checksums=False):
                num_whole += 1

    def _make_room(self, step: int) -> bool:
        """Frees the name of `step`; False if a good checkpoint already has it."""
        path = self._root / str(step)
        reason = manifest.flaw(path)
        if not reason:
            return False
        # A copy of another step, under this number, is somebody's: it may be the last.
        if step_folders.is_ours(path) and not manifest.is_of_another_step(path):
            self._log(f"checkpoint {step} is written again: {reason}")
            step_folders.delete(path)
            return True
        aside = next(
            name
            for n in range(1, 1000)
            if not (name := self._root / f"{step}.aside{n}").exists()
        )
        self._log(f"checkpoint {step}: moved what was there to {aside}: {reason}")
        path.rename(aside)
        return True


def latest_step(directory: str | os.PathLike) -> int | None:
    """The newest step in `directory` that verifies, or None. Reads every byte of it."""
    return step_folders.newest(step_folders.absolute(directory), lambda line: None)


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
    root = step_folders.absolute(directory)
    chosen = -1
    if is_lead():
        if step is None:
            newest = step_folders.newest(root, _print)
            chosen = -1 if newest is None else newest
        elif reason := manifest.flaw(root / str(step)):
            _print(f"checkpoint {step} in {root} cannot be used: {reason}")
        else:
            chosen = step
    chosen = _agree(chosen)
    if chosen < 0:
        wanted = "checkpoint" if step is None else f"checkpoint {step}"
        there = [str(s) for s in step_folders.steps(root)] or ["no steps at all"]
        raise ConfigError(
            f"No {wanted} that verifies in {root} (found: {', '.join(there)}).\n"
            "Expected the checkpoints folder of a stage that saved at least once."
        )
    tree = {"params": abstract_params}
    return step_arrays.read_state(root / str(chosen), tree, only="params", cast=True)[
        "params"
    ]


def _agree(number: int) -> int:
    """Process 0's number, on every process."""
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.int32(number)))
