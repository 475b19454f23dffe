"""What a stage of each kind must satisfy, checked before jax starts."""

from rl_jax.config_keys import Run, StageConfig
from rl_jax.stage_checks import (
    curate,
    distill,
    dpo,
    judge,
    merge,
    reward_model,
    rl,
    select,
)

# Of pretrain and sft checks.py and data_checks.py say all that there is to say.
_CHECKS = {
    "reward_model": reward_model.check,
    "dpo": dpo.check,
    "rl": rl.check,
    "distill": distill.check,
    "select": select.check,
    "curate": curate.check,
    "merge": merge.check,
}


def check(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError for what is wrong with a stage as one of its kind."""
    judge.check(run, stage)
    if stage.kind in _CHECKS:
        _CHECKS[stage.kind](run, stage)
