"""What a selection asked, drew, kept and left out: as numbers, and as a table."""

import collections
from collections.abc import Iterable, Sequence
from typing import Any

from rl_jax.stages.selection import REASONS, Group, margin, pass_rate, score_of


def statistics(groups: Sequence[Group], *, pairs: bool) -> dict[str, Any]:
    """What was asked, drawn, kept and left out, in all and by data source.

    `samples` is `kept_replies` and all of `left_out`. Rates and means are of the
    policy's own replies; of those kept, of what is learnt from: of a pair, the better.

    Args:
        pairs: rows are pairs, so that there is a mean margin too.
    """
    found = _counted(groups, pairs)
    reasons = collections.Counter(
        reason for group in groups for reason in group.left_out.values()
    )
    found["left_out"] = {name: reasons[name] for name in REASONS if reasons[name]}
    if pairs:
        gaps = [margin(g.replies, row) for g in groups for row in g.rows]
        found["mean_margin"] = _mean(gaps)
    found["sources"] = {
        source: _counted([group for group in groups if group.source == source], pairs)
        for source in sorted({group.source for group in groups})
    }
    return found


def _counted(groups: Sequence[Group], pairs: bool) -> dict[str, Any]:
    replies = [reply for group in groups for reply in group.own]
    learnt = [
        group.replies[i]
        for group in groups
        for row in group.rows
        for i in (row[:1] if pairs else row)
    ]
    judged = [reply for reply in replies if reply.score is not None]
    return {
        "prompts": len(groups),
        "samples": sum(len(group.replies) for group in groups),
        "no_score": len(replies) - len(judged),
        "pass_rate": pass_rate(replies) or 0.0,
        "pass_at_k": _mean([any(r.correct for r in g.own) for g in groups]),
        "rows": sum(len(group.rows) for group in groups),
        "prompts_kept": sum(bool(group.rows) for group in groups),
        "kept_replies": sum(len(row) for group in groups for row in group.rows),
        "mean_score": _mean(map(score_of, judged)),
        "mean_score_kept": _mean(map(score_of, learnt)),
        "mean_length": _mean(reply.num_tokens for reply in replies),
        "mean_length_kept": _mean(reply.num_tokens for reply in learnt),
    }


def _mean(values: Iterable[float]) -> float:
    found = [float(value) for value in values]
    return sum(found) / len(found) if found else 0.0


def table(found: dict[str, Any]) -> list[str]:
    """The statistics for people."""
    samples = found["samples"]

    def row(name: str, count: int, more: str = "") -> str:
        return f"{name:<22}{count:>10,}{count / max(samples, 1):>8.1%}{more}"

    lines = [
        f"prompts asked         {found['prompts']:>10,}",
        row(
            "replies drawn",
            samples,
            f"  pass rate {found['pass_rate']:.3f}, at least one right "
            f"{found['pass_at_k']:.3f}",
        ),
    ]
    lines += [row(f"  {reason}", n) for reason, n in found["left_out"].items()]
    more = f"  in {found['rows']:,} rows of {found['prompts_kept']:,} prompts"
    lines.append(row("replies kept", found["kept_replies"], more))
    for name in ("score", "length"):
        before, after = found[f"mean_{name}"], found[f"mean_{name}_kept"]
        lines.append(f"mean {name:<17}{before:>10.3f} -> {after:.3f} of those kept")
    if len(found["sources"]) > 1:
        for source, own in found["sources"].items():
            lines.append(
                f"  {source}: {own['rows']:,} rows of {own['prompts']:,} prompts, pass "
                f"rate {own['pass_rate']:.3f}"
            )
    return lines
