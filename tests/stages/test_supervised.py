"""The loop of pretraining and fine-tuning: weights, packing, resuming, evaluating."""

import contextlib
import dataclasses
import functools
import json
from typing import Any

import jax
import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax import checkpoint
from rl_jax.data.packing import fill, pack
from rl_jax.data.sources import Mixture, Part, Source
from rl_jax.learner import make_learner, merge_metrics, to_device
from rl_jax.models.params import abstract_params
from rl_jax.stages import context as contexts
from rl_jax.stages import inputs, pretrain, run_state, sft, supervised

RUNS = {"sft": sft.run, "pretrain": pretrain.run}
STEPS = 6
SHORT = {
    "sft__steps": STEPS,
    "sft__eval__every": 3,
    "sft__eval__num_prompts": 2,
    "sft__checkpoint__every": 2,
    "sft__optim__lr": 0.01,
    "sft__optim__schedule": "linear",
    "sft__data__held_out": "arithmetic",
    "sft__data__num_problems": 24,
    "sft__rollout__max_new_tokens": 4,
    "sft__log__samples_every": 1,
}


@contextlib.contextmanager
def built(folder, kind="sft", **changes):
    """The context of the tiny chain, whose first stage is of this kind."""
    with tiny.built(folder, **SHORT | changes) as context:
        stage = dataclasses.replace(context.run.stages[0], kind=kind)
        run = dataclasses.replace(context.run, stages=(stage,))
        yield dataclasses.replace(context, run=run)


def lines(folder):
    """What is written of a stage, but for what depends on the clock."""
    text = (folder / "sft" / "metrics.jsonl").read_text()
    return [
        {k: v for k, v in json.loads(x).items() if not k.startswith(("time/", "perf/"))}
        for x in text.splitlines()
    ]


def samples(folder):
    found = sorted((folder / "sft" / "samples").glob("*"))
    return {path.name: path.read_text() for path in found}


def train(context) -> Any:
    (stage,) = context.run.stages
    base = functools.partial(contexts.first_params, context)
    return RUNS[stage.kind](context, stage, base)


def answers(context, stage, params, prompts):
    """In place of a sampler: numbers and replies that depend on the weights alone."""
    total = float(params.embed_VD.sum())
    replies = [tiny.scored(total, request=i) for i in range(len(prompts))]
    return {"eval/accuracy": total}, replies


@functools.cache
def whole(kind, base):
    """(folder, last weights) of a stage that nothing interrupts."""
    with pytest.MonkeyPatch.context() as patch, built(base / kind, kind) as context:
        patch.setattr(supervised, "measured_once", answers)
        return context.workdir, jax.device_get(train(context))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return functools.partial(whole, base=tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    with tiny.compilation_cache(tmp_path_factory.mktemp("programs")):
        yield


# Resuming.


class StopAt(contexts.StopFlag):
    """Stops a run as a signal would, when it has begun its n-th step."""

    def __init__(self, count):
        self.left = count

    def check(self):
        self.left -= 1
        if self.left < 0:
            raise contexts.Preempted(15)

    def check_together(self, secs):
        self.check()


def stop_and_go_on(context):
    """Weights of a stage that is stopped between two checkpoints and started again."""
    folder = context.workdir / "sft" / "checkpoints"
    # Begins three steps, with the batches of an evaluation before the first.
    stopped = dataclasses.replace(context, stop=StopAt(4))
    with pytest.raises(contexts.Preempted):
        train(stopped)
    step = checkpoint.latest_step(folder)
    assert step is not None and 0 < step < STEPS
    return jax.device_get(train(context))


@pytest.mark.parametrize("kind", RUNS)
def test_a_stage_that_was_stopped_goes_on_to_the_bit(
    kind, uninterrupted, tmp_path, monkeypatch
):
    folder, params = uninterrupted(kind)
    monkeypatch.setattr(supervised, "measured_once", answers)
    with built(tmp_path, kind) as context:
        again = stop_and_go_on(context)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert lines(tmp_path) == lines(folder)
    assert samples(tmp_path) == samples(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUNS)
def test_replies_of_a_stage_that_goes_on_are_the_same(kind, tmp_path):
    with built(tmp_path / "one", kind) as context:
        params = jax.device_get(train(context))
    with built(tmp_path / "two", kind) as context:
        again = stop_and_go_on(context)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert lines(tmp_path / "one") == lines(tmp_path / "two")
    found = samples(tmp_path / "one")
    assert found and found == samples(tmp_path / "two")


@pytest.mark.parametrize("kind", RUNS)
def test_loss_and_accuracy_are_measured_when_due(kind, uninterrupted):
    folder, _ = uninterrupted(kind)
    found = {line["step"]: line for line in lines(folder) if "eval/loss" in line}
    # Before the first step there is nothing to see of the replies.
    assert list(found) == [0, 3, 6]
    assert ["eval/accuracy" in line for line in found.values()] == [False, True, True]
    assert found[6]["eval/loss"] < found[0]["eval/loss"] - 0.2


@pytest.mark.parametrize("kind", RUNS)
def test_replies_are_written_at_evaluations(kind, uninterrupted):
    folder, _ = uninterrupted(kind)
    written = samples(folder)
    assert [name[:11] for name in written] == ["step_000003", "step_000006"]
    rows = [json.loads(line) for line in written["step_000006.jsonl"].splitlines()]
    assert [row["request"] for row in rows] == [0, 1]
    assert rows[0]["score"] == lines(folder)[-1]["eval/accuracy"]


def test_only_what_is_named_is_measured(tmp_path):
    short: dict[str, Any] = {
        "sft__steps": 1,
        "sft__eval__every": 1,
        "sft__checkpoint__every": 0,
    }
    with built(tmp_path, sft__data__eval="", **short) as context:
        train(context)
    named = {key for line in lines(tmp_path) for key in line if "eval/" in key}
    assert named == {"eval/loss"}
    assert not samples(tmp_path)


# The loss.


def mixture(talks) -> Mixture[Any]:
    return Mixture((Part(Source("made"), talks),))


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """(context, learner, conversations, weights of a model)"""
    with built(tmp_path_factory.mktemp("setting")) as context:
        (stage,) = context.run.stages
        learner = make_learner(
            context.model, *run_state.optimiser_of(stage, context.model)
        )
        talks = list(inputs.conversations(stage, context.tokenizer, seed=0))
        yield context, learner, talks, contexts.first_params(context)


def gradient(setting, talks, *, row_tokens=96, rows=4, alone=False):
    """(loss, gradient) of a step with all of these conversations, as in the loop."""
    context, learner, _, params = setting
    talks = list(inputs.numbered(mixture(talks)))
    weight_N = np.array([talk.weight for talk in talks], np.float32)
    pieces = [talk.piece for talk in talks]
    groups = [[piece] for piece in pieces] if alone else [pieces]
    packs = [pack(group, row_tokens, rows) for group in groups]
    counted = sum(supervised._weight_of(packed, weight_N) for packed in packs)
    share_N = supervised._shares(weight_N, counted)
    grads, parts = learner.zero_gradient(params), []
    for packed in packs:
        for i in range(0, len(packed.token_BT), rows):
            batch = to_device(packed.rows(i, i + rows), context.mesh)
            grads, metrics = learner.supervised_gradient(
                params, grads, batch, share_N, counted
            )
            parts.append(metrics)
    return merge_metrics(parts)["cross_entropy"], jax.device_get(grads)


def assert_alike(one, two):
    assert one[0] == pytest.approx(two[0], rel=0, abs=1e-6)
    for a, b in zip(jax.tree.leaves(one[1]), jax.tree.leaves(two[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


def weighted(talks, weights):
    return [
        dataclasses.replace(talk, weight=weight)
        for talk, weight in zip(talks, weights, strict=True)
    ]


WEIGHTS = (0.5, 2.0, 1.0, 3.0, 0.25, 1.0, 7.0)


def test_packed_conversations_have_the_loss_and_gradient_of_each_in_a_row_of_its_own(
    setting,
):
    talks = weighted(setting[2][:7], WEIGHTS)
    assert_alike(gradient(setting, talks), gradient(setting, talks, alone=True))
    wider = gradient(setting, talks, row_tokens=160, rows=2)
    assert_alike(gradient(setting, talks), wider)


def test_the_loss_is_the_weighted_mean_over_tokens(setting):
    context, learner, talks, params = setting
    talks = weighted(talks[:7], WEIGHTS)
    above, below = 0.0, 0.0
    for talk in talks:
        packed = pack([talk.piece], 96, 1)
        logp_BT = np.asarray(learner.score(params, to_device(packed, context.mesh)))
        for t in range(packed.token_BT.shape[1]):
            if packed.mask_BT[0, t]:
                above += talk.weight * -float(logp_BT[0, t])
                below += talk.weight
    assert gradient(setting, talks)[0] == pytest.approx(above / below, rel=1e-6)


def test_a_weight_of_two_is_the_row_twice(setting):
    a, b, c = setting[2][:3]
    once = gradient(setting, weighted([a, b, c], (1.0, 2.0, 1.0)))
    assert_alike(once, gradient(setting, [a, b, b, c]))
    assert abs(once[0] - gradient(setting, [a, b, c])[0]) > 1e-3


def test_a_weight_of_nothing_is_no_row(setting):
    a, b, c = setting[2][:3]
    none = gradient(setting, weighted([a, b, c], (1.0, 0.0, 1.0)))
    assert_alike(none, gradient(setting, [a, c]))


def test_what_is_only_read_has_no_gradient(setting):
    talk, other = setting[2][:2]
    silent = dataclasses.replace(
        other.piece, mask=np.zeros(len(other.piece.tokens), bool)
    )
    piece = talk.piece
    longer = dataclasses.replace(
        piece,
        tokens=np.concatenate([piece.tokens, other.piece.tokens[:9]]),
        mask=np.concatenate([piece.mask, np.zeros(9, bool)]),
    )
    want = gradient(setting, [talk])
    assert np.abs(want[1].embed_VD).max() > 0.01
    assert_alike(
        want, gradient(setting, [talk, dataclasses.replace(other, piece=silent)])
    )
    assert_alike(want, gradient(setting, [dataclasses.replace(talk, piece=longer)]))


def test_a_step_of_the_loop_has_that_loss(setting, tmp_path):
    context, learner, talks, params = setting
    (stage,) = context.run.stages
    stage = dataclasses.replace(
        stage,
        steps=1,
        eval=dataclasses.replace(stage.eval, every=0),
        checkpoint=dataclasses.replace(stage.checkpoint, every=0),
    )
    talks = weighted(talks, np.resize(WEIGHTS, len(talks)).tolist())
    # In the order of the stream, each with its own weight.
    endless: Any = inputs.stream(mixture(talks), context.run.seed)
    some = [endless[i] for i in range(len(talks))]
    batch = stage.batch
    _, taken = fill(
        (talk.piece for talk in some), batch.rows_per_step, batch.row_tokens
    )
    assert 4 < taken < len(talks)
    want, _ = gradient(setting, some[:taken])
    here = dataclasses.replace(context, workdir=tmp_path)
    base = jax.tree.map(jax.numpy.copy, params)  # the loop gives its own away
    supervised.train(here, stage, lambda: base, mixture(talks))
    assert lines(tmp_path)[0]["train/loss"] == pytest.approx(want, abs=1e-5)


def test_saved_weights_are_the_last_ones(uninterrupted):
    folder, params = uninterrupted("sft")
    with built(folder) as context:
        abstract = abstract_params(context.model, context.mesh)
        saved = checkpoint.load_params(folder / "sft" / "checkpoints", abstract)
        np.testing.assert_array_equal(saved.embed_VD, params.embed_VD)
