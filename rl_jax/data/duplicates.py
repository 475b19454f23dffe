"""Texts that are said twice: word for word, or nearly.

Nearly means that of the runs of n tokens that either text has, both have at least a
share (Jaccard similarity). Candidates are found by MinHash, and then compared in full:
what is reported is near, and of what is near less than one in a thousand is missed.

Source: Broder, "On the resemblance and containment of documents" (1997); bands as in
Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", section 3.4.
"""

import unicodedata
import zlib
from collections.abc import Iterable

import numpy as np

from rl_jax.data.ngrams import figures, gram_hashes, tokens

_HASHES = 128  # in a signature
_MOST_MISSED = 1e-3  # of pairs just as similar as the threshold
_rng = np.random.default_rng(1997)
# Multiply-shift hashing: odd factors, modulo 2 ** 64.
_FACTORS = _rng.integers(0, 2**63, (_HASHES, 1), dtype=np.uint64) * 2 + 1
_SHIFTS = _rng.integers(0, 2**63, (_HASHES, 1), dtype=np.uint64)


def exact_duplicates(texts: Iterable[str]) -> list[int]:
    """For each text the index of the first that is the same; -1 for the first itself.

    Spaces and line ends are taken as one space, composed and decomposed letters (NFC)
    as the same. Case counts.
    """
    first: dict[str, int] = {}
    found = []
    for i, text in enumerate(texts):
        plain = " ".join(unicodedata.normalize("NFC", text).split())
        earlier = first.setdefault(plain, i)
        found.append(-1 if earlier == i else earlier)
    return found


def near_duplicates(
    texts: Iterable[str],
    *,
    n: int = 5,
    threshold: float = 0.8,
    same_figures: bool = True,
) -> list[int]:
    """For each text the index of an earlier one that it nearly is; -1 if there is none.

    Earlier ones that are duplicates themselves do not count, so that of a chain of
    small changes the ends, which differ, are both kept.

    Args:
        n: tokens in a run; a shorter text is one run.
        threshold: the share of runs in common from which texts are the same, in (0, 1].
        same_figures: only texts with the same numbers, and signs between them, can be
            the same: a problem with other numbers is another problem.

    Raises:
        ValueError: for a threshold outside of (0, 1], or n < 1.
    """
    if not 0 < threshold <= 1 or n < 1:
        raise ValueError(f"near_duplicates needs 0 < {threshold=} <= 1 and {n=} >= 1")
    rows = band_rows(threshold)
    buckets: dict[bytes, list[int]] = {}
    kept: dict[int, np.ndarray] = {}
    found = []
    for i, text in enumerate(texts):
        words = tokens(text)
        grams = np.unique(gram_hashes(words, min(n, len(words))))
        if not len(grams):
            found.append(-1)
            continue
        own = zlib.crc32(" ".join(figures(text)).encode()) if same_figures else 0
        keys = _keys(signature(grams), rows, own)
        candidates = sorted({j for key in keys for j in buckets.get(key, ())})
        near = (j for j in candidates if _are_near(grams, kept[j], threshold))
        earlier = next(near, -1)
        found.append(earlier)
        if earlier < 0:
            kept[i] = grams
            for key in keys:
                buckets.setdefault(key, []).append(i)
    return found


def signature(grams: np.ndarray) -> np.ndarray:
    """MinHash, uint32 [128]: two sets agree at each place with chance Jaccard.

    Args:
        grams: uint64, at least one.
    """
    hashed = (_FACTORS * grams[None] + _SHIFTS) >> np.uint64(32)
    return hashed.min(axis=1).astype(np.uint32)


def band_rows(threshold: float) -> int:
    """How many places of a signature make a band.

    Two texts are compared if they agree in all places of some band. Of the sizes that
    miss few enough pairs at the threshold, the largest compares fewest in vain.
    """
    sizes = [2**k for k in range(8) if 2**k <= _HASHES]
    missed = {rows: (1 - threshold**rows) ** (_HASHES // rows) for rows in sizes}
    return max((rows for rows in sizes if missed[rows] <= _MOST_MISSED), default=1)


def _keys(signed: np.ndarray, rows: int, own: int) -> list[bytes]:
    """A name for each band: its number, its places, and what else must agree."""
    return [
        b"%d:%d:" % (start, own) + signed[start : start + rows].tobytes()
        for start in range(0, _HASHES, rows)
    ]


def _are_near(a: np.ndarray, b: np.ndarray, threshold: float) -> bool:
    """Jaccard similarity of two sorted sets, compared with the threshold."""
    small, large = sorted((len(a), len(b)))
    if small < threshold * large:  # no overlap could be enough
        return False
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common >= threshold * (len(a) + len(b) - common)
