"""What the keys of a curate stage must be beyond their types."""

from rl_jax.config_keys import Run, StageConfig
from rl_jax.faults import fault
from rl_jax.stage_checks.select import check_no_shares, check_sampling


def check(run: Run, stage: StageConfig) -> None:
    """Raises ConfigError for bounds of a pass rate that no row could be within."""
    del run
    curate, key = stage.curate, f"{stage.prefix}curate."
    low, high = curate.min_pass_rate, curate.max_pass_rate
    if low > high:
        raise fault(
            f"config.{key}min_pass_rate is {low:g}, above config.{key}max_pass_rate, "
            f"{high:g}: nothing lies between",
            (f"{key}min_pass_rate", high),
            (f"{key}max_pass_rate", 1.0),
        )
    if not curate.pass_rate and (low > 0 or high < 1):
        raise fault(
            f"config.{key}min_pass_rate is {low:g} and config.{key}max_pass_rate "
            f"{high:g}, but config.{key}pass_rate is false: no pass rate is measured",
            (f"{key}pass_rate", True),
        )
    if curate.pass_rate:
        check_sampling(stage)
    else:
        check_no_shares(stage)
