"""Tensors of a model folder's safetensors files, by name, read when asked for.

Knows nothing of models: which tensors there should be is the caller's matter.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
from typing import Any

from safetensors import SafetensorError, safe_open

from rl_jax.errors import ConfigError

SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class Stored:
    """One tensor of an open file; nothing of it is read yet."""

    path: pathlib.Path
    handle: Any  # of safetensors.safe_open
    shape: list[int]
    dtype: str


def open_tensors(
    folder: pathlib.Path, stack: contextlib.ExitStack
) -> dict[str, Stored]:
    """Every tensor of the folder by name, the files open until `stack` closes.

    Reads model.safetensors, else the files of model.safetensors.index.json.

    Raises:
        ConfigError: if there is neither, a file is damaged, or index and files differ.
    """
    if (folder / SINGLE).is_file():
        listed, files = {}, [SINGLE]
    elif (folder / _INDEX).is_file():
        listed = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(listed, dict) or not listed:
            raise ConfigError(f"{folder / _INDEX} has no names in its weight_map.")
        files = sorted(set(listed.values()))
    else:
        raise _no_weights(folder)
    tensors: dict[str, Stored] = {}
    for path in (folder / name for name in files):
        if not path.is_file():
            raise ConfigError(
                f"{path} does not exist, though {_INDEX} names it.\n"
                "Download the whole folder again."
            )
        try:
            # "np" gives BF16 as ml_dtypes.bfloat16, once JAX is imported (tested with
            # safetensors 0.5 to 0.8).
            handle = stack.enter_context(safe_open(path, framework="np"))
        except (SafetensorError, OSError) as error:
            raise ConfigError(
                f"{path} ({path.stat().st_size} bytes) is not a whole safetensors "
                f"file: {error}.\nDownload it again; a Git LFS pointer needs "
                "`git lfs pull`."
            ) from error
        for name in handle.keys():
            part = handle.get_slice(name)
            if listed and listed.get(name) != path.name:
                raise ConfigError(
                    f"{path} holds {name} {part.get_shape()}, which {_INDEX} places in "
                    f"{listed.get(name)}.\nThe files are of different checkpoints; "
                    "download the whole folder again."
                )
            tensors[name] = Stored(path, handle, part.get_shape(), part.get_dtype())
    for name in sorted(listed.keys() - tensors.keys())[:1]:
        raise ConfigError(
            f"{folder / listed[name]} does not hold {name}, though {_INDEX} says so.\n"
            "Download the whole folder again."
        )
    return tensors


def _no_weights(folder: pathlib.Path) -> ConfigError:
    pickled = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix in (".bin", ".pt", ".pth", ".ckpt")
    )
    if pickled:
        return ConfigError(
            f"{folder} has pickled weights ({pickled[0]}) and no {SINGLE}; a pickle "
            "can run any code and is not read.\nConvert it with transformers: "
            f"AutoModelForCausalLM.from_pretrained({str(folder)!r})."
            "save_pretrained(NEW_FOLDER)"
        )
    return ConfigError(
        f"{folder} has neither {SINGLE} nor {_INDEX}.\nTo get a whole model folder: "
        "`hf download ORG/NAME --local-dir DIR`"
    )


def model_folder(folder: str | os.PathLike) -> pathlib.Path:
    """The folder as a path, with ~ resolved; ConfigError if it does not exist."""
    path = pathlib.Path(folder).expanduser()
    if not path.is_dir():
        raise ConfigError(
            f"{path} is not a folder; expected a local Hugging Face model folder.\n"
            "To get one: `hf download ORG/NAME --local-dir DIR`"
        )
    return path


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """The object in a JSON file; ConfigError if it cannot be read as one."""
    try:
        value = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, expected an object.")
    return value
