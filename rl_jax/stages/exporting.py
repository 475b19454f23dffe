"""The folder for transformers that a run ends with: WORKDIR/huggingface."""

import json
import pathlib
import zlib
from collections.abc import Callable
from typing import Any

from rl_jax import config as configs
from rl_jax import dag, manifest
from rl_jax.data.piece_json import transformers_files
from rl_jax.errors import ConfigError
from rl_jax.mesh import is_lead
from rl_jax.models import export
from rl_jax.models.params import Params
from rl_jax.stages import context as contexts
from rl_jax.stages.context import Context
from rl_jax.stages.run_state import CHECKPOINTS

EXPORT = "huggingface"  # in the workdir: the last policy's weights for transformers
_RECORD = "huggingface.json"  # beside it: of what checkpoint, and the files' sizes


def wanted(context: Context) -> bool:
    """Whether the run ends with an export: asked for, and something is trained.

    Raises:
        ConfigError: if it could not be written then.
    """
    run = context.run
    stages = [stage for stage in run.stages if dag.makes(run, stage) == "policy"]
    if not context.run.export or not any(s.steps or s.kind == "merge" for s in stages):
        return False
    folder = context.workdir / EXPORT
    is_ours = (context.workdir / _RECORD).is_file()
    is_stage = any(context.folder(stage) == folder for stage in context.run.stages)
    if is_stage or (folder.exists() and not is_ours):
        raise ConfigError(
            f"{folder} is not an export of this run, which would end by replacing it.\n"
            "Move it elsewhere, or write --config.export=false"
        )
    config = export.source_config(context.workdir / contexts.TOKENIZER_FOLDER)
    if config is not None:
        export.check(context.model, config)
    return True


def write(
    context: Context, stage: configs.StageConfig, params: Callable[[], Params]
) -> None:
    """Writes WORKDIR/huggingface, unless it is there already; says where it is.

    Args:
        stage: the one whose last checkpoint `params` reads.
    """
    folder, record = context.workdir / EXPORT, context.workdir / _RECORD
    source = context.workdir / contexts.TOKENIZER_FOLDER
    step = context.folder(stage) / CHECKPOINTS / str(stage.steps)
    # A manifest sums up all bytes of a checkpoint: no two have the same.
    summed = step / manifest.NAME
    origin = {
        "checkpoint": str(step.relative_to(context.workdir)),
        "crc32": zlib.crc32(summed.read_bytes()) if summed.is_file() else None,
    }
    if not _is_exported(folder, record, origin):
        if is_lead():
            # First, as it says that the folder is ours to replace.
            _write_record(record, {**origin, "files": {}})
        done = export.save_folder(
            params(),
            context.model,
            folder,
            source,
            more=transformers_files(source),
            replace=True,
        )
        if is_lead():
            _write_record(record, {**origin, "dtype": done.dtype, "files": done.files})
    if is_lead():
        told = json.loads(record.read_text())
        size = sum(told["files"].values())
        print(f"exported:    {folder} ({told['dtype']}, {size:,} bytes)")


def _is_exported(
    folder: pathlib.Path, record: pathlib.Path, origin: dict[str, Any]
) -> bool:
    """Whether the folder has, whole, what was written of this checkpoint."""
    if not record.is_file() or origin["crc32"] is None:
        return False
    told = json.loads(record.read_text())
    files = told["files"]
    return (
        bool(files)
        and all(told[key] == value for key, value in origin.items())
        and all((folder / name).is_file() for name in files)
        and all((folder / name).stat().st_size == files[name] for name in files)
    )


def _write_record(record: pathlib.Path, told: dict[str, Any]) -> None:
    unfinished = record.with_name(f"{record.name}.unfinished")
    unfinished.write_text(json.dumps(told, indent=1) + "\n")
    unfinished.replace(record)
