r"""Looks at checkpoints, and copies them.

python -m rl_jax.checkpoint list runs/a               sizes are compared, quickly
python -m rl_jax.checkpoint verify runs/a [--step=N]  every byte is read
python -m rl_jax.checkpoint copy runs/a/sft /mnt/kept [--step=N] [--params_only]

DIR is a work folder, one stage of it, a checkpoints folder or a step in that. Nothing
is executed, and no accelerator is used.

Exit codes: 0 all is well, 1 a checkpoint is broken, 2 the arguments are wrong.
"""

import argparse
import datetime
import json
import os
import pathlib
import shutil
import sys
from collections.abc import Sequence
from typing import NamedTuple

from etils import epath

from rl_jax import manifest, step_folders
from rl_jax.errors import ConfigError
from rl_jax.whole_folder import check_free, written_whole

_CHECKPOINTS = "checkpoints"  # in the work folder of a stage
_HEADER = ("stage", "step", "date", "size", "leaves", "position", "sound")


class Place(NamedTuple):
    """A checkpoints folder; `step` if one of its steps was named by its path."""

    stage: str
    root: epath.Path
    step: int | None = None


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rl_jax.checkpoint",
        description="Looks at checkpoints, and copies them.",
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    step = argparse.ArgumentParser(add_help=False)
    step.add_argument("--step", type=int, metavar="N", help="only this step")
    folder = "a work folder, a stage of it, a checkpoints folder or a step in that"
    add = commands.add_parser("list", help="what there is; compares sizes only")
    add.add_argument("dir", metavar="DIR", help=folder)
    add = commands.add_parser(
        "verify", parents=[step], help="reads every byte; exit code 1 if any is broken"
    )
    add.add_argument("dir", metavar="DIR", help=folder)
    add = commands.add_parser(
        "copy", parents=[step], help="copies one step whole, and verifies the copy"
    )
    add.add_argument("dir", metavar="FROM", help=folder)
    add.add_argument("to", metavar="TO", help="the folder to hold it, as TO/STEP")
    add.add_argument(
        "--params_only",
        action="store_true",
        help="leave the optimiser out: enough to begin from, not to resume",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Runs a command line (without the program's name); returns the exit code."""
    args = arguments(argv)
    places = find(args.dir)
    if args.what == "list":
        print("\n".join(listing(places)))
        return 0
    if args.what == "verify":
        return verify(places, args.step)
    try:
        return copy(places, args.to, args.step, args.params_only)
    except OSError as error:  # a full disk, no permission, a broken checkpoint
        print(f"error: {error}", file=sys.stderr)
        return 1


def find(directory: str) -> list[Place]:
    """The checkpoints folders of a work folder, in the order of its stages.

    Raises:
        ConfigError: if there are none.
    """
    _check_local(directory)
    path = pathlib.Path(directory).expanduser().absolute()
    if not path.is_dir():
        raise ConfigError(
            f"{path} is no folder.\nExpected a work folder of rl_jax.train, a stage "
            "of it, its checkpoints folder or a step in that."
        )
    stages = [path, *sorted(path.iterdir(), key=_order(path))]
    found = [
        Place(stage.name, epath.Path(stage / _CHECKPOINTS))
        for stage in stages
        if (stage / _CHECKPOINTS).is_dir()
    ]
    if found:
        return found
    root = epath.Path(path)
    if step_folders.steps(root) or step_folders.strays(root):
        return [Place(_stage_of(path), root)]
    if path.name.isdecimal():
        number = int(path.name)
        return [Place(_stage_of(path.parent), epath.Path(path.parent), number)]
    if path.name == _CHECKPOINTS:
        return [Place(_stage_of(path), root)]
    raise ConfigError(
        f"{path} holds no checkpoints.\nExpected a work folder of rl_jax.train, a "
        "stage of it, its checkpoints folder or a step in that."
    )


def _check_local(directory: str) -> None:
    if "://" in directory:
        raise ConfigError(
            f"{directory} is an address; expected a folder.\n"
            "Mount the bucket (gcsfuse, NFS), and name the folder where it is."
        )


def _stage_of(root: pathlib.Path) -> str:
    return root.parent.name if root.name == _CHECKPOINTS else root.name


def _order(workdir: pathlib.Path):
    """Sorts the stages of a workdir as its config has them; what else is by name."""
    try:
        stages = list(json.loads((workdir / "config.json").read_text())["stages"])
    except (OSError, ValueError, KeyError, TypeError):
        stages = []
    known = {name: i for i, name in enumerate(stages)}
    return lambda path: (known.get(path.name, len(known)), path.name)


def listing(places: Sequence[Place]) -> list[str]:
    """A table of every checkpoint, oldest first, and what else lies there."""
    rows: list[tuple[str, ...]] = [_HEADER]
    notes: list[str] = []
    for place in places:
        for step in _chosen(place):
            rows.append(_row(place, step))
        notes += _notes(place)
    if len(rows) == 1:
        return [f"no checkpoints in {', '.join(str(p.root) for p in places)}", *notes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    right = (1, 3, 4)  # the columns with numbers
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return [*lines, *notes, "sound: by sizes; `verify` reads every byte"]


def _chosen(place: Place, step: int | None = None) -> list[int]:
    """The steps of a place, oldest first, or the one that was asked for."""
    wanted = place.step if step is None else step
    there = step_folders.steps(place.root)[::-1]
    if wanted is None:
        return there
    if place.step not in (None, wanted):
        raise ConfigError(
            f"{place.root / str(place.step)} is step {place.step}, and --step={wanted} "
            "asks for another.\nLeave --step out."
        )
    return [wanted] if wanted in there else []


def _row(place: Place, step: int) -> tuple[str, ...]:
    path = place.root / str(step)
    reason = manifest.flaw(path, checksums=False)
    mark = path / manifest.NAME
    try:
        seconds = (mark if mark.exists() else path).stat().mtime
        date = f"{datetime.datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"
        size = _size_text(_size(pathlib.Path(path)))
    except OSError:
        date = size = "?"
    leaves = str(len(manifest.read_leaves(path))) if not reason else "?"
    position = step_folders.position(path)
    where = " ".join(f"{k}={v}" for k, v in (position or {}).items())
    return (
        place.stage,
        str(step),
        date,
        size,
        leaves,
        where if position is not None else "?",
        "yes" if not reason else f"no: {reason}",
    )


def _notes(place: Place) -> list[str]:
    """What lies in a checkpoints folder and counts for nothing."""
    notes = [
        f"note: {name!r} in {place.root} is no checkpoint: {why}"
        for _, name, why in reversed(step_folders.strays(place.root))
    ]
    for name in step_folders.leftovers(place.root):
        notes.append(
            f"note: {name!r} in {place.root}: a save that goes on, or was cut off; "
            "the next run there deletes it"
        )
    return notes


def _size(path: pathlib.Path) -> int:
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def _size_text(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1000
    return f"{size:.3g} TB"


def verify(places: Sequence[Place], step: int | None = None) -> int:
    """Reads every byte; a line for each checkpoint, or for each of its faults."""
    num_broken = num_sound = 0
    for place in places:
        for number in _chosen(place, step):
            path = place.root / str(number)
            name = f"{place.stage} {number}"
            if faults := manifest.flaws(path):
                num_broken += 1
                for fault in faults:
                    print(f"{name}: BROKEN: {fault}", flush=True)
                continue
            num_sound += 1
            sizes = [size for size, _ in manifest.read_files(path).values()]
            print(
                f"{name}: sound ({len(manifest.read_leaves(path))} leaves, "
                f"{len(sizes)} files, {_size_text(sum(sizes))})",
                flush=True,
            )
        for note in _notes(place) if step is None else []:
            print(note)
    if not num_broken + num_sound:
        raise _missing(places, step)
    print(f"{num_sound} sound, {num_broken} broken")
    return int(num_broken > 0)


def _missing(places: Sequence[Place], step: int | None) -> ConfigError:
    what = "checkpoint" if step is None else f"checkpoint {step}"
    there = sorted({s for place in places for s in step_folders.steps(place.root)})
    return ConfigError(
        f"No {what} in {', '.join(str(place.root) for place in places)}.\n"
        f"There are these: {', '.join(map(str, there)) or 'none'}."
    )


def copy(
    places: Sequence[Place],
    to: str,
    step: int | None = None,
    params_only: bool = False,
) -> int:
    """Copies one step, by default the newest sound one, to `to`/STEP; returns 0.

    It is written beside its place, verified there, and only then gets its name.

    Raises:
        ConfigError: if there is no such step, or something is in its place already.
        OSError: if the step is broken, or the copy is.
    """
    _check_local(to)
    if len(places) > 1:
        stages = ", ".join(place.stage for place in places)
        raise ConfigError(
            f"There are checkpoints of several stages: {stages}.\n"
            f"Name one, e.g. {places[-1].root}"
        )
    (place,) = places
    number = place.step if step is None else step
    if number is None:
        number = step_folders.newest(place.root, lambda line: print(f"note: {line}"))
    if number is None or not _chosen(place, number):
        raise _missing(places, step)
    source = place.root / str(number)
    root = pathlib.Path(to).expanduser().absolute()
    if (root / _CHECKPOINTS).is_dir():  # a stage
        root = root / _CHECKPOINTS
    target = root / str(number)
    if target.exists() and target.resolve() == pathlib.Path(source).resolve():
        raise ConfigError(f"{target} is what is to be copied.\nName another folder.")
    check_free(target)
    # Before a byte is copied: a copy of what is broken helps nobody.
    if reason := manifest.flaw(source):
        raise OSError(f"checkpoint {number} in {place.root} is broken: {reason}")
    with written_whole(target) as unfinished:
        if params_only:
            _copy_params(source, unfinished, number)
        else:
            _copy_files(pathlib.Path(source), unfinished)
        if reason := manifest.flaw(epath.Path(unfinished), step=number):
            raise OSError(f"the copy in {unfinished} does not verify: {reason}")
    print(f"copied checkpoint {number} to {target} ({_size_text(_size(target))})")
    return 0


def _copy_files(source: pathlib.Path, unfinished: pathlib.Path) -> None:
    """Copies what the manifest names, and the manifest last; all of it on the disk."""
    for name in [*manifest.read_files(epath.Path(source)), manifest.NAME]:
        path = unfinished / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(source / name, "rb") as old, open(path, "wb") as new:
            shutil.copyfileobj(old, new, 16 * 2**20)
            new.flush()
            os.fsync(new.fileno())


def _copy_params(source: epath.Path, unfinished: pathlib.Path, step: int) -> None:
    # Imported late: everything else here needs no jax, which takes its time.
    import jax

    jax.config.update("jax_platforms", "cpu")
    from rl_jax import step_arrays

    unfinished.rmdir()  # Orbax makes its folder itself
    step_arrays.copy_params(source, epath.Path(unfinished), step)
