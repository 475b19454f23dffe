"""The built-in word problems: right answers, distinct, and in splits."""

import re

import pytest

from rl_jax.data import word_problems
from rl_jax.data.generated import split_of
from rl_jax.errors import ConfigError


def slow_answer(text):
    a, b = map(int, re.findall(r"\d+", text))
    is_product = " each. " in text or " costs " in text
    return a * b if is_product else a + b


@pytest.mark.parametrize("split", ["rl", "eval"])
def test_answers_are_right_and_every_gap_is_filled(split):
    rows = word_problems.rows(split, 300, seed=0)
    for row in rows:
        (message,) = row.messages
        assert int(row.answer) == slow_answer(message["content"])
        assert split_of(message["content"]) == split
        assert not re.search(r"[{}]|  |boxs", message["content"])
        assert message["content"].endswith("?")
    assert len({row.id for row in rows}) == 300
    # Every story comes up, sums and products of every size among them.
    assert len({row.messages[0]["content"].split()[0] for row in rows}) > 10
    assert {int(row.answer) for row in rows} > {4, 81}


def test_problems_repeat_with_the_seed_alone():
    found = word_problems.rows("rl", 50, seed=1)
    assert word_problems.rows("rl", 60, seed=1)[:50] == found
    assert word_problems.rows("rl", 50, seed=2) != found


def test_more_problems_than_there_are_is_told():
    with pytest.raises(ConfigError, match="word_problems has no 200000 different"):
        word_problems.rows("eval", 200_000, seed=0)
