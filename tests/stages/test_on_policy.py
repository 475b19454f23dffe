"""What a step of on-policy distillation asks, draws, packs and reports."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
import tiny_distill

import tiny_stage as tiny
from rl_jax.objectives.distillation import PRESETS
from rl_jax.stages import distill_eval, on_policy
from rl_jax.stages.on_policy import Replies

G = 3


@pytest.fixture(autouse=True)
def mesh():
    with jax.set_mesh(tiny.one_device()) as found:
        yield found


def stage_of(**changes: Any):
    changes = {
        "rollout__prompts_per_step": 4,
        "rollout__group_size": G,
        "batch__updates_per_step": 2,
        "batch__row_tokens": 0,
        **changes,
    }
    return tiny_distill.stage_of(**changes)


def drawn(values=None):
    """Four groups of three replies, of 1 to 5 tokens; scores if there are values."""
    replies = [
        tiny.scored(
            None if values is None else values[n],
            request=n // G,
            index=n % G,
            completion=[5] * (n % 5) + [tiny.STOP],
        )
        for n in range(4 * G)
    ]
    scores = [] if values is None else [s.score for s in replies]
    return Replies([s.sample for s in replies], scores)


LENGTHS = [n % 5 + 1 for n in range(4 * G)]


@pytest.mark.parametrize("form", PRESETS)
def test_every_update_has_whole_groups_and_weights_of_its_own(form):
    spec = PRESETS[form]
    plan = on_policy.make_plan(drawn(), stage_of(distill__form=form), spec)
    assert len(plan.updates) == 2
    for share, update in zip(([0, 1], [2, 3]), plan.updates, strict=True):
        inside = [n for n in range(4 * G) if n // G in share]
        packed = update.packed
        assert set(packed.sample_BT[packed.segment_BT > 0].tolist()) == set(inside)
        total = sum(LENGTHS[n] for n in inside)
        assert update.num_tokens == total == packed.mask_BT.sum()
        per_sample = spec.loss.aggregate == "seq_mean_token_mean"
        for n in range(4 * G):
            want = 1 / (len(inside) * LENGTHS[n]) if per_sample else 1 / total
            want *= n in inside
            assert update.outcome.weight_N[n] == pytest.approx(want, rel=1e-6)
    # Prompts of two tokens; the last token of a reply is only ever a target.
    assert plan.num_positions == sum(n + 1 for n in LENGTHS)


def test_a_reply_without_a_reward_is_trained_on_all_the_same():
    values = [1.0, None, 0.0] * 4
    plan = on_policy.make_plan(drawn(values), stage_of(), PRESETS["mopd"])
    outcome = plan.updates[0].outcome
    np.testing.assert_array_equal(outcome.valid_N, [True, False, True] * 4)
    np.testing.assert_array_equal(outcome.reward_N, [1.0, 0.0, 0.0] * 4)
    assert outcome.weight_N[1] > 0
    # Nobody asked for rewards: none is valid.
    plan = on_policy.make_plan(drawn(), stage_of(), PRESETS["opd"])
    assert not plan.updates[0].outcome.valid_N.any()


def test_the_config_overrides_the_form():
    opd = on_policy.on_policy_spec(stage_of())
    assert opd == PRESETS["opd"]
    changed = on_policy.on_policy_spec(
        stage_of(distill__outcome=0.3, distill__bound=2.0)
    )
    # An advantage of rewards, not the rewards themselves.
    loss = dataclasses.replace(opd.loss, centre="group_mean")
    assert changed == dataclasses.replace(opd, outcome=0.3, bound=2.0, loss=loss)
    kimi = on_policy.on_policy_spec(
        stage_of(distill__form="kimi_k3", distill__bound=0.0)
    )
    assert kimi.bound == 0 and PRESETS["kimi_k3"].bound == 5


def test_rewards_are_reported_only_where_they_were_asked_for():
    metrics = on_policy.reply_metrics(drawn([1.0, None, 0.0] * 4))
    assert metrics["train/reward"] == 0.5 and metrics["health/reward_none"] == 4
    assert metrics["train/accuracy"] == pytest.approx(1 / 3)
    metrics = on_policy.reply_metrics(drawn())
    assert metrics["train/completions/mean_length"] == pytest.approx(np.mean(LENGTHS))
    assert metrics["train/completions/max_length"] == 5
    assert not any("reward" in name or "accuracy" in name for name in metrics)


def test_replies_come_in_the_order_of_their_requests_whatever_ended_first():
    asked = [(i, (1, 2)) for i in (7, 3, 5)]
    requests = [
        on_policy.Request(i, ids, num_samples=4, max_new_tokens=3) for i, ids in asked
    ]
    checks: list[int] = []
    engine: Any = tiny.FakeEngine(seed=1)
    params: Any = None
    samples = distill_eval.draw(
        engine, params, requests, version=0, check_stop=lambda: checks.append(1)
    )
    assert [(s.request, s.index) for s in samples] == [
        (i, j) for i in (7, 3, 5) for j in range(4)
    ]
    assert len(checks) == 4  # three samples a poll


def test_rewards_are_part_of_a_run_whose_form_wants_them(tmp_path):
    changes: dict = {
        "distill__form": "mopd",
        "rollout__group_size": 2,
        "steps": 1,
        "log__samples_every": 1,
    }
    with tiny_distill.built(tmp_path, **changes) as context:
        tiny_distill.teach(context)
        tiny_distill.run(context)
    (line,) = tiny_distill.lines(tmp_path)
    assert line["train/reward"] == 0 and line["health/reward_none"] == 0
    assert line["health/logp_gap_max"] < 1e-4
    text = (tmp_path / "distill" / "samples" / "step_000001.jsonl").read_text()
    assert len(text.splitlines()) == 8 and '"score": 0.0' in text
