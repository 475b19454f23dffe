"""Every step of the thinking is true, and so is the answer."""

import random
import re

from rl_jax.data.toys import sums
from rl_jax.data.toys.task import Reply, read


def slow_answer(text):
    word, _, rest = text.partition(" ")
    numbers = [int(number) for number in re.findall("[0-9]+", rest)]
    if word == "sum":
        return numbers[0] + numbers[1]
    total = 0
    for _ in range(numbers[1]):
        total += numbers[0]
    while total >= numbers[2]:
        total -= numbers[2]
    return total


def slow_value(expression):
    """Of a sum or a product of two or three numbers."""
    if "*" in expression:
        a, b = expression.split("*")
        return int(a) * int(b)
    return sum(map(int, expression.split("+")))


def test_answers_and_thinking_are_true():
    draw, kinds = random.Random(0), set()
    for _ in range(500):
        found = sums.problem(draw)
        assert found.answer == str(slow_answer(found.text))
        reply = read(found.right)
        assert reply is not None and reply.final == found.answer
        for step in reply.thinking.split(" "):
            expression, result = step.split("=")
            assert slow_value(expression) == int(result), found
        kinds.add(found.text[:3])
    assert kinds == {"sum", "mod"}


def test_only_the_number_alone_is_right():
    for text, correct in [("85", True), ("085", True), ("86", False)]:
        grade = sums.judge(Reply("", text), "85")
        assert grade is not None and grade.correct is correct
    for text in ("", "85.", "8 5", "80+5", "85 86", "eighty", "٨٥"):
        assert sums.judge(Reply("85", text), "85") is None
