"""What the keys of a select stage must be beyond their types."""

import os

from rl_jax import dag, schema
from rl_jax.config_keys import Run, StageConfig
from rl_jax.data import sources
from rl_jax.data_checks import PROBLEMS_ONLY
from rl_jax.faults import fault

COMPARES = ("pairs", "rankings")


def check(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError for rules that could keep nothing, or that mean nothing."""
    select, rollout, key = stage.select, stage.rollout, stage.prefix
    if select.keep in COMPARES and rollout.group_size < 2:
        raise fault(
            f"config.{key}select.keep is {select.keep!r}, which compares replies to a "
            f"prompt, but config.{key}rollout.group_size is {rollout.group_size}",
            (f"{key}rollout.group_size", 8),
            (f"{key}select.keep", "best"),
        )
    if select.max_per_prompt and select.keep in ("best", "pairs"):
        one = "reply" if select.keep == "best" else "pair"
        raise fault(
            f"config.{key}select.max_per_prompt is {select.max_per_prompt}, but "
            f"keep={select.keep!r} writes one {one} of each prompt",
            (f"{key}select.max_per_prompt", 0),
            (f"{key}select.keep", "correct"),
        )
    if select.keep == "rankings" and select.max_per_prompt == 1:
        raise fault(
            f"config.{key}select.max_per_prompt is 1, but a ranking is of two replies "
            "or more",
            (f"{key}select.max_per_prompt", 0),
        )
    if select.min_gap and select.keep != "pairs":
        raise fault(
            f"config.{key}select.min_gap is {select.min_gap:g}, but "
            f"keep={select.keep!r} compares no pairs",
            (f"{key}select.min_gap", 0.0),
            (f"{key}select.keep", "pairs"),
        )
    for name in ("only_correct", "min_score"):
        value, none = getattr(select, name), False if name == "only_correct" else None
        if select.keep == "rankings" and value is not none:
            raise fault(
                f"config.{key}select.{name} is {value}, but a ranking is of good and "
                "bad replies",
                (f"{key}select.{name}", none),
                (f"{key}select.keep", "best"),
            )
    _check_rejected(run, stage)
    _check_also(stage)
    check_sampling(stage)


def _check_rejected(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError if no policy could write the worse replies of pairs."""
    name, key = stage.select.rejected, f"{stage.prefix}select.rejected"
    if not name:
        return
    if stage.select.keep != "pairs":
        raise fault(
            f"config.{key} is {name!r}, but keep={stage.select.keep!r} writes no pairs",
            (key, ""),
            (f"{stage.prefix}select.keep", "pairs"),
        )
    names = [one.name for one in run.stages]
    known = ["base", *dag.before(run, stage, "policy")]
    word = dag.without_step(name)
    if word in (*known, *names, "new") or os.path.isdir(os.path.expanduser(word)):
        return  # a stage that cannot be taken is told by dag.check
    raise fault(
        f"config.{key} is {name!r}, expected {', '.join(map(repr, known))}, or an "
        "existing folder with weights",
        (key, (schema.nearest(word, known) or known)[0]),
    )


def _check_also(stage: StageConfig) -> None:
    """A built-in task has demonstrations at most, neither pairs nor rankings."""
    select, key = stage.select, f"{stage.prefix}select.also"
    for source in sources.parse(select.also, key):
        if source.weight is not None:
            raise fault(
                f"config.{key} gives {source.path!r} a share, but all of its rows are "
                "written",
                (key, source.path),
            )
        is_task = source.path in sources.BUILT_IN
        if is_task and (select.keep in COMPARES or source.path in PROBLEMS_ONLY):
            raise fault(
                f"config.{key} names {source.path!r}, a built-in task, which has no "
                + (select.keep if select.keep in COMPARES else "demonstrations"),
                (key, "FILE"),
                (key, ""),
            )


def check_sampling(stage: StageConfig) -> None:
    """Raises ConfigError if every prompt of data.train cannot be asked as it should."""
    rollout, key = stage.rollout, stage.prefix
    check_no_shares(stage)
    if rollout.temperature == 0 and rollout.group_size > 1:
        raise fault(
            f"config.{key}rollout.temperature is 0: all {rollout.group_size} replies "
            "to a prompt would be the same",
            (f"{key}rollout.temperature", 1.0),
            (f"{key}rollout.group_size", 1),
        )
    if rollout.group_size > rollout.slots:
        raise fault(
            f"config.{key}rollout.group_size is {rollout.group_size}, more than the "
            f"{rollout.slots} of config.{key}rollout.slots: the replies to a prompt "
            "are drawn together",
            (f"{key}rollout.slots", rollout.group_size),
        )


def check_no_shares(stage: StageConfig) -> None:
    """Raises ConfigError if a source of data.train has a share."""
    key = f"{stage.prefix}data.train"
    for source in sources.parse(stage.data.train, key):
        if source.weight is not None:
            paths = ",".join(one.path for one in sources.parse(stage.data.train, key))
            raise fault(
                f"config.{key} gives {source.path!r} a share, but a {stage.kind} stage "
                "reads each row once",
                (key, paths),
            )
