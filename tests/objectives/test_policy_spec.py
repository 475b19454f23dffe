"""The spec of a policy loss: presets, and what is refused before a compile."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.errors import ConfigError
from rl_jax.objectives.policy import PRESETS, PolicyLoss, policy_loss, validate


def make(**changes) -> PolicyLoss:
    return dataclasses.replace(PRESETS["grpo"], **changes)


def test_presets_are_valid_and_usable_as_static_arguments():
    assert set(PRESETS) == {"grpo", "dapo", "cispo", "dr_grpo"}
    for spec in PRESETS.values():
        validate(spec)
        hash(spec)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_need_no_reference_and_then_report_no_kl(name):
    x_BT = jnp.full((1, 2), -1.0)
    loss, metrics = policy_loss(
        *(x_BT, x_BT, x_BT, x_BT, None, x_BT, x_BT, x_BT),
        spec=PRESETS[name],
        num_tokens=2,
    )
    assert np.isfinite(loss) and "kl" not in metrics


def test_a_kl_term_without_a_reference_is_refused():
    x_BT = jnp.full((1, 2), -1.0)
    with pytest.raises(ValueError, match="ref_logp"):
        policy_loss(
            *(x_BT, x_BT, x_BT, x_BT, None, x_BT, x_BT, x_BT),
            spec=make(kl_coef=0.1),
            num_tokens=2,
        )


@pytest.mark.parametrize(
    "changes",
    [
        {"advantage": "std"},
        {"denominator": "behaviour"},
        {"bound": "ppo"},
        {"aggregate": "mean"},
        {"kl": "k4"},
        {"kl": None},
        {"clip_low": -0.1},
        {"clip_high": -0.1},
        {"clip_high": float("nan")},
        {"clip_high": float("inf")},
        {"clip_low": "0.2"},
        {"kl_coef": -0.001},
        {"kl_coef": True},
        {"sampler_cap": -2.0},
        {"entropy_coef": float("nan")},
        {"overlong_buffer": 1.5},
        {"dynamic_sampling": "yes"},
        {"denominator": "sampler", "sampler_cap": 2.0},
    ],
)
def test_a_bad_choice_is_named_in_three_lines_or_fewer(changes):
    with pytest.raises(ConfigError) as caught:
        validate(make(**changes))
    message = str(caught.value)
    field, value = list(changes.items())[-1]
    assert field in message and str(value) in message
    assert len(message.splitlines()) <= 3


def test_the_loss_itself_refuses_a_bad_spec():
    x_BT = jnp.zeros((1, 2))
    with pytest.raises(ValueError, match="clip_low"):
        policy_loss(
            *(x_BT, x_BT, x_BT, x_BT, None, x_BT, x_BT, x_BT),
            spec=make(clip_low=-1.0),
            num_tokens=2,
        )
