"""Rewards by step: what an entry means, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_jax.errors import ConfigError
from rl_jax.rewards.schedule import idle, parse

NAMES = ("maths", "format", "judges.py:score", "model")


def test_a_name_counts_from_its_first_step_to_its_last_both_inside():
    steps = parse(["format=1-3", "model=4", "judges.py:score=2-2"], NAMES)
    assert steps == {"format": (1, 3), "model": (4, None), "judges.py:score": (2, 2)}
    found = [sorted(idle(steps, step)) for step in range(1, 6)]
    assert found == [
        ["judges.py:score", "model"],
        ["model"],
        ["judges.py:score", "model"],
        ["format", "judges.py:score"],
        ["format", "judges.py:score"],
    ]


def test_without_entries_everything_counts():
    assert parse([], NAMES) == {} and idle({}, 1) == frozenset()


@given(st.integers(1, 50), st.one_of(st.none(), st.integers(0, 50)), st.integers(1, 99))
def test_any_range_is_that_of_the_slow_version(first, more, step):
    text = f"maths={first}" + ("" if more is None else f"-{first + more}")
    inside = step >= first and (more is None or step <= first + more)
    assert idle(parse([text], NAMES), step) == (set() if inside else {"maths"})


@pytest.mark.parametrize(
    "entries, match",
    [
        (["maths"], "NAME=FIRST or NAME=FIRST-LAST"),
        (["maths=a-b"], "NAME=FIRST or NAME=FIRST-LAST"),
        (["maths=1-2-3"], "NAME=FIRST or NAME=FIRST-LAST"),
        (["math=1"], "did you mean 'maths'"),
        (["maths=0-4"], "steps count from 1"),
        (["maths=5-4"], "has no step"),
        (["maths=1-2", "maths=5"], "a second entry"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_write(entries, match):
    with pytest.raises(ConfigError, match=match) as error:
        parse(entries, NAMES, "rl.reward.steps")
    assert "config.rl.reward.steps" in str(error.value)
    assert len(str(error.value).splitlines()) <= 3
