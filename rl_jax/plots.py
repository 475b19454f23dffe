"""Curves of a run as a PNG: reward and accuracy above, lengths or loss below.

The numbers come from metrics.jsonl alone, so that any run can be drawn at any time.
"""

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_BLUE, _ORANGE, _GREEN, _GREY = "#3b6fb6", "#d1603d", "#2f7f5f", "#6b6b6b"
_SCORES = {"train/reward", "eval/accuracy", "eval/accuracy_greedy"}

Curves = dict[str, tuple[np.ndarray, np.ndarray]]
"""Metric name -> steps and values; steps without a finite value are left out."""


def plot_run(workdir: str | os.PathLike) -> pathlib.Path:
    """Draws the curves of one stage's metrics.jsonl to workdir/curves.png."""
    root = pathlib.Path(os.path.abspath(workdir))
    return plot_chain([(root.name, root)], root / "curves.png")


def plot_chain(
    stages: Sequence[tuple[str, str | os.PathLike]], out_path: str | os.PathLike
) -> pathlib.Path:
    """Draws stages side by side, each over its own steps; scores share one scale.

    Args:
        stages: (name, folder with metrics.jsonl), in order. A stage that has written
            nothing yet gets an empty column.
        out_path: the PNG to write.
    """
    # Imported here: slow, and nothing but a plot needs it. No pyplot: it would look
    # for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = [
        read_curves(pathlib.Path(folder) / "metrics.jsonl") for _, folder in stages
    ]
    # By number of steps, but a short stage stays readable beside a long one.
    steps = np.array([max(_last_step(found), 1) for found in curves])
    widths = np.clip(steps / steps.max(), 0.45, 1.0)
    scored = any(_SCORES & found.keys() for found in curves)
    heights = (2.1, 1.0) if scored else (1.0,)
    figure = Figure(
        figsize=(2.0 + 6.0 * widths.sum(), 2.0 * sum(heights) if scored else 3.6),
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        len(heights),
        len(stages),
        squeeze=False,
        sharex="col",
        gridspec_kw={"height_ratios": heights, "width_ratios": widths},
    )
    for column, ((name, _), found) in enumerate(zip(stages, curves, strict=True)):
        if scored:
            _draw_scores(axes[0, column], found)
        _draw_below(axes[-1, column], found)
        title = f"{name}, {_last_step(found)} steps"
        axes[0, column].set_title(title, loc="left", fontsize=12, fontweight="bold")
        axes[-1, column].set_xlabel("step")
    if scored:
        axes[0, 0].set_ylabel("reward, accuracy (fraction)")
        drawn = [axis.dataLim.intervaly for axis in axes[0] if axis.has_data()]
        # Fractions are shown on the whole of their scale, other rewards as they come.
        low, high = min(0.0, np.min(drawn)), max(1.0, np.max(drawn))
        for axis in axes[0]:
            axis.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))
    for axis in axes.flat:
        _style(axis)
    figure.align_ylabels(axes[:, 0])
    path = pathlib.Path(out_path)
    figure.savefig(path, dpi=150)
    return path


def _draw_scores(axis: Any, curves: Curves) -> None:
    """Reward (each step faint, moving average strong) and held-out accuracy."""
    if "train/reward" in curves:
        _draw_smoothed(axis, *curves["train/reward"], "training reward", _BLUE)
    for name, label, colour, marker in (
        ("eval/accuracy", "held-out accuracy, sampled", _ORANGE, "o"),
        ("eval/accuracy_greedy", "held-out accuracy, greedy", _GREEN, "D"),
    ):
        if name in curves:
            x, y = curves[name]
            axis.plot(
                x,
                y,
                color=colour,
                marker=marker,
                markersize=6,
                markeredgecolor="white",
                linewidth=1.2,
                linestyle=(0, (1, 2)),
                label=f"{label} (last {y[-1]:.3f})",
                zorder=3,
            )
    if axis.has_data():
        axis.legend(loc="best", frameon=False, fontsize=9)
    else:
        _say(axis, "no reward and no evaluation")


def _draw_below(axis: Any, curves: Curves) -> None:
    """Completion length in RL; the loss in supervised stages."""
    if "train/completions/mean_length" in curves:
        x, y = curves["train/completions/mean_length"]
        _draw_smoothed(axis, x, y, "mean", _BLUE)
        axis.set_ylabel("completion length\n(tokens)")
    elif "train/loss" in curves:
        _draw_smoothed(axis, *curves["train/loss"], "training", _BLUE)
        if "eval/loss" in curves:
            x, y = curves["eval/loss"]
            axis.plot(x, y, "o", color=_ORANGE, markersize=5, label="held-out")
            axis.legend(loc="best", frameon=False, fontsize=9)
        axis.set_ylabel("loss\n(nats per token)")
    else:
        _say(axis, "nothing written yet")
        return
    axis.set_ylim(bottom=0.0)


def _draw_smoothed(
    axis: Any, x: np.ndarray, y: np.ndarray, label: str, colour: str
) -> None:
    window = min(len(y) // 15, 50)
    if window < 3:
        axis.plot(x, y, color=colour, linewidth=1.8, label=label)
        return
    axis.plot(x, y, color=colour, alpha=0.3, linewidth=0.9)
    axis.plot(
        x,
        moving_average(y, window),
        color=colour,
        linewidth=2.0,
        label=f"{label}, mean of {window} steps",
    )


def moving_average(y: np.ndarray, window: int) -> np.ndarray:
    """Mean of each value and up to `window - 1` before it; float64, as long as y."""
    total = np.concatenate([[0.0], np.cumsum(y, dtype=np.float64)])
    end = np.arange(1, len(y) + 1)
    start = np.maximum(end - window, 0)
    return (total[end] - total[start]) / (end - start)


def _style(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(_GREY)
    axis.tick_params(colors=_GREY, labelsize=9)
    axis.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.xaxis.set_major_locator(
        MaxNLocator(nbins=9, integer=True, steps=[1, 2, 5, 10])
    )
    axis.margins(x=0.02)


def _say(axis: Any, text: str) -> None:
    axis.text(0.5, 0.5, text, transform=axis.transAxes, ha="center", color=_GREY)


def _last_step(curves: Curves) -> int:
    return max((int(x[-1]) for x, _ in curves.values()), default=0)


def read_curves(path: pathlib.Path) -> Curves:
    """The curves of a metrics.jsonl; {} if there is none. Skips a torn last line."""
    points: dict[str, list[tuple[int, float]]] = {}
    if path.is_file():
        for text in path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            for name, value in line.items():
                if isinstance(value, int | float):
                    points.setdefault(name, []).append((line["step"], value))
    points.pop("step", None)
    return {
        name: (np.array([x for x, _ in found]), np.array([y for _, y in found]))
        for name, found in points.items()
    }
