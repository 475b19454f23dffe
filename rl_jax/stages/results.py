"""What became of each stage of a run: kept beside it, summed up for people.

WORKDIR/STAGE/result.json says that a stage is finished, how long it took and what it
was made from; the numbers themselves stay in metrics.jsonl.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from rl_jax import plots
from rl_jax.config_keys import Gate, StageConfig

RESULT = "result.json"
# What a stage without a gate is judged by in the summary: the first that it has.
_SCORES = (
    "eval/accuracy_greedy",
    "eval/accuracy",
    "eval/accuracy_pairs",
    "train/reward",
    "select/mean_score",
    "eval/loss",
    "train/loss",
)


@dataclasses.dataclass(frozen=True)
class Result:
    """How far a stage has come.

    Attributes:
        finished: it ran to its end.
        steps: of the stage when it did.
        seconds: of work, all sessions together.
        made: unix time of its end, which also names this result.
        needs: what it was made from: stage -> `made` of that one's result.
    """

    finished: bool = False
    steps: int = 0
    seconds: float = 0.0
    made: float = 0.0
    needs: dict[str, float] = dataclasses.field(default_factory=dict)


def read(folder: pathlib.Path) -> Result:
    """The result kept in a stage's work folder; an unfinished one if there is none."""
    path = folder / RESULT
    return Result(**json.loads(path.read_text())) if path.is_file() else Result()


def write(folder: pathlib.Path, result: Result) -> None:
    """Writes the result, whole or not at all."""
    unfinished = folder / f"{RESULT}.unfinished"
    unfinished.write_text(json.dumps(dataclasses.asdict(result), indent=1) + "\n")
    unfinished.replace(folder / RESULT)


def first_and_last(folder: pathlib.Path, metric: str) -> tuple[float, float] | None:
    """A metric's first and last value in a stage's metrics.jsonl; None without any."""
    found = plots.read_curves(folder / "metrics.jsonl").get(metric)
    return (float(found[1][0]), float(found[1][-1])) if found else None


def names(folder: pathlib.Path) -> list[str]:
    """The metrics that a stage has written."""
    return sorted(plots.read_curves(folder / "metrics.jsonl"))


def verdict(gate: Gate, first: float, last: float) -> str:
    """What of a gate was missed, in words; "" if it holds. NaN reaches nothing."""
    if gate.at_least is not None and not last >= gate.at_least:
        return f"{last:.4g} is less than {gate.at_least:.4g}"
    if gate.at_most is not None and not last <= gate.at_most:
        return f"{last:.4g} is more than {gate.at_most:.4g}"
    if gate.rise is not None and not last - first >= gate.rise:
        return f"from {first:.4g} to {last:.4g} is a rise of less than {gate.rise:.4g}"
    if gate.fall is not None and not first - last >= gate.fall:
        return f"from {first:.4g} to {last:.4g} is a fall of less than {gate.fall:.4g}"
    return ""


def wanted(gate: Gate) -> str:
    """What a gate asks, in words."""
    words = []
    if gate.at_least is not None:
        words.append(f"at least {gate.at_least:.4g}")
    if gate.at_most is not None:
        words.append(f"at most {gate.at_most:.4g}")
    if gate.rise is not None:
        words.append(f"up by {gate.rise:.4g}")
    if gate.fall is not None:
        words.append(f"down by {gate.fall:.4g}")
    return ", ".join(words)


@dataclasses.dataclass(frozen=True)
class Line:
    """A stage in the summary.

    Attributes:
        metric: what it is judged by; "" where it has written nothing.
        first: its first value; None where it was measured once.
    """

    name: str
    kind: str
    steps: int
    seconds: float
    metric: str
    first: float | None
    last: float
    gate: str


def line(stage: StageConfig, folder: pathlib.Path) -> Line:
    """What a stage brought, by its gate's metric or the usual ones."""
    result = read(folder)
    curves = plots.read_curves(folder / "metrics.jsonl")
    metrics = (stage.gate.metric,) if stage.gate.metric else _SCORES
    metric = next((m for m in metrics if m in curves), "")
    values = curves[metric][1] if metric else (0.0,)
    first, last = float(values[0]), float(values[-1])
    gate = ""
    if stage.gate.metric:
        missed = not metric or verdict(stage.gate, first, last)
        gate = f"{wanted(stage.gate)}: {'missed' if missed else 'passed'}"
    return Line(
        stage.name,
        stage.kind,
        result.steps,
        result.seconds,
        metric,
        first if len(values) > 1 else None,
        last,
        gate,
    )


def table(lines: Sequence[Line]) -> str:
    """The summary for people, one line a stage."""
    head = ("stage", "kind", "steps", "time", "metric", "start", "end", "gate")
    cells: list[tuple[str, ...]] = [head]
    for one in lines:
        minutes, seconds = divmod(round(one.seconds), 60)
        start = "" if one.first is None else f"{one.first:.3g}"
        values = (start, f"{one.last:.3g}") if one.metric else ("", "")
        steps = str(one.steps or "")
        time = f"{minutes}:{seconds:02d}"
        cells.append((one.name, one.kind, steps, time, one.metric, *values, one.gate))
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    right = {2, 3, 5, 6}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )
