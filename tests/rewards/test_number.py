import pytest

from rl_jax.rewards.number import number
from rl_jax.rewards.score import Verdict


def graded(completion, answer="12", **job):
    return number({"completion": completion, "answer": answer, "prompt": "", **job}, {})


@pytest.mark.parametrize(
    ("completion", "found"),
    [
        ("12", "12"),
        ("Nora has 7 + 5 = 12 eggs now.", "12"),
        ("It is 12.", "12"),
        ("$12.00", "12.00"),
        ("There are (3*4) 12", "12"),
        ("<think>40</think>12 eggs", "12"),
        ("12 eggs<|im_end|>40", "12"),
    ],
)
def test_the_last_number_is_the_answer(completion, found):
    score = graded(completion)
    assert (score.value, score.verdict, score.answer) == (1.0, Verdict.CORRECT, found)


@pytest.mark.parametrize(
    "completion",
    [
        "12 or 13",
        "12, no: 40",
        "112",
        "-12",
        "12.5",
        "1,2",
        "3 - 12 = -12",
        "12 eggs, 5 of them boiled",
        "12,000",
    ],
)
def test_another_last_number_is_wrong(completion):
    score = graded(completion)
    assert (score.value, score.verdict) == (0.0, Verdict.WRONG)


@pytest.mark.parametrize(
    ("completion", "job"),
    [
        ("", {}),
        ("a dozen", {}),
        ("<think>12", {}),
        ("12", {"truncated": True}),
        ("12", {"prompt": "<think>"}),
        ("9" * 5000, {}),
    ],
)
def test_a_reply_without_a_finished_number_earns_nothing(completion, job):
    score = graded(completion, **job)
    assert (score.value, score.verdict) == (0.0, Verdict.UNPARSABLE_REPLY)
    assert score.detail


@pytest.mark.parametrize(
    ("answer", "completion"),
    [("1200", "1,200"), ("-3", "5 - 8 = -3"), ("0.5", "half, .5"), ("3", "8-5 is 3")],
)
def test_numbers_are_compared_by_value(answer, completion):
    assert graded(completion, answer).value == 1.0


@pytest.mark.parametrize("answer", ["", "a dozen", "1, 2"])
def test_an_answer_that_is_no_number_cannot_be_judged(answer):
    score = graded("12", answer)
    assert (score.value, score.verdict) == (None, Verdict.UNPARSABLE_GOLD)
