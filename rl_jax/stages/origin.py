"""What a stage's result is made from, as a sum: whether it need be made again.

A stage that writes data, or averages weights, keeps this sum beside its result. Asked
for the same from the same weights and files it has nothing to do; asked for anything
else it says so and starts anew.
"""

import dataclasses
import json
import os
import pathlib
import zlib
from collections.abc import Iterable
from typing import Any

from etils import epath

from rl_jax import config as configs
from rl_jax import manifest
from rl_jax.data import files, sources
from rl_jax.stages import weights
from rl_jax.stages.context import TOKENIZER_FOLDER, Context
from rl_jax.stages.run_state import CHECKPOINTS

_CHUNK_BYTES = 2**20


def sum_of(parts: Any) -> str:
    """A checksum of anything that JSON can say."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"{zlib.crc32(text.encode(errors='surrogatepass')):08x}"


def sampling(context: Context, stage: configs.StageConfig) -> dict[str, Any]:
    """All that the replies of a stage and their scores depend on."""
    data = dataclasses.replace(stage.data, train="", eval="", held_out="")
    reward, model = stage.reward, stage.reward.model
    names = [name.rpartition(":")[0] for name in reward.functions]
    return {
        "stage": stage.name,
        "seed": context.run.seed,
        "model": dataclasses.asdict(context.model),
        "tokenizer": files_of(context.workdir / TOKENIZER_FOLDER),
        "weights": weights_of(context, stage.init),
        "data": dataclasses.asdict(data),
        "train": data_of(stage.data.train),
        "rollout": dataclasses.asdict(stage.rollout),
        "reward": dataclasses.asdict(dataclasses.replace(reward, workers=1)),
        "functions": [file_sum(name) for name in names if os.path.isfile(name)],
        "judge": weights_of(context, model) if model else "",
    }


def weights_of(context: Context, name: str) -> str:
    """What the weights of that name are now: the sum of the checkpoint, or the files.

    Args:
        name: as for `weights.policy`.
    """
    folder, step = weights.stage_folder(context, name)
    if folder is not None:
        return _checkpoint_sum(folder / CHECKPOINTS, step)
    path = pathlib.Path(context.run.model.path if name == "base" else name)
    if name == "new" or not path.name:
        return name  # made of the run's seed
    found = sorted(path.glob("*.safetensors"))
    # Their sizes and times: summing up many gigabytes would take minutes.
    stats = [(file.name, file.stat()) for file in found]
    return sum_of([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def _checkpoint_sum(folder: pathlib.Path, step: int | None) -> str:
    steps = [step]
    if step is None:
        names = (path.name for path in folder.glob("*"))
        steps = sorted((int(n) for n in names if n.isdecimal()), reverse=True)
    for number in steps:
        path = folder / str(number)
        if not manifest.flaw(epath.Path(path), checksums=False):
            # A manifest has the sums of all files: no two checkpoints have the same.
            return file_sum(path / manifest.NAME)
    return "none"


def data_of(text: str) -> list[Any]:
    """What the sources of a key hold now: sums of files, names of built-in tasks."""
    found: list[Any] = []
    for source in sources.parse(text):
        if source.path in sources.BUILT_IN:
            found.append(source.path)
        else:
            paths = files.data_files(source.path)
            # The name of a file may be its rows' data source; its place is no matter.
            found.append([(path.name, file_sum(path)) for path in paths])
    return found


def files_of(folder: pathlib.Path) -> list[Any]:
    """The names and sums of the files in a folder."""
    return [(p.name, file_sum(p)) for p in sorted(folder.glob("*")) if p.is_file()]


def file_sum(path: str | os.PathLike) -> str:
    """The crc32 of a file."""
    total = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            total = zlib.crc32(chunk, total)
    return f"{total:08x}"


def why_make(
    record: pathlib.Path, made_of: str, results: Iterable[pathlib.Path]
) -> str:
    """Why what a record describes must be made (again); "" if it is there, whole.

    Args:
        record: a JSON object with `made_of` and, by name, the sums of the `files`.
        results: the files that it must list.
    """
    if not record.is_file():
        return "it is not there yet"
    try:
        told = json.loads(record.read_text(encoding="utf-8"))
    except ValueError:
        return f"{record.name} cannot be read"
    if told.get("made_of") != made_of:
        return "it was made by another config, or from other weights or data"
    for path in results:
        if not path.is_file() or told["files"].get(path.name) != file_sum(path):
            return f"{path.name} is not the file that was written"
    return ""
