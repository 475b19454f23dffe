"""Choosing among replies, against a slow version written from the rules in words."""

import collections
import dataclasses
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.config_keys import Select
from rl_jax.stages.selection import (
    REASONS,
    Reply,
    apart,
    balance,
    choose,
    pass_rate,
)


def reply(score, text=None, verdict=None, truncated=False, num_tokens=3):
    verdict = verdict or ("correct" if score else "wrong")
    text = f"reply of {score}" if text is None else text
    return Reply(text, score, verdict, num_tokens, truncated)


def rows_of(replies, **keys):
    return list(choose("s", replies, Select(**keys)).rows)


def slow_rows(replies, select):
    """The rows by brute force: candidates in order, compared one with another."""
    judged = [r for r in replies if r.score is not None]
    right = sum(r.verdict == "correct" for r in judged)
    if judged and right / len(judged) > select.max_pass_rate:
        return []

    def plain(text):
        return unicodedata.normalize("NFC", " ".join(text.split()))

    def good(r):
        if r.truncated and not select.truncated:
            return False
        if select.min_score is not None and r.score < select.min_score - 1e-9:
            return False
        must = select.only_correct or select.keep == "correct"
        return r.verdict == "correct" if must else True

    scored = [i for i, r in enumerate(replies) if r.score is not None]
    if select.keep == "pairs":
        best = None
        for i in scored:
            if good(replies[i]):
                if best is None or replies[i].score > replies[best].score:
                    best = i
        worst = None
        for i in scored:
            if i != best and (worst is None or replies[i].score < replies[worst].score):
                worst = i
        if best is None or worst is None:
            return []
        gap = replies[best].score - replies[worst].score
        return [(best, worst)] if gap > 0 and gap >= select.min_gap - 1e-9 else []
    taken: list[int] = []
    for i in scored:
        if select.keep != "rankings" and not good(replies[i]):
            continue
        same = [j for j in taken if plain(replies[j].text) == plain(replies[i].text)]
        if not (select.dedupe and same):
            taken.append(i)
    if select.keep == "rankings":
        taken = taken[: select.max_per_prompt or None]
        return [tuple(taken)] if len({replies[i].score for i in taken}) > 1 else []
    most = 1 if select.keep == "best" else select.max_per_prompt or len(taken)
    kept: list[int] = []
    while taken and len(kept) < most:
        first = taken[0]
        for i in taken:
            if replies[i].score > replies[first].score:
                first = i
        kept.append(first)
        taken.remove(first)
    return [(i,) for i in sorted(kept)]


VERDICTS = ("correct", "wrong", "unparsable_reply", "timeout")
replies_of = st.lists(
    st.builds(
        reply,
        st.sampled_from([None, -1.0, 0.0, 0.1, 0.3, 1.0]),
        st.sampled_from(["a", "a ", "b", "c\u2028d", "e\u0301", "\u00e9", ""]),
        st.sampled_from(VERDICTS),
        st.booleans(),
    ),
    min_size=1,
    max_size=7,
)
rules = st.builds(
    Select,
    keep=st.sampled_from(["best", "correct", "pairs", "rankings"]),
    only_correct=st.booleans(),
    min_score=st.sampled_from([None, 0.0, 0.3]),
    truncated=st.booleans(),
    max_per_prompt=st.sampled_from([0, 1, 2]),
    min_gap=st.sampled_from([0.0, 0.2, 2.0]),
    dedupe=st.booleans(),
    max_pass_rate=st.sampled_from([0.0, 0.5, 1.0]),
)


@settings(max_examples=200, deadline=None)
@given(replies_of, rules)
def test_the_rows_are_those_of_the_slow_version(replies, select):
    assert list(choose("s", replies, select).rows) == slow_rows(replies, select)


@settings(max_examples=80, deadline=None)
@given(replies_of, rules)
def test_every_reply_is_in_a_row_or_left_out_for_one_reason(replies, select):
    group = choose("s", replies, select)
    kept = [i for row in group.rows for i in row]
    assert sorted([*kept, *group.left_out]) == list(range(len(replies)))
    assert set(group.left_out.values()) <= set(REASONS)


@settings(max_examples=50, deadline=None)
@given(replies_of, rules)
def test_replies_that_nobody_could_judge_change_nothing(replies, select):
    more = [*replies, reply(None, "x"), reply(None, "y", "correct")]
    group = choose("s", replies, select)
    assert choose("s", more, select).rows == group.rows


# Rules, one at a time.


def test_of_equal_scores_the_first_is_taken():
    assert rows_of([reply(0.5, "a"), reply(0.5, "b"), reply(0.1)]) == [(0,)]
    found = rows_of([reply(0.1, "a"), reply(0.5), reply(0.1, "b")], keep="pairs")
    assert found == [(1, 0)]


def test_the_shortest_correct_reply_needs_only_a_score_that_says_so():
    # Objectives 9.4: lengths 10, 14, 15, 30, of which the last is wrong: the first.
    replies = [reply(1 - n / 100, str(n), "correct") for n in (10, 14, 15)]
    assert rows_of([*replies, reply(0.0)], only_correct=True) == [(0,)]


def test_what_was_cut_off_is_no_example_but_may_be_the_worse_of_a_pair():
    replies = [reply(1.0, "good, but", truncated=True), reply(0.5), reply(0.0)]
    assert rows_of(replies) == [(1,)]
    assert rows_of(replies, truncated=True) == [(0,)]
    low = [reply(1.0), reply(0.0, truncated=True)]
    assert rows_of(low, keep="pairs") == [(0, 1)]
    assert rows_of(low[::-1], keep="rankings") == [(0, 1)]


def test_the_same_words_count_once():
    replies = [reply(1.0, "so 4"), reply(1.0, "so  4\n"), reply(1.0, "thus 4")]
    assert rows_of(replies, keep="correct") == [(0,), (2,)]
    assert rows_of(replies, keep="correct", dedupe=False) == [(0,), (1,), (2,)]


def test_of_too_many_correct_replies_the_best_are_written_in_order():
    replies = [reply(0.2), reply(0.9), reply(0.5), reply(0.7)]
    assert rows_of(replies, keep="correct", max_per_prompt=2) == [(1,), (3,)]


def test_a_prompt_that_is_solved_too_often_is_left_out_whole():
    replies = [reply(1.0, "a"), reply(1.0, "b"), reply(1.0, "c"), reply(0.0)]
    assert rows_of(replies, max_pass_rate=0.75) == [(0,)]
    group = choose("s", replies, Select(max_pass_rate=0.7))
    assert not group.rows and set(group.left_out.values()) == {"too easy"}


def test_a_gap_of_a_rounding_error_less_is_that_gap():
    replies = [reply(0.3), reply(0.1, verdict="correct")]  # 0.19999999999999998
    assert rows_of(replies, keep="pairs", min_gap=0.2) == [(0, 1)]
    assert rows_of(replies, keep="pairs", min_gap=0.21) == []
    assert rows_of([reply(0.3, "a"), reply(0.3, "b")], keep="pairs") == []


def test_a_ranking_needs_two_scores():
    assert rows_of([reply(0.5, "a"), reply(0.5, "b")], keep="rankings") == []
    replies = [reply(0.5), reply(None), reply(0.0), reply(1.0)]
    assert rows_of(replies, keep="rankings") == [(0, 2, 3)]


def test_the_pass_rate_is_that_of_the_replies_judged():
    assert pass_rate([reply(1.0), reply(None), reply(0.0), reply(0.0)]) == 1 / 3
    assert pass_rate([reply(None, verdict="correct")]) is None


# All prompts together.

many_groups = st.lists(
    st.tuples(st.sampled_from("abc"), replies_of), min_size=1, max_size=8
)


@settings(max_examples=50, deadline=None)
@given(many_groups, rules, st.integers(0, 3))
def test_balanced_sources_have_as_many_rows_and_only_lose_some(found, select, seed):
    groups = [choose(source, replies, select) for source, replies in found]
    balanced = balance(groups, seed)
    assert balanced == balance(groups, seed)
    before = collections.Counter(g.source for g in groups for _ in g.rows)
    after = collections.Counter(g.source for g in balanced for _ in g.rows)
    assert set(after.values()) <= {min(before.values(), default=0)}
    assert after.keys() == before.keys()
    for old, new in zip(groups, balanced, strict=True):
        assert [row for row in old.rows if row in new.rows] == list(new.rows)
        lost = {i for row in old.rows for i in row} - {i for r in new.rows for i in r}
        assert new.left_out == old.left_out | dict.fromkeys(lost, "balance")


def test_which_rows_are_lost_is_not_a_matter_of_where_they_stand():
    groups = [choose("many", [reply(1.0)], Select()) for _ in range(100)]
    groups += [choose("few", [reply(1.0)], Select()) for _ in range(20)]
    kept = [i for i, group in enumerate(balance(groups, 0)[:100]) if group.rows]
    assert len(kept) == 20 and kept[0] < 30 and kept[-1] > 70
    other = [i for i, group in enumerate(balance(groups, 1)[:100]) if group.rows]
    assert kept != other


# Another policy's replies.


def slow_delta(own, worse, select):
    """The best good one of the first against the worst of the others."""
    rate = pass_rate(own)
    if rate is not None and rate > select.max_pass_rate:
        return []
    pairs = []
    for i, a in enumerate(own):
        for j, b in enumerate(worse):
            if a.score is None or b.score is None:
                continue
            if a.truncated and not select.truncated:
                continue
            if select.min_score is not None and a.score < select.min_score - 1e-9:
                continue
            if select.only_correct and not a.correct:
                continue
            pairs.append((i, len(own) + j, a.score, b.score))
    if not pairs:
        return []
    i, j, a, b = sorted(pairs, key=lambda p: (-p[2], p[3], p[0], p[1]))[0]
    return [(i, j)] if a > b and a - b >= select.min_gap - 1e-9 else []


@settings(max_examples=100, deadline=None)
@given(replies_of, replies_of, rules)
def test_the_worse_of_a_pair_may_be_of_another_policy(own, worse, select):
    select = dataclasses.replace(select, keep="pairs")
    group = choose("s", own, select, worse)
    assert list(group.rows) == slow_delta(own, worse, select)
    kept = [i for row in group.rows for i in row]
    assert sorted([*kept, *group.left_out]) == list(range(len(own) + len(worse)))
    assert group.own == tuple(own)


# Keeping some apart.


@given(
    st.lists(st.sampled_from("abcdefgh"), max_size=30),
    st.floats(0.0, 0.99),
    st.integers(0, 5),
)
def test_some_names_are_kept_apart_but_never_all(names, share, seed):
    found = apart(names, share, seed)
    assert found == apart(names, share, seed) <= set(names)
    different = len(set(names))
    if share and different > 1:
        assert 1 <= len(found) < different
        assert abs(len(found) - share * different) <= 1
    else:
        assert not found


def test_which_names_are_kept_apart_is_drawn():
    names = [str(i) for i in range(100)]
    found = sorted(map(int, apart(names, 0.2, 0)))
    assert len(found) == 20 and found[0] < 20 and found[-1] > 80
    assert apart(names, 0.2, 1) != apart(names, 0.2, 0)
