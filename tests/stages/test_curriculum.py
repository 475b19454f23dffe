"""The curriculum against a slow twin, and what it promises whatever comes out."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.errors import ConfigError
from rl_jax.stages import curriculum
from rl_jax.stages.curriculum import Outcome, Settings

ATOL = 1e-12  # float64, numbers of order one


def equal(a, b):
    return all(
        x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in zip(vars(a).values(), vars(b).values(), strict=True)
    )


def after(outcomes, *, step=1, memory=None, num_prompts=3, **given):
    memory = curriculum.fresh(num_prompts) if memory is None else memory
    return curriculum.recorded(memory, outcomes, step=step, settings=Settings(**given))


# Retiring, by hand.


def test_seven_of_eight_retire_at_0875_and_stay_at_09():
    seven = [(1, Outcome(judged=8, solved=7))]
    assert after(seven, retire_at=0.875).retired_P.tolist() == [False, True, False]
    assert not after(seven, retire_at=0.9).retired_P.any()
    assert not after(seven).retired_P.any()  # 0: never


def test_the_whole_history_counts_and_not_the_last_time():
    memory = after([(0, Outcome(8, 4))], retire_at=0.75)
    memory = after([(0, Outcome(8, 8))], memory=memory, step=2, retire_at=0.75)
    assert memory.retired_P[0]  # 12 of 16
    assert (memory.asked_P[0], memory.judged_P[0], memory.solved_P[0]) == (2, 16, 12)
    memory = after([(1, Outcome(8, 3))], retire_at=0.75)
    memory = after([(1, Outcome(8, 8))], memory=memory, step=2, retire_at=0.75)
    assert not memory.retired_P[1]  # 11 of 16


def test_a_prompt_retires_only_after_it_was_asked_often_enough():
    given = {"retire_at": 0.5, "retire_after": 3}
    memory, right = None, [(2, Outcome(4, 4))]
    retired = []
    for step in range(1, 5):
        memory = after(right, memory=memory, step=step, **given)
        retired.append(bool(memory.retired_P[2]))
    assert retired == [False, False, True, True]


def test_replies_that_nobody_could_judge_are_no_reason_to_retire():
    memory = after([(0, Outcome(0, 0))], retire_at=0.1)
    assert not memory.retired_P[0] and memory.asked_P[0] == 1
    assert after([(0, Outcome(1, 1))], retire_at=0.9).retired_P[0]


def test_a_prompt_that_comes_back_begins_anew():
    memory = after([(0, Outcome(8, 8))], step=5, retire_at=0.9)
    assert equal(curriculum.reentered(memory, step=14, after=10), memory)
    assert equal(curriculum.reentered(memory, step=99, after=0), memory)  # 0: never
    back = curriculum.reentered(memory, step=15, after=10)
    assert not back.retired_P.any()
    assert (back.asked_P[0], back.judged_P[0], back.solved_P[0]) == (0, 0, 0)
    assert back.last_P[0] == 5  # it was asked, once
    # Now a wrong reply keeps it, which it would not beside eight right ones.
    assert not after([(0, Outcome(2, 1))], memory=back, retire_at=0.8).retired_P[0]


def test_those_solved_longest_ago_come_back_when_too_few_are_left():
    memory = curriculum.fresh(5)
    for step, index in enumerate([3, 1, 4, 0, 2], 1):
        right = [(index, Outcome(4, 4))]
        memory = after(right, memory=memory, step=step, retire_at=1.0)
    assert memory.retired_P.all()
    back = curriculum.topped_up(memory, 2)
    assert np.flatnonzero(~back.retired_P).tolist() == [1, 3]
    assert equal(curriculum.topped_up(back, 2), back)
    assert np.flatnonzero(~curriculum.topped_up(back, 3).retired_P).tolist() == [
        *(1, 3),
        4,
    ]
    assert not curriculum.topped_up(memory, 99).retired_P.any()


# Weights, by hand.


def test_pass_rates_are_smoothed_by_one_right_and_one_wrong_reply():
    memory = after([(0, Outcome(8, 8)), (1, Outcome(2, 0))])
    want = [9 / 10, 1 / 4, 1 / 2]  # the third was never asked
    np.testing.assert_allclose(curriculum.pass_rate(memory), want, rtol=0, atol=ATOL)


def test_hard_prompts_are_drawn_as_kimi_draws_them():
    # Kimi k1.5: in proportion to 1 - success rate.
    weight_P = curriculum.draw_weights(np.array([0.9, 0.5, 0.0]), "hard", 0.0)
    want = [0.0625, 0.3125, 0.625]
    np.testing.assert_allclose(weight_P / weight_P.sum(), want, rtol=0, atol=ATOL)


def test_uncertain_prompts_weigh_most_in_the_middle_and_none_less_than_the_floor():
    p_P = np.array([0.0, 0.01, 0.25, 0.5, 0.75, 1.0])
    weight_P = curriculum.draw_weights(p_P, "uncertain", 0.05)
    want = [0.05, 0.05, 0.75, 1.0, 0.75, 0.05]
    np.testing.assert_allclose(weight_P, want, rtol=0, atol=ATOL)
    assert curriculum.draw_weights(p_P, "uniform", 0.05).tolist() == [1.0] * 6


def test_draws_without_replacement_come_as_often_as_their_chances_say():
    chance_P = np.array([0.5, 0.3, 0.0, 0.2])
    draws = [curriculum.drawn(chance_P, 2, (7, i)) for i in range(4000)]
    first = np.bincount([one[0] for one in draws], minlength=4) / len(draws)
    # Five standard deviations of a share: 5 x 0.5 / sqrt(4000).
    np.testing.assert_allclose(first, chance_P, rtol=0, atol=0.04)
    pairs = [sum(one == [0, 1] for one in draws) / len(draws)]
    np.testing.assert_allclose(pairs, [0.5 * 0.3 / 0.5], rtol=0, atol=0.04)
    assert all(len({*one}) == 2 and 2 not in one for one in draws)
    assert sorted(curriculum.drawn(chance_P, 9, (0,))) == [0, 1, 3]


# A slow twin: one dict a prompt, one line a rule.


def slow_fresh(num_prompts):
    entry = {"asked": 0, "judged": 0, "solved": 0, "last": 0, "retired": False}
    return [dict(entry) for _ in range(num_prompts)]


def slow_forget(one):
    one.update(asked=0, judged=0, solved=0, retired=False)


def slow_step(memory, outcomes, step, count, given):
    """What re-enters before a step, then what the step's outcomes do."""
    for one in memory:
        if one["retired"] and given.reenter_after:
            if step >= one["last"] + given.reenter_after:
                slow_forget(one)
    while sum(not one["retired"] for one in memory) < min(count, len(memory)):
        slow_forget(
            min((one for one in memory if one["retired"]), key=lambda x: x["last"])
        )
    began = [dict(one) for one in memory]
    for index, outcome in outcomes:
        memory[index]["asked"] += 1
        memory[index]["judged"] += outcome.judged
        memory[index]["solved"] += outcome.solved
        memory[index]["last"] = step
    for index, _ in outcomes:
        one = memory[index]
        if given.retire_at and one["asked"] >= given.retire_after and one["judged"]:
            if one["solved"] / one["judged"] >= given.retire_at:
                one["retired"] = True
    return began


SETTINGS = st.builds(
    Settings,
    retire_at=st.sampled_from([0.0, 0.5, 0.875, 1.0]),
    retire_after=st.integers(1, 3),
    reenter_after=st.integers(0, 4),
    draw=st.sampled_from(["uniform", "hard", "uncertain"]),
    floor=st.sampled_from([0.01, 0.05, 1.0]),
)
OUTCOME = st.integers(0, 4).flatmap(
    lambda judged: st.builds(Outcome, st.just(judged), st.integers(0, judged))
)


@settings(max_examples=60, deadline=None)
@given(SETTINGS, st.data())
def test_any_history_is_that_of_the_slow_version(given, data):
    n, count = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 4))
    memory, slow = curriculum.fresh(n), slow_fresh(n)
    for step in range(1, data.draw(st.integers(1, 8)) + 1):
        pairs = st.tuples(st.integers(0, n - 1), OUTCOME)
        outcomes = data.draw(st.lists(pairs, max_size=5))
        memory = curriculum.reentered(memory, step=step, after=given.reenter_after)
        memory = curriculum.topped_up(memory, count)
        began = slow_step(slow, outcomes, step, count, given)
        compare(memory, began)
        assert (~memory.retired_P).sum() >= min(count, n)
        chance_P = curriculum.chances(memory, np.ones(n), given.draw, given.floor)
        np.testing.assert_allclose(
            chance_P, slow_chances(began, given), rtol=0, atol=ATOL
        )
        assert chance_P.sum() == pytest.approx(1.0, abs=ATOL)
        before = dataclasses.replace(memory)
        kept = {name: x_P.copy() for name, x_P in vars(memory).items()}
        memory = curriculum.recorded(memory, outcomes, step=step, settings=given)
        compare(memory, slow)
        # What a stop would save is still what the step began with.
        assert equal(before, curriculum.Memory(**kept))
        text = curriculum.encoded(memory, 5)
        assert equal(curriculum.decoded(text, n, 5, key="data.train"), memory)


def compare(memory, slow):
    for name in ("asked", "judged", "solved", "last", "retired"):
        found = getattr(memory, f"{name}_P").tolist()
        assert found == [one[name] for one in slow], name


def slow_chances(slow, given):
    weights = []
    for one in slow:
        p = (one["solved"] + 1) / (one["judged"] + 2)
        weight = {"uniform": 1.0, "hard": 1 - p, "uncertain": 4 * p * (1 - p)}
        weights.append(0.0 if one["retired"] else max(weight[given.draw], given.floor))
    return [weight / sum(weights) for weight in weights]


# What a checkpoint keeps.


def test_a_memory_of_other_prompts_is_refused_by_name():
    text = curriculum.encoded(curriculum.fresh(4), 17)
    for size, summed in ((5, 17), (4, 18)):
        with pytest.raises(ConfigError, match="how 4 prompts were answered") as error:
            curriculum.decoded(text, size, summed, key="rl.data.train")
        assert "config.rl.data.train" in str(error.value)
        assert len(str(error.value).splitlines()) <= 3


def test_the_checksum_tells_prompts_apart_and_where_one_ends():
    sums = [
        curriculum.checksum(prompts)
        for prompts in ([(1, 2), (3,)], [(1,), (2, 3)], [(3,), (1, 2)], [(1, 2, 3)])
    ]
    assert len({*sums}) == 4
    assert curriculum.checksum([(1, 2), (3,)]) == sums[0]


def test_a_million_prompts_are_kept_in_a_few_bytes_each():
    rng = np.random.default_rng(0)
    memory = curriculum.fresh(100_000)
    some = [(int(i), Outcome(8, int(i) % 9)) for i in rng.integers(0, 100_000, 5000)]
    memory = after(some, memory=memory, step=3, retire_at=0.9)
    text = curriculum.encoded(memory, 0)
    assert len(text) < 100_000  # of 1.7 MB
    assert equal(curriculum.decoded(text, 100_000, 0, key=""), memory)


def test_metrics_are_counted_by_hand():
    memory = after(
        [(0, Outcome(4, 4)), (1, Outcome(4, 1)), (3, Outcome(0, 0))],
        num_prompts=8,
        retire_at=1.0,
    )
    assert curriculum.metrics(memory) == {
        "data/retired": 1,
        "data/asked_share": 3 / 8,
        "data/pass_rate": (1.0 + 0.25) / 2,
    }
    assert curriculum.metrics(curriculum.fresh(2))["data/pass_rate"] == 0.0
