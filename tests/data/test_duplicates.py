"""Duplicates: against a comparison of every pair, and what must never be one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.data.duplicates import (
    band_rows,
    exact_duplicates,
    near_duplicates,
    signature,
)
from rl_jax.data.ngrams import figures, tokens

LONG = (
    "A farmer plants rows of corn beside the river and waters them each morning before "
    "the sun comes up over the hill so that nothing dries out in the heat of the day"
)


def slow_jaccard(a, b, n):
    def runs(text):
        words = tokens(text)
        size = min(n, len(words))
        return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}

    both = runs(a) & runs(b)
    either = runs(a) | runs(b)
    return len(both) / len(either) if either else 0.0


def slow_near_duplicates(texts, n, threshold, same_figures):
    """Every text with every one that was kept before it."""
    found, kept = [], []
    for i, text in enumerate(texts):
        like = -1
        for j in kept:
            if same_figures and figures(text) != figures(texts[j]):
                continue
            if tokens(text) and slow_jaccard(text, texts[j], n) >= threshold:
                like = j
                break
        found.append(like)
        if like < 0 and tokens(text):
            kept.append(i)
    return found


# Exact.


def test_the_same_text_is_a_duplicate_of_its_first_appearance():
    texts = ["a b", "c", "a  b\n", "A b", "a b", "e\u0301", "\u00e9"]
    assert exact_duplicates(texts) == [-1, -1, 0, -1, 0, -1, 5]


# Near.


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_near_duplicates_are_those_of_comparing_every_pair(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    words = [*"abcdefgh", "1", "2", "+"]
    texts = []
    for _ in range(14):
        if texts and rng.random() < 0.6:  # a copy with some words changed
            text = texts[rng.integers(len(texts))].split()
            for _ in range(rng.integers(0, 3)):
                text[rng.integers(len(text))] = words[rng.integers(len(words))]
        else:
            text = [words[rng.integers(len(words))] for _ in range(rng.integers(1, 30))]
        texts.append(" ".join(text))
    n = data.draw(st.integers(1, 4))
    threshold = data.draw(st.sampled_from([0.3, 0.5, 0.8, 1.0]))
    same = data.draw(st.booleans())
    found = near_duplicates(texts, n=n, threshold=threshold, same_figures=same)
    assert found == slow_near_duplicates(texts, n, threshold, same)


def test_one_word_more_in_a_long_text_is_near_and_an_other_text_is_not():
    more = LONG.replace("a farmer", "an old farmer") + " again"
    other = "Nobody waters the corn; it rains beside the river on most days of the year"
    assert near_duplicates([LONG, more, other, LONG.upper()]) == [-1, 0, -1, 0]


def test_other_numbers_or_signs_are_another_problem():
    text = LONG + " and he pays {} dollars for it"
    texts = [text.format("3 + 4"), text.format("3 + 5"), text.format("3 - 4")]
    assert near_duplicates(texts, threshold=0.7) == [-1, -1, -1]
    found = near_duplicates(texts, threshold=0.7, same_figures=False)
    assert found == [-1, 0, 0]


def test_of_a_chain_of_small_changes_the_ends_are_kept():
    words = LONG.split()
    chain = [" ".join(["x"] * 2 * i + words[2 * i :]) for i in range(6)]
    found = near_duplicates(chain, n=1, threshold=0.8)
    kept = [i for i, j in enumerate(found) if j < 0]
    assert kept[0] == 0 and len(kept) > 1
    for i in kept:
        for j in kept[: kept.index(i)]:
            assert slow_jaccard(chain[i], chain[j], 1) < 0.8
    for i, j in enumerate(found):
        assert j < 0 or slow_jaccard(chain[i], chain[j], 1) >= 0.8


def test_short_and_empty_texts_do_not_fall_together():
    assert near_duplicates(["", " ", "yes", "no", "Yes", "?"]) == [
        -1,
        -1,
        -1,
        -1,
        2,
        -1,
    ]


def test_the_result_is_the_same_each_time():
    texts = [LONG, LONG + " too", LONG + " indeed"] * 3
    assert near_duplicates(texts) == near_duplicates(texts)


def test_signatures_agree_as_often_as_the_sets_are_alike():
    rng = np.random.default_rng(0)
    for jaccard in (0.2, 0.5, 0.8):
        agree = []
        for _ in range(40):
            common = int(200 * jaccard)
            rest = (200 - common) // 2
            x = rng.integers(0, 2**63, 200, dtype=np.uint64)
            a, b = x[: common + rest], np.append(x[:common], x[common + rest :])
            agree.append(np.mean(signature(a) == signature(b)))
        # 40 * 128 draws: a standard deviation of 0.007 at most.
        assert np.mean(agree) == pytest.approx(jaccard, abs=0.03)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0])
def test_a_pair_at_the_threshold_is_hardly_ever_missed(threshold):
    rows = band_rows(threshold)
    assert (1 - threshold**rows) ** (128 // rows) <= 1e-3
    assert (
        rows == {0.3: 1, 0.5: 2, 0.7: 4, 0.8: 4, 0.9: 8, 0.95: 8, 1.0: 128}[threshold]
    )


def test_a_threshold_that_cannot_be_is_refused():
    for n, threshold in ((5, 0.0), (5, 1.1), (0, 0.8)):
        with pytest.raises(ValueError, match="near_duplicates needs"):
            near_duplicates(["a"], n=n, threshold=threshold)
