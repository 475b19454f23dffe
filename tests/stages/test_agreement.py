"""The start-up check, with every fault that it should name."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax.learner import batch_logprobs, to_device
from rl_jax.objectives.policy import PRESETS
from rl_jax.stages import rl
from rl_jax.stages.agreement import DisagreementError, check_agreement, gap
from rl_jax.stages.context import Context, StopFlag

TEMPERATURE = 0.7
STAGE = tiny.rl_stage(
    rollout__group_size=4,
    rollout__prompts_per_step=2,
    rollout__temperature=TEMPERATURE,
)


@pytest.fixture(scope="module")
def context():
    text: Any = tiny.FakeText()
    mesh = tiny.one_device()
    run = tiny.run_config()
    with jax.set_mesh(mesh):
        yield Context(run, pathlib.Path(), mesh, tiny.MODEL, text, StopFlag())


@pytest.fixture(scope="module")
def params(context):
    return tiny.random_params(context.mesh, 0)


@functools.cache
def program(temperature):
    """What a learner of this temperature computes."""
    logprobs = functools.partial(
        batch_logprobs, model=tiny.MODEL, temperature=temperature
    )
    return jax.jit(lambda params, batch: logprobs(params, batch)[0])


def plan_of(context, params, *, temperature=TEMPERATURE):
    """Samples with the log-probabilities of a sampler with these weights."""
    rng = np.random.default_rng(0)
    scored = [
        tiny.scored(
            float(i == 0),
            request=g,
            index=i,
            completion=rng.integers(4, tiny.V, 5 + i).tolist(),
        )
        for g in range(2)
        for i in range(4)
    ]
    plan = rl.make_plan(scored, STAGE, PRESETS["grpo"], seed=0, step=0)
    packed = plan.updates[0].packed
    # In the shape that the check uses, so that one program serves for both.
    rows = STAGE.batch.micro_rows
    batch = to_device(packed.rows(0, rows), context.mesh)
    return with_logps(plan, program(temperature)(params, batch))


def with_logps(plan, logp_BT):
    """The plan with other log-probabilities at its first rows."""
    (one,) = plan.updates
    logp_BT = np.where(one.packed.mask_BT[: len(logp_BT)], logp_BT, 0.0)
    all_BT = one.packed.sampler_logp_BT.copy()
    all_BT[: len(logp_BT)] = logp_BT
    packed = dataclasses.replace(one.packed, sampler_logp_BT=all_BT)
    return dataclasses.replace(plan, updates=[dataclasses.replace(one, packed=packed)])


def check(context, params, plan, *, temperature=TEMPERATURE):
    return check_agreement(context, STAGE, program(temperature), params, plan)


def cause(context, params, plan, **kwargs):
    with pytest.raises(DisagreementError) as error:
        check(context, params, plan, **kwargs)
    message = str(error.value)
    assert len(message.splitlines()) <= 3
    return message.partition("Likely cause: ")[2]


def test_a_sampler_that_agrees_passes(context, params):
    assert check(context, params, plan_of(context, params)) < 1e-5


def test_rounding_passes(context, params):
    plan = plan_of(context, params)
    logp_BT = plan.updates[0].packed.sampler_logp_BT
    noise_BT = np.random.default_rng(0).normal(size=logp_BT.shape) * 1e-4
    found = check(context, params, with_logps(plan, logp_BT + noise_BT))
    assert 1e-5 < found < 1e-3


@pytest.mark.parametrize("drawn_at", [1.0, TEMPERATURE**2])
def test_a_sampler_of_another_temperature_is_named(context, params, drawn_at):
    plan = plan_of(context, params, temperature=drawn_at)
    assert cause(context, params, plan).startswith("temperature")


def test_a_learner_of_another_temperature_is_named(context, params):
    plan = plan_of(context, params)
    assert cause(context, params, plan, temperature=1.0).startswith("temperature")


@pytest.mark.parametrize(("shift", "word"), [(1, "late"), (-1, "early")])
def test_logprobs_that_are_one_token_off_are_named(context, params, shift, word):
    plan = plan_of(context, params)
    one = plan.updates[0].packed
    batch = to_device(one.rows(0, STAGE.batch.micro_rows), context.mesh)
    logp_BT = np.asarray(program(TEMPERATURE)(params, batch))
    told = cause(context, params, with_logps(plan, np.roll(logp_BT, shift, axis=1)))
    assert told.startswith("mask") and word in told


def test_a_sampler_with_other_weights_is_named(context, params):
    other = tiny.random_params(context.mesh, 1)
    assert cause(context, params, plan_of(context, other)).startswith("weights")


def test_weights_that_are_not_numbers_do_not_pass(context, params):
    broken = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), params)
    with pytest.raises(DisagreementError, match="nan"):
        check(context, broken, plan_of(context, params))


def test_the_gap_is_the_mean_over_the_mask_alone():
    a_BT = np.array([[0.0, -1.0, -5.0], [-2.0, 0.0, 0.0]])
    b_BT = np.array([[9.0, -1.5, -4.0], [-2.0, 9.0, np.nan]])
    mask_BT = np.array([[0, 1, 1], [1, 0, 0]], bool)
    assert gap(a_BT, b_BT, mask_BT) == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert gap(a_BT, b_BT, np.zeros_like(mask_BT)) == 0.0
