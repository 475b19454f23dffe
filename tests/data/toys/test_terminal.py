"""The stack machine against a slow one; tests passed; bounds."""

import random

import pytest

from rl_jax.data.toys import terminal
from rl_jax.data.toys.task import Reply


def slow_run(text, start):
    """Word by word on a list; None if a command cannot be done."""
    stack, words = list(start), text.split(" ")
    while words:
        word = words.pop(0)
        if word == "add":
            stack.append(words.pop(0))
        elif word == "dup" and stack:
            stack.append(stack[-1])
        elif word == "pop" and stack:
            del stack[-1]
        elif word == "swap" and len(stack) >= 2:
            last, before = stack.pop(), stack.pop()
            stack += [last, before]
        else:
            return None
    return "".join(stack)


def random_commands(draw, most):
    names = ("pop", "swap", "dup", "add 3", "add 8")
    return " ".join(draw.choice(names) for _ in range(draw.randint(1, most)))


def test_texts_are_edited_as_on_a_list_and_graded_by_three_tests():
    draw, values = random.Random(0), set()
    for _ in range(500):
        found = terminal.problem(draw)
        start, target = found.answer.split(" ")
        assert found.text == f"edit {start} to {target}"
        assert slow_run(found.right, start) == target
        for reply in (found.right, found.wrong, random_commands(draw, 6)):
            grade = terminal.judge(Reply("", reply), found.answer)
            text = slow_run(reply, start)
            assert grade is not None
            if text is None:
                assert grade.value == 0.0
                continue
            tests = [len(text) == len(target), text == target]
            tests.append(bool(text) and text[-1] == target[-1])
            assert grade.value == pytest.approx(sum(tests) / 3, abs=1e-12)
            assert grade.correct is (text == target)
            values.add(round(grade.value, 3))
    assert values == {0.0, 0.333, 0.667, 1.0}


def test_another_way_to_the_same_text_is_right_too():
    for text in ("pop pop add 2 add 4", "swap", "dup pop swap"):
        grade = terminal.judge(Reply("", text), "3142 3124")
        assert grade is not None and grade.correct


@pytest.mark.parametrize(
    "text",
    [
        "pop pop pop",
        "add",
        "add 33",
        "add x",
        "add add",
        "7",
        "rm",
        "add ٣",
        " ".join(["dup"] * (terminal.MAX_COMMANDS + 1)),
    ],
)
def test_what_cannot_be_done_passes_no_test(text):
    grade = terminal.judge(Reply("", text), "31 3")
    assert grade is not None and grade.value == 0.0


def test_a_text_does_not_grow_beyond_its_bound():
    assert terminal.run(["dup"] * 16, "1") == "1" * 17
    assert terminal.run(["dup"] * 2, "1" * terminal.MAX_LENGTH) is None
