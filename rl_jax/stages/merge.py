"""Averages the weights of models: of earlier stages, of other runs, of folders.

One model at a time is read and added to the sum, in float32 (models/merging.py). The
result is a checkpoint at step 0, as other stages have theirs, so that later stages and
commands begin from it. Reward models are averaged alike, among themselves.
"""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rl_jax import checkpoint, processes, progress, reward_marker
from rl_jax import config as configs
from rl_jax.checkpoint import Checkpointer
from rl_jax.data import token_tables, tokenizer
from rl_jax.data.lines import json_text, write_text
from rl_jax.mesh import is_lead
from rl_jax.metrics import Writer
from rl_jax.models import merging, params, reward_head
from rl_jax.models.params import Params
from rl_jax.models.reward_head import RewardParams
from rl_jax.reward_marker import Marker
from rl_jax.stages import context as contexts
from rl_jax.stages import inputs, origin, weights
from rl_jax.stages.context import TOKENIZER_FOLDER, Context
from rl_jax.stages.evaluation import evaluate
from rl_jax.stages.run_state import CHECKPOINTS
from rl_jax.stages.scoring import check_rows, make_engine, make_pool

RECORD = "merge.json"  # beside checkpoints/: what they were made of
_DISK_SECS = 3600.0  # for the first process to look at a checkpoint


def run(
    context: Context, stage: configs.StageConfig, base: Callable[[], Params]
) -> Params | RewardParams:
    """Writes and returns the average; measures it on `data.eval`, if there is one.

    Args:
        base: not used: what is averaged is named by `merge.models`.
    """
    del base
    folder, text = context.folder(stage), context.tokenizer
    names, parts = stage.merge.models, shares(stage.merge)
    abstract = _abstract(context, names)
    readers = [_reader(context, stage, name) for name in names]
    made_of = origin.sum_of(
        [dataclasses.asdict(context.model), *_origins(context, names, parts)]
    )
    held_out = inputs.eval_prompts(stage, text) if stage.data.eval else []
    if is_lead():
        folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(folder, stage=stage.name, total_steps=0, enabled=is_lead())
    try:
        wrong = _why_make(folder, made_of) if is_lead() else ""
        wrong = processes.gather(f"{stage.name} is made", wrong, _DISK_SECS)[0]
        if not wrong:
            writer.log(f"{stage.name}: merged before, in {folder / CHECKPOINTS}")
            merged = checkpoint.load_params(folder / CHECKPOINTS, abstract, step=0)
        else:
            if (folder / RECORD).is_file():
                writer.log(f"{stage.name}: merged again: {wrong}")
            writer.resume(-1)
            merged = average(readers, parts, abstract, context.stop.check)
            _save(context, stage, merged, made_of, writer)
        if held_out and not _is_evaluated(stage, folder):
            engine = make_engine(
                stage, context.model, text, context.mesh, context.run.seed
            )
            with make_pool(stage) as pool:
                check_rows(pool, stage, held_out)
                metrics = evaluate(
                    engine, pool, text, merged, held_out, stage, context.stop
                )
            writer.write(0, metrics)
            told = progress.summary(metrics)
            writer.log(f"{stage.name}: {'  '.join(told)}")
    finally:
        writer.close()
    return merged


def shares(merge: Any) -> tuple[float, ...]:
    """What each model weighs; their sum is 1. `merge`: the keys of that name."""
    if merge.ema:
        return merging.ema_weights(len(merge.models), merge.ema)
    return merging.normalised(merge.weights or (1.0,) * len(merge.models))


def average(
    readers: Sequence[Callable[[], Any]],
    parts: Sequence[float],
    abstract: Any,
    check_stop: Callable[[], None] = lambda: None,
) -> Any:
    """The weighted sum of what each reader gives, in the types of `abstract`.

    The sum and one model are held at a time.
    """
    total = None
    for read, part in zip(readers, parts, strict=True):
        check_stop()
        one = jax.tree.map(_float32, read())
        if total is None:
            total = merging.merge([one], [part])
        else:
            total = merging.merge([total, one], [1.0, part])
        del one  # before the next is read
    return jax.tree.map(lambda x, like: x.astype(like.dtype), total, abstract)


def _float32(x: jax.Array) -> jax.Array:
    # Sums of bfloat16 lose what each but the first adds.
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


def _is_reward_model(context: Context, name: str) -> bool:
    folder, _ = weights.stage_folder(context, name)
    return folder is not None and (folder / reward_marker.NAME).is_file()


def _abstract(context: Context, names: Sequence[str]) -> Any:
    """What the average is like: a reward model if all of the models are."""
    if all(_is_reward_model(context, name) for name in names):
        return reward_head.abstract_params(context.model, context.mesh)
    return params.abstract_params(context.model, context.mesh)


def _reader(
    context: Context, stage: configs.StageConfig, name: str
) -> Callable[[], Params | RewardParams]:
    """A function that reads a model of the run's architecture and tokenizer.

    Raises:
        ConfigError: if there is none of that name, or an id is another token there.
    """
    folder, step = weights.stage_folder(context, name)
    files = pathlib.Path(name)
    if folder is not None:
        is_flat = (folder / contexts.MODEL_FILE).is_file()
        files = (folder if is_flat else folder.parent) / TOKENIZER_FOLDER
    # A folder without a tokenizer is taken to have that of the run.
    found = [(files / file).is_file() for file in ("tokenizer.json", "tokenizer.model")]
    if any(found) and files != context.workdir / TOKENIZER_FOLDER:
        theirs = tokenizer.load(files)
        token_tables.check_same([("this run", context.tokenizer), (name, theirs)])
    if folder is not None and _is_reward_model(context, name):
        abstract = reward_head.abstract_params(context.model, context.mesh)
        path = folder / CHECKPOINTS
        return lambda: checkpoint.load_params(path, abstract, step=step)
    return weights.policy(context, name, f"{stage.prefix}merge.models")


def _origins(
    context: Context, names: Sequence[str], parts: Sequence[float]
) -> list[list[Any]]:
    return [
        [origin.weights_of(context, name), part]
        for name, part in zip(names, parts, strict=True)
    ]


def _why_make(folder: pathlib.Path, made_of: str) -> str:
    """Why the average must be made (again); "" if it is there, whole."""
    wrong = origin.why_make(folder / RECORD, made_of, [])
    if not wrong and checkpoint.latest_step(folder / CHECKPOINTS) != 0:
        wrong = "its checkpoint is damaged"
    return wrong


def _save(
    context: Context,
    stage: configs.StageConfig,
    merged: Any,
    made_of: str,
    writer: Writer,
) -> None:
    """Writes the checkpoint, and then what it was made of."""
    folder, merge = context.folder(stage), stage.merge
    if is_lead():
        # First, as a record says that the checkpoint is whole.
        (folder / RECORD).unlink(missing_ok=True)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    processes.wait(f"{stage.name} is to be saved", _DISK_SECS)
    with Checkpointer(folder / CHECKPOINTS, keep=1, log=writer.log) as checkpointer:
        checkpointer.save(0, {"params": merged}, {})
        checkpointer.wait()
    parts = shares(merge)
    if is_lead():
        if all(_is_reward_model(context, name) for name in merge.models):
            reward_marker.write(folder, _marker(context, stage, parts))
        told = [[part, name] for part, name in zip(parts, merge.models, strict=True)]
        record = {"made_of": made_of, "files": {}, "models": told}
        write_text(folder / RECORD, [json_text(record, indent=1), "\n"])
        for part, name in told:
            writer.log(f"{stage.name}: {part:.4f} x {name}")
    processes.wait(f"{stage.name} is saved", _DISK_SECS)


def _marker(
    context: Context, stage: configs.StageConfig, parts: Sequence[float]
) -> Marker:
    """The level and spread of the average's scores: about the average of theirs."""
    folders = [weights.stage_folder(context, name)[0] for name in stage.merge.models]
    key = f"{stage.prefix}merge.models"
    found = [reward_marker.read(f, key) for f in folders if f is not None]
    return Marker(
        found[0].form,
        sum(p * marker.mean for p, marker in zip(parts, found, strict=True)),
        sum(p * marker.std for p, marker in zip(parts, found, strict=True)),
        sum(marker.num_replies for marker in found),
    )


def _is_evaluated(stage: configs.StageConfig, folder: pathlib.Path) -> bool:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    found = any("eval/num_prompts" in json.loads(line) for line in lines)
    # The first process writes the file: others might see it too early.
    return processes.gather(f"{stage.name} is evaluated", found, _DISK_SECS)[0]
