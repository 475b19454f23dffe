import random

import pytest

from rl_jax.data.toys import alphabets
from rl_jax.data.toys.task import Reply, read

UPPER, LOWER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"


def slow_share(thinking, word):
    wanted = other = 0
    for sign in thinking:
        if sign in (UPPER if word == "upper" else LOWER):
            wanted += 1
        elif sign.isalpha():
            other += 1
    return wanted / (wanted + other) if wanted else 0.0


def test_half_is_the_answer_and_half_the_share_of_the_alphabet():
    draw, values = random.Random(0), set()
    for _ in range(300):
        found = alphabets.problem(draw)
        word, *letters = found.text.split(" ")
        last = sorted(letters)[-1]
        assert found.answer == f"{word} {last}"
        mixed = " ".join(draw.choices("abMNé1", k=6))
        for text in (found.right, found.wrong, f"<think>{mixed}</think>{last}"):
            reply = read(text)
            assert reply is not None
            grade = alphabets.judge(reply, found.answer)
            share = slow_share(reply.thinking, word)
            assert grade is not None
            right = reply.final == last
            assert grade.value == pytest.approx((right + share) / 2, abs=1e-12)
            assert grade.correct is (right and share == 1.0)
            assert grade.parts == {"answer": right, "alphabet": share}
            values.add(grade.value)
    assert len(values) > 4


def test_thinking_without_letters_is_in_no_alphabet():
    for thinking in ("", "1 2 3", "é", "Ａ Ｂ"):
        grade = alphabets.judge(Reply(thinking, "f"), "upper f")
        assert grade is not None and grade.value == 0.5 and not grade.correct
