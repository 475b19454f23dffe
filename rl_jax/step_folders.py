"""The step folders in a checkpoints folder: which there are, whose, which is sound.

    12/                         a step; sound once its manifest verifies
    12.orbax-checkpoint-tmp/    a save that was cut off
    12.unfinished/              a copy that was cut off (rl_jax.checkpoint copy)
    12.aside1/                  what stood in a step's place and was not ours
    12 copy/                    made by somebody else; said to be there, never touched

Reads JSON and sums up bytes; executes nothing, and does not import jax.
"""

import json
import os
import re
from collections.abc import Callable
from typing import Any

from etils import epath

from rl_jax import manifest

# Written by Orbax at the top of a step folder; holds the writer's name that we pass.
_ORBAX_METADATA = "_CHECKPOINT_METADATA"
WRITER = {"writer": "rl_jax"}
POSITION = "position"  # the item with where the run stands
_STEP = re.compile(r"0|[1-9]\d*")  # "007" is not a name that we write
_STALE = re.compile(r"\d+\.orbax-checkpoint-tmp(-\d+)?")
_STRAY = re.compile(r"(\d+)(?!\d).*", re.DOTALL)
_KNOWN = re.compile(r"\d+\.(aside\d+|orbax-checkpoint-tmp(-\d+)?)")


def absolute(directory: str | os.PathLike) -> epath.Path:
    """The folder's absolute path; an address such as gs:// stays as it is."""
    text = os.fspath(directory)
    if "://" in text:
        return epath.Path(text)
    return epath.Path(os.path.abspath(os.path.expanduser(text)))


def steps(root: epath.Path) -> list[int]:
    """Every step folder, good or bad, newest first."""
    if not root.is_dir():
        return []
    names = [path.name for path in root.iterdir() if path.is_dir()]
    return sorted(map(int, filter(_STEP.fullmatch, names)), reverse=True)


def strays(root: epath.Path) -> list[tuple[int, str, str]]:
    """What looks like a step and is none: (number, name, why), largest number first.

    Not among them: what a run set aside, and a save that may be going on right now.
    """
    found = []
    if not root.is_dir():
        return found
    for path in root.iterdir():
        name = path.name
        is_step = _STEP.fullmatch(name) is not None
        match = _STRAY.fullmatch(name)
        if match is None or _KNOWN.fullmatch(name) or (is_step and path.is_dir()):
            continue
        if is_step:
            why = "a file, not a folder"
        elif name.endswith(".unfinished"):
            why = "a copy that did not finish"
        else:
            why = "not the name of a step, which is its number alone"
        found.append((int(match[1]), name, why))
    return sorted(found, reverse=True)


def newest(root: epath.Path, log: Callable[[str], None]) -> int | None:
    """The newest step that verifies, every byte of it read; None if there is none.

    Args:
        log: is given one line for each that was passed over, with the reason.
    """
    others = strays(root)
    for step in steps(root):
        while others and others[0][0] >= step:
            _, name, why = others.pop(0)
            log(f"checkpoint {name!r} in {root} skipped: {why}")
        reason = manifest.flaw(root / str(step))
        if not reason:
            return step
        log(f"checkpoint {step} in {root} skipped: {reason}")
    for _, name, why in others:
        log(f"checkpoint {name!r} in {root} skipped: {why}")
    return None


def leftovers(root: epath.Path) -> list[str]:
    """Names of the folders that Orbax writes to before it commits."""
    return sorted(path.name for path in root.iterdir() if _STALE.fullmatch(path.name))


def remove_stale(root: epath.Path, log: Callable[[str], None]) -> None:
    """Deletes the folders that Orbax writes to before it commits."""
    for name in leftovers(root):
        step = name.partition(".")[0]
        log(
            f"removed unfinished checkpoint {step}: {root / name} was left by a save "
            "that was cut off"
        )
        (root / name).rmtree()


def is_ours(path: epath.Path) -> bool:
    """Whether a Checkpointer wrote the step folder, finished or not."""
    try:
        text = (path / _ORBAX_METADATA).read_text()
        return json.loads(text)["custom_metadata"] == WRITER
    except (OSError, ValueError, KeyError, TypeError):
        return (path / manifest.NAME).exists()


def delete(path: epath.Path) -> None:
    """Deletes a step folder, which stops being a step at once."""
    # The manifest goes first: a kill half-way must not leave what looks whole.
    if not (path / manifest.NAME).is_dir():
        (path / manifest.NAME).unlink(missing_ok=True)
    path.rmtree()


def position(path: epath.Path) -> dict[str, Any] | None:
    """Where the run stood at a step; None if that cannot be read."""
    try:
        found = json.loads((path / POSITION / "metadata").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
