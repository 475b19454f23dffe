"""Accuracy on held-out prompts, with an engine and a pool that are made up."""

from typing import Any

import pytest

import tiny_stage as tiny
from rl_jax.rewards.score import Verdict
from rl_jax.rollout.sample import EVAL_STREAM
from rl_jax.stages.context import Preempted, StopFlag
from rl_jax.stages.evaluation import evaluate, is_correct, measured

PROMPTS = [tiny.prompt((1, 5 + i)) for i in range(4)]
TEXT: Any = tiny.FakeText()


def right(completion):
    """Request 0 always; request 1 its first sample; the others never."""
    request, index = map(int, completion.split())
    return float(request == 0 or (request == 1 and index == 0))


def run(stage, stop=None):
    engine = tiny.FakeEngine()
    engine_, pool, params = tiny.anything(engine, tiny.FakePool(right), None)
    stop = stop or StopFlag()
    metrics = evaluate(engine_, pool, TEXT, params, PROMPTS, stage, stop)
    return metrics, engine.requests


def test_accuracy_is_the_share_of_right_answers_over_all_samples():
    stage = tiny.rl_stage(eval__num_samples=3, rollout__temperature=0.6)
    metrics, requests = run(stage)
    assert metrics["eval/num_prompts"] == 4
    assert metrics["eval/accuracy"] == pytest.approx((3 + 1) / 12)
    assert metrics["eval/accuracy_greedy"] == pytest.approx(2 / 4)
    assert metrics["eval/mean_length"] == 3.0
    assert metrics["time/eval"] >= 0
    asked = [(r.id, r.prompt, r.num_samples, r.temperature) for r in requests]
    ids = [prompt.ids for prompt in PROMPTS]
    assert asked == [
        *((i, ids[i], 3, 0.6) for i in range(4)),
        *((i, ids[i], 1, 0.0) for i in range(4)),
    ]
    assert {r.max_new_tokens for r in requests} == {stage.rollout.max_new_tokens}


def test_evaluation_draws_from_a_stream_of_its_own():
    _, requests = run(tiny.rl_stage())
    assert {r.stream for r in requests} == {EVAL_STREAM}


def test_what_is_not_asked_for_is_not_drawn():
    metrics, requests = run(tiny.rl_stage(eval__num_samples=0))
    assert {r.temperature for r in requests} == {0.0}
    assert "eval/accuracy" not in metrics and "eval/accuracy_greedy" in metrics
    metrics, requests = run(tiny.rl_stage(eval__greedy=False))
    assert {r.temperature for r in requests} == {1.0}
    assert "eval/accuracy_greedy" not in metrics and "eval/accuracy" in metrics


def test_the_verdict_and_not_the_value_says_what_is_right():
    assert is_correct(tiny.scored(0.1, verdict=Verdict.CORRECT))
    # A format bonus of 0.5 for a wrong answer, a score that could not be given.
    assert not is_correct(tiny.scored(0.5, verdict=Verdict.WRONG))
    assert not is_correct(tiny.scored(None, verdict=Verdict.INFRASTRUCTURE))


def test_a_signal_stops_it():
    class Signalled(StopFlag):
        def check(self):
            raise Preempted(15)

    with pytest.raises(Preempted) as stopped:
        run(tiny.rl_stage(), Signalled())
    assert stopped.value.code == 143


def test_drawn_replies_are_shown_or_else_the_likeliest():
    def shown(**changes):
        engine, pool = tiny.anything(tiny.FakeEngine(), tiny.FakePool(right))
        stage, params = tiny.rl_stage(**changes), tiny.anything(None)[0]
        _, found = measured(engine, pool, TEXT, params, PROMPTS, stage, StopFlag())
        return [(one.sample.request, one.sample.index) for one in found]

    both = shown(eval__num_samples=2)
    assert both == [(i, j) for i in range(4) for j in range(2)]
    assert shown(eval__num_samples=0) == [(i, 0) for i in range(4)]
