import random

import pytest

from rl_jax.data.toys import calls
from rl_jax.data.toys.task import Reply


def slow_result(text):
    """Counts up or down, one at a time."""
    _, word, first, second = text.split(" ")
    a, b = int(first), int(second)
    if word in ("sum", "difference"):
        for _ in range(b):
            a += 1 if word == "sum" else -1
        return a
    larger = a if a - b > 0 else b
    return larger if word == "larger" else a + b - larger


def test_the_result_is_that_of_the_function_which_the_word_stands_for():
    draw, words = random.Random(0), set()
    for _ in range(400):
        found = calls.problem(draw)
        assert found.right == f"{found.answer}={slow_result(found.text)}"
        words.add(found.text.split(" ")[1])
    assert words == set(calls.FUNCTIONS)


@pytest.mark.parametrize(
    ("text", "called", "right"),
    [
        ("max(47,38)=47", 1, 1),
        ("max(47,38)=38", 1, 0),
        ("max(47,38)=", 1, 0),
        ("max(47,38)=47=47", 1, 0),
        ("max(47, 38)=47", 0, 0),  # not the form of the schema
        ("max(38,47)=47", 0, 0),
        ("min(47,38)=38", 0, 0),
        ("=47", 0, 0),
    ],
)
def test_half_for_the_call_and_half_for_its_result(text, called, right):
    grade = calls.judge(Reply("", text), "max(47,38)")
    assert grade is not None
    assert grade.parts == {"call": called, "result": right}
    assert grade.value == (called + right) / 2 and grade.correct is bool(right)


def test_a_reply_without_a_result_is_none():
    for text in ("", "max(47,38)", "47"):
        assert calls.judge(Reply("", text), "max(47,38)") is None
