"""Shaping of single replies: worked numbers, and what earns nothing."""

import math
import time

import pytest

from rl_jax.rewards import shaping
from rl_jax.rewards.score import Verdict


def cosine(length, scores, **own):
    options = {"cosine_length": own, "max_new_tokens": 100}
    return shaping.cosine_length({"num_tokens": length, "scores": scores}, options)


@pytest.mark.parametrize(
    ("length", "score", "value"),
    [
        (0, 1.0, 1.0),
        (50, 1.0, 0.75),
        (99.9999, 1.0, 0.5),
        (0, 0.0, -1.0),
        (50, 0.0, -0.75),
        (99.9999, 0.0, -0.5),
        (100, 1.0, -1.0),
        (25, 1.0, 0.5 + 0.25 * (1 + math.cos(math.pi / 4))),
    ],
)
def test_the_cosine_runs_from_short_to_long(length, score, value):
    assert cosine(length, {"maths": score}).value == pytest.approx(value, abs=1e-6)


def test_the_cosine_goes_by_the_first_score_that_judges():
    scores = {"format": 1.0, "mine": None, "maths": 0.0}
    assert cosine(0, scores).value == -1.0
    assert cosine(0, {"format": 1.0}).value is None
    assert cosine(0, {"maths": None}).verdict == Verdict.UNPARSABLE_GOLD


def test_the_cosine_takes_its_own_budget_and_values():
    assert cosine(10, {"m": 1.0}, max_tokens=20, correct_short=2.0).value == 1.25
    with pytest.raises(ValueError, match="max_tokens"):
        shaping.cosine_length({"num_tokens": 1, "scores": {"m": 1.0}}, {})


@pytest.mark.parametrize(
    ("text", "size", "share"),
    [
        ("a b c d", 2, 0.0),
        ("a b a b a b", 2, 1 - 2 / 5),
        ("a a a a a", 1, 0.8),
        ("A a", 1, 0.5),
        ("a b", 3, 0.0),
        ("", 3, 0.0),
        ("再看再看", 2, 1 - 2 / 3),
    ],
)
def test_repetition_is_the_share_of_n_grams_seen_before(text, size, share):
    assert shaping.repeated_share(text, size) == pytest.approx(share, abs=1e-12)


def test_repetition_is_penalised_by_its_share():
    options = {"repetition": {"ngram": 2, "max_penalty": -0.5}}
    looped = shaping.repetition({"completion": "a b a b a b"}, options)
    assert looped.value == pytest.approx(-0.3) and looped.verdict == Verdict.WRONG
    fresh = shaping.repetition({"completion": "a b c"}, options)
    assert (fresh.value, fresh.verdict) == (0.0, Verdict.CORRECT)


@pytest.mark.parametrize(
    ("text", "wanted", "share"),
    [
        ("we have six words of eight здесь тоже", "en", 0.75),
        ("so x = 5, hence \\frac{a}{b}", "en", 1.0),
        ("所以 answer", "zh", 2 / 3),
        ("こたえは三", "ja", 1.0),
        ("답은 셋", "ko", 1.0),
        ("ответ three", "ru", 0.5),
        ("42 $ответ$ `код`", "en", 1.0),
        ("<think>yes</think>", "en", 1.0),
        ("", "en", 1.0),
    ],
)
def test_language_is_the_share_of_words_in_its_script(text, wanted, share):
    assert shaping.language_share(text, wanted) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("unit", ["\\(", "$$", "`", "```", "\\[", "<", "a ", "$"])
def test_shaping_is_quick_on_a_hostile_reply(unit):
    job = {"completion": unit * (60_000 // len(unit))}
    start = time.perf_counter()
    shaping.language(job, {})
    shaping.repetition(job, {})
    assert time.perf_counter() - start < 3.0
