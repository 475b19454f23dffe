"""Tokens that depend on no model, and hashes of their runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_jax.data.ngrams import figures, gram_hashes, mixed, tokens


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("What is 3 + 4?", ["what", "is", "3", "+", "4", "?"]),
        ("  Straße\n\nSTRASSE ", ["strasse", "strasse"]),
        (r"\frac{a_1}{x^2}", ["\\", "frac", *"{a_1}{x^2}"]),
        ("求3个数", ["求", "3", "个", "数"]),
        ("ｆｕｌｌ　width", ["full", "width"]),
        ("", []),
        (" \t\n", []),
    ],
)
def test_words_and_symbols_are_tokens(text, want):
    assert tokens(text) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("3 + 4 apples", ("3", "+", "4")),
        ("3-4 and 3 - 4", ("3", "-", "4", "3", "-", "4")),
        ("a well-known 1,250", ("1", "250")),
        ("none", ()),
    ],
)
def test_figures_are_numbers_and_the_signs_between_them(text, want):
    assert figures(text) == want


def slow_hash(words):
    """One run, by Python's whole numbers."""
    total = 0
    for word in words:
        total = (total * 0x9E3779B97F4A7C15 + int(gram_hashes_of_one(word))) % 2**64
    x = total
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def gram_hashes_of_one(word):
    import hashlib

    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


@given(
    st.lists(st.sampled_from(["a", "b", "c", "é", "+"]), max_size=9), st.integers(1, 4)
)
def test_runs_are_hashed_as_one_by_one(words, n):
    found = gram_hashes(words, n)
    want = [slow_hash(words[i : i + n]) for i in range(len(words) - n + 1)]
    assert found.dtype == np.uint64 and found.tolist() == want


def test_a_hash_is_the_same_on_every_machine_and_in_every_version():
    assert gram_hashes(["3", "+", "4"], 3).tolist() == [slow_hash(["3", "+", "4"])]
    assert mixed(np.array([1], np.uint64)).tolist() == [0x5692161D100B05E5]


def test_other_order_and_other_tokens_give_other_hashes():
    runs = [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "d"], ["ab", "c", "a"]]
    assert len({gram_hashes(run, 3)[0] for run in runs}) == 4


def test_fewer_tokens_than_a_run_give_none():
    assert gram_hashes(["a", "b"], 3).shape == (0,)
    assert gram_hashes([], 0).shape == (0,)
