"""What a distillation must satisfy beyond the types of its keys."""

from rl_jax import checks, dag, data_checks
from rl_jax.config_keys import Run, StageConfig
from rl_jax.data import sources
from rl_jax.faults import fault
from rl_jax.schema import nearest

# Forms whose own weight of the advantage of rewards is not 0
# (objectives/distillation.py, which needs jax).
REWARDED = ("mopd",)


def check(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError for the first fault found."""
    _check_teacher(run, stage)
    if stage.distill.form != "soft" or stage.eval.every:  # replies are drawn
        checks.check_longest(stage)
    if stage.distill.form == "soft":
        _check_soft(stage)
    else:
        _check_on_policy(stage)


def is_rewarded(stage: StageConfig) -> bool:
    """True if the rewards of replies are part of what is learnt."""
    distill = stage.distill
    if distill.outcome is None:
        return distill.form in REWARDED
    return distill.form != "soft" and distill.outcome != 0


def _check_teacher(run: Run, stage: StageConfig) -> None:
    """The teacher is to be had when the stage begins."""
    name, key = stage.distill.teacher, f"{stage.prefix}distill.teacher"
    policies = dag.before(run, stage, "policy")
    known = ["base", *policies]
    if dag.is_had(name, known, policies):
        return
    raise fault(
        f"config.{key} is {name!r}, expected {', '.join(map(repr, known))}, or an "
        "existing folder with weights",
        (key, (nearest(name, policies) or [*policies[-1:], "FOLDER"])[0]),
    )


def _check_soft(stage: StageConfig) -> None:
    distill, batch, key = stage.distill, stage.batch, stage.prefix
    for source in sources.parse(stage.data.train, f"{key}data.train"):
        if source.path in data_checks.PROBLEMS_ONLY:
            raise fault(
                f"config.{key}data.train names {source.path!r}, a task without "
                "demonstrations, and form soft learns at the tokens of some",
                (f"{key}distill.form", "opd"),
                (f"{key}data.train", "FILE"),
            )
    if batch.rows_per_step % batch.micro_rows:
        rows = batch.micro_rows * -(-batch.rows_per_step // batch.micro_rows)
        raise fault(
            f"config.{key}batch.rows_per_step={batch.rows_per_step} is not a multiple "
            f"of config.{key}batch.micro_rows={batch.micro_rows}",
            (f"{key}batch.rows_per_step", rows),
        )
    if batch.updates_per_step != 1:
        raise fault(
            f"config.{key}batch.updates_per_step is {batch.updates_per_step}, but form "
            "soft draws no replies to be split: batch.rows_per_step is an update",
            (f"{key}batch.updates_per_step", 1),
        )
    if distill.top_k and distill.direction == "reverse":
        raise fault(
            f"config.{key}distill.top_k is {distill.top_k}, but the reverse KL is over "
            "the whole vocabulary",
            (f"{key}distill.top_k", 0),
            (f"{key}distill.direction", "forward"),
        )
    if not distill.top_k and distill.rest != "bucket":
        raise fault(
            f"config.{key}distill.rest is {distill.rest!r}, but with config.{key}"
            "distill.top_k=0 there is no rest",
            (f"{key}distill.top_k", 64),
            (f"{key}distill.rest", "bucket"),
        )
    for name in ("outcome", "bound"):
        if getattr(distill, name) is not None:
            raise fault(
                f"config.{key}distill.{name} is {getattr(distill, name)}, which form "
                "soft does not have",
                (f"{key}distill.{name}", None),
                (f"{key}distill.form", "opd"),
            )


def _check_on_policy(stage: StageConfig) -> None:
    distill, rollout, key = stage.distill, stage.rollout, stage.prefix
    if rollout.temperature == 0:
        raise fault(
            f"config.{key}rollout.temperature is 0, but form {distill.form} learns "
            "from replies that are drawn",
            (f"{key}rollout.temperature", 1.0),
        )
    if is_rewarded(stage) and rollout.group_size < 2:
        raise fault(
            f"config.{key}rollout.group_size is {rollout.group_size}, expected 2 or "
            f"more: the rewards of a prompt's replies are compared, as config.{key}"
            "distill.outcome is not 0",
            (f"{key}rollout.group_size", 8),
            (f"{key}distill.outcome", 0.0),
        )
    if rollout.prompts_per_step % stage.batch.updates_per_step:
        raise fault(
            f"config.{key}rollout.prompts_per_step={rollout.prompts_per_step} is not a "
            f"multiple of config.{key}batch.updates_per_step="
            f"{stage.batch.updates_per_step}",
            (f"{key}batch.updates_per_step", 1),
        )
    soft = {"temperature": 1.0, "direction": "forward", "top_k": 0, "rest": "bucket"}
    for name, default in soft.items():
        if getattr(distill, name) != default:
            raise fault(
                f"config.{key}distill.{name} is {getattr(distill, name)!r}, which only "
                f"form soft has, not {distill.form}",
                (f"{key}distill.{name}", default),
                (f"{key}distill.form", "soft"),
            )
