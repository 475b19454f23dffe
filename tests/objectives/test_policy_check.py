"""The check of a policy loss: what is refused, in few words, before a compile."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.errors import ConfigError
from rl_jax.objectives.policy import (
    PRESETS,
    PolicyLoss,
    needs_agreeing_groups,
    needs_segments,
    policy_loss,
)
from rl_jax.objectives.policy_check import validate


def make(**changes) -> PolicyLoss:
    return dataclasses.replace(PRESETS["grpo"], **changes)


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
        {"centre": "mean"},
        {"scale": "std"},
        {"whiten": "batch"},
        {"denominator": "behaviour"},
        {"surrogate": "ppo"},
        {"ratio": "group"},
        {"aggregate": "mean"},
        {"kl": "k4"},
        {"kl": "k2_unbiased"},
        {"kl": None},
        {"kl_place": "advantage"},
        {"correction": "tis"},
        {"eps": -1e-6},
        {"clip_low": -0.1},
        {"clip_high": -0.1},
        {"clip_high": float("nan")},
        {"clip_high": float("inf")},
        {"clip_low": "0.2"},
        {"ratio_floor": 1.1},
        {"ratio_cap": 0.9},
        {"ratio_cap": 0.0, "surrogate": "capped"},
        {"kl_coef": -0.001},
        {"kl_coef": True},
        {"sampler_cap": -2.0},
        {"off_policy_delta": -0.5},
        {"entropy_coef": float("nan")},
        {"overlong_buffer": 1.5},
        {"dynamic_sampling": "yes"},
        {"denominator": "sampler", "sampler_cap": 2.0},
        # What would have no effect, or none that was meant.
        {"sampler_cap": 0.0, "correction": "mask"},
        {"sampler_low": 0.5},
        {"sampler_cap": 0.4, "sampler_low": 0.5},
        {"tau": 0.1},
        {"surrogate": "kimi_k25", "tau": 0.0},
        {"kl_place": "reward", "kl": "k3_unbiased"},
        {"tau_negative": 1.0},
        {"surrogate": "sapo", "tau": 1.0, "tau_negative": 0.0},
    ],
)
def test_a_bad_choice_is_named_in_three_lines_or_fewer(changes):
    with pytest.raises(ConfigError) as caught:
        validate(make(**changes))
    message = str(caught.value)
    field, value = list(changes.items())[-1]
    assert field in message and str(value) in message
    assert len(message.splitlines()) <= 3


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({}, False),
        ({"sampler_cap": 2.0}, False),
        ({"correction": "mask", "sampler_cap": 2.0}, False),
        ({"correction": "sequence_mask", "sampler_cap": 2.0}, True),
        ({"correction": "geometric_keep", "sampler_cap": 2.0}, True),
        ({"ratio": "sequence"}, True),
        ({"ratio": "sequence_sum"}, True),
        ({"off_policy_delta": 0.5}, True),
        ({"surrogate": "kimi_k15", "tau": 0.5}, True),
    ],
)
def test_a_loss_that_sums_over_samples_wants_segments(changes, needs):
    spec = make(**changes)
    validate(spec)
    assert needs_segments(spec) == needs
    x_BT = jnp.full((1, 2), -1.0)
    arrays = (x_BT, x_BT, x_BT, x_BT, None, x_BT, x_BT, x_BT)
    if needs:
        with pytest.raises(ValueError, match="segment_BT"):
            policy_loss(*arrays, spec=spec, num_tokens=2)
    else:
        assert np.isfinite(policy_loss(*arrays, spec=spec, num_tokens=2)[0])


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({}, False),
        ({"centre": "leave_one_out", "scale": "none"}, False),
        ({"centre": "batch_mean"}, True),
        ({"whiten": "token_std"}, True),
        ({"kl_coef": 0.1}, True),
        ({"entropy_coef": -0.1}, True),
        ({"surrogate": "kimi_k2", "tau": 0.5}, True),
    ],
)
def test_groups_that_agree_are_needed_where_something_else_moves_them(changes, needs):
    assert needs_agreeing_groups(make(**changes)) == needs


def test_the_loss_itself_refuses_a_bad_spec():
    x_BT = jnp.zeros((1, 2))
    with pytest.raises(ValueError, match="clip_low"):
        policy_loss(
            *(x_BT, x_BT, x_BT, x_BT, None, x_BT, x_BT, x_BT),
            spec=make(clip_low=-1.0),
            num_tokens=2,
        )
