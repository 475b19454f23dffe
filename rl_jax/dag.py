"""What the stages of a chain take from one another: checked, and put in order.

A stage may take weights or data from those named before it in `config.stages`, never
from itself or a later one: so the order written is one in which all can be run.
"""

import dataclasses
import os
from collections.abc import Sequence

from rl_jax import schema
from rl_jax.config_keys import Run, StageConfig
from rl_jax.data import sources
from rl_jax.errors import ConfigError
from rl_jax.kinds import KINDS, Makes
from rl_jax.reward_marker import NAME as MARKER

_PHRASE: dict[Makes, str] = {
    "policy": "one that makes a policy",
    "reward model": "a reward_model",
    "data": "one that makes data (select, curate)",
}
_MEASURED = ("data.eval", "data.held_out")  # what is not trained on
_DATA_KEYS = ("data.train", "data.eval", "data.held_out", "curate.against")


@dataclasses.dataclass(frozen=True)
class Need:
    """One thing that a stage takes from another.

    Attributes:
        key: of the config, with the stage's prefix.
        name: of the other stage.
        wants: what it must make, one of these.
    """

    key: str
    name: str
    wants: tuple[Makes, ...]


def needs(run: Run, stage: StageConfig) -> list[Need]:
    """What a stage takes from other stages of its run, in the order of its keys."""
    names = {one.name for one in run.stages}
    return [need for need in _references(stage) if need.name in names]


def _references(stage: StageConfig) -> list[Need]:
    """All names in keys that may name a stage; many are paths and built-in tasks."""
    words: list[tuple[str, str, tuple[Makes, ...]]] = []
    left_out = KINDS[stage.kind].left_out
    if "init" not in left_out:
        words.append(("init", stage.init, ("policy",)))
    for key, text in data_values(stage):
        sourced = sources.parse(text, f"{stage.prefix}{key}")
        data: tuple[Makes, ...] = ("data",)
        words += [(key, source.path, data) for source in sourced]
    if stage.kind == "dpo":
        words.append(("preference.reference", stage.preference.reference, ("policy",)))
    if stage.kind == "distill":
        words.append(("distill.teacher", stage.distill.teacher, ("policy",)))
    if stage.kind == "select":
        words.append(("select.rejected", stage.select.rejected, ("policy",)))
    if stage.kind == "merge":
        both: tuple[Makes, ...] = ("policy", "reward model")
        words += [("merge.models", name, both) for name in stage.merge.models]
    words.append(("reward.model", stage.reward.model, ("reward model",)))
    return [
        Need(f"{stage.prefix}{key}", without_step(name), wants)
        for key, name, wants in words
    ]


def makes(run: Run, stage: StageConfig) -> Makes:
    """What later stages may take from one; a merge makes what its models are."""
    if stage.kind != "merge" or not stage.merge.models:
        return KINDS[stage.kind].makes
    first = without_step(stage.merge.models[0])
    names = [one.name for one in run.stages]
    if first in names[: names.index(stage.name)]:
        return makes(run, run.stages[names.index(first)])
    is_marked = os.path.isfile(os.path.join(os.path.expanduser(first), MARKER))
    return "reward model" if is_marked else "policy"


def data_values(stage: StageConfig) -> list[tuple[str, str]]:
    """(key, value) of all keys of a stage that name sources of data."""
    data, values = stage.data, [("select.also", stage.select.also)]
    texts = (data.train, data.eval, data.held_out, stage.curate.against)
    values = [*zip(_DATA_KEYS, texts, strict=True), *values]
    return [(key, text) for key, text in values if text]


def with_step(name: str) -> tuple[str, int | None]:
    """(NAME, STEP) of NAME@STEP; the step is None without one."""
    word, at, step = name.rpartition("@")
    return (word, int(step)) if at and step.isdecimal() else (name, None)


def without_step(name: str) -> str:
    """NAME of NAME@STEP; any other name as it is."""
    return with_step(name)[0]


def before(run: Run, stage: StageConfig, *wants: Makes) -> list[str]:
    """Names of the stages before this one that make one of these things."""
    names = [one.name for one in run.stages]
    earlier = run.stages[: names.index(stage.name)]
    return [one.name for one in earlier if makes(run, one) in wants]


def is_had(name: str, words: Sequence[str], stages: Sequence[str]) -> bool:
    """Whether weights of that name are to be had when a stage begins.

    Args:
        words: that stand for weights themselves, such as "base".
        stages: whose weights may be taken, also of one step: STAGE@STEP.
    """
    bare = without_step(name)
    is_path = "://" in bare or os.path.isdir(bare)
    return name in words or bare in stages or is_path


def check(run: Run) -> None:
    """Raises ConfigError for a stage that takes what no earlier stage makes."""
    kinds = {stage.name: stage.kind for stage in run.stages}
    made = {stage.name: makes(run, stage) for stage in run.stages}
    done: list[str] = []
    for stage in run.stages:
        for need in needs(run, stage):
            if need.name not in done:
                where = "the stage itself" if need.name == stage.name else "a later one"
                raise ConfigError(
                    f"config.{need.key} names {need.name!r}, which is {where}.\n"
                    f"Expected one before it in config.stages: "
                    f"{', '.join(done) or 'there is none, so base or a path'}."
                )
            if made[need.name] not in need.wants:
                others = [name for name in done if made[name] in need.wants]
                raise ConfigError(
                    f"config.{need.key} names {need.name!r}, a {kinds[need.name]} "
                    f"stage, expected {' or '.join(_PHRASE[one] for one in need.wants)}"
                    f".\nThere {'is' if len(others) < 2 else 'are'} before it: "
                    f"{', '.join(others) or 'none'}."
                )
        done.append(stage.name)


def to_run(run: Run, only: str, start: str) -> list[str]:
    """Names of the stages that --only and --from leave to be run; all without them.

    Raises:
        ConfigError: for a stage that is not there, or both at once.
    """
    names = [stage.name for stage in run.stages]
    for flag, name in (("only", only), ("from", start)):
        if name and name not in names:
            near = (schema.nearest(name, names) or names)[0]
            raise ConfigError(
                f"--{flag} is {name!r}, which is no stage of this config: "
                f"{', '.join(names)}.\nWrite `--{flag}={near}`."
            )
    if only and start:
        raise ConfigError(
            f"--only={only} and --from={start} are both given.\nWrite one of them."
        )
    if only:
        return [only]
    return names[names.index(start) :] if start else names


def with_paths(
    stage: StageConfig, files: dict[str, str], held_out: dict[str, str]
) -> StageConfig:
    """The stage with the names of stages that make data replaced by their files.

    Args:
        files: stage name -> path of what it writes.
        held_out: the same, of what those that keep some apart write for others'
            data.held_out and data.eval.
    """
    apart = files | held_out
    values = {
        key: _placed(text, apart if key in _MEASURED else files)
        for key, text in data_values(stage)
    }
    data = dataclasses.replace(
        stage.data,
        **{
            key.removeprefix("data."): text
            for key, text in values.items()
            if key.startswith("data.")
        },
    )
    against = values.get("curate.against", "")
    also = values.get("select.also", "")
    return dataclasses.replace(
        stage,
        data=data,
        curate=dataclasses.replace(stage.curate, against=against),
        select=dataclasses.replace(stage.select, also=also),
    )


def _placed(text: str, files: dict[str, str]) -> str:
    words = []
    for source in sources.parse(text):
        path = files.get(source.path, source.path)
        words.append(path if source.weight is None else f"{path}@{source.weight!r}")
    return ",".join(words)


def repeat(stages: dict[str, str], over: Sequence[object]) -> dict[str, str]:
    """A loop of stages, for `rl_jax.config.chain`: over domains, or over rounds.

    `repeat({"rm": "reward_model", "pick": "select"}, over=(1, 2))` has the stages rm_1,
    pick_1, rm_2, pick_2, in this order.
    """
    return {f"{name}_{one}": kind for one in over for name, kind in stages.items()}
