"""Runs the stages of a config in order, each from the weights it names."""

import json
import pathlib
import zlib
from collections.abc import Callable
from typing import Any

import jax

from rl_jax import checkpoint, manifest, metrics
from rl_jax import config as configs
from rl_jax.data.piece_json import transformers_files
from rl_jax.data.tokenizer import describe_stops
from rl_jax.errors import ConfigError
from rl_jax.mesh import is_lead
from rl_jax.models import export, huggingface
from rl_jax.models.params import Params, abstract_params, num_params
from rl_jax.stages import context as contexts
from rl_jax.stages import rl, sft
from rl_jax.stages.context import Context, StopFlag
from rl_jax.stages.run_state import CHECKPOINTS

KINDS = {"sft": sft.run, "rl": rl.run}
EXPORT = "huggingface"  # in the workdir: the last stage's weights for transformers
_RECORD = "huggingface.json"  # beside it: of what checkpoint, and the files' sizes


def run(
    config: configs.Run,
    workdir: pathlib.Path,
    stop: StopFlag,
    started: Callable[[], None] = lambda: None,
) -> Params:
    """Trains every stage to its end; exports and returns the last one's weights.

    A stage that is done already is not repeated: its checkpoint is at its last step.
    Nor is an export of that checkpoint that is whole.

    Args:
        started: called by the process that writes files, once `workdir` is there.
    """
    context = contexts.build(config, workdir, stop)
    if is_lead():
        started()
        print(
            f"{jax.device_count()} {jax.default_backend()} devices, mesh "
            f"{dict(context.mesh.shape)}; {num_params(context.model):,} parameters; "
            f"stop tokens {describe_stops(context.tokenizer)}",
            flush=True,
        )
    # All at once: a wrong `init` is told before the first stage, not hours later.
    bases = [first_weights(context, stage) for stage in config.stages]
    exports = _exports(context)
    params = None
    with jax.set_mesh(context.mesh):
        for stage, base in zip(config.stages, bases, strict=True):
            params = KINDS[stage.kind](context, stage, base)
    assert params is not None
    if is_lead():
        _close(context)
    if exports:
        _export(context, params)
    return params


def _close(context: Context) -> None:
    """Draws the curves and says where everything is."""
    folders = [(stage.name, context.folder(stage)) for stage in context.run.stages]
    plot = metrics.plot_chain(folders, context.workdir / "curves.png")
    print(f"curves:      {plot}")
    for name, folder in folders:
        print(f"{name + ':':<12} {folder} (metrics.jsonl, samples/, checkpoints/)")


def _exports(context: Context) -> bool:
    """Whether the run ends with an export: asked for, and something is trained.

    Raises:
        ConfigError: if it could not be written then.
    """
    if not context.run.export or not any(s.steps for s in context.run.stages):
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


def _export(context: Context, params: Params) -> None:
    """Writes WORKDIR/huggingface, unless it is there already; says where it is."""
    folder, record = context.workdir / EXPORT, context.workdir / _RECORD
    source = context.workdir / contexts.TOKENIZER_FOLDER
    stage = context.run.stages[-1]
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
            params,
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


def first_weights(context: Context, stage: configs.StageConfig) -> Callable[[], Params]:
    """A function that reads the weights that a stage begins with.

    `init` is "base", the name of an earlier stage, a Hugging Face folder, or the work
    folder of another run's stage.
    """
    abstract = abstract_params(context.model, context.mesh)
    if stage.init == "base":
        return lambda: contexts.first_params(context)
    for earlier in context.run.stages:
        if earlier.name == stage.init:
            folder = context.folder(earlier) / CHECKPOINTS
            return lambda: checkpoint.load_params(folder, abstract)
    path = pathlib.Path(stage.init)
    if (path / CHECKPOINTS).is_dir():
        return lambda: checkpoint.load_params(path / CHECKPOINTS, abstract)
    is_run = (path / contexts.MODEL_FILE).is_file()
    if not is_run and (path / "config.json").is_file():
        return lambda: huggingface.load_params(path, context.model, context.mesh)
    raise ConfigError(
        f"config.{stage.prefix}init={stage.init!r} is neither an earlier stage nor a "
        "folder with weights.\nExpected base, a stage's name, a Hugging Face folder "
        f"or a stage's work folder (with {CHECKPOINTS}/)."
    )
