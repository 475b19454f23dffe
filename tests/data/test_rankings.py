"""What people said of replies, read from files."""

import json

import pytest

from rl_jax.data.rankings import read_rankings
from rl_jax.data.rows import Framing
from rl_jax.errors import ConfigError

ASKED = {"prompt": "Hi?"}
PAIR = ASKED | {"chosen": "good", "rejected": "bad"}
LIST = ASKED | {"replies": ["a", "b", "c"]}


def read(tmp_path, *rows, **options):
    path = tmp_path / "said.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_rankings(path, **options)


def texts(judged):
    return [reply[-1]["content"] for reply in judged.replies]


def test_the_better_of_a_pair_ranks_first(tmp_path):
    [judged] = read(tmp_path, PAIR)
    assert judged.prompt == ({"role": "user", "content": "Hi?"},)
    assert texts(judged) == ["good", "bad"]
    assert judged.rank == (0, 1)
    assert judged.margin == () and judged.label is None
    assert (judged.data_source, judged.index) == ("said", 0)


def test_the_margin_of_a_pair_is_that_of_its_column(tmp_path):
    [judged] = read(tmp_path, PAIR | {"gap": 1.5}, margin_column="gap")
    assert judged.margin == ((0.0, 1.5), (0.0, 0.0))


@pytest.mark.parametrize(
    ("value", "margin"),
    [
        ("significantly better", 3.0),
        ("Better", 2.0),
        ("slightly_better", 1.0),
        ("negligibly", 0.0),
        (3, 3.0),
        (0, 0.0),
    ],
)
def test_a_rating_has_the_margin_of_the_table(tmp_path, value, margin):
    row, table = PAIR | {"rating": value}, (3.0, 2.0, 1.0, 0.0)
    [judged] = read(tmp_path, row, margin_column="rating", ratings=table)
    assert judged.margin[0][1] == margin


def test_high_scores_and_low_ranks_are_better_and_ties_stay_ties(tmp_path):
    scored, ranked = read(
        tmp_path, LIST | {"scores": [0.5, 2, 0.5]}, LIST | {"ranks": [7, 1, 3]}
    )
    assert scored.rank == (1, 0, 1)
    assert ranked.rank == (2, 0, 1)
    assert texts(ranked) == ["a", "b", "c"]


def test_the_margins_of_a_list_are_the_differences_of_a_column(tmp_path):
    row = LIST | {"scores": [0, 3, 1]}
    [judged] = read(tmp_path, row, margin_column="scores")
    assert judged.margin == ((0, -3, -1), (3, 0, 2), (1, -2, 0))


def test_replies_may_be_turns_and_a_file_may_hold_both_shapes(tmp_path):
    turns = [{"role": "assistant", "content": "a"}]
    row = ASKED | {"replies": [turns, "b"], "ranks": [1, 2]}
    found = read(tmp_path, PAIR, row)
    assert [texts(judged) for judged in found] == [["good", "bad"], ["a", "b"]]
    assert [judged.index for judged in found] == [0, 1]


@pytest.mark.parametrize(("value", "label"), [(1, 1.0), (False, 0.0), (0.25, 0.25)])
def test_a_label_is_of_what_the_assistant_said_last(tmp_path, value, label):
    turns = [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4")]
    messages = [{"role": role, "content": text} for role, text in turns]
    row = {"messages": messages, "label": value}
    [judged] = read(tmp_path, row, form="pointwise")
    assert [turn["content"] for turn in judged.prompt] == ["1", "2", "3"]
    assert texts(judged) == ["4"]
    assert (judged.label, judged.rank) == (label, ())


def test_the_framing_of_the_run_is_put_around_the_prompt(tmp_path):
    framing = Framing(system="Be kind.", instruction="Go.", data_source="own")
    [judged] = read(tmp_path, PAIR, framing=framing)
    assert judged.prompt[0] == {"role": "system", "content": "Be kind."}
    assert judged.prompt[1]["content"] == "Hi?\n\nGo."
    assert judged.data_source == "own"


USER = [{"role": "user", "content": "no"}]


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        (ASKED | {"chosen": "a"}, {}, "no column 'rejected'"),
        (LIST, {}, "'scores' and 'ranks' there is neither"),
        (LIST | {"scores": [1, 2, 3], "ranks": [1, 2, 3]}, {}, "are both"),
        (LIST | {"scores": [1, 2]}, {}, "'scores' has 2 for 3 replies"),
        (LIST | {"scores": "high"}, {}, "a string for 3 replies"),
        (LIST | {"scores": [1, None, 2]}, {}, "has None for reply 2"),
        (LIST | {"ranks": [1, float("nan"), 2]}, {}, "has nan for reply 2"),
        (ASKED | {"replies": ["a"], "scores": [1]}, {}, "'replies' has 1"),
        (ASKED | {"replies": "a", "scores": [1]}, {}, "'replies' holds a string"),
        (ASKED | {"replies": ["a", USER], "ranks": [1, 2]}, {}, "turn of 'user'"),
        (PAIR, {"margin_column": "gap"}, "no column 'gap' for the margin"),
        (PAIR | {"gap": -1}, {"margin_column": "gap"}, "holds -1 as its margin"),
        (PAIR | {"gap": True}, {"margin_column": "gap"}, "holds True as its margin"),
        (
            PAIR | {"gap": "best"},
            {"margin_column": "gap", "ratings": (3, 2, 1, 0)},
            "holds 'best' as its rating",
        ),
        (
            LIST | {"scores": [1, 2, 3]},
            {"margin_column": "scores", "ratings": (3, 2, 1, 0)},
            "a rating says how much better one of two",
        ),
        (
            LIST | {"ranks": [1, 2, 3], "scores": None, "gap": [1, 2, 0]},
            {"margin_column": "gap"},
            "reply 1 is better than reply 2 by 'ranks', but worse by 'gap'",
        ),
        (PAIR, {"form": "pointwise"}, "completion"),
        (ASKED | {"completion": "a"}, {"form": "pointwise"}, "no column 'label'"),
        (
            ASKED | {"completion": "a", "label": 2},
            {"form": "pointwise"},
            "'label' holds 2",
        ),
    ],
)
def test_a_fault_is_told_with_its_file_and_row(tmp_path, row, options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        read(tmp_path, row, **options)
    text = str(caught.value)
    assert "said.jsonl, row 1" in text and text.count("\n") <= 2
