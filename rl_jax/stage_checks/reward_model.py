"""What a reward model must satisfy beyond the types of its keys."""

from rl_jax.config_keys import Run, StageConfig
from rl_jax.data import sources
from rl_jax.faults import fault


def check(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError for the first fault found."""
    _check_margin(stage)
    _check_data(stage)
    if stage.eval.every and not stage.data.held_out:
        raise fault(
            f"config.{stage.prefix}eval.every is {stage.eval.every}, but there is "
            f"nothing to evaluate on: config.{stage.prefix}data.held_out is empty",
            (f"{stage.prefix}data.held_out", "FILE"),
            (f"{stage.prefix}eval.every", 0),
        )


def _check_margin(stage: StageConfig) -> None:
    ranking, column, key = stage.ranking, stage.data.margin_column, stage.prefix
    if ranking.form == "pointwise" and ranking.margin != "none":
        raise fault(
            f"config.{key}ranking.margin is {ranking.margin!r}, but with "
            f"config.{key}ranking.form='pointwise' replies are not compared",
            (f"{key}ranking.margin", "none"),
            (f"{key}ranking.form", "ranking"),
        )
    if ranking.margin != "none" and not column:
        what = "the margin" if ranking.margin == "column" else "the rating of a pair"
        raise fault(
            f"config.{key}ranking.margin is {ranking.margin!r}, but "
            f"config.{key}data.margin_column, where {what} stands, is empty",
            (f"{key}data.margin_column", "NAME"),
            (f"{key}ranking.margin", "none"),
        )
    if ranking.margin == "none" and column:
        raise fault(
            f"config.{key}data.margin_column is {column!r}, but "
            f"config.{key}ranking.margin is 'none', so that it would not be read",
            (f"{key}ranking.margin", "column"),
            (f"{key}data.margin_column", ""),
        )


def _check_data(stage: StageConfig) -> None:
    for name in ("train", "held_out"):
        key = f"{stage.prefix}data.{name}"
        for source in sources.parse(getattr(stage.data, name), key):
            if source.path in sources.BUILT_IN:
                raise fault(
                    f"config.{key} names {source.path!r}, a task whose problems have "
                    "no replies that were compared",
                    (key, "FILE"),
                    note=", or a stage of kind select with keep=pairs or rankings "
                    "that samples and grades replies to it",
                )
