"""The preference loss that a config asks for."""

import dataclasses

from rl_jax.config_keys import StageConfig
from rl_jax.faults import fault
from rl_jax.objectives import preference
from rl_jax.objectives.preference import PreferenceLoss


def preference_loss_spec(stage: StageConfig) -> PreferenceLoss:
    """The named preference loss with the config's own values put in.

    Raises:
        ConfigError: if the result is no valid loss, or a value given has no effect.
    """
    chosen, key = stage.preference, f"{stage.prefix}preference."
    given = {
        field.name: value
        for field in dataclasses.fields(PreferenceLoss)
        if (value := getattr(chosen, field.name)) is not None
    }
    named = preference.PRESETS[chosen.name]
    spec = dataclasses.replace(named, **given)
    if spec.label_smoothing and spec.kind != "sigmoid":
        raise fault(
            f"config.{key}label_smoothing is {spec.label_smoothing} with the kind "
            f"{spec.kind!r}, but only 'sigmoid' has such a share",
            *(
                (key + name, None)
                for name in ("kind", "label_smoothing")
                if name in given
            ),
        )
    preference.validate(spec)
    return spec
