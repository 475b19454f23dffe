"""A trained or a downloaded model, ready to sample from: the same call for both."""

import dataclasses
import json
import pathlib

from jax.sharding import Mesh

from rl_jax import checkpoint
from rl_jax.data import tokenizer
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError
from rl_jax.models import huggingface
from rl_jax.models.params import Params, abstract_params
from rl_jax.models.spec import ModelSpec
from rl_jax.stages import context
from rl_jax.stages.run_state import CHECKPOINTS


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer.

    Attributes:
        name: what was loaded, for people.
        config: the config of the run that trained it, if it is a work folder.
    """

    name: str
    model: ModelSpec
    tokenizer: Tokenizer
    params: Params
    config: dict | None


def load(path: str | pathlib.Path, mesh: Mesh) -> Loaded:
    """Loads a work folder, one stage of it, or a Hugging Face folder.

    A chain's work folder gives its last stage that has a checkpoint.

    Raises:
        ConfigError: if the folder is none of these, or holds no verified checkpoint.
    """
    path = pathlib.Path(path).expanduser().absolute()
    if (path / context.MODEL_FILE).is_file():
        return _from_workdir(path, path, mesh)
    if (path / "config.json").is_file():
        model = huggingface.spec_from_config(
            path,
            dtype="float32",
            param_dtype="float32",
            float32_head=True,
            remat="none",
        )
        text = tokenizer.load(path)
        params = huggingface.load_params(path, model, mesh)
        return Loaded(str(path), model, text, params, None)
    if (path.parent / context.MODEL_FILE).is_file():
        return _from_workdir(path.parent, path, mesh)
    raise ConfigError(
        f"{path} holds no model.\nExpected a work folder of rl_jax.train, a stage in "
        "one, or a Hugging Face folder (config.json, *.safetensors, tokenizer.json)."
    )


def _from_workdir(root: pathlib.Path, path: pathlib.Path, mesh: Mesh) -> Loaded:
    config = json.loads((root / "config.json").read_text())
    folders = [path]
    if path == root and "stages" in config:
        folders = [root / name for name in reversed(config["stages"])]
    model = context.read_model_file(root)
    text = tokenizer.load(root / context.TOKENIZER_FOLDER)
    for folder in folders:
        step = checkpoint.latest_step(folder / CHECKPOINTS)
        if step is None:
            continue
        params = checkpoint.load_params(
            folder / CHECKPOINTS, abstract_params(model, mesh), step=step
        )
        name = f"{folder} at step {step}"
        stage = config[folder.name] if folder != root else config
        return Loaded(name, model, text, params, stage)
    raise ConfigError(
        f"{path} has no checkpoint yet that verifies.\nExpected one in "
        f"{folders[0] / CHECKPOINTS}."
    )
