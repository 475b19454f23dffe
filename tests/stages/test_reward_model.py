"""A reward model as a stage: what it learns, where it stands, what it leaves behind."""

import functools
import json
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest
from tiny_rewards import (
    STEPS,
    built,
    toy_labels,
    toy_lists,
    toy_pairs,
    train,
)

from rl_jax import checkpoint, reward_marker
from rl_jax.models import merging, reward_head
from rl_jax.reward_learner import make_reward_learner
from rl_jax.stages import judge, rankings, reward_model, run_state
from rl_jax.stages.context import Preempted


def lines(context) -> list[dict[str, Any]]:
    text = (context.workdir / "rm" / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def evaluations(context, name: str) -> list[float]:
    return [line[name] for line in lines(context) if name in line]


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """Stages of one shape share their programs, which take longer than what they do."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("make_learner", "make_reward_learner"):
            made = functools.cache(getattr(reward_model, name))
            patch.setattr(reward_model, name, made)
        optimiser = functools.cache(
            lambda optim, batch, steps, model: run_state_optimiser(
                SimpleNamespace(optim=optim, batch=batch, steps=steps),
                model,
                reward_head.decayed(model),
            )
        )
        patch.setattr(
            run_state,
            "optimiser_of",
            lambda stage, model, decayed: optimiser(
                stage.optim, stage.batch, stage.steps, model
            ),
        )
        yield


run_state_optimiser: Any = run_state.optimiser_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory, compiled_once):
    """(context, last weights) of a model of pairs."""
    folder = tmp_path_factory.mktemp("rm")
    with built(folder, toy_pairs(1024, 0), toy_pairs(64, 1)) as context:
        yield context, train(context)


def test_it_learns_which_of_two_replies_is_better(trained):
    context, _ = trained
    accuracy = evaluations(context, "eval/accuracy_pairs")
    loss = evaluations(context, "eval/loss")
    assert len(accuracy) == 3
    assert accuracy[0] == 0.5 and loss[0] == pytest.approx(np.log(2), abs=1e-6)
    assert accuracy[-1] > 0.9, accuracy
    assert loss[-1] < 0.3, loss
    assert evaluations(context, "eval/score_margin")[-1] > 1


def test_with_a_learning_rate_of_0_it_learns_nothing(tmp_path):
    changes = {"steps": 2, "optim__lr": 0.0, "eval__every": 1}
    with built(tmp_path, toy_pairs(32, 0), toy_pairs(16, 1), **changes) as context:
        train(context)
        assert evaluations(context, "eval/accuracy_pairs") == [0.5] * 3
        marker = reward_marker.read(context.workdir / "rm", "rm")
    assert (marker.mean, marker.std) == (0.0, 0.0)


def test_it_learns_from_lists(tmp_path):
    changes = {"steps": 40, "eval__every": 40, "ranking__margin": "column"}
    changes |= {"data__margin_column": "scores"}
    with built(tmp_path, toy_lists(128, 0), toy_lists(32, 1), **changes) as context:
        train(context)
        found = evaluations(context, "eval/accuracy_pairs")
    assert found[-1] > 0.8, found


@pytest.mark.slow
def test_it_learns_from_labels(tmp_path):
    changes = {"steps": 40, "eval__every": 40, "ranking__form": "pointwise"}
    with built(tmp_path, toy_labels(128, 0), toy_labels(32, 1), **changes) as context:
        train(context)
        found = evaluations(context, "eval/accuracy_labels")
        assert "eval/score_margin" not in lines(context)[-1]
    assert found[-1] > 0.85, found


def test_the_first_loss_is_the_mean_over_the_prompts_of_the_step(trained):
    # The head begins at zero: each pair costs log 2, whatever is in the micro-batches.
    context, _ = trained
    first = lines(context)[1]
    assert first["train/loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert first["train/accuracy_pairs"] == 0.5
    assert first["train/epoch"] == 32 / 1024


def test_steps_take_the_prompts_in_the_order_of_the_stream(trained):
    context, _ = trained
    stage = context.run.stages[0]
    judged = rankings.candidates(stage, context.tokenizer, "train")
    stream: Any = reward_model.inputs.stream(judged, context.run.seed)
    tokens = 0
    for step in range(3):
        items = [stream[i] for i in range(32 * step, 32 * (step + 1))]
        tokens += sum(len(ids) for item in items for ids in item.ids)
        line = next(x for x in lines(context) if x.get("step") == step + 1)
        assert line["train/num_tokens"] == tokens


# Where it stands.


def test_the_last_step_is_saved_under_the_names_of_the_weights(trained):
    context, params = trained
    folder = context.workdir / "rm" / "checkpoints"
    assert checkpoint.latest_step(folder) == STEPS
    abstract = reward_head.abstract_params(context.model, context.mesh)
    saved = checkpoint.load_params(folder, abstract)
    jax.tree.map(np.testing.assert_array_equal, saved, params)
    manifest = json.loads((folder / str(STEPS) / "manifest.json").read_text())
    names = manifest["body"]["leaves"]
    assert {"params/score_D", "params/bias", "params/trunk/embed_VD"} <= names.keys()


def test_the_marker_has_mean_and_spread_of_the_scores_trained_on(trained):
    context, params = trained
    stage = context.run.stages[0]
    marker = reward_marker.read(context.workdir / "rm", "rm")
    judged = list(rankings.candidates(stage, context.tokenizer, "train"))
    raw = judge.raw_scores(
        make_reward_learner(context.model),
        params,
        [ids for item in judged for ids in item.ids],
        context.mesh,
    )
    assert marker.num_replies == len(raw) == 2048
    assert marker.mean == pytest.approx(np.mean(raw), abs=1e-4)
    assert marker.std == pytest.approx(np.std(raw), abs=1e-4)
    assert marker.std > 0.5


def comparable(context):
    """Metrics without what depends on the clock or the process."""
    return [
        {k: v for k, v in line.items() if not k.startswith(("time/", "perf/"))}
        for line in lines(context)
    ]


def test_a_run_that_was_stopped_gives_the_same_numbers_to_the_bit(tmp_path):
    rows = (toy_lists(40, 0), toy_lists(8, 1))
    changes = {"steps": 5, "eval__every": 2, "checkpoint__every": 2}
    with built(tmp_path, *rows, workdir="whole", **changes) as context:
        whole, wanted = train(context), comparable(context)
        whole_marker = reward_marker.read(context.workdir / "rm", "rm")
    with built(tmp_path, *rows, workdir="parts", **changes) as context:
        begin = run_state.Session.begin

        def stopped_at_3(session, step, *rest):
            context.stop._signum = 15 if step == 3 else 0
            begin(session, step, *rest)

        with mock.patch.object(run_state.Session, "begin", stopped_at_3):
            with pytest.raises(Preempted):
                train(context)
        context.stop._signum = 0
        assert checkpoint.latest_step(context.workdir / "rm" / "checkpoints") == 3
        parts, found = train(context), comparable(context)
        parts_marker = reward_marker.read(context.workdir / "rm", "rm")
    jax.tree.map(np.testing.assert_array_equal, parts, whole)
    assert found == wanted
    assert parts_marker == whole_marker


def test_a_finished_stage_is_not_trained_again_but_is_marked(trained):
    context, params = trained
    marker = context.workdir / "rm" / reward_marker.NAME
    before, written = lines(context), marker.read_text()
    marker.unlink()  # killed before it was written

    def base():
        raise AssertionError("the first weights were read again")

    again = reward_model.run(context, context.run.stages[0], base)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert lines(context) == before
    assert marker.read_text() == written


def test_nothing_is_compiled_after_the_first_steps(trained):
    context, _ = trained
    compiles = {x["step"]: x["perf/compiles"] for x in lines(context)}
    assert compiles[3] == compiles[STEPS - 1]


def test_reward_models_can_be_merged_from_their_checkpoints(trained):
    context, params = trained
    abstract = reward_head.abstract_params(context.model, context.mesh)
    saved = checkpoint.load_params(context.workdir / "rm" / "checkpoints", abstract)
    merged = merging.merge([saved, saved], (0.5, 0.5))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), merged, params
    )
