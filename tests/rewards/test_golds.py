import pytest

from rl_jax.rewards import golds
from rl_jax.rewards.score import Verdict


@pytest.mark.parametrize(
    ("job", "answers"),
    [
        ({"answer": "7"}, ["7"]),
        ({"answer": 7}, ["7"]),
        ({"answer": "7", "answers": ["7", "8"]}, ["7", "8"]),
        ({"answer": "7", "answers": []}, ["7"]),
        ({"answers": "7"}, ["7"]),
        ({}, [""]),
    ],
)
def test_a_job_has_one_answer_or_several(job, answers):
    assert golds.of_job(job) == answers


def graded(completion, usable=("a", "b"), **job):
    return golds.graded(
        {"completion": completion, **job},
        usable,
        lambda text: text.strip() or None,
        lambda gold, found: gold == found,
        useless="no letter",
        must_end=True,
    )


def test_any_gold_will_do():
    assert graded("b").value == 1.0
    assert (graded("c").value, graded("c").verdict) == (0.0, Verdict.WRONG)


@pytest.mark.parametrize(
    ("completion", "job"),
    [("", {}), ("<think>a", {}), ("a", {"truncated": True})],
)
def test_what_has_no_answer_gets_nothing(completion, job):
    score = graded(completion, **job)
    assert (score.value, score.verdict) == (0.0, Verdict.UNPARSABLE_REPLY)
    assert score.detail


def test_without_a_gold_there_is_no_score():
    score = graded("a", ())
    assert (score.value, score.verdict) == (None, Verdict.UNPARSABLE_GOLD)
    assert score.detail == "no letter"
