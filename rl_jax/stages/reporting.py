"""What a reinforcement-learning step reports, under the names of metric_names."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from rl_jax import config as configs
from rl_jax.learner import Metrics, merge_metrics
from rl_jax.rollout.sample import Sample
from rl_jax.stages import hacking
from rl_jax.stages.evaluation import is_correct

if TYPE_CHECKING:
    from rl_jax.stages.planning import Plan
    from rl_jax.stages.rl import Rollout

# Learner's name -> ours.
_FROM_LOSS = {
    "policy_loss": "train/loss",
    "kl": "train/kl",
    "entropy": "train/entropy",
    "ratio_mean": "train/importance_ratio/mean",
    "ratio_max": "train/importance_ratio/max",
    "ratio_min": "train/importance_ratio/min",
    "clip_low_fraction": "train/clip_ratio/low_mean",
    "clip_high_fraction": "train/clip_ratio/high_mean",
    "clip_fraction": "train/clip_ratio/region_mean",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "sampler_gap_mean": "health/logp_gap_mean",
    "sampler_gap_max": "health/logp_gap_max",
    "sampler_kl": "health/sampler_kl",
    "sampler_weight_mean": "train/sampler_weight_mean",
    "sampler_masked_fraction": "train/sampler_masked_fraction",
}


def update_metrics(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of a step from those of its optimiser steps: means and extremes."""
    metrics = {}
    for name in updates[0]:
        values = [float(one[name]) for one in updates]
        pick = {"_max": max, "_min": min}.get(name[-4:], np.mean)
        metrics[_FROM_LOSS[name]] = float(pick(values))
    return metrics


def finished_step(
    parts: list[Metrics],
    metrics: Metrics,
    known: dict[str, float],
    named: Callable[[dict[str, float]], dict[str, float]],
    *,
    tokens: int,
    began: float,
) -> dict[str, float]:
    """What a step on given rows reports; waits until the device is done with it.

    Args:
        parts: of its micro-batches.
        metrics: of its optimiser step.
        known: what needs no waiting.
        named: gives the merged metrics of the loss their names.
        tokens: that were read.
        began: on the monotonic clock.
    """
    merged, fetched = merge_metrics(parts), jax.device_get(metrics)
    secs = time.monotonic() - began
    return {
        **known,
        **named(merged),
        "train/grad_norm": float(fetched["grad_norm"]),
        "train/learning_rate": float(fetched["learning_rate"]),
        "perf/tokens_per_sec_train": tokens / secs,
        "time/step": secs,
    }


def rollout_metrics(
    rollout: "Rollout",
    plan: "Plan",
    stage: configs.StageConfig,
) -> dict[str, float]:
    """Rewards, lengths, verdicts and speeds of the samples of a step.

    Rewards and accuracy are over the samples that have one; `frac_reward_zero_std`,
    `groups_all_right` and `groups_all_wrong` are shares of the groups trained on.
    """
    scored, timing, G = rollout.scored, rollout.timing, stage.rollout.group_size
    reward_N = plan.reward_N[: len(scored)]
    correct_PG = np.array([is_correct(s) for s in scored]).reshape(-1, G)
    reward_PG = reward_N.reshape(-1, G)
    judged = ~np.isnan(reward_PG).all(axis=1)
    spread_P = np.nanmax(reward_PG[judged], axis=1) - np.nanmin(
        reward_PG[judged], axis=1
    )
    metrics = {
        "train/reward": _mean(reward_N),
        "train/reward_std": float(np.nanstd(reward_N)) if judged.any() else 0.0,
        "train/frac_reward_zero_std": _mean(spread_P == 0),
        "train/accuracy": _mean(correct_PG),
        "train/groups_all_right": _mean(correct_PG.all(axis=1)),
        "train/groups_all_wrong": _mean(~correct_PG.any(axis=1)),
        "train/refills": rollout.refills,
        "train/groups_dropped": rollout.dropped,
        **length_metrics([s.sample for s in scored]),
        "perf/tokens_per_sec_generate": timing.tokens / max(timing.sample_secs, 1e-9),
        "time/rollout": timing.sample_secs,
        "time/reward_wait": timing.wait_secs,
        "health/reward_none": int(np.isnan(reward_N).sum()),
    }
    metrics |= handover_metrics(timing.handover_bytes, timing.handover_secs)
    verdicts = [s.score.verdict.value for s in scored]
    for verdict in sorted(set(verdicts)):
        metrics[f"health/verdict/{verdict}"] = verdicts.count(verdict)
    metrics["health/reward_timeouts"] = verdicts.count("timeout")
    names = {name for s in scored for name in s.score.parts}
    for name in sorted(n for n in names if not n.startswith(hacking.HIDDEN)):
        parts = [s.score.parts.get(name) for s in scored]
        known = [part for part in parts if part is not None]
        metrics[f"train/rewards/{name}/mean"] = _mean(known)
    return metrics


def handover_metrics(count: int, secs: float) -> dict[str, float]:
    """What it took to give the sampler its weights, if it has a mesh of its own."""
    return {"perf/handover_bytes": count, "time/handover": secs} if count else {}


def length_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """How long the replies of a step are, in tokens, and how many were cut off."""
    length_N = np.array([s.policy_mask.sum() for s in samples])
    return {
        "train/completions/mean_length": _mean(length_N),
        "train/completions/max_length": int(length_N.max()),
        "train/completions/min_length": int(length_N.min()),
        "train/completions/clipped_ratio": _mean([s.truncated for s in samples]),
    }


def _mean(values) -> float:
    values = np.asarray(values, np.float64)
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else 0.0
