"""Whole runs of the stage, on a reward that is easy: it must be learnt, or not."""

import json

import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax import checkpoint
from rl_jax.stages import context as contexts
from rl_jax.stages import rl

STEPS = 20
# The reward is the share of digits among the first characters.
EASY = {
    "rl__steps": STEPS,
    "rl__rollout__prompts_per_step": 4,
    "rl__rollout__group_size": 8,
    "rl__rollout__slots": 32,
    "rl__rollout__prefill_rows": 4,
    "rl__batch__micro_rows": 8,
    "rl__optim__lr": 0.01,
    "rl__optim__warmup_steps": 0,
    "rl__checkpoint__every": 0,
    "rl__eval__every": 0,
    "rl__log__samples_every": 0,
}


def run(folder, **changes):
    """(metrics of every step, how often the first weights were read)"""
    reads = []
    with tiny.built(folder, **EASY | changes) as context:

        def base():
            reads.append(1)
            return contexts.first_params(context)

        rl.run(context, context.run.stages[1], base)
    lines = (folder / "rl" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], len(reads)


def test_an_easy_reward_is_learnt_without_a_reference(tmp_path):
    changes = {
        "rl__objective__name": "dapo",
        "rl__objective__overlong_buffer": 0.0,
        "rl__batch__updates_per_step": 2,
    }
    metrics, reads = run(tmp_path, **changes)
    reward = [line["train/reward"] for line in metrics]
    assert len(reward) == STEPS
    assert reward[0] < 0.2 and np.mean(reward[-3:]) > 0.7, reward
    # The weights to begin with, and no second copy of them.
    assert reads == 1 and not any("train/kl" in line for line in metrics)
    assert max(line["health/logp_gap_max"] for line in metrics[:1]) < 1e-4
    assert checkpoint.latest_step(tmp_path / "rl" / "checkpoints") == STEPS


def test_permuted_rewards_teach_nothing_and_the_kl_is_that_to_the_beginning(tmp_path):
    changes = {"rl__reward__shuffle": True, "rl__objective__kl_coef": 0.001}
    metrics, reads = run(tmp_path, **changes)
    reward = [line["train/reward"] for line in metrics]
    assert np.mean(reward[-3:]) < reward[0] + 0.1, reward
    assert reads == 2  # the reference is a copy of its own
    kl = [line["train/kl"] for line in metrics]
    assert abs(kl[0]) < 1e-8 and min(kl[2:]) > 1e-6


FUNCTIONS = """
def long(completion, **_):
    return min(len(completion), 32) / 32

def digits(completion, **_):
    return sum(c.isdigit() for c in completion[:16]) / 16

def figures(completion, **_):
    return sum(c in "0123456789" for c in completion) / max(len(completion), 16)
"""


@pytest.mark.slow
@pytest.mark.parametrize("visible, rings", [("long", True), ("digits", False)])
def test_the_alarm_rings_for_a_policy_that_is_paid_for_length_alone(
    tmp_path, visible, rings
):
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    metrics, _ = run(
        tmp_path,
        rl__steps=40,
        rl__reward__functions=f"{path}:{visible}",
        rl__reward__hidden=f"{path}:figures",
    )
    reward = [line["train/reward"] for line in metrics]
    assert np.mean(reward[-3:]) > reward[0] + 0.3, reward
    rung = [line["health/reward_gap_alarm"] for line in metrics]
    assert rung[0] == 0 and any(rung) == rings
    log = (tmp_path / "rl" / "log.txt").read_text()
    assert ("ALARM: reward hacking?" in log) == rings


def test_a_stage_of_no_steps_saves_what_it_began_with(tmp_path):
    with tiny.built(tmp_path, **EASY | {"rl__steps": 0}) as context:
        params = contexts.first_params(context)
        rl.run(context, context.run.stages[1], lambda: params)
        saved = checkpoint.load_params(tmp_path / "rl" / "checkpoints", params)
    np.testing.assert_array_equal(saved.embed_VD, params.embed_VD)
