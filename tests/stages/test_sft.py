"""Fine-tuning on conversations: what the loss is, and where the stage stands."""

import itertools
import json
from typing import Any

import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax import checkpoint
from rl_jax.data.packing import fill
from rl_jax.data.pipeline import stream
from rl_jax.learner import make_learner, to_device
from rl_jax.models.params import abstract_params
from rl_jax.stages import context as contexts
from rl_jax.stages import inputs, run_state, sft, supervised

STEPS = 4
SHORT = {
    "sft__steps": STEPS,
    "sft__eval__every": 2,
    "sft__checkpoint__every": 0,
    "sft__optim__lr": 0.01,
    "sft__optim__warmup_steps": 0,
}


def lines(folder):
    text = (folder / "sft" / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(context, metrics, steps that were evaluated, last weights)"""
    folder, evaluated = tmp_path_factory.mktemp("sft"), []

    def answers(context, stage, params, prompts):
        evaluated.append(len(prompts))
        return {"eval/accuracy": 0.5}, []

    with pytest.MonkeyPatch.context() as patch, tiny.built(folder, **SHORT) as context:
        patch.setattr(supervised, "measured_once", answers)
        stage = context.run.stages[0]
        params = sft.run(context, stage, lambda: contexts.first_params(context))
        yield context, lines(folder), evaluated, params


def batches(context, stage):
    """The rows of each step, and the number of conversations in them."""
    talks = inputs.conversations(stage, context.tokenizer, context.run.seed)
    endless: Any = stream(list(talks), seed=context.run.seed)
    position = 0
    while True:
        rows = (endless[i].piece for i in itertools.count(position))
        batch = stage.batch
        packed, taken = fill(rows, batch.rows_per_step, batch.row_tokens)
        position += taken
        yield packed, position


def test_the_loss_is_the_mean_over_all_assistant_tokens_of_the_step(trained):
    context, metrics, _, _ = trained
    stage = context.run.stages[0]
    packed, _ = next(batches(context, stage))
    tx, schedule = run_state.optimiser_of(stage, context.model)
    score = make_learner(context.model, tx, schedule).score
    params = contexts.first_params(context)
    logp_BT = np.asarray(score(params, to_device(packed, context.mesh)), np.float64)
    total, count = 0.0, 0
    for b, t in zip(*np.nonzero(packed.mask_BT), strict=True):
        total, count = total - logp_BT[b, t], count + 1
    # Two micro-batches of different token counts: a mean of means would be another.
    halves = [packed.mask_BT[:2].sum(), packed.mask_BT[2:].sum()]
    assert halves[0] != halves[1]
    assert metrics[0]["train/loss"] == pytest.approx(total / count, abs=1e-5)


def test_the_loss_falls(trained):
    losses = [m["train/loss"] for m in trained[1] if "train/loss" in m]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] - 0.5, losses


def test_steps_take_the_conversations_in_the_order_of_the_stream(trained):
    context, metrics, _, _ = trained
    stage, tokens = context.run.stages[0], 0
    steps = [m for m in metrics if "train/loss" in m]
    for line, (packed, position) in zip(steps, batches(context, stage), strict=False):
        tokens += int((packed.segment_BT > 0).sum())
        assert line["train/num_tokens"] == tokens
        assert line["train/epoch"] == pytest.approx(position / 64)


def test_it_is_evaluated_when_due_but_not_before_it_has_learnt_anything(trained):
    _, metrics, evaluated, _ = trained
    assert evaluated == [4, 4]
    assert [m["step"] for m in metrics if "eval/accuracy" in m] == [2, 4]


def test_the_last_step_is_saved(trained):
    context, _, _, params = trained
    folder = context.workdir / "sft" / "checkpoints"
    assert checkpoint.latest_step(folder) == STEPS
    abstract = abstract_params(context.model, context.mesh)
    saved = checkpoint.load_params(folder, abstract)
    np.testing.assert_array_equal(saved.embed_VD, params.embed_VD)


def test_a_finished_stage_is_not_trained_again(trained):
    context, metrics, _, params = trained

    def base():
        raise AssertionError("the first weights were read again")

    again = sft.run(context, context.run.stages[0], base)
    np.testing.assert_array_equal(again.embed_VD, params.embed_VD)
    assert lines(context.workdir) == metrics


def test_a_stage_of_no_steps_evaluates_and_saves(tmp_path, monkeypatch):
    found = {"eval/accuracy": 0.25}, []
    monkeypatch.setattr(supervised, "measured_once", lambda *_: found)
    with tiny.built(tmp_path, **SHORT | {"sft__steps": 0}) as context:
        params = contexts.first_params(context)
        sft.run(context, context.run.stages[0], lambda: params)
    assert [m["eval/accuracy"] for m in lines(tmp_path)] == [0.25]
    assert checkpoint.latest_step(tmp_path / "sft" / "checkpoints") == 0


def test_a_gate_on_how_far_it_comes_has_it_measured_before_the_first_step(
    tmp_path, monkeypatch
):
    found = {"eval/accuracy": 0.25}, []
    monkeypatch.setattr(supervised, "measured_once", lambda *_: found)
    gate = {"sft__gate__metric": "eval/accuracy", "sft__gate__rise": 0.1}
    with tiny.built(tmp_path, **SHORT | {"sft__steps": 1}, **gate) as context:
        params = contexts.first_params(context)
        sft.run(context, context.run.stages[0], lambda: params)
    measured = [m["step"] for m in lines(tmp_path) if "eval/accuracy" in m]
    assert measured == [0, 1]


def learnt_from(monkeypatch, tmp_path, **changes):
    """What the loop is given."""
    given = []
    monkeypatch.setattr(supervised, "train", lambda *args: given.append(args[-1]))
    with tiny.built(tmp_path, **SHORT | changes) as context:
        stage = context.run.stages[0]
        sft.run(context, stage, lambda: contexts.first_params(context))
        return context.tokenizer, list(given[0])


def test_the_assistants_turns_are_learnt_or_everything(monkeypatch, tmp_path):
    text, talks = learnt_from(monkeypatch, tmp_path / "a")
    for talk in talks:
        said = text.decode(talk.piece.tokens[talk.piece.mask].tolist(), specials=True)
        assert said == talk.row.messages[1]["content"] + "<|end|>"
    whole = {"sft__supervised__learn": "everything"}
    text, everything = learnt_from(monkeypatch, tmp_path / "b", **whole)
    for talk, one in zip(everything, talks, strict=True):
        assert talk.piece.mask.all()
        np.testing.assert_array_equal(talk.piece.tokens, one.piece.tokens)
