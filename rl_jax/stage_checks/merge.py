"""What the keys of a merge stage must be beyond their types."""

import math
import os

from rl_jax import dag, schema
from rl_jax.config_keys import Run, StageConfig
from rl_jax.faults import fault
from rl_jax.reward_marker import NAME as REWARD_MARKER


def check(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError unless two models or more can be averaged as asked."""
    merge, key = stage.merge, f"{stage.prefix}merge."
    names = [one.name for one in run.stages]
    known = dag.before(run, stage, "policy", "reward model")
    if len(merge.models) < 2:
        raise fault(
            f"config.{key}models is {merge.models}, expected two models or more to "
            "average",
            (f"{key}models", tuple((known + ["STAGE", "FOLDER"])[:2])),
        )
    _check_weights(stage)
    for name in merge.models:
        word = dag.without_step(name)
        if word in (*known, "base") or os.path.isdir(os.path.expanduser(word)):
            continue
        if word in names or "://" in word:  # another of the run: dag.check tells
            continue
        near = schema.nearest(word, known) or known or ["FOLDER"]
        there = ", ".join(map(repr, ["base", *known]))
        raise fault(
            f"config.{key}models has {name!r}, expected {there}, STAGE@STEP, or an "
            "existing folder with weights",
            (f"{key}models", tuple(near[0] if n == name else n for n in merge.models)),
        )
    makes = {name: _makes(run, dag.without_step(name)) for name in merge.models}
    if len(set(makes.values())) > 1:
        told = ", ".join(f"{name} a {made}" for name, made in makes.items())
        policies = tuple(name for name, made in makes.items() if made == "policy")
        raise fault(
            f"config.{key}models makes an average of different things: {told}",
            (f"{key}models", policies),
        )
    _check_evaluation(stage, {*makes.values()} == {"reward model"})


def _check_weights(stage: StageConfig) -> None:
    merge, key = stage.merge, f"{stage.prefix}merge."
    if merge.weights and merge.ema:
        raise fault(
            f"config.{key}weights and config.{key}ema are both given, expected one of "
            "them",
            (f"{key}ema", 0.0),
            (f"{key}weights", ()),
        )
    if not merge.weights:
        return
    equal = tuple(1.0 for _ in merge.models)
    if len(merge.weights) != len(merge.models):
        raise fault(
            f"config.{key}weights has {len(merge.weights)} numbers for "
            f"{len(merge.models)} models, expected one for each",
            (f"{key}weights", equal),
        )
    if min(merge.weights) < 0 or not 0 < math.fsum(merge.weights) < math.inf:
        raise fault(
            f"config.{key}weights is {merge.weights}, expected none below 0, and not "
            "all 0",
            (f"{key}weights", equal),
        )


def _makes(run: Run, word: str) -> str:
    for stage in run.stages:
        if stage.name == word:
            return dag.makes(run, stage)
    marker = os.path.join(os.path.expanduser(word), REWARD_MARKER)
    return "reward model" if os.path.isfile(marker) else "policy"


def _check_evaluation(stage: StageConfig, rewards: bool) -> None:
    """It is evaluated once if there is anything to evaluate on."""
    key = stage.prefix
    if stage.data.eval and not stage.eval.greedy and not stage.eval.num_samples:
        raise fault(
            f"config.{key}eval.greedy is false and config.{key}eval.num_samples is 0: "
            "an evaluation would take no replies",
            (f"{key}eval.greedy", True),
            (f"{key}data.eval", ""),
        )
    if stage.data.eval and rewards:
        raise fault(
            f"config.{key}data.eval is {stage.data.eval!r}, but a reward model answers "
            "no prompts",
            (f"{key}data.eval", ""),
        )
