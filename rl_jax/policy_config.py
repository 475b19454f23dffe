"""The policy loss that a config asks for."""

import dataclasses

from rl_jax import schema
from rl_jax.config import StageConfig
from rl_jax.faults import fault
from rl_jax.objectives import policy
from rl_jax.objectives.policy import PolicyLoss

# What `objective.advantage` stands for.
_EARLIER = {
    "group_std": {"centre": "group_mean", "scale": "group_std"},
    "group_mean": {"centre": "group_mean", "scale": "none"},
    "batch_std": {"centre": "group_mean", "scale": "varying_std"},
}


def policy_loss_spec(stage: StageConfig) -> PolicyLoss:
    """The named policy loss with the config's own values put in.

    Raises:
        ConfigError: if the result is no valid loss, or a value given has no effect.
    """
    objective, key = stage.objective, f"{stage.prefix}objective."
    given = {
        field.name: value
        for field in dataclasses.fields(policy.PolicyLoss)
        if (value := getattr(objective, field.name, None)) is not None
    }
    if objective.advantage is not None:
        given = _EARLIER[objective.advantage] | given
    named = policy.COMPAT[objective.compat] if objective.compat else policy.PRESETS
    if objective.name not in named:
        close = schema.nearest(objective.name, named) or [*named]
        raise fault(
            f"config.{key}name is {objective.name!r}, which {objective.compat} does "
            f"not have, but {', '.join(named)}",
            (f"{key}name", close[0]),
            (f"{key}compat", None),
        )
    spec = dataclasses.replace(named[objective.name], **given)
    policy.validate(spec)
    for name in {"kl", "kl_place"} & given.keys():
        if not spec.kl_coef:
            raise fault(
                f"config.{key}{name} is {given[name]!r}, but the weight of the KL is 0",
                (f"{key}kl_coef", 0.001),
                (f"{key}{name}", None),
            )
    factor = objective.overlong_factor
    if objective.overlong == "dapo" and factor != 1.0:
        raise fault(
            f"config.{key}overlong_factor is {factor}, but dapo has no such factor",
            (f"{key}overlong", "openrlhf"),
            (f"{key}overlong_factor", 1.0),
        )
    return spec
