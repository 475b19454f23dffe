"""Rows that are left out, each for the first reason that holds."""

import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_jax.data.curation import (
    Removed,
    counted,
    histogram,
    leave_out_by_pass_rate,
    leave_out_contaminated,
    leave_out_duplicates,
    reasons,
    statistics,
    table,
)
from rl_jax.data.entries import entry
from rl_jax.data.files import Record

LONG = "the river runs past the mill and the old bridge down to the sea where ships lie"


def entries(*rows, file="data.jsonl"):
    path = pathlib.Path(file)
    return [entry(Record(row, path, i)) for i, row in enumerate(rows, start=1)]


def duplicates(found, removed, by="prompt", near=0.8):
    return leave_out_duplicates(
        found, removed, by=by, near=near, near_ngram=3, same_figures=True
    )


def test_duplicates_by_prompt_and_answers_that_contradict():
    found = entries(
        {"prompt": "q", "answer": "4"},
        {"prompt": "q", "answer": "4"},
        {"prompt": " q ", "answer": "5"},
        {"prompt": LONG, "answer": "4"},
        {"prompt": f"{LONG} still", "answer": "5"},
    )
    removed = {}
    assert duplicates(found, removed) == 1
    assert removed == {
        1: Removed("exact duplicate", "data.jsonl, row 1"),
        2: Removed("exact duplicate", "data.jsonl, row 1"),
        4: Removed("near duplicate", "data.jsonl, row 4"),
    }


def test_duplicates_by_row_need_the_same_reply():
    found = entries(
        {"prompt": "q", "completion": "a"},
        {"prompt": "q", "completion": "b"},
        {"prompt": "q", "completion": "a"},
    )
    removed = {}
    duplicates(found, removed, by="row")
    assert list(removed) == [2]
    duplicates(found, removed, by="prompt")
    assert list(removed) == [2, 1]


def test_without_a_share_only_exact_duplicates_are_left_out():
    found = entries({"prompt": LONG}, {"prompt": f"{LONG} still"}, {"prompt": LONG})
    removed = {}
    duplicates(found, removed, near=0.0)
    assert list(removed) == [2]


def test_a_held_out_prompt_is_looked_for_in_replies_too():
    found = entries(
        {"prompt": "say it", "completion": f"Here: {LONG}"},
        {"prompt": "q"},
        {"prompt": LONG},
        {"chosen": f"go on {LONG}", "rejected": "go on no"},
    )
    tests = entries({"prompt": LONG}, {"prompt": "q"}, {"prompt": "x"}, file="t.jsonl")
    removed = {2: Removed("exact duplicate")}
    counts = leave_out_contaminated(found, removed, tests, ngram=8, overlap=0.5)
    assert counts == {"t.jsonl": {"prompts": 3, "found": 2}}
    assert removed == {
        2: Removed("exact duplicate"),
        0: Removed("contaminated", "t.jsonl, row 1", 1.0),
        1: Removed("contaminated", "t.jsonl, row 2", 1.0),
        3: Removed("contaminated", "t.jsonl, row 1", 1.0),
    }


@pytest.mark.parametrize("drop", [False, True])
def test_the_bounds_of_the_pass_rate_are_kept(drop):
    rates = [0.0, 0.05, 0.5, 0.625, 0.75, None, 1.0]
    removed = {6: Removed("contaminated")}
    found = entries(*({"prompt": str(i)} for i in range(7)))
    leave_out_by_pass_rate(
        found, removed, rates, low=0.05, high=0.625, drop_unrated=drop
    )
    want = {6: "contaminated", 0: "too hard", 4: "too easy"}
    want |= {5: "no pass rate"} if drop else {}
    assert {i: why.reason for i, why in removed.items()} == want
    assert removed[4].share == 0.75


def test_reasons_are_counted_in_order():
    removed = {5: Removed("too easy"), 1: Removed("near duplicate")}
    removed[9] = Removed("too easy")
    assert list(counted(removed).items()) == [("near duplicate", 1), ("too easy", 2)]


@given(st.lists(st.none() | st.integers(0, 16).map(lambda k: k / 16), max_size=30))
def test_the_histogram_counts_every_rate_once(rates):
    kept = range(0, len(rates), 2)
    found = histogram(rates, kept)
    known = [rate for rate in rates if rate is not None]
    if not known:
        assert found == {}
        return
    counts, _ = np.histogram(known, bins=np.linspace(0, 1, 11))
    assert [count["read"] for count in found.values()] == counts.tolist()
    inside = sum(rates[i] is not None for i in kept)
    assert sum(count["kept"] for count in found.values()) == inside


def test_a_rate_on_a_boundary_counts_above_it():
    found = histogram([0.3, 0.6, 0.7, 1.0], [])
    assert [name for name, count in found.items() if count["read"]] == [
        "0.3 to 0.4",
        "0.6 to 0.7",
        "0.7 to 0.8",
        "0.9 to 1.0",
    ]


def test_the_statistics_count_each_source_and_show_a_few_of_each_reason():
    same, long = [{"prompt": "same"}] * 6, [{"prompt": "x" * 500}] * 2
    named = {"a": entries(*same), "b": entries(*long)}
    every = [one for found in named.values() for one in found]
    removed: dict[int, Removed] = {}
    conflicts = duplicates(every, removed, near=0.0)
    found = statistics(
        named,
        removed,
        [None] * 8,
        conflicts=conflicts,
        held_out={},
        settings={"near": 0.0},
    )
    assert (found["read"], found["kept"]) == (8, 2)
    assert found["sources"] == {
        "a": {"read": 6, "kept": 1},
        "b": {"read": 2, "kept": 1},
    }
    assert found["removed"] == {"exact duplicate": 6} and found["pass_rates"] == {}
    assert len(found["examples"]) == 3
    told = reasons(every, removed)
    assert [line["reason"] for line in told] == ["exact duplicate"] * 6
    assert len(told[-1]["prompt"]) == 500
    assert "  a: 1 of 6" in table(found)
