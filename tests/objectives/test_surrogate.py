"""Surrogates: the worked value and gradient of every method, on three samples.

In float32; test_policy_properties.py holds it against float64.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_cases import (
    ADV,
    LOGP,
    OLD,
    PEER_ADV,
    PEER_LOGP,
    PEER_OLD,
    REF,
    SAMPLER,
    assert_close,
    loss_and_grads,
    make,
)

from rl_jax.objectives.surrogate import SURROGATES, held

PPO = [
    [0.000000, -0.090970, -0.111111],
    [0.000000, 0.091596],
    [-0.080430, 0.000000, -0.088889, -0.059584],
]
FLIPPED = {"adv": [[-1.0] * 3, [0.5] * 2, [-0.8] * 4]}
BY_TOKEN = {"adv": [[1.0, 0.0, 1.0], [-1.0] * 2, [0.5, 0.5, 1.0, 1.0]]}
WIDE = {"clip_low": 0.2, "clip_high": 0.2}
GROUP = {
    "logp": LOGP[:2],
    "old": OLD[:2],
    "sampler": SAMPLER[:2],
    "ref": REF[:2],
    "adv": [[0.5] * 3, [-0.5] * 2],
    "prompts": [0, 0],
}

PEERS = {"logp": PEER_LOGP, "old": PEER_OLD, "sampler": PEER_OLD, "ref": PEER_OLD}
PEERS |= {"adv": PEER_ADV, "prompts": [0, 0]}

# Name: (spec, other inputs than usual, loss, gradients).
WORKED = {
    "ppo": (make(aggregate="token_mean"), {}, -0.534944, PPO),
    "ppo, mean of prompts": (
        make(aggregate="prompt_mean"),
        {},
        -0.556953,
        [
            [0.000000, -0.081873, -0.100000],
            [0.000000, 0.082436],
            [-0.090484, 0.000000, -0.100000, -0.067032],
        ],
    ),
    "dapo": (
        make("dapo"),
        {},
        -0.544433,
        [
            [-0.135711, -0.090970, -0.111111],
            [0.000000, 0.091596],
            [-0.080430, 0.000000, -0.088889, -0.059584],
        ],
    ),
    "grpo": (
        make("grpo"),
        {},
        -0.383032,
        [
            [0.000000, -0.090970, -0.111111],
            [0.000000, 0.137393],
            [-0.060322, 0.000000, -0.066667, -0.044688],
        ],
    ),
    "dr_grpo": (
        make("dr_grpo"),
        {},
        -0.401208,
        [
            [0.000000, -0.068228, -0.083333],
            [0.000000, 0.068697],
            [-0.060322, 0.000000, -0.066667, -0.044688],
        ],
    ),
    "cispo": (
        make("cispo", clip_high=0.28),
        {},
        0.469659,
        [
            [-0.135711, -0.090970, -0.111111],
            [0.041157, 0.071111],
            [-0.080430, -0.113778, -0.088889, -0.059584],
        ],
    ),
    "scalerl": (
        make("scalerl", ratio_cap=1.5),
        {},
        0.544060,
        [
            [-0.128403, -0.086071, -0.098020],
            [0.035234, 0.075000],
            [-0.092312, -0.150000, -0.150000, -0.067706],
        ],
    ),
    "gspo, wide": (
        make("gspo", **WIDE),
        {},
        -0.409221,
        [[-0.111111] * 3, [0.092098] * 2, [-0.065021] * 4],
    ),
    "gspo, narrow": (
        make("gspo"),
        FLIPPED,
        0.433187,
        [[0.111111] * 3, [0.0] * 2, [0.0] * 4],
    ),
    "gspo_token": (
        make("gspo_token", **WIDE),
        BY_TOKEN,
        -0.097659,
        [
            [-0.111111, 0.000000, -0.111111],
            [0.184195, 0.184195],
            [-0.040638, -0.040638, -0.081276, -0.081276],
        ],
    ),
    "kimi_k15": (
        make("kimi_k15"),
        GROUP,
        0.180000,
        [[-0.25] * 3, [0.3] * 2],
    ),
    "kimi_k25": (
        make("kimi_k25", clip_high=0.2, tau=0.1),
        {},
        -0.563067,
        [
            [0.004444, -0.095415, -0.111111],
            [-0.006667, 0.011111],
            [-0.082652, 0.008889, -0.088889, -0.008889],
        ],
    ),
    "kimi_k2": (
        make("kimi_k2"),
        GROUP,
        0.305000,
        [[-0.25] * 3, [0.3] * 2],
    ),
    "kimi_k2, half of the pull": (
        make("kimi_k2", tau=0.2),
        GROUP,
        0.270800,
        [[-0.1] * 3, [0.108] * 2],
    ),
    "kimi_k15, half of the pull": (
        make("kimi_k15", tau=0.2),
        GROUP,
        0.177000,
        [[-0.25] * 3, [0.27] * 2],
    ),
    "sapo": (
        make("sapo"),
        PEERS,
        -0.102521,
        [
            [-0.301639, -0.351281],
            [0.101420, 0.041270, 0.125000, 0.075744],
        ],
    ),
    "glm5_agentic": (
        make("glm5_agentic"),
        {},
        0.270517,
        [
            [0.000000, -0.095634, -0.108911],
            [0.000000, 0.000000],
            [-0.082055, 0.000000, 0.000000, 0.000000],
        ],
    ),
    "mai_thinking": (
        make("mai_thinking", ratio_floor=0.5, ratio_cap=2.0),
        {},
        -0.562221,
        [
            [0.000000, -0.095634, -0.108911],
            [0.000000, 0.101229],
            [-0.082055, 0.000000, 0.000000, -0.060183],
        ],
    ),
}


@pytest.mark.parametrize("name", WORKED)
def test_losses_have_the_worked_values_and_gradients(name):
    spec, inputs, expected, grads = WORKED[name]
    loss, grad, metrics, _ = loss_and_grads(spec, **inputs)
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(metrics["policy_loss"], expected, rtol=0, atol=1e-6)
    assert_close(grad, grads)


def test_every_surrogate_has_worked_numbers():
    specs = [spec for spec, *_ in WORKED.values()] + [make("reinforce")]
    assert {spec.surrogate for spec in specs} == set(SURROGATES)


RATIOS = {
    "old": [
        [1.221403, 0.818731, 1.0],
        [0.740818, 1.648721],
        [0.904837, 1.491825, 1.0, 0.670320],
    ],
    "sampler": [
        [1.284025, 0.860708, 0.980199],
        [0.704688, 1.822119],
        [0.923116, 1.506818, 3.669297, 0.677057],
    ],
}


@pytest.mark.parametrize("denominator", RATIOS)
def test_without_a_bound_the_gradient_is_minus_ratio_times_advantage(denominator):
    spec = make("reinforce", denominator=denominator)
    loss, grad, metrics, _ = loss_and_grads(spec)
    expected = [
        -np.array(r) * np.array(a) / 9
        for r, a in zip(RATIOS[denominator], ADV, strict=True)
    ]
    assert_close(grad, expected)
    # -r * A is its own gradient, summed.
    np.testing.assert_allclose(loss, sum(map(np.sum, expected)), rtol=0, atol=1e-6)
    ratios = sum(RATIOS[denominator], [])
    for name, value in [
        ("ratio_mean", np.mean(ratios)),
        ("ratio_max", max(ratios)),
        ("ratio_min", min(ratios)),
        ("clip_fraction", 0.0),
    ]:
        np.testing.assert_allclose(metrics[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "by_sample"),
    [
        ("sequence", [1.0, 1.105171, 0.975310]),
        ("sequence_token", [1.0, 1.105171, 0.975310]),
        ("sequence_sum", [1.0, np.exp(0.2), np.exp(-0.1)]),
    ],
)
def test_ratios_of_whole_samples_have_the_worked_values(kind, by_sample):
    # Each sample weighs a third and has one ratio: ratio_mean is by token.
    spec = make("gspo", ratio=kind, clip_low=1.0, clip_high=9.0)
    _, _, metrics, _ = loss_and_grads(spec)
    mean = (3 * by_sample[0] + 2 * by_sample[1] + 4 * by_sample[2]) / 9
    np.testing.assert_allclose(metrics["ratio_mean"], mean, rtol=0, atol=1e-6)
    for name, value in [("max", max(by_sample)), ("min", min(by_sample))]:
        np.testing.assert_allclose(metrics[f"ratio_{name}"], value, rtol=0, atol=1e-6)


def test_gspo_token_is_gspo_where_a_sample_has_one_advantage():
    loss, grad, *_ = loss_and_grads(make("gspo", **WIDE))
    other, other_grad, *_ = loss_and_grads(make("gspo_token", **WIDE))
    np.testing.assert_allclose(other, loss, rtol=0, atol=1e-7)
    assert_close(other_grad, grad, atol=1e-7)


def test_a_dual_clip_caps_the_loss_of_a_likelier_bad_token():
    logp, old = [[float(np.log(5.0)) - 2.0], [-1.0]], [[-2.0], [-1.0]]
    inputs: dict[str, Any] = {"logp": logp, "old": old, "sampler": old, "ref": old}
    inputs |= {"adv": [[-0.5], [0.0]], "prompts": [0, 0]}
    spec = make(aggregate="seq_mean_token_sum")
    loss, grad, *_ = loss_and_grads(spec, **inputs)
    np.testing.assert_allclose([loss * 2, grad[0][0] * 2], [2.5, 2.5], atol=2e-6)
    spec = make(aggregate="seq_mean_token_sum", ratio_cap=3.0)
    loss, grad, *_ = loss_and_grads(spec, **inputs)
    np.testing.assert_allclose(loss * 2, 1.5, rtol=0, atol=1e-6)
    assert grad[0][0] == 0
    # A good token is bounded by clip_high long before: the cap changes nothing.
    good: dict[str, Any] = inputs | {"adv": [[0.5], [0.0]]}
    capped, plain = (loss_and_grads(s, **good)[0] for s in (spec, make()))
    np.testing.assert_allclose(capped, plain, rtol=0, atol=1e-7)


def test_a_number_on_a_bound_keeps_all_of_its_gradient():
    x_N = jnp.array([0.5, 1.0, 1.5, 2.0, 2.5])
    np.testing.assert_array_equal(held(x_N, 1.0, 2.0), [1.0, 1.0, 1.5, 2.0, 2.0])
    grad_N = jax.grad(lambda x: held(x, 1.0, 2.0).sum())(x_N)
    np.testing.assert_array_equal(grad_N, [0.0, 1.0, 1.0, 1.0, 0.0])
