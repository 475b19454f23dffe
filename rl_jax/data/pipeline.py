"""Endless streams of rows in a reproducible order, on Grain.

The position in a stream is one global index that the caller keeps: `dataset[i]`
depends on the items, the seed and `i` alone, so a run resumes on any number of
processes by going on at its index. `dataset.map(f)` does work when an item is asked
for; a `Reader` has it done ahead of time by threads.
"""

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np

from rl_jax.errors import ConfigError


def stream(
    items: Sequence[Any], *, seed: int | tuple[int, ...], shuffle: bool = True
) -> grain.MapDataset:
    """An endless dataset over `items`.

    Indices e * len(items) to (e + 1) * len(items) - 1 are epoch e: each item once, in
    an order of its own, made from (seed, e).

    Args:
        items: anything with a length and integer indices.
        seed: any integer from 0, or several.
        shuffle: False gives the order of `items`, epoch after epoch.

    Raises:
        ConfigError: if there are no items.
    """
    if not len(items):
        raise ConfigError("There are no rows to train on.")
    dataset = grain.MapDataset.source(items)
    if shuffle and len(items) > 1:  # one item takes Grain 10 ms to shuffle
        # Grain 0.2 seeds epoch e with seed + e, which would make the second epoch of
        # seed 0 the first of seed 1. Mixing the seed first keeps runs apart.
        mixed = np.random.SeedSequence(seed).generate_state(1, np.uint32)[0]
        dataset = dataset.shuffle(seed=int(mixed))
    return dataset.repeat()


def mixture(
    parts: Sequence[Sequence[Any]], weights: Sequence[float], *, seed: int
) -> grain.MapDataset:
    """An endless dataset over several sources, with a share of its items from each.

    The shares are kept all along: of the first n items, n * weights[k] / sum(weights)
    are of source k, to within len(parts) items, and to within 1 % as Grain rounds the
    weights. Each source is a `stream` with epochs and an order of its own.

    Raises:
        ConfigError: if a source has no items.
    """
    # k + 1: NumPy takes no notice of zeros at the end.
    streams = [stream(part, seed=(seed, k + 1)) for k, part in enumerate(parts)]
    return grain.MapDataset.mix(streams, weights)


class Reader:
    """Items of an endless dataset from a position on, read ahead by threads.

    Each of several processes reads them all: where a batch ends depends on the lengths
    of its items, and all have to agree on it. To be used in a `with` statement.

    Attributes:
        position: index of the next item.
    """

    def __init__(
        self,
        dataset: grain.MapDataset,
        position: int,
        *,
        num_threads: int = 2,
        num_items: int = 16,
    ):
        """Nothing is read before the first item is asked for.

        Args:
            dataset: what `stream` or `mixture` gives, or a map of it.
            num_threads: threads that read ahead.
            num_items: how many items may wait.
        """
        self.position = position
        self._dataset = dataset
        self._options = grain.ReadOptions(
            num_threads=num_threads, prefetch_buffer_size=max(num_items, num_threads)
        )
        self._read: grain.DatasetIterator | None = None
        self._unread = position  # index of what comes next
        self._waiting: collections.deque[tuple[int, Any]] = collections.deque()

    def take(self, count: int) -> list[tuple[int, Any]]:
        """Moves on by `count` items, and gives them with their indices."""
        taken = []
        for _ in range(count):
            taken.append(self._waiting.popleft() if self._waiting else self._next())
        self.position += count
        return taken

    def ahead(self) -> Iterator[Any]:
        """The items from the position on, without moving it."""
        for number in range(len(self._waiting)):
            yield self._waiting[number][1]
        while True:
            self._waiting.append(self._next())
            yield self._waiting[-1][1]

    def close(self) -> None:
        """Ends the threads."""
        if self._read is not None:
            self._read.close()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> tuple[int, Any]:
        if self._read is None:
            rest = self._dataset.slice(slice(self._unread, None))
            self._read = iter(rest.to_iter_dataset(self._options))
        item, index = next(self._read), self._unread
        self._unread += 1
        return index, item
