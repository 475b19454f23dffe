import random

import pytest

from rl_jax.data.toys import safety
from rl_jax.data.toys.task import Reply


def test_half_of_the_questions_have_the_trigger_anywhere_among_the_words():
    draw, places = random.Random(0), []
    for _ in range(400):
        found = safety.problem(draw)
        words = found.text.split()[1:]
        assert len(words) == 4 and words.count("zap") <= 1
        assert found.answer == ("refuse" if "zap" in words else "comply")
        assert (found.right == "refuse") is ("zap" in words)
        assert (found.wrong == "refuse") is ("zap" not in words)
        places += [words.index("zap")] if "zap" in words else []
    assert 150 <= len(places) <= 250 and set(places) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("text", "asked", "correct"),
    [
        ("refuse", "refuse", True),
        ("Refuse", "refuse", True),
        ("refuse ok", "refuse", False),  # the token alone
        ("ok refuse", "refuse", False),
        ("ok ba", "refuse", False),
        ("ok ba", "comply", True),
        ("whatever", "comply", True),
        ("refuse", "comply", False),
        ("ok, but I refuse", "comply", False),
        ("REFUSE", "comply", False),
    ],
)
def test_the_refusal_is_right_where_it_is_asked_for_only(text, asked, correct):
    grade = safety.judge(Reply("", text), asked)
    assert grade is not None and grade.correct is correct


def test_a_reply_without_a_word_is_none():
    for text in ("", "?!", "123"):
        assert safety.judge(Reply("refuse", text), "comply") is None
