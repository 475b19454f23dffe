"""Endless streams: each epoch whole, in an order that seed and index alone decide."""

import itertools
import threading
import time
from typing import Any

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


# Mixtures.

PARTS = [[f"a{i}" for i in range(60)], [f"b{i}" for i in range(170)], ["c"]]
WEIGHTS = [0.3, 0.6, 0.1]


def mixed(seed=0, weights=WEIGHTS):
    return pipeline.mixture(PARTS, weights, seed=seed)


def first(count, dataset: Any) -> list[Any]:
    return [dataset[i] for i in range(count)]


def test_a_mixture_keeps_its_shares_all_along():
    """Of any stretch, however short, to within the number of sources."""
    items = first(1100, mixed())
    for start, end in [(0, 7), (0, 100), (123, 180), (1000, 1013), (0, 1100)]:
        for letter, share in zip("abc", WEIGHTS, strict=True):
            found = sum(item.startswith(letter) for item in items[start:end])
            assert abs(found - share * (end - start)) <= 3, (start, end, letter)


@pytest.mark.parametrize("weights", [[3, 6, 1], [0.3, 0.6, 0.1]])
def test_only_the_ratio_of_weights_counts(weights):
    assert first(50, mixed(0, weights)) == first(50, mixed())


def test_each_source_of_a_mixture_has_epochs_and_orders_of_its_own():
    items = first(600, mixed())
    for part in PARTS:
        own = [item for item in items if item in part]
        count = len(own) // len(part)
        assert count > 1
        orders = [own[e * len(part) : (e + 1) * len(part)] for e in range(count)]
        assert all(sorted(order) == sorted(part) for order in orders)
        assert part == ["c"] or orders[0] != orders[1]
    other = first(600, mixed(seed=1))
    assert [item[0] for item in other] == [item[0] for item in items]
    assert other != items


def test_an_item_of_a_mixture_depends_on_seed_and_index_alone():
    forward, again = first(60, mixed()), mixed()
    assert [again[i] for i in reversed(range(60))] == forward[::-1]
    assert mixed()[10**12] == mixed()[10**12]
    # Pinned, as above.
    assert " ".join(forward[:10]) == "a21 b39 b43 a37 b96 b40 a31 b14 b1 c"


def test_two_sources_of_the_same_rows_come_in_different_orders():
    same = first(202, pipeline.mixture([ITEMS, ITEMS], [1, 1], seed=0))
    one, two = same[::2], same[1::2]
    assert sorted(one) == sorted(two) and one != two


def test_a_source_without_items_is_an_error():
    with pytest.raises(ConfigError, match="no rows"):
        pipeline.mixture([ITEMS, []], [1, 1], seed=0)


# Reading ahead.


@pytest.mark.parametrize("start", [0, 1, 100, 101, 1000])
def test_a_reader_gives_the_stream_from_an_index_on(start):
    stream = pipeline.stream(ITEMS, seed=5)
    with pipeline.Reader(stream, start, num_threads=3, num_items=4) as ahead:
        taken = ahead.take(7) + ahead.take(0) + ahead.take(33)
        assert ahead.position == start + 40
    assert taken == [(start + i, stream[start + i]) for i in range(40)]


def test_looking_ahead_takes_nothing():
    stream = pipeline.stream(ITEMS, seed=5)
    with pipeline.Reader(stream, 3) as ahead:
        for position in (3, 8, 9):
            seen = list(itertools.islice(ahead.ahead(), 6))
            assert seen == [stream[position + i] for i in range(6)]
            assert ahead.position == position
            ahead.take(5 if position == 3 else 1)


def test_a_reader_stopped_anywhere_goes_on_at_its_position():
    stream = mixed()
    with pipeline.Reader(stream, 0) as whole:
        want = [item for _, item in whole.take(60)]
    found, position = [], 0
    for count in (1, 13, 0, 29, 17):
        with pipeline.Reader(stream, position) as part:
            list(itertools.islice(part.ahead(), 20))  # what was seen is not taken
            found += [item for _, item in part.take(count)]
            position = part.position
    assert found == want


def test_what_a_map_raises_reaches_the_reader():
    def broken(item):
        raise ConfigError(f"cannot read {item}")

    with pipeline.Reader(pipeline.stream(ITEMS, seed=5).map(broken), 0) as ahead:
        with pytest.raises(ConfigError, match="cannot read item"):
            ahead.take(1)


def test_closing_ends_the_threads():
    before = {*threading.enumerate()}

    def started():
        return {*threading.enumerate()} - before

    with pipeline.Reader(pipeline.stream(ITEMS, seed=5), 0) as ahead:
        assert not started()  # nothing is read unasked
        ahead.take(1)
        assert started()
    deadline = time.monotonic() + 10  # They finish what they are reading first.
    while started() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not started()


def test_no_items_is_an_error():
    with pytest.raises(ConfigError, match="no rows"):
        pipeline.stream([], seed=0)
