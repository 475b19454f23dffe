"""Whole runs of the stage: what it learns, what it resumes, when it is measured."""

import json

import jax
import numpy as np
import pytest
import tiny_distill as tiny

import tiny_stage
from rl_jax import checkpoint
from rl_jax.errors import ConfigError
from rl_jax.stages import distill

FORMS = {
    "soft": {"distill__form": "soft", "distill__temperature": 2.0},
    "drawn": {
        "distill__form": "opd",
        "batch__updates_per_step": 2,
        "rollout__prompts_per_step": 8,
        "steps": 20,
    },
}
STEPS = {"soft": 4, "drawn": 20}


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    with tiny_stage.compilation_cache(tmp_path_factory.mktemp("programs")):
        yield


def leaves(params):
    return [np.asarray(x) for x in jax.tree.leaves(params)]


@pytest.fixture(scope="module", params=FORMS)
def whole(request, tmp_path_factory):
    """(name of the form, workdir, its metrics, last weights) of an uninterrupted run"""
    folder = tmp_path_factory.mktemp(request.param)
    with tiny.built(folder, **FORMS[request.param]) as context:
        tiny.teach(context)
        params = tiny.run(context)
        yield request.param, folder, tiny.lines(folder), leaves(params)


def test_the_student_comes_nearer_to_its_teacher(whole):
    name, _, metrics, _ = whole
    assert len(metrics) == STEPS[name]
    kl = [
        line["train/forward_kl" if name == "soft" else "train/reverse_kl"]
        for line in metrics
    ]
    assert kl[0] > 0.2 and np.mean(kl[-2:]) < 0.7 * kl[0], kl
    if name == "soft":  # at temperature 2, whose square is in the loss
        assert metrics[0]["train/loss"] == pytest.approx(4 * kl[0], rel=1e-5)
    else:  # what the engine reported is what the learner computes
        assert metrics[0]["health/logp_gap_max"] < 1e-4
        assert metrics[0]["train/entropy"] > 1


def test_a_run_that_was_cut_in_two_is_the_same_to_the_bit(whole, tmp_path):
    name, _, metrics, params = whole
    for steps in (STEPS[name] // 2, STEPS[name]):
        with tiny.built(tmp_path, **FORMS[name] | {"steps": steps}) as context:
            if steps < STEPS[name]:
                tiny.teach(context)
            last = tiny.run(context)
    assert tiny.lines(tmp_path) == metrics
    for got, want in zip(leaves(last), params, strict=True):
        np.testing.assert_array_equal(got, want)


def test_the_last_step_is_saved(whole):
    name, folder, _, _ = whole
    assert checkpoint.latest_step(folder / "distill" / "checkpoints") == STEPS[name]


@pytest.mark.parametrize("name", FORMS)
def test_without_a_learning_rate_nothing_is_learnt_and_it_is_measured_when_due(
    name, tmp_path
):
    changes: dict = {
        "optim__lr": 0.0,
        "steps": 1,
        "eval__every": 1,
        "eval__num_prompts": 4,
        "eval__greedy": False,
        "eval__num_samples": 1,
        "data__eval": "arithmetic",
        "log__samples_every": 1,
    }
    with tiny.built(tmp_path, **FORMS[name] | changes) as context:
        tiny.teach(context)
        params = tiny.run(context)
        for got, want in zip(
            leaves(params), leaves(tiny.student(context)), strict=True
        ):
            np.testing.assert_array_equal(got, want)
    evaluated = [line for line in tiny.lines(tmp_path) if "eval/kl" in line]
    assert [line["step"] for line in evaluated] == [0, 1]
    first, second = ({**line, "step": 0} for line in evaluated)
    assert first == second and first["eval/kl"] > 0.2
    assert 0 <= first["eval/accuracy"] <= 1 and first["eval/num_prompts"] == 4
    samples = tmp_path / "distill" / "samples" / "step_000001.jsonl"
    assert samples.exists() == (name == "drawn")
    if name == "drawn":
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
        assert len(rows) == 8 and all(row["score"] is None for row in rows)
        assert "Start with" in rows[0]["prompt"] and rows[0]["answer"]


def test_more_likeliest_tokens_than_there_are_is_one_clear_error(tmp_path):
    changes = {"distill__form": "soft", "distill__top_k": 500}
    with tiny.built(tmp_path, **changes) as context:
        with pytest.raises(ConfigError, match="distill.top_k is 500, more than the 64"):
            distill.soft_spec(context, context.run.stages[1])


def test_a_stage_of_no_steps_saves_what_it_began_with(tmp_path):
    with tiny.built(tmp_path, distill__form="soft", steps=0) as context:
        tiny.teach(context)
        params = tiny.run(context)
        want = leaves(tiny.student(context))
    assert checkpoint.latest_step(tmp_path / "distill" / "checkpoints") == 0
    for got, one in zip(leaves(params), want, strict=True):
        np.testing.assert_array_equal(got, one)
