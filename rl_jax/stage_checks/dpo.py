"""What a stage of pairs must satisfy beyond the types of its keys."""

from rl_jax import dag
from rl_jax.config_keys import Run, StageConfig
from rl_jax.data import sources
from rl_jax.faults import fault
from rl_jax.schema import nearest


def check(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError for the first fault found."""
    _check_reference(run, stage)
    _check_sources(run, stage)


def _check_reference(run: Run, stage: StageConfig) -> None:
    """The reference is to be had when the stage begins."""
    name, key = stage.preference.reference, f"{stage.prefix}preference.reference"
    policies = dag.before(run, stage, "policy")
    known = ["init", "base", *policies]
    if dag.is_had(name, known, policies):
        return
    raise fault(
        f"config.{key} is {name!r}, expected {', '.join(map(repr, known))}, or an "
        "existing folder with weights",
        (key, (nearest(name, known) or known)[0]),
    )


def _check_sources(run: Run, stage: StageConfig) -> None:
    """Pairs come from files, or from a select stage that writes pairs."""
    keeps = {one.name: one.select.keep for one in run.stages if one.kind == "select"}
    for name in ("train", "held_out"):
        key = f"{stage.prefix}data.{name}"
        for source in sources.parse(getattr(stage.data, name), key):
            if source.path in sources.BUILT_IN:
                raise fault(
                    f"config.{key} names {source.path!r}, a task without pairs of "
                    "replies",
                    (key, "FILE"),
                    note="; a select stage with keep=pairs makes them of a task",
                )
            if keeps.get(source.path, "pairs") != "pairs":
                raise fault(
                    f"config.{key} names the stage {source.path!r}, which writes "
                    f"{keeps[source.path]!r} and no pairs of replies",
                    (f"{source.path}.select.keep", "pairs"),
                )
