"""What each stage of a chain brought, as a PNG: its metric at its start and its end."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from rl_jax.stages.results import Line

_START, _END, _GREY = "#b8b8b8", "#3b6fb6", "#6b6b6b"


def plot(lines: Sequence[Line], out_path: str | os.PathLike) -> pathlib.Path:
    """Draws a row a stage, from where its metric began to where it ended.

    Fractions share one scale; stages whose metric is something else (a loss, a score)
    are drawn on a scale of their own below them.
    """
    # Imported here: slow, and nothing but a plot needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = [one for one in lines if one.metric]
    fractions = [one for one in drawn if _is_fraction(one)]
    others = [one for one in drawn if not _is_fraction(one)]
    parts = [part for part in (fractions, others) if part] or [[]]
    figure = Figure(
        figsize=(8.5, 1.4 + 0.42 * max(len(drawn), 1) + 0.5 * (len(parts) - 1)),
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        len(parts),
        1,
        squeeze=False,
        gridspec_kw={"height_ratios": [max(len(part), 1) for part in parts]},
    )[:, 0]
    for axis, part in zip(axes, parts, strict=True):
        _draw(axis, part)
    if fractions:
        axes[0].set_xlim(-0.03, 1.03)
        axes[0].set_xlabel("fraction")
    path = pathlib.Path(out_path)
    figure.savefig(path, dpi=150)
    return path


def _is_fraction(line: Line) -> bool:
    named = any(word in line.metric for word in ("accuracy", "pass_rate", "reward"))
    ends = (line.last if line.first is None else line.first, line.last)
    return named and all(-0.02 <= x <= 1.02 for x in ends)


def _draw(axis: Any, lines: Sequence[Line]) -> None:
    for row, one in enumerate(lines):
        missed = one.gate.endswith("missed")
        colour = "#d1603d" if missed else _END
        first, text = one.last, f"{one.last:.3g}"
        if one.first is not None:
            first, text = one.first, f"{one.first:.3g} → {text}"
            axis.plot([first, one.last], [row, row], color=colour, lw=2.2, zorder=1)
            axis.scatter([first], [row], s=42, color=_START, zorder=2)
        axis.scatter([one.last], [row], s=58, color=colour, zorder=3)
        axis.annotate(
            text + ("  gate missed" if missed else ""),
            (max(first, one.last), row),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=_GREY,
            annotation_clip=False,
        )
    names = [f"{one.name}\n{one.metric}" for one in lines]
    axis.set_yticks(range(len(lines)), names, fontsize=8)
    axis.set_ylim(max(len(lines), 1) - 0.5, -0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(colors=_GREY)
    axis.grid(axis="x", color="#e4e4e4", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.margins(x=0.15)
    if not lines:
        axis.text(
            0.5, 0.5, "nothing written yet", transform=axis.transAxes, ha="center"
        )
