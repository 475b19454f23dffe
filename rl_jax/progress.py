"""The words of a run: progress lines, durations, and samples that are safe to print."""

import math
from collections.abc import Mapping
from typing import Any


def summary(metrics: Mapping[str, Any]) -> list[str]:
    """The parts of a progress line that the metrics have something for."""
    known = {name: float(value) for name, value in metrics.items()}
    parts = []

    def show(name: str, form: str) -> None:
        if name in known:
            parts.append(form.format(known[name]))

    show("train/reward", "reward {:.3f}")
    if "train/reward" not in known:  # a policy loss says nothing by its size
        show("train/loss", "loss {:.4f}")
    show("train/accuracy", "accuracy {:.1%}")
    show("train/accuracy_pairs", "pairs right {:.1%}")
    show("train/completions/mean_length", "length {:.0f}")
    show("perf/tokens_per_sec_generate", "{:,.0f} tokens/s")
    if "perf/tokens_per_sec_generate" not in known:
        show("perf/tokens_per_sec_train", "{:,.0f} tokens/s")
    show("eval/accuracy", "eval accuracy {:.1%}")
    show("eval/accuracy_greedy", "greedy {:.1%}")
    show("eval/loss", "eval loss {:.4f}")
    show("eval/accuracy_pairs", "eval pairs right {:.1%}")
    return parts


def duration(secs: float) -> str:
    """Seconds in the two largest units that matter: "45s", "3m 20s", "1h 05m"."""
    if not math.isfinite(secs):
        return "?"
    minutes, seconds = divmod(round(secs), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02d}h"
    if hours:
        return f"{hours}h {minutes:02d}m"
    return f"{minutes}m {seconds:02d}s" if minutes else f"{seconds}s"


def sample_text(record: Mapping[str, Any], width: int) -> str:
    """Three lines of at most `width` characters, safe to print."""
    label = "  {:<11}"
    room = max(width - len(label.format("")), 20)
    score = f"{record.get('score')} {record.get('verdict', '')}"
    fields = {
        "prompt": str(record.get("prompt", "")),
        "completion": str(record.get("completion", "")),
        "score": score,
    }
    return "\n".join(
        label.format(name) + _shortened(_escaped(text), room)
        for name, text in fields.items()
    )


def _escaped(text: str) -> str:
    r"""Text that cannot steer a terminal: "\n", "\x1b" and their like are spelt out."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def _shortened(text: str, width: int) -> str:
    """Both ends of a long text: how it starts, and the answer."""
    if len(text) <= width:
        return text
    head = (width - 5) * 2 // 3
    return f"{text[:head]} ... {text[head + 5 - width :]}"
