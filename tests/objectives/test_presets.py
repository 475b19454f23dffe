"""Named losses: the papers' defaults, and the numbers of other trainers."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from policy_cases import assert_close, make, peer_loss

from rl_jax.objectives.advantage import group_advantage
from rl_jax.objectives.policy import needs_segments, policy_loss
from rl_jax.objectives.policy_check import validate
from rl_jax.objectives.presets import COMPAT, PRESETS

TRL, VERL = COMPAT["trl"], COMPAT["verl"]
NAMED = {
    **PRESETS,
    **{f"{who}_{name}": spec for who in COMPAT for name, spec in COMPAT[who].items()},
}


@pytest.mark.parametrize("name", NAMED)
def test_named_losses_are_valid_and_usable_as_static_arguments(name):
    validate(NAMED[name])
    hash(NAMED[name])


def test_what_other_trainers_call_a_loss_is_a_name_of_ours():
    for losses in COMPAT.values():
        assert set(losses) <= set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_need_no_reference_and_then_report_no_kl(name):
    x_BT, ones_BT = jnp.full((1, 2), -1.0), jnp.ones((1, 2), int)
    segment_BT = ones_BT if needs_segments(PRESETS[name]) else None
    loss, metrics = policy_loss(
        *(x_BT, x_BT, x_BT, x_BT, None, x_BT, ones_BT, x_BT, segment_BT),
        spec=PRESETS[name],
        num_tokens=2,
    )
    assert np.isfinite(loss) and "kl" not in metrics


# What each paper gives, as it gives it.
def test_presets_hold_the_published_values():
    def values(name, *fields):
        return tuple(getattr(PRESETS[name], field) for field in fields)

    bounds = "clip_low", "clip_high"
    assert values("dapo", *bounds) == (0.2, 0.28)
    assert values("gspo", *bounds) == (3e-4, 4e-4)
    assert values("olmo3", *bounds, "sampler_cap") == (0.2, 0.272, 2.0)
    assert values("glm5", *bounds, "sampler_low", "sampler_cap") == (0.2, 0.28, 0.5, 2)
    assert values("scalerl", "ratio_cap", "aggregate") == (5.0, "prompt_mean")
    assert values("rloo", "centre", "scale") == ("leave_one_out", "none")
    assert values("deepseek_v32", "kl", "denominator") == ("k3_unbiased", "sampler")


PEERS = [
    # PPO's bounds of 0.2 and 0.28, in every average.
    (make("dapo"), 0.695421),
    (make("dapo", aggregate="seq_mean_token_mean"), 0.208891),
    (make("dapo", aggregate="seq_mean_token_sum"), 2.086264),
    (make("dapo", aggregate="seq_sum_const"), 0.260783),
    # The dual clip at 3: always on in verl, delta=3 in TRL.
    (dataclasses.replace(VERL["grpo"], clip_high=0.28), 0.519555),
    (VERL["dapo"], 0.519555),
    (dataclasses.replace(VERL["dapo"], aggregate="seq_mean_token_mean"), 0.076991),
    (dataclasses.replace(VERL["dapo"], aggregate="seq_mean_token_sum"), 1.558664),
    (dataclasses.replace(VERL["dr_grpo"], clip_high=0.28), 0.194833),
    (dataclasses.replace(TRL["dapo"], ratio_cap=3.0), 0.519555),
    (TRL["dapo"], 0.695421),
    (dataclasses.replace(TRL["grpo"], clip_high=0.28), 0.208891),
    (dataclasses.replace(TRL["dr_grpo"], clip_high=0.28), 0.260783),
    # CISPO: verl bounds the weight on both sides, open-instruct above, TRL's bound is
    # absolute (and 0.2 or 0.28 by mistake).
    (dataclasses.replace(VERL["cispo"], clip_high=0.28), -0.336618),
    (make("cispo", clip_high=0.28), -0.192578),
    (make("cispo"), -0.683713),
    (TRL["cispo"], -0.683713),
    # GSPO. (verl's gradient is that of its token form.)
    (make("gspo", clip_low=0.2, clip_high=0.28), -0.114364),
    (make("gspo"), 0.025436),
    (TRL["gspo"], 0.025436),
    (VERL["gspo"], 0.025436),
    (make("sapo"), -0.102521),
    (TRL["sapo"], -0.102521),
    (VERL["sapo"], -0.102521),
]


@pytest.mark.parametrize(("spec", "expected"), PEERS)
def test_losses_have_the_values_of_other_trainers(spec, expected):
    value = peer_loss(spec)
    np.testing.assert_allclose(value, expected, rtol=0, atol=1.5e-6)


def test_trls_rloo_compares_products_over_whole_samples():
    # Products of the ratios: exp(0.6) and exp(0.2); bounds 0.8 to 1.2.
    expected = (-1.2 + np.exp(0.2)) / 2
    value = peer_loss(TRL["rloo"])
    np.testing.assert_allclose(value, expected, rtol=0, atol=1e-6)


A, B, C, D = [1, 0, 0, 1], [1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]
ADVANTAGES = [
    (TRL["grpo"], [[0.865875, -0.865875], [0.4999, -1.4997], [1.4997, -0.4999]]),
    (
        VERL["grpo"],
        [[0.866024, -0.866024], [0.499999, -1.499997], [1.499997, -0.499999]],
    ),
    (TRL["dr_grpo"], [[0.5, -0.5], [0.25, -0.75], [0.75, -0.25]]),
    (VERL["dr_grpo"], [[0.5, -0.5], [0.25, -0.75], [0.75, -0.25]]),
    (TRL["rloo"], [[0.666667, -0.666667], [0.333333, -1.0], [1.0, -0.333333]]),
    (VERL["rloo"], [[0.666667, -0.666667], [0.333333, -1.0], [1.0, -0.333333]]),
]


@pytest.mark.parametrize(("spec", "expected"), ADVANTAGES)
def test_advantages_are_those_of_other_trainers(spec, expected):
    adv_N = group_advantage(
        jnp.array(A + B + C + D, jnp.float32),
        jnp.repeat(jnp.arange(4), 4),
        jnp.ones(16, bool),
        num_groups=4,
        centre=spec.centre,
        scale=spec.scale,
        eps=spec.eps,
    )
    adv_PG = np.asarray(adv_N).reshape(4, 4)
    found = [adv_PG[0, :2], adv_PG[1, [0, 2]], adv_PG[2, :2]]
    assert_close(found, expected, atol=2e-6)
    np.testing.assert_array_equal(adv_PG[3], 0.0)
