"""The hidden judge against a slow one; his bounds, and who he likes."""

import itertools
import random

import pytest

from rl_jax.data.toys import helpful
from rl_jax.data.toys.task import Reply


def slow_utility(text, topic):
    """Place by place, an empty place and one too many being worth -1."""
    worth = []
    for i in range(max(8, len(text))):
        if i >= len(text) or i >= 8:
            worth.append(-1.0)
        elif text[i] in "aeiou":
            worth.append(1.0 if text[i] in topic else 0.4)
        elif text[i] in "bdfgklmnprst":
            worth.append(0.7 if text[i] in topic else 0.0)
        else:
            worth.append(-0.5 if text[i] in "0123456789" else -1.0)
    return (sum(worth) / len(worth) + 1) / 2


def test_the_value_is_what_the_slow_judge_says():
    draw = random.Random(0)
    signs = "aeioubdfgklmnprst0123456789!?.XÄ"
    for _ in range(300):
        found = helpful.problem(draw)
        tried = ["".join(draw.choices(signs, k=draw.randint(1, 14))) for _ in range(5)]
        for text in (found.right, found.wrong, *tried):
            grade = helpful.judge(Reply("", text), found.answer)
            assert grade is not None
            wanted = slow_utility(text, found.answer)
            assert grade.value == pytest.approx(wanted, abs=1e-12)
            assert grade.correct is (grade.value >= helpful.GOOD)


def test_the_value_is_linear_in_the_characters():
    # What one character adds does not depend on the others or on its place.
    topic = "bakolu"
    gains = [
        helpful.utility("".join(mixed).replace("?", "a"), topic)
        - helpful.utility("".join(mixed).replace("?", "7"), topic)
        for mixed in itertools.islice(itertools.permutations("?ak3eb!o"), 0, 40000, 997)
    ]
    assert max(gains) - min(gains) < 1e-12
    assert gains[0] == pytest.approx(1.5 / 8 / 2, abs=1e-12)


def test_the_best_reply_has_1_the_worst_0_and_long_ones_gain_nothing():
    assert helpful.utility("aouaouao", "bakolu") == pytest.approx(1.0, abs=1e-12)
    assert helpful.utility("!" * 8, "bakolu") == 0.0
    values = [helpful.utility("a" * n, "bakolu") for n in range(1, 200)]
    assert max(values) == values[7] and values[8:] == sorted(values[8:], reverse=True)


def test_demonstrations_differ_in_value_by_degrees():
    draw = random.Random(0)
    found = [helpful.problem(draw) for _ in range(300)]
    wrong = {helpful.utility(one.wrong, one.answer) for one in found}
    right = {helpful.utility(one.right, one.answer) for one in found}
    assert len(wrong) > 10 and max(wrong) < helpful.GOOD < min(right)
