import pytest

from rl_jax.rewards.multiple_choice import gold_fault, multiple_choice
from rl_jax.rewards.score import Verdict

CHOICES = {"choices": ["12", "42", "blue", r"\frac{1}{2}"]}


def graded(completion, answer="B", answer_format="boxed", row=None, **job):
    job = {"completion": completion, "answer": answer, "row": row or {}, **job}
    return multiple_choice(job, {"answer_format": answer_format})


@pytest.mark.parametrize(
    "answer",
    ["B", "(B)", "b", "B.", r"\text{B}", r"\textbf{(B) } 42", "B: 42", "option B",
     "the answer is B", "[B]", r"\text{(B)}\ \frac{1}{2}"],
)  # fmt: skip
def test_a_letter_may_be_dressed_in_many_ways(answer):
    assert graded(rf"So \boxed{{{answer}}}").value == 1.0


@pytest.mark.parametrize(
    "answer",
    ["A", "A, B", "A or B", "AB", "B, C", "(B) or (C)", "not B", "42", "ABCD",
     r"\text{neither A nor B}", "B+C", "(B)^2", ""],
)  # fmt: skip
def test_another_letter_or_several_are_wrong(answer):
    assert graded(rf"So \boxed{{{answer}}}").value == 0.0


@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        ("A, C", "AC", 1.0),
        ("A, C", "C and A", 1.0),
        ("ABD", "A, B, D", 1.0),
        ("A, C", "A", 0.0),
        ("A, C", "A, B, C", 0.0),
        ("AC", "A, C", 1.0),
    ],
)
def test_several_letters_must_be_the_same_set(gold, answer, value):
    assert graded(rf"\boxed{{{answer}}}", gold).value == value


@pytest.mark.parametrize(
    ("gold", "answer", "value"),
    [
        ("B", "42", 1.0),
        ("B", "42.0", 1.0),
        ("C", "Blue", 1.0),
        ("D", "0.5", 1.0),
        ("B", "12", 0.0),
        ("B", "43", 0.0),
        ("B", "B. 42", 1.0),
        ("B", "B. 12", 0.0),
        ("1", "B", 1.0),
        ("1", "A", 0.0),
        ("0", "12", 1.0),
    ],
)
def test_with_choices_in_the_row_their_text_counts_too(gold, answer, value):
    assert graded(rf"\boxed{{{answer}}}", gold, row=CHOICES).value == value


def test_labels_of_the_row_are_used_where_there_are_some():
    row = {"choices": {"label": ["1", "2", "3"], "text": ["red", "green", "blue"]}}
    assert graded(r"\boxed{2}", "2", row=row).value == 1.0
    assert graded(r"\boxed{green}", "2", row=row).value == 1.0
    assert graded(r"\boxed{3}", "2", row=row).value == 0.0


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        ("The answer is B.", 1.0),
        ("**Answer: (B)**", 1.0),
        ("It floats.\n\nB", 1.0),
        ("It floats.\n\n(B)", 1.0),
        ("The answer is A or B.", 0.0),
        ("I would say B, as it floats.", 0.0),
        (r"The answer is B, so \boxed{A}", 0.0),
        ("<think>\nB", 0.0),
    ],
)
def test_without_a_box_an_anchor_or_the_last_line_counts(completion, value):
    assert graded(completion, answer_format="any").value == value
    assert graded(completion).value == 0.0


def test_a_gold_that_is_no_letter_cannot_be_used():
    assert graded(r"\boxed{B}", "water").verdict == Verdict.UNPARSABLE_GOLD
    assert "no letter" in gold_fault({"answer": "7"}, {})
    assert gold_fault({"answer": "blue", "row": CHOICES}, {}) == ""
