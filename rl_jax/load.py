"""A trained or a downloaded model, ready to sample from: the same call for both."""

import dataclasses
import json
import pathlib

from jax.sharding import Mesh

from rl_jax import checkpoint, reward_marker
from rl_jax.data import tokenizer
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError
from rl_jax.models import huggingface
from rl_jax.models.params import Params, abstract_params
from rl_jax.models.spec import ModelSpec
from rl_jax.stages import context
from rl_jax.stages.run_state import CHECKPOINTS


@dataclasses.dataclass(frozen=True)
class Found:
    """Where a model lies; its weights are not read yet.

    Attributes:
        name: what was found, for people.
        files: the folder with the tokenizer, and with config.json if there is one.
        checkpoints, step: where the weights are; None in a Hugging Face folder, whose
            weights are in `files`.
        config: the config of the stage that trained it; None if none did.
    """

    name: str
    model: ModelSpec
    files: pathlib.Path
    checkpoints: pathlib.Path | None
    step: int | None
    config: dict | None


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer.

    Attributes:
        name: what was loaded, for people.
        config: the config of the run that trained it, if it is a work folder of one.
    """

    name: str
    model: ModelSpec
    tokenizer: Tokenizer
    params: Params
    config: dict | None


def load(path: str | pathlib.Path, mesh: Mesh) -> Loaded:
    """Loads a work folder, one stage of it, or a Hugging Face folder.

    A chain's work folder gives its last stage that has a checkpoint. The weights of a
    Hugging Face folder become float32.

    Raises:
        ConfigError: if the folder is none of these, or holds no verified checkpoint.
    """
    found = find(path)
    text = tokenizer.load(found.files)
    params = read_params(found, found.model, mesh)
    return Loaded(found.name, found.model, text, params, found.config)


def find(path: str | pathlib.Path, step: int | None = None) -> Found:
    """Finds the model that `load` would load; `step` chooses a checkpoint.

    Raises:
        ConfigError: as `load` does, or if there is no such step.
    """
    path = pathlib.Path(path).expanduser().absolute()
    if (path / context.MODEL_FILE).is_file():
        return _find_in_workdir(path, path, step)
    if (path / "config.json").is_file():
        if step is not None:
            raise ConfigError(
                f"{path} is a Hugging Face folder, which has no step {step}.\n"
                "Leave the step out, or name a work folder."
            )
        model = huggingface.spec_from_config(
            path,
            dtype="float32",
            param_dtype="float32",
            float32_head=True,
            remat="none",
        )
        return Found(str(path), model, path, None, None, None)
    if (path.parent / context.MODEL_FILE).is_file():
        return _find_in_workdir(path.parent, path, step)
    raise ConfigError(
        f"{path} holds no model.\nExpected a work folder of rl_jax.train, a stage in "
        "one, or a Hugging Face folder (config.json, *.safetensors, tokenizer.json)."
    )


def _find_in_workdir(root: pathlib.Path, path: pathlib.Path, step: int | None) -> Found:
    config = None  # of rl_jax.convert: no run has written one
    if (root / "config.json").is_file():
        config = json.loads((root / "config.json").read_text())
    folders = [path]
    if path == root and config and "stages" in config:
        folders = [root / name for name in reversed(config["stages"])]
    model = context.read_model_file(root)
    for folder in folders:
        if (folder / reward_marker.NAME).is_file():
            if folder == path:
                raise ConfigError(
                    f"{folder} is a reward model: it scores replies and writes none.\n"
                    "Expected a stage that makes a policy; to train by this one, write "
                    f"`--config.rl.reward.model={folder}`."
                )
            continue
        checkpoints = folder / CHECKPOINTS
        newest = checkpoint.latest_step(checkpoints) if step is None else step
        if newest is None or not (checkpoints / str(newest)).is_dir():
            continue
        stage = config
        if config and folder != root:
            stage = config[folder.name]
        name = f"{folder} at step {newest}"
        files = root / context.TOKENIZER_FOLDER
        return Found(name, model, files, checkpoints, newest, stage)
    if step is not None:
        paths = [p for f in folders for p in (f / CHECKPOINTS).glob("*")]
        there = sorted({int(p.name) for p in paths if p.name.isdigit()})
        raise ConfigError(
            f"{path} has no checkpoint of step {step}.\n"
            f"There are these: {', '.join(map(str, there)) or 'none'}."
        )
    raise ConfigError(
        f"{path} has no checkpoint yet that verifies.\nExpected one in "
        f"{folders[0] / CHECKPOINTS}."
    )


def read_params(found: Found, model: ModelSpec, mesh: Mesh) -> Params:
    """The weights, in the types of `model`, laid out on `mesh`.

    Raises:
        ConfigError: if they are damaged or do not fit the model.
    """
    if found.checkpoints is None:
        return huggingface.load_params(found.files, model, mesh)
    abstract = abstract_params(model, mesh)
    return checkpoint.load_params(found.checkpoints, abstract, step=found.step)
