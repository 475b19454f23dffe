r"""Where a run is going: ScaleRL's curve, fitted to its scores over its compute.

python -m rl_jax.scaling fit runs/a runs/b
python -m rl_jax.scaling fit runs/a --metric=train/reward --first=0.33
python -m rl_jax.scaling compare runs/grpo runs/cispo --compute=chip_hours --chips=8

A RUN is a work folder, or a stage in one; several with commas between them are one
recipe (its seeds), fitted together. `--first` fits on the first part of the compute and
says how far off the end came out. `compare` says which recipe is ahead, which has the
higher ceiling, and when one overtakes the other.

The curve is R0 + (A - R0) / (1 + (Cmid / C)^B): start R0, ceiling A, steepness B,
midpoint Cmid. The intervals are of the noise around it; a run whose curve bends
otherwise, as when its learning rate decays, may end outside of them.

Source: ScaleRL, arXiv:2510.13786.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_jax import command_line
from rl_jax.errors import ConfigError
from rl_jax.metric_names import METRICS
from rl_jax.scaling_fit import Curve, Fit, NoRise, TooFewPoints, crossing, fit, score_at
from rl_jax.scaling_runs import AXES, Points, read_points

AHEAD = 10.0  # times the compute of the last point: what is predicted
_END = 0.9  # the measured end is the mean of the points from this share on

Fitted = tuple[Points, Fit]


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rl_jax.scaling",
        description="Fits ScaleRL's curve to the metrics of runs, and compares them.",
    )
    shared = argparse.ArgumentParser(add_help=False)
    add = shared.add_argument
    add("runs", nargs="+", metavar="RUN", help="work folder or stage; commas join")
    add("--metric", default="eval/accuracy", help="score (default: eval/accuracy)")
    add(
        "--compute", choices=tuple(AXES), default="tokens", help="axis (default tokens)"
    )
    add("--chips", type=int, help="for chip_hours: how many the run had")
    add(
        "--first",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="fit to this first share of the compute (default 1), and compare the rest",
    )
    add(
        "--skip", type=float, default=0.0, help="compute before which no point is taken"
    )
    add("--start", type=float, help="the score without compute, if known")
    add(
        "--max_ceiling",
        type=float,
        help="largest possible score (default: 1 for a fraction)",
    )
    add("--resamples", type=int, default=1000, help="of the bootstrap (default 1000)")
    add("--seed", type=int, default=0, help="of the bootstrap")
    add("--out", help="PNG to write (default: scaling.png in the first RUN)")
    add("--json", help="write the numbers here too")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fit", parents=[shared], help="one curve for each RUN")
    compare = commands.add_parser(
        "compare", parents=[shared], help="several recipes side by side"
    )
    compare.add_argument(
        "--at",
        type=float,
        help="compute at which the early winner is told (default: the last that all "
        "recipes have reached)",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Fits, prints and plots; returns the exit code."""
    args = arguments(argv)
    _check(args)
    unit = AXES[args.compute].unit
    whole = [read_points(r, args.metric, args.compute, args.chips) for r in args.runs]
    fitted, later = [], []
    for points in whole:
        last = points.until(args.first * points.last_compute).since(args.skip)
        fitted.append((last, _fit(last, args)))
        rest = points.compute_N > args.first * points.last_compute
        later.append(Points(points.name, points.compute_N[rest], points.score_N[rest]))
    for (points, found), all_of_it in zip(fitted, whole, strict=True):
        print("\n".join(_told(points, found, all_of_it, unit, args)) + "\n")
    result: dict[str, Any] = {"recipes": [_as_json(p, f) for p, f in fitted]}
    if args.command == "compare":
        early = args.at or min(points.last_compute for points, _ in fitted)
        lines, refits = verdict(fitted, early, unit, lambda p, a: _fit(p, args, a))
        print("\n".join([*table(fitted, early, unit), "", *lines]))
        result |= {"at": early, "verdict": lines, "refits": refits}
    # Imported late: matplotlib is slow.
    from rl_jax.scaling_plot import plot_fits

    out = args.out or pathlib.Path(args.runs[0].split(",")[0]) / "scaling.png"
    plot_fits(fitted, out, metric=args.metric, unit=unit, factor=AHEAD, later=later)
    print(f"plot        {out}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _check(args: argparse.Namespace) -> None:
    if not 0 < args.first <= 1:
        raise ConfigError(
            f"--first={args.first:g}.\nExpected a share of the run, above 0 and at "
            "most 1, e.g. --first=0.33"
        )
    if args.resamples < 100:
        raise ConfigError(
            f"--resamples={args.resamples}.\nExpected 100 or more: an interval of 95 % "
            "needs some beyond its ends."
        )
    if args.chips is not None and args.chips < 1:
        raise ConfigError(f"--chips={args.chips}.\nExpected 1 or more.")
    if args.command == "compare":
        if len(args.runs) < 2:
            raise ConfigError(
                "compare has one RUN.\nExpected two or more; `fit` is for one."
            )
        if args.at is not None and args.at <= 0:
            raise ConfigError(f"--at={args.at:g}.\nExpected a compute above 0.")


def _fit(points: Points, args: argparse.Namespace, ceiling: float | None = None) -> Fit:
    """A fit with what the command line says."""
    max_ceiling = args.max_ceiling
    metric = METRICS.get(args.metric)
    if max_ceiling is None and metric and metric.unit == "fraction":
        max_ceiling = 1.0
    try:
        return fit(
            points.compute_N,
            points.score_N,
            start=args.start,
            ceiling=ceiling,
            max_ceiling=max_ceiling,
            num_resamples=args.resamples,
            seed=args.seed,
        )
    except TooFewPoints as error:
        raise ConfigError(
            f"{points.name}: {error}, of {args.metric}.\n"
            "Take a score that is written more often (--metric=train/reward, or a "
            "smaller config.eval.every),\nor more of the run (--first, --skip)."
        ) from error
    except NoRise as error:
        raise ConfigError(
            f"{points.name}: {error} ({args.metric}, {len(points.score_N)} points, "
            f"{points.score_N[0]:.3f} to {points.score_N[-1]:.3f}).\n"
            "Expected one that grows towards a ceiling: another --metric, or leave out "
            "its beginning with --skip."
        ) from error


def _told(
    points: Points, found: Fit, whole: Points, unit: str, args: argparse.Namespace
) -> list[str]:
    """The lines of one recipe."""
    curve, last = found.curve, points.last_compute
    lines = [
        f"{points.name}: {args.metric}, {len(points.score_N)} points to "
        f"{amount(last)} {unit}"
    ]
    for name, value, shown in (
        ("start", curve.start, "{:.4f}".format),
        ("ceiling", curve.ceiling, "{:.4f}".format),
        ("steepness", curve.steepness, "{:.2f}".format),
        ("midpoint", curve.midpoint, lambda x: f"{amount(x)} {unit}"),
    ):
        low, high = found.interval(name)
        given = name == "start" and args.start is not None
        doubt = "given" if given else f"95 % interval {shown(low)} to {shown(high)}"
        lines.append(f"{name:<12}{shown(value)}  {doubt}")
    lines.append(f"noise       {found.noise:.4f}  of a point around the curve")
    for times, name in ((1.0, "now"), (AHEAD, "predicted")):
        value, low, high = found.predicted(times * last)
        lines.append(
            f"{name:<12}{value:.4f}  at {amount(times * last)} {unit}, 95 % interval "
            f"{low:.4f} to {high:.4f}"
        )
    if args.first < 1:
        end = whole.since(_END * whole.last_compute)
        predicted = float(np.mean(score_at(curve, end.compute_N)))
        measured = float(np.mean(end.score_N))
        lines.append(
            f"end         {measured:.4f}  measured at {amount(whole.last_compute)} "
            f"{unit}; predicted {predicted:.4f}, off by {predicted - measured:+.4f}"
        )
    if found.is_open:
        lines.append(
            "warning     these points leave the ceiling open: its interval is wider "
            "than half of the gain"
        )
    return lines


def amount(compute: float) -> str:
    """Compute for people: 1,250 or 3.2e+09."""
    if compute >= 1e7:
        return f"{compute:.3g}"
    return f"{compute:,.0f}" if compute >= 100 else f"{compute:.3g}"


def table(fitted: Sequence[Fitted], early: float, unit: str) -> list[str]:
    """One line a recipe: the curve, and its score early and at the end."""
    late = AHEAD * max(points.last_compute for points, _ in fitted)
    width = max(6, *(len(points.name) for points, _ in fitted))
    rows = [
        f"{'recipe':<{width}}  {'ceiling':<25}{'steepness':>9}{'midpoint':>12}"
        f"{'at ' + amount(early):>14}{'at ' + amount(late):>14}  ({unit})"
    ]
    for points, found in fitted:
        low, high = found.interval("ceiling")
        ceiling = f"{found.curve.ceiling:.4f} ({low:.4f}-{high:.4f})"
        rows.append(
            f"{points.name:<{width}}  {ceiling:<25}{found.curve.steepness:>9.2f}"
            f"{amount(found.curve.midpoint):>12}{score_at(found.curve, early):>14.4f}"
            f"{score_at(found.curve, late):>14.4f}"
        )
    return rows


def verdict(
    fitted: Sequence[Fitted], early: float, unit: str, refit
) -> tuple[list[str], list[dict[str, Any]]]:
    """Who is ahead, who will be, and by what ceilings that are alike differ.

    Ceilings whose intervals overlap are not told apart: those recipes are fitted again
    with the mean of theirs, and compared by how soon they get there.

    Args:
        early: the compute at which the early winner is told.
        refit: (points, ceiling) -> Fit with that ceiling.

    Source: ScaleRL, arXiv:2510.13786 (ceilings first, then steepness).
    """
    first = max(fitted, key=lambda pf: score_at(pf[1].curve, early))
    top = max(fitted, key=lambda pf: pf[1].curve.ceiling)
    like_top = [pf for pf in fitted if _overlap(pf[1], top[1])]
    lines = []
    if first is top:
        lines.append(
            f"{first[0].name} is ahead at {amount(early)} {unit} and has the highest "
            "ceiling."
        )
    else:
        late = AHEAD * max(points.last_compute for points, _ in fitted)
        lines.append(_warning(first, top, early, late, unit))
        if first in like_top:
            lines.append("But the intervals of their ceilings overlap.")
    refits = []
    if len(like_top) > 1:
        ceiling = float(np.mean([found.curve.ceiling for _, found in like_top]))
        again = [(points, refit(points, ceiling)) for points, _ in like_top]
        again.sort(key=lambda pf: pf[1].curve.midpoint)
        lines.append(
            f"Ceilings that cannot be told apart, fitted again with their mean, "
            f"{ceiling:.4f}:"
        )
        for points, found in again:
            curve = found.curve
            lines.append(
                f"  {points.name}: steepness {curve.steepness:.2f}, half of the gain "
                f"at {amount(curve.midpoint)} {unit}"
            )
            refits.append(_as_json(points, found))
    return lines, refits


def _warning(first: Fitted, top: Fitted, early: float, late: float, unit: str) -> str:
    ahead, behind = (float(score_at(found.curve, early)) for _, found in (first, top))
    text = (
        f"warning: {first[0].name} is ahead at {amount(early)} {unit}, {ahead:.2f} to "
        f"{behind:.2f}, but its ceiling is lower, {first[1].curve.ceiling:.2f} to "
        f"{top[1].curve.ceiling:.2f}: "
    )
    turn = crossing(first[1].curve, top[1].curve, early, max(late, 1e4 * early))
    if turn is None:
        return text + f"{top[0].name} overtakes it only far beyond these points."
    return text + f"{top[0].name} overtakes it at about {amount(turn)} {unit}."


def _overlap(a: Fit, b: Fit) -> bool:
    (a_low, a_high), (b_low, b_high) = a.interval("ceiling"), b.interval("ceiling")
    return a_low <= b_high and b_low <= a_high


def _as_json(points: Points, found: Fit) -> dict[str, Any]:
    last = points.last_compute
    return {
        "name": points.name,
        "num_points": len(points.score_N),
        "last_compute": last,
        "noise": found.noise,
        "predicted": found.predicted(AHEAD * last),
        **{
            name: (value, *found.interval(name))
            for name, value in zip(Curve._fields, found.curve, strict=True)
        },
    }


if __name__ == "__main__":
    sys.exit(command_line.exit_on_config_error(main, sys.argv[1:]))
