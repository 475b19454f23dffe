import pytest

from rl_jax.rewards.gsm8k import gold_fault, gsm8k
from rl_jax.rewards.score import Verdict


def graded(completion, answer="72", answer_format="boxed", **job):
    job = {"completion": completion, "answer": answer, **job}
    return gsm8k(job, {"answer_format": answer_format})


@pytest.mark.parametrize(
    "completion",
    [
        "48 / 2 = 24, 48 + 24 = 72\n#### 72",
        "#### 71\nno, I forgot one.\n#### 72",
        "#### $72.00",
        "#### 72 clips.",
        "####72",
        r"So \boxed{72}",
        r"#### \boxed{72}",
        "<think>#### 5</think>#### 72",
        "**#### 72**".replace("**", ""),
    ],
)
def test_the_marked_number_is_the_answer(completion):
    score = graded(completion)
    assert (score.value, score.verdict) == (1.0, Verdict.CORRECT)


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("#### 71", "wrong"),
        ("#### 72\n#### 71", "wrong"),
        ("#### 71, 72", "wrong"),
        ("#### 72 or 71", "wrong"),
        ("#### 7.2", "wrong"),
        ("#### -72", "wrong"),
        ("72", "unparsable_reply"),
        ("The answer is 72", "unparsable_reply"),
        ("<think>#### 72", "unparsable_reply"),
        ("####", "unparsable_reply"),
        ("", "unparsable_reply"),
    ],
)
def test_anything_else_is_not(completion, verdict):
    score = graded(completion)
    assert (score.value, score.verdict) == (0.0, verdict)


def test_without_a_mark_an_anchor_counts_where_any_format_will_do():
    assert graded("The answer is 72.", answer_format="any").value == 1.0


@pytest.mark.parametrize(
    ("answer", "found"),
    [("1,080", "1080"), ("70000", "70,000"), ("He has\n#### 18", "18"), ("0.5", ".5")],
)
def test_golds_are_read_as_the_data_set_writes_them(answer, found):
    assert graded(f"#### {found}", answer).value == 1.0


def test_a_gold_without_a_number_cannot_be_used():
    assert graded("#### 1", "many").verdict == Verdict.UNPARSABLE_GOLD
    assert "no number" in gold_fault({"answer": "many"}, {})
    assert gold_fault({"answers": ["many", "#### 3"]}, {}) == ""


def test_any_of_several_golds_will_do():
    assert graded("#### 8", answers=["7", "x", "8"]).value == 1.0
