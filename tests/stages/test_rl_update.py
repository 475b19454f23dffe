"""The optimiser steps of a plan, on a tiny model: whose log-probabilities are used."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax import learner as learners
from rl_jax.data import pipeline
from rl_jax.data.packing import pack
from rl_jax.learner import Outcome, init_state, make_learner, to_device
from rl_jax.models.params import abstract_params
from rl_jax.objectives.policy import PRESETS
from rl_jax.policy_config import policy_loss_spec
from rl_jax.rollout.engine import Engine
from rl_jax.rollout.programs import EngineSpec
from rl_jax.stages import rl, run_state
from rl_jax.stages.context import Context, StopFlag
from rl_jax.stages.scoring import sample_and_score

G, V, STOP = 4, tiny.V, tiny.STOP


@pytest.fixture(scope="module")
def context():
    text: Any = tiny.FakeText()
    mesh = tiny.one_device()
    run = tiny.run_config()
    with jax.set_mesh(mesh):
        yield Context(run, pathlib.Path(), mesh, tiny.MODEL, text, StopFlag())


def stage_of(**changes):
    changes = {
        "rollout__group_size": G,
        "rollout__prompts_per_step": 2,
        "rollout__temperature": 0.7,
        "optim__lr": 0.01,
        "optim__warmup_steps": 0,
        "batch__row_tokens": 80,
        **changes,
    }
    return tiny.rl_stage(**changes)


@functools.cache
def optimiser():
    return run_state.optimiser_of(stage_of(), tiny.MODEL)


@functools.cache
def programs_of(loss):
    made = make_learner(
        tiny.MODEL, *optimiser(), loss=loss, num_groups=4, temperature=0.7
    )
    if loss == PRESETS["grpo"]:
        return made
    # The loss is in one program only: the others need not be compiled again.
    shared = programs_of(PRESETS["grpo"])
    return shared._replace(policy_gradient=made.policy_gradient)


def learner_of(stage):
    return programs_of(policy_loss_spec(stage))


def params_of(context, seed=0):
    return tiny.random_params(context.mesh, seed)


def state_of(context):
    return init_state(params_of(context), optimiser()[0])


def drawn(stage, context, params, *, seed=0, values=((1, 0, 0, 1), (1, 1, 1, 0))):
    """Groups of random answers, with the log-probabilities that `params` give them."""
    rng = np.random.default_rng(seed)
    scored = [
        tiny.scored(
            float(value),
            request=g,
            index=i,
            prompt_ids=rng.integers(4, V, 3).tolist(),
            completion=[*rng.integers(4, V, rng.integers(2, 6)).tolist(), STOP],
        )
        for g, group in enumerate(values)
        for i, value in enumerate(group)
    ]
    loss = policy_loss_spec(stage)
    plan = rl.make_plan(scored, stage, loss, seed=0, step=0)
    updates = []
    for update in plan.updates:
        batch = to_device(update.packed, context.mesh)
        logp_BT = np.asarray(learner_of(stage).score(params, batch))
        logp_BT = np.where(update.packed.mask_BT, logp_BT, 0.0).astype(np.float32)
        packed = dataclasses.replace(update.packed, sampler_logp_BT=logp_BT)
        updates.append(dataclasses.replace(update, packed=packed))
    return dataclasses.replace(plan, updates=updates)


class Watched:
    """The programs of a learner; what each gradient and each scoring saw."""

    def __init__(self, learner):
        self.gradients, self.scored_with = [], []

        def policy_gradient(params, grads, batch, *rest):
            grads, metrics = learner.policy_gradient(params, grads, batch, *rest)
            self.gradients.append((batch, jax.device_get(metrics)))
            return grads, metrics

        def score(params, batch):
            self.scored_with.append(jax.device_get(params.embed_VD))
            return learner.score(params, batch)

        self.programs = learner._replace(policy_gradient=policy_gradient, score=score)


def update(stage, context, state, plan, reference=None):
    """(next state, metrics, what was seen)"""
    watched = Watched(learner_of(stage))
    loss = policy_loss_spec(stage)
    state, metrics = rl.update(
        watched.programs, state, reference, plan, stage, loss, context
    )
    return state, metrics, watched


# Old log-probabilities.


def test_old_logprobs_are_those_of_the_weights_that_the_step_began_with(context):
    # Peers fault H4: with several steps they must not stay those of the first weights.
    stage = stage_of(batch__updates_per_step=2)
    state = state_of(context)
    for seed in range(2):
        plan = drawn(stage, context, state.params, seed=seed)
        assert len(plan.updates) == 2
        begun = jax.device_get(state.params.embed_VD)
        state, metrics, seen = update(stage, context, state, plan)
        first, second = (found for _, found in seen.gradients)
        for name in ("ratio_min", "ratio_mean", "ratio_max"):
            assert first[name] == pytest.approx(1.0, abs=1e-5), (seed, name)
        # One Adam step of 0.01 moves a log-probability by about 0.1.
        assert abs(second["ratio_max"] - 1) > 0.01 < abs(second["ratio_min"] - 1)
        assert metrics["train/importance_ratio/max"] == pytest.approx(
            max(first["ratio_max"], second["ratio_max"])
        )
        for embed_VD in seen.scored_with:
            np.testing.assert_array_equal(embed_VD, begun)
    assert int(state.step) == 4


def test_a_batch_that_is_used_once_needs_no_second_forward_pass(context):
    stage = stage_of()
    state = state_of(context)
    plan = drawn(stage, context, state.params)
    _, metrics, seen = update(stage, context, state, plan)
    assert not seen.scored_with
    assert all(batch.old_logp_BT is None for batch, _ in seen.gradients)
    assert metrics["train/importance_ratio/mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["health/logp_gap_max"] < 1e-5


def test_the_update_moves_towards_what_was_rewarded(context):
    stage = stage_of()
    state = state_of(context)
    plan = drawn(stage, context, state.params)
    (one,) = plan.updates
    batch = to_device(one.packed, context.mesh)
    score = learner_of(stage).score
    adv_N = learners.advantages(one.outcome, loss=policy_loss_spec(stage), num_groups=4)

    def surplus(params):
        """How much likelier the good samples are than the bad ones, by advantage."""
        logp_BT = np.asarray(score(params, batch))
        adv_BT = np.asarray(adv_N)[one.packed.sample_BT]
        return float((logp_BT * adv_BT)[one.packed.mask_BT].sum())

    before = surplus(state.params)
    state, _, _ = update(stage, context, state, plan)
    assert surplus(state.params) > before + 0.1


LOSSES = [name for name in PRESETS if name not in ("grpo", "dr_grpo", "dapo", "cispo")]
QUICK = ("gspo", "reinforce_plus_plus")


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[] if x in QUICK else [pytest.mark.slow]) for x in LOSSES],
)
def test_every_named_loss_moves_towards_what_was_rewarded(context, name):
    stage = stage_of(objective__name=name)
    state = state_of(context)
    plan = drawn(stage, context, state.params)
    reference = params_of(context) if policy_loss_spec(stage).kl_coef else None
    one = plan.updates[0]
    batch = to_device(one.packed, context.mesh)
    good_BT = (one.outcome.reward_N > 0)[one.packed.sample_BT]

    def surplus(params):
        """How much likelier the good samples' tokens are than the bad ones'."""
        logp_BT = np.asarray(learner_of(stage).score(params, batch))
        mask_BT = one.packed.mask_BT
        return logp_BT[mask_BT & good_BT].mean() - logp_BT[mask_BT & ~good_BT].mean()

    before = surplus(state.params)
    state, metrics, _ = update(stage, context, state, plan, reference)
    assert surplus(state.params) > before + 0.05
    assert all(np.isfinite(x) for x in metrics.values())


def test_groups_that_agree_leave_the_weights_as_they_are(context):
    stage = stage_of()
    state = state_of(context)
    agreeing = ((1, 1, 1, 1), (0, 0, 0, 0))
    plan = drawn(stage, context, state.params, values=agreeing)
    before = jax.device_get(state.params)
    state, metrics, _ = update(stage, context, state, plan)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params), before)
    assert metrics["train/grad_norm"] == 0.0 and metrics["train/loss"] == 0.0


def test_the_stop_token_is_trained(context):
    # Peers fault H5. The only token of each answer is the one that ends it.
    stage = stage_of()
    state = state_of(context)
    values = enumerate([1.0, 0.0, 0.0, 0.0] * 2)
    scored = [
        tiny.scored(
            v, request=n // G, index=n % G, prompt_ids=(4 + n, 5), completion=[STOP]
        )
        for n, v in values
    ]
    loss = policy_loss_spec(stage)
    plan = rl.make_plan(scored, stage, loss, seed=0, step=0)
    batch = to_device(plan.updates[0].packed, context.mesh)
    assert (
        np.asarray(batch.target_BT)[plan.updates[0].packed.mask_BT].tolist()
        == [STOP] * 8
    )
    score = learner_of(stage).score
    right_BT = plan.updates[0].packed.mask_BT & np.isin(batch.sample_BT, [0, 4])
    before = np.asarray(score(state.params, batch))[right_BT].mean()
    state, metrics, _ = update(stage, context, state, plan)
    assert metrics["train/grad_norm"] > 0.01
    assert np.asarray(score(state.params, batch))[right_BT].mean() > before + 0.01


# The reference.


def test_dapo_runs_without_a_reference(context):
    # Peers fault H8.
    stage = stage_of(objective__name="dapo")
    state = state_of(context)
    plan = drawn(stage, context, state.params)
    state, metrics, seen = update(stage, context, state, plan)
    assert not seen.scored_with and "train/kl" not in metrics
    assert metrics["train/grad_norm"] > 0


def test_the_kl_is_zero_at_the_first_step_and_grows_as_the_policy_moves(context):
    stage = stage_of(objective__kl_coef=0.5)
    state = state_of(context)
    reference = params_of(context)
    found = []
    for seed in range(3):
        plan = drawn(stage, context, state.params, seed=seed)
        state, metrics, seen = update(stage, context, state, plan, reference)
        found.append(metrics["train/kl"])
        assert len(seen.scored_with) == len(seen.gradients)
        np.testing.assert_array_equal(seen.scored_with[0], reference.embed_VD)
    assert found[0] == pytest.approx(0.0, abs=1e-9)
    assert 1e-4 < found[1] < found[2]


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_another_reference_gives_another_gradient(context, kind):
    # Peers fault H1: differentiated as it stands, k1 does not contain the reference.
    stage = stage_of(objective__kl_coef=0.5, objective__kl=kind)
    norms, moved = [], []
    for seed in (1, 2):
        state = state_of(context)
        plan = drawn(stage, context, state.params)
        reference = params_of(context, seed)
        state, metrics, _ = update(stage, context, state, plan, reference)
        norms.append(metrics["train/grad_norm"])
        moved.append(np.asarray(state.params.embed_VD))
    assert abs(norms[0] - norms[1]) > 1e-3
    assert np.abs(moved[0] - moved[1]).max() > 1e-3


def test_a_new_reference_is_the_policy_of_now_and_outlives_it(context):
    stage = stage_of(objective__kl_coef=0.5)
    state, reference = state_of(context), params_of(context, 1)
    plan = drawn(stage, context, state.params)
    state, _, _ = update(stage, context, state, plan, reference)
    now = jax.device_get(state.params)
    layout = jax.tree.map(lambda x: x.sharding, state.params)
    reference = learners.replaced(reference, state.params)
    assert jax.tree.map(lambda x: x.sharding, reference) == layout
    # The next update takes the policy's arrays.
    plan = drawn(stage, context, state.params)
    state, metrics, _ = update(stage, context, state, plan, reference)
    assert metrics["train/kl"] == pytest.approx(0.0, abs=1e-9)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(reference), now)


# Sampling, with the real engine.


@pytest.fixture(scope="module")
def engine(context):
    spec = EngineSpec(
        num_slots=8,
        max_prompt_tokens=3,
        max_new_tokens=16,
        prefill_rows=2,
        decode_steps=4,
        stop_ids=(STOP,),
    )
    return Engine(tiny.MODEL, spec, context.mesh, seed=0)


def collect(engine, context, next_row, *, temperature=1.0):
    """One step's samples of a data set that has a single prompt."""
    (pool,) = tiny.anything(tiny.FakePool(lambda completion: 1.0))
    scorer = functools.partial(
        sample_and_score,
        engine,
        pool,
        context.tokenizer,
        params_of(context),
        version=0,
        check_stop=lambda: None,
    )
    stage = dataclasses.replace(
        stage_of(),
        rollout=dataclasses.replace(stage_of().rollout, temperature=temperature),
    )
    loss = policy_loss_spec(stage)
    prompts = pipeline.stream([tiny.prompt((4, 5))], seed=0)
    with pipeline.Reader(prompts, next_row) as reader:
        return rl.collect(scorer, reader, stage, loss)


def tokens(rollout):
    return [s.sample.completion.tolist() for s in rollout.scored]


def test_each_step_draws_other_samples_and_a_repeated_step_the_same(context, engine):
    # Peers fault H6: same prompt and same weights, so only the draws can differ.
    first = collect(engine, context, 0)
    second = collect(engine, context, first.next_row)
    assert first.next_row == 2 and second.next_row == 4
    every = [tuple(t) for t in tokens(first) + tokens(second) if len(t) > 3]
    assert len(every) > 8 and len(set(every)) == len(every)
    assert tokens(collect(engine, context, 0)) == tokens(first)


def test_at_temperature_zero_all_logprobs_are_finite_and_the_trainers(context, engine):
    # Peers fault H7.
    rollout = collect(engine, context, 0, temperature=0.0)
    assert len({tuple(t) for t in tokens(rollout)}) == 1
    for one in rollout.scored:
        logp = one.sample.sampler_logp[one.sample.policy_mask]
        assert np.isfinite(logp).all() and (logp < 0).all()


# Memory.


def test_the_update_never_holds_the_logits(context):
    # Peers fault H10: here the logits of all tokens would be 96 MiB.
    rows, row_tokens, vocab = 2, 256, 49_152
    model = dataclasses.replace(tiny.MODEL, vocab_size=vocab)
    programs = make_learner(model, *optimiser(), loss=PRESETS["grpo"], num_groups=2)
    params = abstract_params(model, context.mesh)
    grads = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding),
        params,
    )
    packed = pack([], row_tokens, rows)
    batch = jax.tree.map(jax.typeof, to_device(packed, context.mesh))
    program: Any = programs.policy_gradient
    one_N = np.ones(8, np.float32)
    outcome = Outcome(one_N, one_N.astype(np.int32), one_N > 0, one_N)
    lowered = program.lower(params, grads, batch, outcome, 1)
    memory = lowered.compile().memory_analysis()
    logits = rows * row_tokens * vocab * 4
    assert logits == 96 * 2**20
    assert memory.temp_size_in_bytes < logits / 5
