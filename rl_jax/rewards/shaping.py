"""Rewards for how a single reply is written: its length, its loops, its language.

They say nothing of whether it is right, and have a weight of their own. What compares
the lengths of a whole group is in objectives/shaping.py.
"""

import math
import re
import time
import unicodedata
from collections.abc import Mapping
from typing import Any

from rl_jax.rewards.registry import SHAPING, option_of
from rl_jax.rewards.score import Score, Verdict


def cosine_length(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    """A reward that moves with the length along half a cosine, by whether it is right.

        reward = long + (short - long) * (1 + cos(pi * length / max_tokens)) / 2

    where short and long are those of right or of wrong answers, and `beyond` replaces
    all that for a reply of max_tokens or more. An answer is right if the first other
    function that judges it gave more than 0; if that gave nothing, nor does this.

    options["cosine_length"]: correct_short, correct_long, wrong_short, wrong_long,
    beyond; max_tokens, 0 taking options["max_new_tokens"].

    Source: "Demystifying Long Chain-of-Thought Reasoning in LLMs", arXiv:2502.03373,
    section 4.2; the default values are those of open-r1.
    """
    start = time.perf_counter()
    given = [v for k, v in job.get("scores", {}).items() if k not in SHAPING]
    judged = next((value for value in given if value is not None), None)
    max_tokens = option_of(options, "cosine_length", "max_tokens") or options.get(
        "max_new_tokens", 0
    )
    if not max_tokens:
        raise ValueError("cosine_length needs cosine_length.max_tokens")
    if judged is None:
        return Score(None, Verdict.UNPARSABLE_GOLD, detail="no score to go by")
    kind = "correct" if judged > 0 else "wrong"
    value = cosine_reward(
        job["num_tokens"],
        max_tokens=max_tokens,
        short=option_of(options, "cosine_length", f"{kind}_short"),
        long=option_of(options, "cosine_length", f"{kind}_long"),
        beyond=option_of(options, "cosine_length", "beyond"),
    )
    return _score(value, start)


def cosine_reward(
    length: int, *, max_tokens: int, short: float, long: float, beyond: float
) -> float:
    """The formula of `cosine_length`; lengths in tokens."""
    if length >= max_tokens:
        return beyond
    return long + (short - long) * (1 + math.cos(math.pi * length / max_tokens)) / 2


def repetition(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    """A penalty for saying the same again: 0 if no n-gram of words comes twice.

        reward = max_penalty * (1 - distinct n-grams / all n-grams)

    A word is what stands between spaces; each Chinese or Japanese sign is one. A reply
    of fewer than n words gets 0.

    options["repetition"]: ngram (n), max_penalty (negative).

    Source: arXiv:2502.03373, appendix; open-r1 has the same with n = 3 or 20.
    """
    start = time.perf_counter()
    size = option_of(options, "repetition", "ngram")
    max_penalty = option_of(options, "repetition", "max_penalty")
    return _score(
        max_penalty * repeated_share(job["completion"], size), start, fair_if=0.0
    )


_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff]|[^\\s\u3040-\u30ff\u3400-\u9fff]+")


def repeated_share(text: str, size: int) -> float:
    """The share of n-grams of words that have come before, from 0 to below 1."""
    words = _WORD.findall(text.lower())
    count = len(words) - size + 1
    if count < 1:
        return 0.0
    distinct = {tuple(words[i : i + size]) for i in range(count)}
    return 1.0 - len(distinct) / count


# How the name of a letter in Unicode begins. A script, and no more: French passes for
# English.
_SCRIPTS = {
    "en": ("LATIN",),
    "zh": ("CJK",),
    "ja": ("HIRAGANA", "KATAKANA", "CJK"),
    "ko": ("HANGUL",),
    "ru": ("CYRILLIC",),
    "ar": ("ARABIC",),
    "hi": ("DEVANAGARI",),
    "el": ("GREEK",),
    "he": ("HEBREW",),
    "th": ("THAI",),
}
# Formulas and code are of no language. Bounded, as each unclosed one is looked for to
# the end.
_FORMULA = re.compile(
    r"```.{0,4000}?```|`[^`\n]{0,400}`|\$\$.{0,2000}?\$\$|\$[^$\n]{0,400}\$"
    r"|\\\(.{0,2000}?\\\)|\\\[.{0,2000}?\\\]|\\[a-zA-Z]+|<[^<>\n]{1,40}>",
    re.DOTALL,
)
_LETTERS = re.compile(
    "[\u3040-\u30ff\u3400-\u9fff]|[^\\W\\d_\u3040-\u30ff\u3400-\u9fff]+"
)


def language(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    """The share of words that are in the wanted language's script, thinking included.

    Formulas, code and tags do not count; a reply without words gets 1. A single letter
    is a variable and no word, but for Chinese and Japanese signs.

    options["language"]: wanted, one of `registry.LANGUAGES`.

    Source: the language consistency reward of DeepSeek-R1, arXiv:2501.12948, 2.3.2.
    """
    start = time.perf_counter()
    wanted = option_of(options, "language", "wanted")
    return _score(language_share(job["completion"], wanted), start)


def language_share(text: str, wanted: str) -> float:
    """The formula of `language`."""
    words = [
        word
        for word in _LETTERS.findall(_FORMULA.sub(" ", text))
        if len(word) > 1 or not word.isascii()
    ]
    if not words:
        return 1.0
    scripts = _SCRIPTS[wanted]
    num_wanted = sum(
        unicodedata.name(word[0], "").startswith(scripts) for word in words
    )
    return num_wanted / len(words)


def _score(value: float, start: float, *, fair_if: float | None = None) -> Score:
    """A score with the verdict of a sign: what is above 0, or as good as can be."""
    good = value > 0 or value == fair_if
    return Score(
        value=value,
        verdict=Verdict.CORRECT if good else Verdict.WRONG,
        seconds=time.perf_counter() - start,
    )
