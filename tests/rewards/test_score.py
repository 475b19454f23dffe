import json
import math

import pytest

from rl_jax.rewards.score import Score, Verdict, combine, from_json, from_value


def test_a_score_survives_json():
    score = Score(0.5, Verdict.WRONG, "7", 0.25, "why", {"a": 0.5, "b": None})
    assert from_json(json.loads(json.dumps(score.to_json()))) == score


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (1, "correct"),
        (0.1, "correct"),
        (0, "wrong"),
        (-2.0, "wrong"),
        (True, "correct"),
    ],
)
def test_a_bare_number_is_correct_if_it_is_positive(value, verdict):
    assert from_value(value) == Score(float(value), Verdict(verdict))


def test_none_is_not_zero():
    assert from_value(None).value is None


@pytest.mark.parametrize("value", [math.nan, math.inf, "high", [1.0, 2.0]])
def test_a_reward_that_is_no_finite_number_is_refused(value):
    with pytest.raises((ValueError, TypeError)):
        from_value(value)


@pytest.mark.parametrize("fields", [{}, {"score": 1.0}, {"value": 1.0, "colour": 2}])
def test_a_dict_with_the_wrong_keys_is_refused(fields):
    with pytest.raises(ValueError, match="value"):
        from_json(fields)


def test_the_total_is_the_weighted_sum_and_parts_are_unweighted():
    scores = {
        "maths": Score(1.0, Verdict.CORRECT, "4", seconds=1.0),
        "format": Score(0.5, Verdict.WRONG, seconds=2.0),
    }
    total = combine(scores, {"maths": 2.0, "format": -0.5})
    assert total.value == 2.0 * 1.0 - 0.5 * 0.5
    assert total.parts == {"maths": 1.0, "format": 0.5}
    assert (total.verdict, total.answer) == (Verdict.CORRECT, "4")
    assert total.seconds == 3.0


def test_weight_zero_is_a_metric_only():
    scores = {"a": Score(0.0, Verdict.WRONG), "b": Score(1.0, Verdict.CORRECT)}
    total = combine(scores, {"a": 1.0, "b": 0.0})
    assert total.value == 0.0 and total.parts["b"] == 1.0


def test_a_function_that_does_not_apply_is_left_out():
    scores = {"code": from_value(None), "maths": Score(1.0, Verdict.CORRECT, "4")}
    total = combine(scores, {"code": 1.0, "maths": 1.0})
    assert total.value == 1.0
    assert (total.verdict, total.answer) == (Verdict.CORRECT, "4")
    assert total.parts == {"code": None, "maths": 1.0}


def test_if_no_weighted_function_applies_the_value_is_none():
    scores = {"a": from_value(None), "metric": Score(1.0, Verdict.CORRECT)}
    assert combine(scores, {"a": 1.0, "metric": 0.0}).value is None


def test_a_failed_function_makes_the_whole_none_unless_it_is_a_metric():
    scores = {
        "maths": Score(1.0, Verdict.CORRECT),
        "mine": Score(None, Verdict.INFRASTRUCTURE, detail="ValueError: no"),
    }
    fatal = combine(scores, {"maths": 1.0, "mine": 0.1})
    assert (fatal.value, fatal.verdict) == (None, Verdict.INFRASTRUCTURE)
    assert "mine: ValueError: no" in fatal.detail
    metric = combine(scores, {"maths": 1.0, "mine": 0.0})
    assert (metric.value, metric.verdict) == (1.0, Verdict.CORRECT)
    assert "mine: ValueError: no" in metric.detail


def test_named_components_are_parts_of_their_function():
    scores = {"mine": Score(1.0, Verdict.CORRECT, parts={"style": 0.5, "rhyme": None})}
    parts = combine(scores, {"mine": 2.0}).parts
    assert parts == {"mine": 1.0, "mine/style": 0.5, "mine/rhyme": None}


def test_shaping_has_no_verdict_and_is_no_substitute_for_an_answer():
    form, none = Score(1.0, Verdict.CORRECT), Score(None, Verdict.UNPARSABLE_GOLD)
    wrong = Score(0.0, Verdict.WRONG, "7")
    weights = {"format": 0.5, "maths": 1.0}
    total = combine({"format": form, "maths": wrong}, weights, shaping=("format",))
    assert (total.value, total.verdict, total.answer) == (0.5, Verdict.WRONG, "7")
    total = combine({"format": form, "maths": none}, weights, shaping=("format",))
    assert (total.value, total.verdict) == (None, Verdict.UNPARSABLE_GOLD)
    alone = combine({"format": form}, weights, shaping=("format",))
    assert (alone.value, alone.verdict) == (0.5, Verdict.CORRECT)


def test_a_metric_decides_no_verdict():
    none = Score(None, Verdict.UNPARSABLE_GOLD)
    scores = {"maths": none, "length": Score(9.0, Verdict.CORRECT)}
    assert combine(scores, {"maths": 1.0, "length": 0.0}).verdict == none.verdict


# Functions that are idle: measured as ever, and 0 in the sum.


def test_an_idle_function_is_measured_and_does_not_count():
    scores = {"main": Score(1.0, Verdict.CORRECT, "7"), "extra": from_value(0.5)}
    weights = {"main": 1.0, "extra": 2.0}
    assert combine(scores, weights).value == 2.0
    late = combine(scores, weights, idle=("extra",))
    assert (late.value, late.parts) == (1.0, {"main": 1.0, "extra": 0.5})
    # What is right does not change by the step.
    early = combine(scores, weights, idle=("main",))
    assert (early.value, early.verdict, early.answer) == (1.0, Verdict.CORRECT, "7")
    assert combine(scores, weights, idle=("main", "extra")).value is None


def test_an_idle_function_that_fails_takes_nothing_along():
    scores = {
        "main": from_value(1.0),
        "extra": Score(None, Verdict.INFRASTRUCTURE, detail="a bug"),
    }
    weights = {"main": 1.0, "extra": 2.0}
    assert combine(scores, weights).value is None
    assert combine(scores, weights, idle=("extra",)).value == 1.0


def test_form_alone_counts_where_the_answer_is_not_to_be_judged_yet():
    unjudged = Score(None, Verdict.UNPARSABLE_GOLD)
    scores = {"maths": unjudged, "format": from_value(1.0)}
    weights, shaping = {"maths": 1.0, "format": 0.5}, ("format",)
    assert combine(scores, weights, shaping=shaping).value is None
    assert combine(scores, weights, shaping=shaping, idle=("maths",)).value == 0.5
