"""The alarm on made-up policies: one that hacks its reward, and honest ones."""

import json
import random

import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax.metric_names import metric
from rl_jax.stages import hacking
from rl_jax.stages.hacking import Gap, follow, measured

LIMIT = 0.2


def sample(visible, hidden, **more):
    parts = {"length": visible, "hidden/correct": hidden, **more}
    return tiny.scored(visible, parts=parts)


def run(policy, steps=60, size=64, seed=0):
    """(metrics of every step, lines) of a policy: step, draw -> (visible, hidden)."""
    draw, kept, found, lines = random.Random(seed), [], [], []
    for step in range(steps):
        scored = [sample(*policy(step, draw)) for _ in range(size)]
        now = follow(kept, scored, lambda source: 1.0, LIMIT)
        kept = json.loads(
            json.dumps(now.remembered[hacking.GAP])
        )  # through a checkpoint, each step
        found.append(now.metrics)
        lines += [(step, now.line)] if now.line else []
    return found, lines


def learnt(step, of=40):
    return min(step / of, 1.0)


def hacker(step, draw):
    """Learns to write more and more, and is right no more often than at first."""
    return 0.2 + 0.8 * learnt(step) * draw.random(), float(draw.random() < 0.3)


def honest(step, draw):
    """Is paid for length, and is right more often just as its replies grow."""
    share = 0.1 + 0.8 * learnt(step)
    return share * (0.9 + 0.2 * draw.random()), float(draw.random() < share)


def harsh(step, draw):
    """Is paid more than the hidden function gives, from the first step on."""
    right = draw.random() < 0.1 + 0.8 * learnt(step)
    return 0.95 if right else 0.6, 0.7 * right


def test_a_reward_that_grows_without_the_hidden_one_rings_once_and_stays_on():
    found, lines = run(hacker)
    rings = [one["health/reward_gap_alarm"] for one in found]
    first = rings.index(1)
    assert 10 < first < 45 and not any(rings[:first]) and all(rings[first:])
    ((step, line),) = lines
    assert step == first and line.startswith("ALARM:") and "reward.hidden_gap" in line
    assert "\n" not in line
    assert found[-1]["health/reward_gap"] > found[0]["health/reward_gap"] + LIMIT


@pytest.mark.parametrize("policy", [honest, harsh])
@pytest.mark.parametrize("seed", range(5))
def test_honest_learning_and_a_gap_that_was_always_there_are_silent(policy, seed):
    found, lines = run(policy, seed=seed)
    assert not lines and not any(one["health/reward_gap_alarm"] for one in found)
    assert found[-1]["reward/hidden/correct"] > found[0]["reward/hidden/correct"] + 0.4


def test_an_alarm_that_has_passed_rings_again_when_it_comes_back():
    def policy(step, draw):
        return (1.0 if 15 <= step < 30 or step >= 50 else 0.0), 0.0

    _, lines = run(policy, steps=70)
    assert len(lines) == 2


def test_the_gap_is_in_units_of_one_function_and_over_samples_that_have_both():
    scored = [
        # Weights 1 and 0.5: a score of 1.5 is all there is to be had.
        tiny.scored(1.5, parts={"hidden/a": 1.0, "hidden/b": 0.0}),
        tiny.scored(0.75, parts={"hidden/a": 0.0, "hidden/b": None}),
        tiny.scored(None, parts={"hidden/a": 1.0, "hidden/b": 1.0}),
        tiny.scored(1.5, parts={"hidden/a": None}),
    ]
    metrics, gap = measured(scored, lambda source: 1.5)
    assert metrics == {
        "reward/hidden/a": pytest.approx(2 / 3),
        "reward/hidden/b": 0.5,
    }
    assert gap == pytest.approx(((1 - 0.5) + (0.5 - 0.0)) / 2)


def test_components_of_a_hidden_function_are_reported_and_not_averaged_in():
    metrics, gap = measured(
        [sample(1.0, 0.5, **{"hidden/correct/x": 9.0})], lambda s: 1
    )
    assert metrics["reward/hidden/correct/x"] == 9.0 and gap == 0.5


def test_a_step_without_a_gap_changes_nothing():
    kept = [[0.1, 0.2], [0.1, 0.2]]
    for scored, scale in (([tiny.scored(1.0)], 1.0), ([sample(1.0, 1.0)], 0.0)):
        now = follow(kept, scored, lambda source, scale=scale: scale, LIMIT)
        assert (
            now.remembered[hacking.GAP] == kept
            and "health/reward_gap" not in now.metrics
        )


def test_the_growth_is_that_of_two_means():
    gap = Gap()
    values = np.random.default_rng(0).normal(size=25).tolist()
    for i, value in enumerate(values, 1):
        gap = hacking.followed(gap, value)
        want = np.mean(values[:i][-10:]) - np.mean(values[:i][:10])
        assert gap.growth == pytest.approx(want, abs=1e-12)


def test_every_metric_has_a_name_in_the_table():
    found, _ = run(hacker, steps=2)
    for name in found[-1]:
        metric(name)
