"""What a stage of each kind must satisfy, checked before jax starts."""

import importlib

from rl_jax.config_keys import Run, StageConfig
from rl_jax.stage_checks import judge

# Kinds with a file of their own here, each with `check(run, stage)`.
_CHECKED = ("rl", "reward_model", "dpo", "distill", "select", "curate", "merge")


def check(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError for what is wrong with a stage as one of its kind."""
    judge.check(run, stage)
    if stage.kind in _CHECKED:
        importlib.import_module(f"rl_jax.stage_checks.{stage.kind}").check(run, stage)
