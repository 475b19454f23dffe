"""Which prompts are asked: never a retired one, every one again, the same once more."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny_stage as tiny
from rl_jax.data.sources import Mixture, Part, Source
from rl_jax.errors import ConfigError
from rl_jax.stages import curriculum, inputs
from rl_jax.stages.asking import Chooser, InOrder, asking
from rl_jax.stages.curriculum import Outcome, Settings


def prompts_of(*sizes, weights=None):
    """A mixture of prompts (source, number)."""
    weights = weights or [None] * len(sizes)
    return Mixture(
        tuple(
            Part(Source(f"s{k}", w), [tiny.prompt((k, i)) for i in range(size)])
            for k, (size, w) in enumerate(zip(sizes, weights, strict=True))
        )
    )


def asker_of(prompts, position=None, seed=0, **changes):
    """(the asker, the context to close)"""
    changes = {f"curriculum__{key}": value for key, value in changes.items()}
    return asking(tiny.rl_stage(**changes), prompts, seed, position or {})


def chooser_of(n, settings, *, seed=0, position=0, memory=None, stride=1):
    """One over n numbers, whose order is 0, stride, 2 stride, ... modulo n."""
    return Chooser(
        range(n),
        lambda i: i * stride % n,
        settings,
        seed=seed,
        position=position,
        memory=curriculum.fresh(n) if memory is None else memory,
    )


def asked(asker, steps, count, solved=lambda ids: False, start=1):
    """Prompts of each step; a prompt is solved wholly or not at all."""
    found = []
    for step in range(start, start + steps):
        asker.begin(step, count)
        taken = asker.take(count)
        results = {number: Outcome(4, 4 * solved(item)) for number, item in taken}
        asker.record(results, step)
        found.append([item for _, item in taken])
    return found


def test_by_default_it_is_the_data_in_order_and_nothing_is_remembered():
    prompts = prompts_of(7)
    with asker_of(prompts, {"next_row": 3}) as asker:
        assert isinstance(asker, InOrder)
        taken = asker.take(9)
        assert asker.begin(1, 9) == "" and asker.position == 12
        assert (asker.remembered(), asker.metrics()) == ({}, {})
    stream = inputs.stream(prompts, 0)
    assert taken == [(i, stream[i]) for i in range(3, 12)]


@pytest.mark.parametrize(
    "prompts",
    [prompts_of(7), prompts_of(5, 3), prompts_of(5, 3, weights=[0.75, 0.25])],
    ids=["one", "two", "shares"],
)
def test_while_nothing_is_retired_the_order_is_that_of_the_data(prompts):
    with asker_of(prompts, seed=3, retire_at=0.9) as asker:
        assert isinstance(asker, Chooser)
        taken = asker.take(4) + asker.take(16)
    stream = inputs.stream(prompts, 3)
    assert taken == [(i, stream[i]) for i in range(20)]


def test_retired_prompts_are_stepped_over():
    chooser = chooser_of(6, Settings(retire_at=1.0))
    steps = asked(chooser, 4, 2, solved=lambda item: item % 2 == 0)
    # 0, 2 and 4 are solved when first asked; the odd ones go round and round.
    assert steps == [[0, 1], [2, 3], [4, 5], [1, 3]]
    # Position 6 is prompt 0 and 8 is prompt 2: they have no request.
    assert chooser.position == 10


def test_when_all_are_retired_those_of_longest_ago_are_asked_again_and_it_is_said():
    chooser = chooser_of(4, Settings(retire_at=1.0))
    steps = asked(chooser, 2, 2, solved=lambda item: True)
    assert steps == [[0, 1], [2, 3]]
    line = chooser.begin(3, 2)
    assert line.startswith("step 3: all 4 prompts are retired; the 2 that were solved")
    assert sorted(item for _, item in chooser.take(2)) == [0, 1]


def test_a_few_left_of_many_are_gone_round_without_a_walk_through_all():
    n, calls = 100_000, itertools.count()
    memory = dataclasses.replace(curriculum.fresh(n), retired_P=np.arange(n) >= 3)

    def order(i):
        next(calls)
        return n - 1 - i

    left = Settings(retire_at=1.0)
    chooser = Chooser(range(n), order, left, seed=0, position=0, memory=memory)
    steps = asked(chooser, 4, 2)
    assert steps == [[0, 1], [2, 0], [1, 2], [0, 1]]
    assert next(calls) <= 4 * 16 * 2


def test_the_numbers_of_requests_are_never_used_twice():
    for draw in ("uniform", "hard"):
        given = Settings(retire_at=1.0, reenter_after=2, draw=draw)
        chooser = chooser_of(5, given)
        numbers = []
        for step in range(1, 12):
            chooser.begin(step, 3)
            taken = chooser.take(3) + chooser.take(1)
            chooser.record({k: Outcome(1, item % 2) for k, item in taken}, step)
            numbers += [number for number, _ in taken]
        assert len({*numbers}) == len(numbers) == 44
        assert max(numbers) < chooser.position


def test_a_source_keeps_its_share_when_prompts_are_drawn_by_weight():
    prompts = prompts_of(40, 4, weights=[0.25, 0.75])
    with asker_of(prompts, draw="hard") as asker:
        counts = np.zeros(2)
        for step in range(1, 800):
            asker.begin(step, 1)
            ((_, prompt),) = asker.take(1)
            counts[prompt.ids[0]] += 1
    # Five standard deviations of a share of 799 draws.
    np.testing.assert_allclose(counts / counts.sum(), [0.25, 0.75], rtol=0, atol=0.08)


def test_hard_prompts_are_drawn_more_often_than_solved_ones():
    chooser = chooser_of(8, Settings(draw="hard", floor=0.01))
    steps = asked(chooser, 300, 2, solved=lambda item: item < 4)
    counts = np.bincount(np.ravel(steps), minlength=8)
    assert counts[4:].min() > 5 * counts[:4].max()
    assert counts[:4].min() > 0


def test_a_checkpoint_of_other_prompts_is_refused():
    with asker_of(prompts_of(4), retire_at=0.5) as asker:
        text = asker.remembered()["curriculum"]()
    position = {"next_row": 0, "curriculum": text}
    with asker_of(prompts_of(4), position, retire_at=0.5) as asker:
        assert asker.metrics()["data/retired"] == 0
    with pytest.raises(ConfigError, match="how 4 prompts were answered"):
        with asker_of(prompts_of(5), position, retire_at=0.5):
            pass


# Whatever comes out.

SETTINGS = st.builds(
    Settings,
    retire_at=st.sampled_from([0.0, 0.5, 1.0]),
    retire_after=st.integers(1, 2),
    reenter_after=st.integers(0, 4),
    draw=st.sampled_from(["uniform", "hard", "uncertain"]),
)


def played(chooser, steps, count, seed, start=1):
    """Random outcomes, of a seed; (memory before, ids asked, memory after) each."""
    found = []
    for step in range(start, start + steps):
        rng = np.random.default_rng((seed, step))
        chooser.begin(step, count)
        before = chooser.memory
        taken = chooser.take(count) + chooser.take(int(rng.integers(0, 3)))
        chooser.record(
            {number: Outcome(4, int(rng.integers(0, 5))) for number, _ in taken}, step
        )
        found.append((before, taken, chooser.memory))
    return found


@settings(max_examples=60, deadline=None)
@given(
    given=SETTINGS,
    n=st.integers(1, 7),
    count=st.integers(1, 4),
    seed=st.integers(0, 99),
    cut=st.integers(0, 9),
)
def test_no_retired_prompt_is_asked_and_a_resumed_run_asks_the_same(
    given, n, count, seed, cut
):
    if not given.is_on:
        return
    steps = played(chooser_of(n, given, seed=seed, stride=1), 9, count, seed)
    for before, taken, _ in steps:
        assert len(taken) >= count  # never an empty step
        assert not any(before.retired_P[item] for _, item in taken)
        if given.draw != "uniform":
            times = np.bincount([item for _, item in taken], minlength=n)
            # None twice while there are others.
            assert times.max() <= -(-len(taken) // (~before.retired_P).sum())
    # From any step on, out of what a checkpoint has.
    chooser = chooser_of(n, given, seed=seed)
    played(chooser, cut, count, seed)
    text = curriculum.encoded(chooser.memory, 0)
    again = chooser_of(
        n,
        given,
        seed=seed,
        position=chooser.position,
        memory=curriculum.decoded(text, n, 0, key=""),
    )
    rest = played(again, 9 - cut, count, seed, start=cut + 1)
    assert [taken for _, taken, _ in rest] == [taken for _, taken, _ in steps[cut:]]


@settings(max_examples=30, deadline=None)
@given(
    draw=st.sampled_from(["uniform", "hard"]),
    n=st.integers(1, 6),
    count=st.integers(1, 3),
    wait=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_every_prompt_that_retires_is_asked_again(draw, n, count, wait, seed):
    given = Settings(retire_at=1.0, reenter_after=wait, draw=draw, floor=0.5)
    chooser = chooser_of(n, given, seed=seed)
    steps = asked(chooser, 60 * n, count, solved=lambda item: True)
    half = len(steps) // 2
    assert {*itertools.chain(*steps[:half])} == {*range(n)}
    assert {*itertools.chain(*steps[half:])} == {*range(n)}
    # But none before its time, unless there is nothing else.
    for item in range(n):
        at = [i for i, step in enumerate(steps) if item in step]
        early = [b for a, b in zip(at, at[1:], strict=False) if b - a < wait]
        others = [{*itertools.chain(*steps[max(0, b - wait + 1) : b])} for b in early]
        assert all(len(seen) > n - count for seen in others)
