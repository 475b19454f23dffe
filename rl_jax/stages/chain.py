"""Runs the stages of a config in order, each from the weights it names."""

import pathlib
from collections.abc import Callable

import jax

from rl_jax import checkpoint, metrics
from rl_jax import config as configs
from rl_jax.errors import ConfigError
from rl_jax.mesh import is_lead
from rl_jax.models import huggingface
from rl_jax.models.params import Params, abstract_params, num_params
from rl_jax.stages import context as contexts
from rl_jax.stages import rl, sft
from rl_jax.stages.context import Context, StopFlag
from rl_jax.stages.run_state import CHECKPOINTS

KINDS = {"sft": sft.run, "rl": rl.run}


def run(
    config: configs.Run,
    workdir: pathlib.Path,
    stop: StopFlag,
    started: Callable[[], None] = lambda: None,
) -> Params:
    """Trains every stage to its end; returns the last one's weights.

    A stage that is done already is not repeated: its checkpoint is at its last step.

    Args:
        started: called by the process that writes files, once `workdir` is there.
    """
    context = contexts.build(config, workdir, stop)
    if is_lead():
        started()
        print(
            f"{jax.device_count()} {jax.default_backend()} devices, mesh "
            f"{dict(context.mesh.shape)}; {num_params(context.model):,} parameters; "
            f"stop tokens {context.tokenizer.stop_ids}",
            flush=True,
        )
    # All at once: a wrong `init` is told before the first stage, not hours later.
    bases = [first_weights(context, stage) for stage in config.stages]
    params = None
    with jax.set_mesh(context.mesh):
        for stage, base in zip(config.stages, bases, strict=True):
            params = KINDS[stage.kind](context, stage, base)
    assert params is not None
    if is_lead():
        _close(context)
    return params


def _close(context: Context) -> None:
    """Draws the curves and says where everything is."""
    folders = [(stage.name, context.folder(stage)) for stage in context.run.stages]
    plot = metrics.plot_chain(folders, context.workdir / "curves.png")
    print(f"curves:      {plot}")
    for name, folder in folders:
        print(f"{name + ':':<12} {folder} (metrics.jsonl, samples/, checkpoints/)")


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
