"""Text as tokens that do not depend on a model, and runs of them as hashes.

Letters lose their case, compatibility forms become plain (NFKC), and spaces do not
count. A word is a token, and so is every other symbol: 3 + 4 is not 3 - 4. Scripts that
put no spaces between words (Chinese, Japanese, Korean) give a token a character.
"""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Sequence

import numpy as np

_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+|[^\w\s]|_")
_FIGURE = re.compile(r"\d+|(?<=\d)\s*[-+*/=<>^]\s*(?=\d)")
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, as multiplying modulo 2 ** 64 needs


def tokens(text: str) -> list[str]:
    """The words and symbols of a text, in order."""
    return _TOKEN.findall(unicodedata.normalize("NFKC", text).casefold())


def figures(text: str) -> tuple[str, ...]:
    """The numbers of a text, and the signs that stand between two of them."""
    plain = unicodedata.normalize("NFKC", text)
    return tuple(found.strip() for found in _FIGURE.findall(plain))


def gram_hashes(words: Sequence[str], n: int) -> np.ndarray:
    """A uint64 for each run of n tokens, in order; the same on every machine.

    None if there are fewer than n.
    """
    count = len(words) - n + 1
    if n < 1 or count < 1:
        return np.zeros(0, np.uint64)
    each = np.fromiter(map(_token_hash, words), np.uint64, len(words))
    found = np.zeros(count, np.uint64)
    for i in range(n):
        found = found * _BASE + each[i : i + count]  # wraps: modulo 2 ** 64
    return mixed(found)


@functools.lru_cache(maxsize=1_000_000)
def _token_hash(token: str) -> int:
    digest = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def mixed(x: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of x: the end of splitmix64.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
