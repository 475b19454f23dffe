"""Endless streams of rows in a reproducible order, on Grain.

The position in a stream is one global index that the caller keeps: `stream[i]`
depends on the items, the seed and `i` alone, so a run resumes on any number of
processes by going on at its index. `dataset[process::num_processes]` is one process's
share, and `dataset.map(f)` does work, such as tokenising, when an item is asked for.
"""

from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from rl_jax.errors import ConfigError


def stream(
    items: Sequence[Any], *, seed: int, shuffle: bool = True
) -> grain.MapDataset:
    """An endless dataset over `items`.

    Indices e * len(items) to (e + 1) * len(items) - 1 are epoch e: each item once, in
    an order of its own, made from (seed, e).

    Args:
        items: anything with a length and integer indices.
        seed: any integer from 0.
        shuffle: False gives the order of `items`, epoch after epoch.

    Raises:
        ConfigError: if there are no items.
    """
    if not len(items):
        raise ConfigError("There are no rows to train on.")
    dataset = grain.MapDataset.source(items)
    if shuffle:
        # Grain 0.2 seeds epoch e with seed + e, which would make the second epoch of
        # seed 0 the first of seed 1. Mixing the seed first keeps runs apart.
        mixed = np.random.SeedSequence(seed).generate_state(1, np.uint32)[0]
        dataset = dataset.shuffle(seed=int(mixed))
    return dataset.repeat()


def prefetch(
    dataset: grain.MapDataset, start: int, *, num_threads: int = 2, num_items: int = 16
) -> grain.DatasetIterator:
    """Iterates over dataset[start], dataset[start + 1], ..., read ahead by threads.

    Args:
        dataset: what `stream` gives, or a slice or a map of it.
        start: index of the first item.
        num_threads: threads that read ahead. They end when the iterator is closed.
        num_items: how many items may wait.

    Returns:
        An iterator with `close()`. Its own state is not needed to resume:
        `start` plus the number of items taken is the position.
    """
    options = grain.ReadOptions(
        num_threads=num_threads, prefetch_buffer_size=max(num_items, num_threads)
    )
    return iter(dataset.slice(slice(start, None)).to_iter_dataset(options))
