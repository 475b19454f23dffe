"""Reward hacking: what is trained on, against what judges without being trained on.

A policy that learns what is meant raises both; one that learns what the reward function
lets through raises the visible reward alone. The gap between the two is compared with
what it was in the first steps, so that rewards need not have the same level, but they
must have the same scale: `reward.hidden` of 0 and 1 for rewards of 0 and 1.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rl_jax.stages.scoring import Scored

GAP = "reward_gap"  # in a checkpoint's position
HIDDEN = "hidden/"  # begins the names of hidden functions among a score's parts
# Steps that the first gap, and the present one, are means of: in one step of 64 samples
# a share is off by 0.06, in ten by 0.02.
_WINDOW = 10


@dataclasses.dataclass(frozen=True)
class Gap:
    """The gaps of the first steps and of the latest ones, at most `_WINDOW` each."""

    first: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()

    @property
    def growth(self) -> float:
        """By how much the mean gap is larger than it was; 0 in the first steps."""
        if not self.first:
            return 0.0
        return float(np.mean(self.recent) - np.mean(self.first))


@dataclasses.dataclass(frozen=True)
class Followed:
    """What a step says: for a checkpoint's position, metrics, a line to print or ""."""

    remembered: dict[str, Any] = dataclasses.field(default_factory=dict)
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    line: str = ""


def follow(
    kept: Sequence[Sequence[float]],
    scored: Sequence[Scored],
    scale: Callable[[str], float],
    limit: float,
) -> Followed:
    """One more step: measures the gap and says when it has grown by more than `limit`.

    Args:
        kept: what the step before remembered as GAP; empty at first. As JSON keeps
            them, floats come back as they were.
        scale: as `measured`.
    """
    before = Gap(*map(tuple, kept))
    metrics, value = measured(scored, scale)
    gap = before if value is None else followed(before, value)
    if value is not None:
        metrics["health/reward_gap"] = value
    metrics["health/reward_gap_alarm"] = int(gap.growth > limit)
    line = alarm(gap, limit) if before.growth <= limit else ""
    return Followed({GAP: [list(gap.first), list(gap.recent)]}, metrics, line)


def followed(gap: Gap, value: float) -> Gap:
    """With the gap of one more step."""
    first = gap.first if len(gap.first) == _WINDOW else (*gap.first, value)
    return Gap(first, (*gap.recent, value)[-_WINDOW:])


def measured(
    scored: Sequence[Scored], scale: Callable[[str], float]
) -> tuple[dict[str, float], float | None]:
    """Means of the hidden functions, and the step's gap; None if it has none.

    The visible reward of a sample is its score over the sum of the weights that make
    it: the weighted mean of what is trained on, without penalties of the objective. The
    hidden one is the mean of the hidden functions. The gap is the mean difference over
    the samples that have both.

    Args:
        scale: sum of the weights, without signs, for a data source.
    """
    values: dict[str, list[float]] = {}
    gaps = []
    for one in scored:
        hidden = {
            name.removeprefix(HIDDEN): part
            for name, part in one.score.parts.items()
            if name.startswith(HIDDEN) and part is not None
        }
        for name, part in hidden.items():
            values.setdefault(name, []).append(part)
        total = scale(one.prompt.row.data_source)
        # Components of a function, "function/component", are not judgements of it.
        whole = [part for name, part in hidden.items() if "/" not in name]
        if one.score.value is not None and whole and total:
            gaps.append(one.score.value / total - float(np.mean(whole)))
    metrics = {
        f"reward/hidden/{name}": float(np.mean(parts)) for name, parts in values.items()
    }
    return metrics, float(np.mean(gaps)) if gaps else None


def alarm(gap: Gap, limit: float) -> str:
    """The line to print when the gap has grown by more than `limit`; "" if not."""
    if gap.growth <= limit:
        return ""
    return (
        f"ALARM: reward hacking? Over the last {len(gap.recent)} steps the reward less "
        f"the hidden functions' is {np.mean(gap.recent):.3f}, in the first "
        f"{len(gap.first)} it was {np.mean(gap.first):.3f}: it grew by more than "
        f"reward.hidden_gap={limit:g}. Read samples/ before trusting train/reward."
    )
