"""Whether training text holds what a model will be tested on.

A held-out text is found in others if enough of its tokens lie in runs of n tokens that
they have too: n=8 with half of the tokens (Tulu 3, arXiv:2411.15124; the runs of 8 as
Llama 3, arXiv:2407.21783), or n=13 with any run (GPT-3,
arXiv:2005.14165, appendix C).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rl_jax.data.ngrams import gram_hashes, tokens


class Overlap(NamedTuple):
    """A held-out text that was found, and the share of its tokens that were."""

    index: int
    share: float


class HeldOut:
    """The runs of tokens of held-out texts, to be looked for in others."""

    def __init__(self, texts: Sequence[str], *, n: int = 8, share: float = 0.5):
        """Takes the texts apart.

        Args:
            texts: none may be missing from a test: each counts on its own.
            n: tokens in a run.
            share: of a held-out text's tokens, from which it counts as found; 0: any
                run will do.

        Raises:
            ValueError: if n < 1 or the share is not in 0 .. 1.
        """
        if n < 1 or not 0 <= share <= 1:
            raise ValueError(f"HeldOut needs {n=} >= 1 and 0 <= {share=} <= 1")
        self._n, self._share = n, share
        self._lengths: list[int] = []
        # A text shorter than a run is found only where it stands alone: its few words
        # may be part of anything.
        self._short: dict[tuple[str, ...], int] = {}
        grams, owners, places = [], [], []
        for i, text in enumerate(texts):
            words = tokens(text)
            self._lengths.append(len(words))
            hashes = gram_hashes(words, n)
            if not len(hashes) and words:
                self._short.setdefault(tuple(words), i)
            grams.append(hashes)
            owners.append(np.full(len(hashes), i))
            places.append(np.arange(len(hashes)))
        hashes = np.concatenate([np.zeros(0, np.uint64), *grams])
        order = np.argsort(hashes, kind="stable")
        self._grams = hashes[order]
        self._owners = np.concatenate([np.zeros(0, int), *owners])[order]
        self._places = np.concatenate([np.zeros(0, int), *places])[order]

    def found_in(self, parts: Sequence[str]) -> Overlap | None:
        """The held-out text of which most is in some text; None if none is found.

        Args:
            parts: of the text, such as its turns; no run goes from one to the next.
        """
        words = [tokens(part) for part in parts]
        for part in words:
            if tuple(part) in self._short:
                return Overlap(self._short[tuple(part)], 1.0)
        hashes = [gram_hashes(part, self._n) for part in words]
        grams = np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))
        first = np.searchsorted(self._grams, grams, "left")
        last = np.searchsorted(self._grams, grams, "right")
        hit = np.flatnonzero(last > first)
        if not len(hit):
            return None
        at = np.concatenate([np.arange(first[i], last[i]) for i in hit])
        owners, places = self._owners[at], self._places[at]
        best = Overlap(-1, 0.0)
        for owner in np.unique(owners):
            covered = np.zeros(self._lengths[owner], bool)
            for place in places[owners == owner]:
                covered[place : place + self._n] = True
            if covered.mean() > best.share:
                best = Overlap(int(owner), float(covered.mean()))
        return best if best.share >= self._share else None
