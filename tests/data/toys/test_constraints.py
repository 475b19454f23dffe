import random

import pytest

from rl_jax.data.toys import constraints
from rl_jax.data.toys.task import Reply


def slow_share(text, asked):
    """Constraint by constraint, letter by letter."""
    met = []
    for part in asked.split(", "):
        first, letter = part.split(" ")
        letters = [sign for sign in text if sign != " "]
        if first == "from":
            met.append(letters[:1] == [letter])
        elif first == "end":
            met.append(letters[-1:] == [letter])
        else:
            met.append(sum(1 for sign in letters if sign == letter) == int(first))
    return sum(met) / len(met)


def test_the_value_is_the_share_of_constraints_met():
    draw, values = random.Random(0), set()
    for _ in range(300):
        found = constraints.problem(draw)
        assert found.text == f"write {found.answer}"
        tried = [" ".join(draw.choices("abcdefgh", k=8)) for _ in range(5)]
        for text in (found.right, found.wrong, *tried):
            grade = constraints.judge(Reply("", text), found.answer)
            assert grade is not None
            share = slow_share(text, found.answer)
            assert grade.value == pytest.approx(share, abs=1e-12)
            assert grade.correct is (share == 1.0)
            values.add(share)
    assert len(values) > 5


def test_several_replies_can_be_right():
    for text in ("a a b c", "aabc", "b a a c", "h a b a c"):
        grade = constraints.judge(Reply("", text), "2 a, 1 b, end c")
        assert grade is not None and grade.correct


def test_a_reply_that_goes_on_and_on_meets_nothing():
    text = "a" + "b" * constraints.MAX_LETTERS + "c"
    grade = constraints.judge(Reply("", text), "1 a, end c")
    assert grade is not None and grade.value == 0.0
