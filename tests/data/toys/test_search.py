import random

import pytest

from rl_jax.data.toys import search
from rl_jax.data.toys.task import Reply


def slow_chain(text):
    """Goes through all pairs for each look-up."""
    asked, *pairs = text.removeprefix("find ").replace(":", "").split(" ")
    chain = [asked]
    for _ in range(2):
        found = [pair[2] for pair in pairs if pair[0] == chain[-1]]
        assert len(found) == 1
        chain += found
    return ">".join(chain)


def test_the_answer_is_the_chain_of_two_look_ups():
    draw = random.Random(0)
    for _ in range(300):
        found = search.problem(draw)
        assert found.answer == found.right == slow_chain(found.text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3>7>2", 1.0),
        ("3 > 7 > 2", 1.0),
        ("3>7>5", 0.5),
        ("3>7", 0.5),
        ("3>5>2", 0.0),  # the right value by a wrong way
        ("1>7>2", 0.0),
        ("3>7>2>2", 0.0),
        ("3>7>2>", 0.0),
    ],
)
def test_half_for_each_look_up_the_second_after_a_right_first(text, value):
    grade = search.judge(Reply("", text), "3>7>2")
    assert grade is not None
    assert (grade.value, grade.correct) == (value, value == 1.0)


def test_a_reply_that_is_no_chain_is_none():
    for text in ("", "2", "372"):
        assert search.judge(Reply("", text), "3>7>2") is None
