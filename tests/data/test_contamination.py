"""Held-out text in others: against a count of runs, one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.data.contamination import HeldOut, Overlap
from rl_jax.data.ngrams import tokens

TEST = "Max bought eleven stamps and gave away four of them how many does he keep"
WORDS = st.lists(st.sampled_from("abcd"), max_size=12).map(" ".join)


def slow_share(test, parts, n):
    """The share of a test's tokens that lie in runs which some part has too."""
    wanted = tokens(test)
    runs = set()
    for part in parts:
        words = tokens(part)
        runs |= {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}
    covered = set()
    for i in range(len(wanted) - n + 1):
        if tuple(wanted[i : i + n]) in runs:
            covered |= set(range(i, i + n))
    return len(covered) / len(wanted) if wanted else 0.0


@settings(max_examples=80, deadline=None)
@given(
    st.lists(WORDS, max_size=4),
    st.lists(WORDS, min_size=1, max_size=3),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
def test_what_is_found_is_what_the_runs_say(tests, parts, n, share):
    found = HeldOut(tests, n=n, share=share).found_in(parts)
    whole = [i for i, t in enumerate(tests) if 0 < len(tokens(t)) < n]
    alone = [i for i in whole if any(tokens(tests[i]) == tokens(p) for p in parts)]
    shares = [slow_share(test, parts, n) for test in tests]
    best = max(shares, default=0.0)
    if alone:
        assert found is not None and found.share == 1.0
        assert tokens(tests[found.index]) in [tokens(tests[i]) for i in alone]
    elif best > 0 and best >= share:
        assert found is not None and found.index == shares.index(best)
        assert found.share == pytest.approx(best)
    else:
        assert found is None


def test_half_of_a_test_in_runs_of_eight_is_found_and_less_is_not():
    # 15 tokens: a run of eight is 0.53 of them, and a run of seven is none.
    held_out = HeldOut([TEST], n=8, share=0.5)
    said = tokens(TEST)
    for length, share in ((8, 8 / 15), (15, 1.0)):
        text = "Say this. " + " ".join(said[:length]) + " and more"
        found = held_out.found_in([text])
        assert found is not None and found.share == pytest.approx(share)
    assert held_out.found_in([" ".join(said[:7])]) is None
    assert HeldOut([TEST], n=8, share=0.6).found_in([" ".join(said[:8])]) is None


def test_case_spaces_and_width_do_not_hide_it():
    held_out = HeldOut([TEST])
    assert held_out.found_in([TEST.upper().replace(" ", "\n ")]) == Overlap(0, 1.0)


def test_no_run_goes_from_one_part_to_the_next():
    said = tokens(TEST)
    first, second = " ".join(said[:7]), " ".join(said[7:14])
    held_out = HeldOut([TEST], n=8, share=0.1)
    assert held_out.found_in([f"{first} {second}"]) is not None
    assert held_out.found_in([first, second]) is None


def test_a_short_test_is_found_only_where_it_stands_alone():
    held_out = HeldOut(["What is 2+2?"], n=8, share=0.0)
    assert held_out.found_in(["what is 2 + 2 ?"]) == Overlap(0, 1.0)
    assert held_out.found_in(["Tell me: what is 2+2? I forgot."]) is None


def test_the_test_of_which_most_is_found_is_named():
    other = (
        "Max bought eleven stamps and gave away four of his books to the school then"
    )
    held_out = HeldOut([other, TEST], n=8, share=0.3)
    assert held_out.found_in([TEST]) == Overlap(1, 1.0)


def test_without_held_out_texts_nothing_is_found():
    assert HeldOut([]).found_in([TEST]) is None
    assert HeldOut(["", " "]).found_in(["", TEST]) is None


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="HeldOut needs"):
        HeldOut(["a"], n=0)
    with pytest.raises(ValueError, match="HeldOut needs"):
        HeldOut(["a"], share=1.5)
