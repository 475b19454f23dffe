"""Weights and data that a stage takes from elsewhere: other stages, folders, nothing.

Everything is found before the first stage trains, and read only when it is needed.
"""

import pathlib
import zlib
from collections.abc import Callable

from rl_jax import checkpoint, dag
from rl_jax.errors import ConfigError
from rl_jax.models import huggingface
from rl_jax.models.params import Params, abstract_params, init_params
from rl_jax.stages import context as contexts
from rl_jax.stages import results
from rl_jax.stages.context import Context
from rl_jax.stages.run_state import CHECKPOINTS

# In the work folder of a stage that makes data.
DATA, HELD_OUT = "data.jsonl", "held_out.jsonl"


def policy(
    context: Context, name: str, key: str, *, salt: str = ""
) -> Callable[[], Params]:
    """A function that reads the weights of a policy.

    Args:
        name: "base", "new" (random ones, other than the base's), a stage of this run,
            STAGE@STEP, a Hugging Face folder, or the work folder of a stage.
        key: of the config, without "config.", for messages.
        salt: what makes new weights differ from others of the run.

    Raises:
        ConfigError: if there is nothing of that name.
    """
    if name == "base":
        return lambda: contexts.first_params(context)
    if name == "new":
        seed = zlib.crc32(f"{context.run.seed}/{salt}".encode())
        return lambda: init_params(context.model, context.mesh, seed)
    abstract = abstract_params(context.model, context.mesh)
    folder, step = stage_folder(context, name)
    if folder is not None:

        def load() -> Params:
            # Of a finished stage its last step, and none before it if that is broken.
            done = results.read(folder)
            last = done.steps if done.finished and step is None else step
            return checkpoint.load_params(folder / CHECKPOINTS, abstract, step=last)

        return load
    path = pathlib.Path(name)
    is_run = (path / contexts.MODEL_FILE).is_file()
    if not is_run and (path / "config.json").is_file():
        return lambda: huggingface.load_params(path, context.model, context.mesh)
    raise ConfigError(
        f"config.{key}={name!r} is neither an earlier stage nor a folder with weights."
        "\nExpected base, new, a stage's name, a Hugging Face folder or a stage's "
        f"work folder (with {CHECKPOINTS}/)."
    )


def stage_folder(context: Context, name: str) -> tuple[pathlib.Path | None, int | None]:
    """(work folder, step) of a stage of this run, or of another run by its path.

    The step is None without @STEP: the newest. (None, None) if it is neither.
    """
    word, number = dag.with_step(name)
    for stage in context.run.stages:
        if stage.name == word:
            return context.folder(stage), number
    path = pathlib.Path(word)
    return (path, number) if (path / CHECKPOINTS).is_dir() else (None, None)
