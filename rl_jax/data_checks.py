"""What a config says of data, checked before jax starts; no file is read here."""

import glob
import json
import os
from typing import TYPE_CHECKING, Any

from rl_jax import schema
from rl_jax.data import sources
from rl_jax.faults import fault
from rl_jax.kinds import KINDS

if TYPE_CHECKING:
    from rl_jax.config_keys import StageConfig

DATA_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
PROBLEMS_ONLY = ("word_problems",)  # built-in tasks without demonstrations
SUPERVISED = ("pretrain", "sft")  # kinds that learn demonstrations


def check(stage: "StageConfig", stages: list[str]) -> None:
    """Raises ConfigError for a source that is not there, or of no use to the stage.

    Args:
        stages: those before it that make data.
    """
    key, built_in = f"{stage.prefix}data.", sources.BUILT_IN
    kinds = f"; FILE may be a file, a glob or a folder of {', '.join(DATA_SUFFIXES)}"
    if not stage.data.train and "data.train" not in KINDS[stage.kind].left_out:
        raise fault(
            f"config.{key}train is empty: there is nothing to train on",
            (f"{key}train", "FILE"),
            (f"{key}train", built_in[0]),
            note=kinds,
        )
    template_variables(stage.data.template_variables, f"{key}template_variables")
    known = (*built_in, *stages)
    for name in ("train", "eval", "held_out"):
        text = getattr(stage.data, name)
        for source in sources.parse(text, f"{key}{name}"):
            if wrong := "" if source.path in known else _wrong_path(source.path):
                within = "is" if source.path == text else "names"
                raise fault(
                    f"config.{key}{name} {within} {source.path!r}, which {wrong}",
                    (f"{key}{name}", "FILE"),
                    (f"{key}{name}", built_in[0]),
                    note=kinds,
                )
            if name != "train" and source.weight is not None:
                raise fault(
                    f"config.{key}{name} gives {source.path!r} a share, but an "
                    "evaluation takes rows from each source in turn",
                    (f"{key}{name}", source.path),
                )
    for source in sources.parse(stage.data.train):
        if stage.data.wrong_share and source.path in sources.AS_THEY_ARE:
            raise fault(
                f"config.{key}wrong_share is {stage.data.wrong_share}, but the "
                f"demonstrations of {source.path!r} are what they are",
                (f"{key}wrong_share", 0.0),
                (f"{key}train", "sums"),
            )
    for name in ("train", "held_out") if stage.kind in SUPERVISED else ():
        for source in sources.parse(getattr(stage.data, name)):
            if source.path in PROBLEMS_ONLY:
                raise fault(
                    f"config.{key}{name} names {source.path!r}, a task for "
                    "reinforcement learning: it has no demonstrations to learn from",
                    (f"{key}{name}", built_in[0]),
                    (f"{key}{name}", "FILE"),
                )
    if stage.data.held_out and not stage.eval.every:
        raise fault(
            f"config.{key}held_out is {stage.data.held_out!r}, but "
            f"config.{stage.prefix}eval.every is 0: it would never be measured",
            (f"{stage.prefix}eval.every", 50),
            (f"{key}held_out", ""),
        )


def _wrong_path(path: str) -> str:
    """What is wrong with a path of data, "" if nothing is."""
    path = os.path.expanduser(path)
    folder = os.path.join(glob.escape(path), "*")
    found = glob.glob(folder if os.path.isdir(path) else path, recursive=True)
    if os.path.isfile(path):  # a name may hold [ or *
        found.append(path)
    if any(file.endswith(DATA_SUFFIXES) for file in found):
        return ""
    wrong = f"has no {', '.join(DATA_SUFFIXES)}" if found else "does not exist"
    return wrong + _beside(path)


def template_variables(entries: tuple[str, ...], key: str) -> dict[str, Any]:
    """`data.template_variables` by name; a value that is not JSON is text.

    Args:
        key: of the config, for messages.

    Raises:
        ConfigError: for one that is not NAME=VALUE.
    """
    found: dict[str, Any] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not name.isidentifier():
            raise fault(
                f"config.{key} has {entry!r}, expected NAME=VALUE",
                (key, "enable_thinking=false"),
            )
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _beside(path: str) -> str:
    """Names what exists in the folder of a path and is spelt like it, if anything."""
    folder = os.path.dirname(path) or "."
    names = os.listdir(folder) if os.path.isdir(folder) else []
    names = [n for n in names if n.endswith(DATA_SUFFIXES)] + list(sources.BUILT_IN)
    stems = {name.split(".")[0]: name for name in names}
    near = schema.nearest(os.path.basename(path).split(".")[0], stems)
    return f"; nearest: {stems[near[0]]!r}" if near else ""
