"""The numbers of a selection: they add up, and are those of a case done by hand."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.config_keys import Select
from rl_jax.stages.selection import REASONS, Reply, balance, choose
from rl_jax.stages.selection_report import statistics, table


def reply(score, text="x", num_tokens=3):
    return Reply(text, score, "correct" if score else "wrong", num_tokens, False)


replies_of = st.lists(
    st.builds(
        Reply,
        st.sampled_from(["a", "b", ""]),
        st.sampled_from([None, 0.0, 0.3, 1.0]),
        st.sampled_from(["correct", "wrong"]),
        st.integers(1, 9),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)
rules = st.builds(
    Select,
    keep=st.sampled_from(["best", "correct", "pairs", "rankings"]),
    max_per_prompt=st.sampled_from([0, 2]),
    max_pass_rate=st.sampled_from([0.5, 1.0]),
)
many_groups = st.lists(
    st.tuples(st.sampled_from("abc"), replies_of), min_size=1, max_size=8
)


@settings(max_examples=50, deadline=None)
@given(many_groups, rules, st.booleans())
def test_the_statistics_add_up(found, select, balanced):
    groups = [choose(source, replies, select) for source, replies in found]
    groups = balance(groups, 0) if balanced else groups
    told = statistics(groups, pairs=select.keep == "pairs")
    assert told["samples"] == sum(len(replies) for _, replies in found)
    assert told["samples"] == told["kept_replies"] + sum(told["left_out"].values())
    assert told["prompts"] == len(found) >= told["prompts_kept"]
    for name in ("prompts", "samples", "no_score", "rows", "kept_replies"):
        assert told[name] == sum(own[name] for own in told["sources"].values()), name
    assert list(told["left_out"]) == [r for r in REASONS if r in told["left_out"]]
    size = {"pairs": 2}.get(select.keep, 1)
    if select.keep != "rankings":
        assert told["kept_replies"] == size * told["rows"]


def test_the_statistics_of_a_case_done_by_hand():
    right, wrong = reply(1.0, "x", num_tokens=2), reply(0.0, "y", num_tokens=6)
    groups = [
        choose("a", [right, wrong], Select(keep="pairs")),
        choose("b", [wrong, reply(None, num_tokens=4)], Select(keep="pairs")),
    ]
    told = statistics(groups, pairs=True)
    sources: Any = told.pop("sources")
    assert told == {
        "prompts": 2,
        "samples": 4,
        "no_score": 1,
        "pass_rate": 1 / 3,
        "pass_at_k": 0.5,
        "rows": 1,
        "prompts_kept": 1,
        "kept_replies": 2,
        "mean_score": 1 / 3,
        "mean_score_kept": 1.0,
        "mean_length": 4.5,
        "mean_length_kept": 2.0,
        "left_out": {"no score": 1, "no gap": 1},
        "mean_margin": 1.0,
    }
    assert (sources["a"]["rows"], sources["b"]["rows"]) == (1, 0)
    text = "\n".join(table(told | {"sources": sources}))
    assert "replies kept                   2   50.0%  in 1 rows of 1 prompts" in text
    assert "no gap" in text and "b: 0 rows of 1 prompts" in text


def test_a_ranking_of_two_is_no_pair():
    two = [reply(1.0, "x"), reply(0.0, "y")]
    group = choose("s", two, Select(keep="rankings"))
    told = statistics([group], pairs=False)
    assert told["mean_score_kept"] == 0.5 and "mean_margin" not in told


def test_rates_and_means_are_of_the_policys_own_replies():
    worse = [reply(0.0, "bad", num_tokens=9), reply(0.25, "poor", num_tokens=9)]
    group = choose("a", [reply(1.0), reply(0.5)], Select(keep="pairs"), worse)
    told = statistics([group], pairs=True)
    assert (told["samples"], told["kept_replies"], told["pass_rate"]) == (4, 2, 1.0)
    assert (told["mean_score"], told["mean_length"]) == (0.75, 3.0)
    assert told["mean_margin"] == 1.0 and told["left_out"] == {"not the best": 2}
