"""The numbers of a step, worked by hand."""

import jax
import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax.metric_names import metric
from rl_jax.objectives.policy import PRESETS
from rl_jax.rewards.score import Verdict
from rl_jax.stages import rl
from rl_jax.stages.reporting import rollout_metrics, update_metrics
from rl_jax.stages.scoring import Timing


@pytest.fixture(autouse=True)
def mesh():
    with jax.set_mesh(tiny.one_device()) as found:
        yield found


def metrics_of(scored, *, loss="grpo", refills=0, dropped=0, **changes):
    changes = {
        "rollout__group_size": 2,
        "rollout__prompts_per_step": len(scored) // 2,
        "objective__name": loss,
        **changes,
    }
    stage = tiny.rl_stage(**changes)
    timing = Timing(2.0, 0.5, 60)
    rollout = rl.Rollout(scored, timing, 9, refills, dropped)
    plan = rl.make_plan(scored, stage, PRESETS[loss], seed=0, step=0)
    metrics = rollout_metrics(rollout, plan, stage)
    for name in metrics:
        metric(name)  # every name has a unit and a meaning
    return metrics


def test_rewards_are_over_the_samples_that_have_one():
    groups = [[1.0, 0.0], [1.0, 1.0], [0.5, None], [None, None]]
    found = metrics_of(tiny.groups(*groups))
    assert found["train/reward"] == pytest.approx(3.5 / 5)
    assert found["train/reward_std"] == pytest.approx(np.std([1, 0, 1, 1, 0.5]))
    # Of the three groups with a reward, the second and the third have one value.
    assert found["train/frac_reward_zero_std"] == pytest.approx(2 / 3)
    assert found["health/reward_none"] == 3


def test_right_and_wrong_are_counted_by_verdict():
    right, wrong, late = Verdict.CORRECT, Verdict.WRONG, Verdict.TIMEOUT
    verdicts = [right, right, right, wrong, wrong, late]
    scored = [
        tiny.scored(0.5, request=n // 2, index=n % 2, verdict=verdict)
        for n, verdict in enumerate(verdicts)
    ]
    found = metrics_of(scored)
    assert found["train/accuracy"] == pytest.approx(3 / 6)
    assert found["train/groups_all_right"] == pytest.approx(1 / 3)
    assert found["train/groups_all_wrong"] == pytest.approx(1 / 3)
    assert found["health/verdict/correct"] == 3
    assert found["health/verdict/wrong"] == 2
    assert found["health/verdict/timeout"] == found["health/reward_timeouts"] == 1
    assert "health/verdict/crash" not in found


def test_lengths_count_what_the_policy_wrote():
    completions = [(5,), (5, 6, tiny.STOP), (5, 6, 7, 8), (tiny.STOP,)]
    scored = [
        tiny.scored(float(n % 2), request=n // 2, index=n % 2, completion=completion)
        for n, completion in enumerate(completions)
    ]
    found = metrics_of(scored)
    assert found["train/completions/mean_length"] == pytest.approx(9 / 4)
    assert found["train/completions/max_length"] == 4
    assert found["train/completions/min_length"] == 1
    assert found["train/completions/clipped_ratio"] == pytest.approx(2 / 4)


def test_each_reward_function_has_its_own_mean():
    parts = [{"maths": 1.0, "style": None}, {"maths": 0.0, "style": 0.25}]
    scored = [tiny.scored(1.0, index=n, parts=p) for n, p in enumerate(parts)]
    found = metrics_of(scored)
    assert found["train/rewards/maths/mean"] == 0.5
    assert found["train/rewards/style/mean"] == 0.25


def test_reported_rewards_are_those_trained_on():
    scored = [
        tiny.scored(1.0, index=n, completion=[5] * tokens)
        for n, tokens in enumerate((4, 16))
    ]
    # DAPO takes 1 off a sample that reaches the limit of 16 tokens.
    assert metrics_of(scored, loss="dapo")["train/reward"] == pytest.approx(0.5)


def test_speeds_and_counts_are_passed_on():
    found = metrics_of(tiny.groups([1.0, 0.0]), refills=2, dropped=3)
    assert (found["train/refills"], found["train/groups_dropped"]) == (2, 3)
    assert found["perf/tokens_per_sec_generate"] == 30.0
    assert (found["time/rollout"], found["time/reward_wait"]) == (2.0, 0.5)


def test_a_step_without_any_reward_is_reported_with_finite_numbers():
    found = metrics_of(tiny.groups([None, None], [None, None]))
    assert all(np.isfinite(value) for value in found.values())
    assert found["train/reward"] == 0.0 and found["health/reward_none"] == 4


def test_a_step_that_dynamic_sampling_left_short_is_reported():
    scored = tiny.groups([1.0, 0.0])
    found = metrics_of(scored, loss="dapo", rollout__prompts_per_step=3)
    assert found["train/reward"] == 0.5 and found["train/accuracy"] == 0.5


def test_several_updates_are_reported_by_their_means_and_extremes():
    updates = [
        {"policy_loss": 1.0, "ratio_max": 1.5, "ratio_min": 0.5, "ratio_mean": 1.0},
        {"policy_loss": 3.0, "ratio_max": 1.2, "ratio_min": 0.2, "ratio_mean": 1.1},
    ]
    assert update_metrics(updates) == {
        "train/loss": 2.0,
        "train/importance_ratio/max": 1.5,
        "train/importance_ratio/min": 0.2,
        "train/importance_ratio/mean": pytest.approx(1.05),
    }
