"""Endless streams: each epoch whole, in an order that seed and index alone decide."""

import threading
import time

import pytest

from rl_jax.data import pipeline
from rl_jax.errors import ConfigError

ITEMS = [f"item {i}" for i in range(101)]


def epochs(stream, count, size):
    return [[stream[e * size + i] for i in range(size)] for e in range(count)]


@pytest.mark.parametrize("size", [1, 2, 7, 101])
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_each_epoch_holds_each_item_once(size, seed):
    items = list(range(size))
    for epoch in epochs(pipeline.stream(items, seed=seed), 3, size):
        assert sorted(epoch) == items


def test_epochs_and_seeds_differ_in_order():
    orders = [
        tuple(epoch)
        for seed in (0, 1, 2)
        for epoch in epochs(pipeline.stream(ITEMS, seed=seed), 4, len(ITEMS))
    ]
    # Grain alone would make epoch 1 of seed 0 the same as epoch 0 of seed 1.
    assert len(set(orders)) == 12
    assert tuple(ITEMS) not in orders


def test_an_item_depends_on_seed_and_index_alone():
    forward = pipeline.stream(ITEMS, seed=7)
    first = [forward[i] for i in range(60)]
    backward = pipeline.stream(list(ITEMS), seed=7)
    assert [backward[i] for i in reversed(range(60))] == first[::-1]
    assert pipeline.stream(ITEMS, seed=7)[10**9] == forward[10**9]


def test_the_order_is_the_one_it_was():
    # Pinned: a resumed run relies on it. A change here breaks every checkpoint.
    stream = pipeline.stream(range(7), seed=0)
    assert [stream[i] for i in range(14)] == [5, 3, 6, 0, 4, 2, 1, 6, 5, 4, 1, 0, 2, 3]


def test_without_shuffling_the_order_is_that_of_the_items():
    stream = pipeline.stream(ITEMS, seed=0, shuffle=False)
    assert epochs(stream, 2, len(ITEMS)) == [ITEMS, ITEMS]


def test_slices_by_process_together_are_the_stream():
    stream = pipeline.stream(ITEMS, seed=3)
    parts = [stream[process::3] for process in range(3)]
    assert [parts[i % 3][i // 3] for i in range(50)] == [stream[i] for i in range(50)]


@pytest.mark.parametrize("start", [0, 1, 100, 101, 1000])
def test_prefetching_gives_the_stream_from_an_index_on(start):
    stream = pipeline.stream(ITEMS, seed=5)
    ahead = pipeline.prefetch(stream, start, num_threads=3, num_items=4)
    taken = [next(ahead) for _ in range(40)]
    ahead.close()
    assert taken == [stream[start + i] for i in range(40)]


def test_prefetching_works_ahead_of_a_map_and_of_a_slice():
    stream = pipeline.stream(ITEMS, seed=5)
    ahead = pipeline.prefetch(stream[1::2].map(str.upper), 10)
    taken = [next(ahead) for _ in range(5)]
    ahead.close()
    assert taken == [str(stream[1 + 2 * (10 + i)]).upper() for i in range(5)]


def test_what_a_map_raises_reaches_the_reader():
    def broken(item):
        raise ConfigError(f"cannot read {item}")

    ahead = pipeline.prefetch(pipeline.stream(ITEMS, seed=5).map(broken), 0)
    with pytest.raises(ConfigError, match="cannot read item"):
        next(ahead)
    ahead.close()


def test_closing_ends_the_threads():
    before = threading.active_count()
    ahead = pipeline.prefetch(pipeline.stream(ITEMS, seed=5), 0)
    next(ahead)
    ahead.close()
    deadline = time.monotonic() + 10  # They finish what they are reading first.
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_no_items_is_an_error():
    with pytest.raises(ConfigError, match="no rows"):
        pipeline.stream([], seed=0)
