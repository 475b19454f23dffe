r"""What a fair reader says of answers of many kinds, one table a kind.

In the file, "# kind" begins a table, "= gold" names a reference answer, "+ answer" is
right for it and "- answer" is not. The answer stands in a box.
"""

import pathlib

import pytest

from rl_jax.rewards import maths

FILE = pathlib.Path(__file__).parent / "files" / "maths_kinds.txt"


def tables():
    found, gold = {}, ""
    for line in FILE.read_text().splitlines():
        mark, _, text = line.partition(" ")
        if mark == "#":
            cases = found[text] = []
        elif mark == "=":
            gold = text
        else:
            cases.append((gold, text, {"+": True, "-": False}[mark]))
    return found


TABLES = tables()


@pytest.fixture(scope="module", autouse=True)
def warm():
    maths.warm_up()


def test_the_tables_have_right_and_wrong_answers_of_every_kind():
    assert len(TABLES) > 25
    for kind, cases in TABLES.items():
        hacks = kind.startswith("hack")
        assert {right for _, _, right in cases} >= ({False} if hacks else {True}), kind


@pytest.mark.parametrize("kind", TABLES)
def test_every_answer_of_a_kind_is_judged_as_a_fair_reader_would(kind):
    mistakes = [
        (gold, answer, "right" if right else "wrong")
        for gold, answer, right in TABLES[kind]
        if (maths.grade(f"So it is $\\boxed{{{answer}}}$.", gold).value == 1.0) != right
    ]
    assert not mistakes
