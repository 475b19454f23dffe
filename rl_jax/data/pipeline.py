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
import jax
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

    Of several processes each reads its own share: the items whose global index leaves
    `process_index` when divided by `process_count`. Their positions stay equal as long
    as they move on by the same counts. To be used in a `with` statement.

    Attributes:
        position: global index of the next item, this process's or another's.
    """

    def __init__(
        self,
        dataset: grain.MapDataset,
        position: int,
        *,
        process_index: int | None = None,
        process_count: int | None = None,
        num_threads: int = 2,
        num_items: int = 16,
    ):
        """Nothing is read before the first item is asked for.

        Args:
            dataset: what `stream` or `mixture` gives, or a map of it.
            process_index, process_count: None takes those of JAX.
            num_threads: threads that read ahead.
            num_items: how many items may wait.
        """
        self.position = position
        self._first = jax.process_index() if process_index is None else process_index
        self._step = jax.process_count() if process_count is None else process_count
        self._dataset = dataset
        self._options = grain.ReadOptions(
            num_threads=num_threads, prefetch_buffer_size=max(num_items, num_threads)
        )
        self._read: grain.DatasetIterator | None = None
        self._unread = self._own_from(position)  # global index of what comes next
        self._waiting: collections.deque[tuple[int, Any]] = collections.deque()

    def take(self, count: int) -> list[tuple[int, Any]]:
        """Moves on by `count` items; this process's own with their global indices."""
        end, taken = self.position + count, []
        while self._own_from(self.position) < end:
            index, item = self._waiting.popleft() if self._waiting else self._next()
            taken.append((index, item))
            self.position = index + 1
        self.position = end
        return taken

    def ahead(self) -> Iterator[Any]:
        """This process's items from the position on, without moving it."""
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

    def _own_from(self, index: int) -> int:
        """The first index of this process that is not below `index`."""
        return index + (self._first - index) % self._step

    def _next(self) -> tuple[int, Any]:
        if self._read is None:
            share = self._dataset.slice(slice(self._unread, None, self._step))
            self._read = iter(share.to_iter_dataset(self._options))
        item, index = next(self._read), self._unread
        self._unread += self._step
        return index, item


def reader_of_all(dataset: grain.MapDataset, position: int) -> Reader:
    """A reader that gives every process all items.

    For batches that end where the lengths of their rows say: so that all processes pack
    the same ones.
    """
    return Reader(dataset, position, process_index=0, process_count=1)
