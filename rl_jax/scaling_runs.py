"""The points that a scaling curve goes through: a score of runs over their compute."""

import dataclasses
import difflib
import json
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rl_jax.errors import ConfigError
from rl_jax.plots import Curves, read_curves

MODEL_FILE = "model.json"  # of the work folder, beside config.json
# FLOPs for each weight and token: two to multiply and add, twice that in the backward
# pass. A token of RL is drawn first. Prompts, attention's scores, and the forward
# passes of a reference or of a second update are left out.
_TRAIN_FLOPS, _DRAW_FLOPS = 6, 2


@dataclasses.dataclass(frozen=True)
class Points:
    """Scores over compute, in order of it; of several runs if they share a recipe."""

    name: str
    compute_N: np.ndarray
    score_N: np.ndarray

    @property
    def last_compute(self) -> float:
        return float(self.compute_N.max())

    def until(self, compute: float) -> "Points":
        """Those up to a compute."""
        kept_N = self.compute_N <= compute
        return Points(self.name, self.compute_N[kept_N], self.score_N[kept_N])

    def since(self, compute: float) -> "Points":
        """Those from a compute on."""
        kept_N = self.compute_N >= compute
        return Points(self.name, self.compute_N[kept_N], self.score_N[kept_N])


def read_points(recipe: str, metric: str, axis: str, num_chips: int | None) -> Points:
    """Reads the runs of a recipe, given as folders with commas between them.

    A score under `eval/` is that of the weights after the step it is written at. Any
    other was taken while the step was made, so with the weights, and the compute, of
    the step before.

    Args:
        recipe: work folders, or stages in them.
        axis: a key of `AXES`.
        num_chips: for "chip_hours"; None to take what the config says of the mesh.

    Raises:
        ConfigError: if a folder, the metric or the compute is missing.
    """
    compute, score = [], []
    for word in recipe.split(","):
        stage, curves = _find(word, metric)
        steps_N, score_N = curves[metric]
        at_N = steps_N if metric.startswith("eval/") else steps_N - 1
        steps, used = AXES[axis].spent(_Run(stage, word, curves, num_chips))
        # Before the first step nothing is spent.
        steps, used = np.append(0, steps), np.append(0.0, used)
        compute.append(np.interp(at_N, steps, used))
        score.append(score_N)
    compute_N, score_N = np.concatenate(compute), np.concatenate(score)
    order_N = np.argsort(compute_N, kind="stable")
    return Points(recipe, compute_N[order_N], score_N[order_N].astype(np.float64))


class _Run(NamedTuple):
    stage: pathlib.Path  # holds metrics.jsonl
    word: str  # as it was given
    curves: Curves
    num_chips: int | None


def _find(word: str, metric: str) -> tuple[pathlib.Path, Curves]:
    """The last stage of a work folder that wrote the metric, and its curves."""
    root = pathlib.Path(word).expanduser().absolute()
    config = _config_of(root)
    stages = [root, *(root / name for name in reversed(config.get("stages", ())))]
    found = {stage: read_curves(stage / "metrics.jsonl") for stage in stages}
    found = {stage: curves for stage, curves in found.items() if curves}
    if not found:
        raise ConfigError(
            f"{word} has no metrics.jsonl with a number in it.\n"
            "Expected a work folder of rl_jax.train, or a stage in one."
        )
    for stage, curves in found.items():
        if metric in curves:
            return stage, curves
    names = sorted({name for curves in found.values() for name in curves})
    scores = ("reward", "accuracy", "train/loss", "eval/")
    near = difflib.get_close_matches(metric, names, n=3) or [
        name for name in names if any(word in name for word in scores)
    ]
    raise ConfigError(
        f"{word} has written no {metric!r}.\n"
        f"It has, among {len(names)}: {', '.join(near[:6]) or ', '.join(names[:6])}.\n"
        f"Write e.g. --metric={(near or names)[0]}"
    )


def _config_of(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / "config.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def _tokens(run: _Run) -> tuple[np.ndarray, np.ndarray]:
    """Tokens trained on, or drawn in RL, up to each step."""
    return _needed(run, "train/num_tokens")


def _flops(run: _Run) -> tuple[np.ndarray, np.ndarray]:
    """Tokens times weights times what is done with each."""
    # Imported here: jax takes seconds, and tokens and hours need none of it.
    from rl_jax.models.params import num_params
    from rl_jax.models.spec import spec_from_dict

    root = next(
        (
            folder
            for folder in (run.stage, run.stage.parent)
            if (folder / MODEL_FILE).is_file()
        ),
        None,
    )
    if root is None:
        raise ConfigError(
            f"{run.word} does not say how large its model is: there is no {MODEL_FILE}."
            "\nExpected a work folder of rl_jax.train, or --compute=tokens"
        )
    try:
        model = spec_from_dict(json.loads((root / MODEL_FILE).read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{root / MODEL_FILE} does not describe a model of this version of rl_jax: "
            f"{error!r}.\nWrite --compute=tokens, which needs no model."
        ) from error
    # The embedding is a look-up; the head, which may share its weights, multiplies.
    idle = 0 if model.tie_embeddings else model.vocab_size * model.width
    config = _config_of(root)
    kind = config.get("kind") or config.get(run.stage.name, {}).get("kind")
    each = _TRAIN_FLOPS + (_DRAW_FLOPS if kind == "rl" else 0)
    steps, tokens = _tokens(run)
    return steps, tokens * float(each * (num_params(model) - idle))


def _chip_hours(run: _Run) -> tuple[np.ndarray, np.ndarray]:
    """Hours of all chips, without evaluations and checkpoints."""
    num_chips = run.num_chips
    if num_chips is None:
        config = _config_of(run.stage) or _config_of(run.stage.parent)
        sizes = list(config.get("mesh", {"all": -1}).values())
        if min(sizes) < 1:
            raise ConfigError(
                f"{run.word} ran on all the chips there were, and does not say how "
                "many.\nWrite e.g. --chips=8"
            )
        num_chips = int(np.prod(sizes))
    steps, secs = _needed(run, "time/step")
    return steps, np.cumsum(secs) * num_chips / 3600


def _needed(run: _Run, name: str) -> tuple[np.ndarray, np.ndarray]:
    if name not in run.curves:
        raise ConfigError(
            f"{run.word} has written no {name!r}, from which its compute is told.\n"
            f"Choose another --compute, of {', '.join(AXES)}"
        )
    return run.curves[name]


class Axis(NamedTuple):
    """A way to count compute: its unit, and what each step of a run has spent."""

    unit: str
    spent: Callable[[_Run], tuple[np.ndarray, np.ndarray]]


AXES = {
    "tokens": Axis("tokens", _tokens),
    "flops": Axis("FLOPs", _flops),
    "chip_hours": Axis("chip-hours", _chip_hours),
}
