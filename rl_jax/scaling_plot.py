"""A scaling curve as a PNG: points, fit, its doubt, and what it predicts."""

import os
import pathlib
from collections.abc import Sequence

import numpy as np

from rl_jax.scaling_fit import Fit, score_at
from rl_jax.scaling_runs import Points

_COLOURS = ("#3b6fb6", "#d1603d", "#2f7f5f", "#8a5fa8", "#b08a2e", "#6b6b6b")


def plot_fits(
    fitted: Sequence[tuple[Points, Fit]],
    out_path: str | os.PathLike,
    *,
    metric: str,
    unit: str,
    factor: float,
    later: Sequence[Points] = (),
) -> pathlib.Path:
    """Draws recipes on one pair of axes, compute in logarithms.

    A curve is solid where it was fitted and dashed up to `factor` times that, with its
    95 % band; its ceiling is dotted. Points without compute stand at the left edge.

    Args:
        later: points that no curve was fitted to, of the recipes in order.
    """
    # Imported here: slow, and nothing but a plot needs it. No pyplot: it would look
    # for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    spent = np.concatenate([p.compute_N[p.compute_N > 0] for p, _ in fitted])
    left = spent.min() / 2
    for i, (points, fit) in enumerate(fitted):
        colour = _COLOURS[i % len(_COLOURS)]
        last = points.last_compute
        compute = np.geomspace(left, factor * last, 200)
        values = score_at(fit.resamples.T[..., None], compute)
        low, high = np.percentile(values, [2.5, 97.5], axis=0)
        axis.fill_between(compute, low, high, color=colour, alpha=0.15, linewidth=0)
        middle = score_at(fit.curve, compute)
        seen = compute <= last
        axis.plot(compute[seen], middle[seen], color=colour, linewidth=2.0)
        ends = f"{points.name}: ceiling {fit.curve.ceiling:.3f}"
        axis.plot(
            compute[~seen], middle[~seen], "--", color=colour, linewidth=1.6, label=ends
        )
        axis.axhline(fit.curve.ceiling, color=colour, linestyle=":", linewidth=0.9)
        axis.plot(
            np.maximum(points.compute_N, left),
            points.score_N,
            "o",
            color=colour,
            markersize=4,
            alpha=0.7,
        )
        if i < len(later):
            axis.plot(
                later[i].compute_N,
                later[i].score_N,
                "o",
                markerfacecolor="none",
                markeredgecolor=colour,
                markersize=4,
            )
    axis.set_xscale("log")
    axis.set_xlabel(unit)
    axis.set_ylabel(metric)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.legend(loc="best", frameon=False, fontsize=9)
    path = pathlib.Path(out_path)
    figure.savefig(path, dpi=150)
    return path
