"""Log-probabilities of pairs: under the policy, and once under a frozen reference.

The reference never changes, so all its numbers are made before the first step and
kept in the stage's folder; its weights are then let go. A stage that is resumed reads
the file, unless the pairs or the reference are no longer those it was made of.

Legend: N pairs, 3 the chosen and the rejected reply, special tokens of the chosen one.
"""

import collections
import functools
import os
import pathlib
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence

import jax
import numpy as np

from rl_jax import config as configs
from rl_jax import processes
from rl_jax.data.pair_packing import pack_pairs
from rl_jax.errors import ConfigError
from rl_jax.learner import to_device
from rl_jax.mesh import is_lead
from rl_jax.models.params import Params
from rl_jax.stages import origin, weights
from rl_jax.stages.context import Context
from rl_jax.stages.pairs import Pair, checksum

FILE = "reference.npz"  # in the stage's work folder
# Micro-batches given to the device before the first result is fetched.
_AHEAD = 16


def reply_totals(
    context: Context,
    stage: configs.StageConfig,
    score_totals: Callable[..., jax.Array],
    params: Params,
    pairs: Sequence[Pair],
    each: Callable[[], None] = lambda: None,
) -> np.ndarray:
    """logp_N3, float32: `preference_learner.totals` of each pair.

    Args:
        each: called before each micro-batch.
    """
    batch, logp_N3 = stage.batch, np.zeros((len(pairs), 3), np.float32)
    waiting: collections.deque[tuple[np.ndarray, jax.Array]] = collections.deque()

    def fetch(most: int) -> None:
        while len(waiting) > most:
            index, totals = waiting.popleft()
            logp_N3[index] = np.asarray(totals)[: len(index)]

    pieces = [pair.pieces for pair in pairs]
    for rows in pack_pairs(pieces, batch.micro_rows, batch.row_tokens):
        context.stop.check()
        each()
        totals = score_totals(params, to_device(rows.packed, context.mesh))
        waiting.append((rows.index, totals))
        fetch(_AHEAD)
    fetch(0)
    return logp_N3


def reference_logps(
    context: Context,
    stage: configs.StageConfig,
    base: Callable[[], Params],
    score_totals: Callable[..., jax.Array],
    sets: Sequence[Sequence[Pair]],
) -> list[np.ndarray]:
    """logp_N3 of each set of pairs under the reference: read, or made and kept.

    Args:
        base: reads the weights that the stage begins with.

    Raises:
        ConfigError: if the reference gives some reply no finite log-probability.
    """
    path = context.folder(stage) / FILE
    key = _key(context, stage, sets)
    found = _read(path, key, len(sets))
    # All processes or none: those that score need each other for it.
    if all(processes.gather(f"{stage.name}: {FILE}", found is not None, secs=600)):
        assert found is not None
        processes.say(
            f"{stage.name}: log-probabilities of the reference read from {path}"
        )
        return found
    began, name = time.monotonic(), stage.preference.reference
    if name != "init":
        base = weights.policy(context, name, f"{stage.prefix}preference.reference")
    params = base()
    totals = functools.partial(reply_totals, context, stage, score_totals, params)
    alive = functools.partial(processes.beat, 0, "scoring pairs under the reference")
    made = [totals(one, each=alive) for one in sets]
    for one, logp_N3 in zip(sets, made, strict=True):
        _check_finite(stage, one, logp_N3)
    if is_lead():
        _write(path, key, made)
    count = sum(map(len, sets))
    secs = time.monotonic() - began
    processes.say(
        f"{stage.name}: log-probabilities of {count:,} pairs under the reference "
        f"{name!r} in {secs:.1f} s, kept in {path}"
    )
    return made


def _check_finite(
    stage: configs.StageConfig, pairs: Sequence[Pair], logp_N3: np.ndarray
) -> None:
    wrong = np.flatnonzero(~np.isfinite(logp_N3).all(1))
    if wrong.size:
        row = pairs[wrong[0]].row
        raise ConfigError(
            f"The reference {stage.preference.reference!r} gives a reply of row "
            f"{row.index + 1} of {row.data_source} the log-probability "
            f"{logp_N3[wrong[0]].tolist()}, and {len(wrong)} pairs such ones.\n"
            "Its weights are broken, or too large for config.model.dtype."
        )


def _key(
    context: Context, stage: configs.StageConfig, sets: Sequence[Sequence[Pair]]
) -> str:
    """What the numbers depend on, as text; another text means other numbers."""
    name, seed = stage.preference.reference, context.run.seed
    found = origin.weights_of(context, stage.init if name == "init" else name)
    sums = ",".join(checksum(pairs) for pairs in sets)
    # The seed and the stage's name tell new weights from others of that name.
    return f"pairs {sums}; {context.model}; {found}, {stage.name}, seed {seed}"


def _read(path: pathlib.Path, key: str, count: int) -> list[np.ndarray] | None:
    """What the file has, if it was made of the same; None otherwise."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as kept:
            if str(kept["key"]) == key:
                return [kept[f"set{i}"] for i in range(count)]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        processes.say(f"note: {path} cannot be read and is made anew")
    return None


def _write(path: pathlib.Path, key: str, made: Sequence[np.ndarray]) -> None:
    """The file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.unfinished")
    arrays = {f"set{i}": logp_N3 for i, logp_N3 in enumerate(made)}
    with open(unfinished, "wb") as file:
        np.savez(file, allow_pickle=False, key=np.array(key), **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
