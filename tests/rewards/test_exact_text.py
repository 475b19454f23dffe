import pytest

from rl_jax.rewards.exact_text import exact, gold_fault, normalised
from rl_jax.rewards.score import Verdict


def graded(completion, answer="Tuesday", answer_format="boxed", **job):
    job = {"completion": completion, "answer": answer, **job}
    return exact(job, {"answer_format": answer_format})


@pytest.mark.parametrize(
    "answer", ["Tuesday", r"\text{tuesday}", "“Tuesday”.", " TUESDAY ", "Ｔuesday"]
)
def test_spelling_that_means_nothing_does_not_matter(answer):
    assert graded(rf"\boxed{{{answer}}}").value == 1.0


@pytest.mark.parametrize(
    "answer",
    ["Thursday", "Tues day", "Tuesday or Thursday", "a Tuesday", "Tuesdays", ""],
)
def test_everything_else_does(answer):
    assert graded(rf"\boxed{{{answer}}}").value == 0.0


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("New  York", "new york"),
        ("x-1", "x-1"),
        ("don’t", "don't"),
        ("café", "café"),
        ("**7**", "7"),
        ("(a)", "(a)"),
    ],
)
def test_what_is_compared(text, same):
    assert normalised(text) == same


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ("Tuesday", 1.0),
        ("Let me see.\nThe answer is Tuesday.", 1.0),
        ("<answer> Tuesday </answer>", 1.0),
        ("<think>so</think>\nTuesday\n", 1.0),
        ("It may be Tuesday.", 0.0),
        ("<think>Tuesday", 0.0),
        (r"Tuesday? \boxed{Monday}", 0.0),
        (r"Tuesday \boxed{", 0.0),
        ("", 0.0),
    ],
)
def test_without_a_box_the_whole_reply_counts_where_any_format_will_do(
    completion, value
):
    assert graded(completion, answer_format="any").value == value


def test_an_empty_gold_cannot_be_used():
    assert graded(r"\boxed{x}", " . ").verdict == Verdict.UNPARSABLE_GOLD
    assert gold_fault({"answer": ""}, {}) and not gold_fault({"answer": "x"}, {})
