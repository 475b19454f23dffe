"""Our weights to a Hugging Face folder: what transformers loads, tensor by tensor.

Names, shapes and tying are those of the folder that the model came from, and so is the
type: what came in as bfloat16 goes out as bfloat16, in whatever type it was trained.
"""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from rl_jax.errors import ConfigError
from rl_jax.mesh import is_lead
from rl_jax.models import weight_files
from rl_jax.models.huggingface import Weight, weights
from rl_jax.models.huggingface_config import CONFIG, config_from_spec, spec_from_config
from rl_jax.models.params import Params
from rl_jax.models.spec import ModelSpec
from rl_jax.models.weight_files import NAMES, SHARD_BYTES, Outline, read_json
from rl_jax.whole_folder import written_whole

GENERATION_CONFIG = "generation_config.json"
# What a model folder has beside config.json and the weights, as far as it needs them.
SIDE_FILES = (
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
# Keys of config.json with the type of the weights: of transformers 5, and before.
_DTYPE_KEYS = ("dtype", "torch_dtype")


@dataclasses.dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        files: name -> bytes.
        dtype: of the weights, more than one with commas.
    """

    folder: pathlib.Path
    files: dict[str, int]
    num_params: int
    dtype: str


def save_params(
    params: Params,
    model: ModelSpec,
    folder: str | os.PathLike,
    *,
    config: Mapping[str, Any] | None = None,
    dtype: str | Mapping[str, str] = "",
    shard_bytes: int = SHARD_BYTES,
) -> Exported:
    """Writes the weights and config.json.

    Each tensor is fetched, written and dropped, then read back and compared, so that
    the host holds one tensor besides the model. The folder appears whole or not at
    all: it is written as NAME.unfinished and then renamed. With several processes all
    must call this; the lead one writes.

    Args:
        folder: made here; must not exist, or be empty.
        config: config.json of the folder that the model was read from. Default: made
            from `model`.
        dtype: float32, bfloat16 or float16, of every tensor and in config.json.
            Default: what `config` says, else the model's `param_dtype`. A mapping
            gives the type of each stored tensor, and leaves config.json as it is.
        shard_bytes: a model that is larger is divided into files of at most this, with
            an index.

    Raises:
        ConfigError: if the folder holds something, `config` is of another model, or a
            weight is beyond the range of `dtype`.
        OSError: if what was written does not read back as the same.
    """
    texts = {CONFIG: _config_text(model, config, None, dtype)}
    types = _types(model, config, dtype)
    return _save(params, model, folder, texts, types, shard_bytes, replace=False)


def save_folder(
    params: Params,
    model: ModelSpec,
    folder: str | os.PathLike,
    source: str | os.PathLike,
    *,
    dtype: str | Mapping[str, str] = "",
    shard_bytes: int = SHARD_BYTES,
    more: Mapping[str, bytes] | None = None,
    replace: bool = False,
) -> Exported:
    """Writes a whole model folder: weights, config, tokenizer, chat template.

    As `save_params`, and copies from `source` what it has of SIDE_FILES, byte for
    byte; config.json too, unless another `dtype` is asked for. Without a config.json
    there, one is made from `model`.

    Args:
        source: a Hugging Face folder, or the tokenizer/ of a work folder.
        more: further files by name; they win over those of `source`.
        replace: let the new folder take the place of an old one, once it is whole.
    """
    source = pathlib.Path(source)
    texts = {
        name: (source / name).read_bytes()
        for name in SIDE_FILES
        if (source / name).is_file()
    }
    config, raw = source_config(source), None
    if config is None:
        texts[CONFIG] = _new_config(model, source, dtype)
    else:
        raw = (source / CONFIG).read_bytes()
        texts[CONFIG] = _config_text(model, config, raw, dtype)
    types = _types(model, config, dtype)
    texts |= more or {}
    return _save(params, model, folder, texts, types, shard_bytes, replace=replace)


def copy_side_files(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies config.json and what `source` has of SIDE_FILES, byte for byte."""
    for name in (CONFIG, *SIDE_FILES):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def tensor_names(model: ModelSpec) -> list[str]:
    """The names of the model's tensors in safetensors, in the order of its modules."""
    return list(_places(model))


def source_config(source: pathlib.Path) -> dict[str, Any] | None:
    """config.json of a folder, None if it has none."""
    return read_json(source / CONFIG) if (source / CONFIG).is_file() else None


def check(model: ModelSpec, config: Mapping[str, Any]) -> None:
    """Raises ConfigError unless the model can be exported with this config.json."""
    choices = ("dtype", "param_dtype", "float32_head", "remat")
    read = spec_from_config(config, **{name: getattr(model, name) for name in choices})

    def layers(spec: ModelSpec) -> list:
        return [spec.layer_attention(i) for i in range(spec.num_layers)]

    for field in dataclasses.fields(model):
        found, wanted = getattr(read, field.name), getattr(model, field.name)
        if field.name == "attention":
            found, wanted = layers(read), layers(model)
        if found != wanted:
            raise ConfigError(
                f"The {CONFIG} kept beside the tokenizer is of another model: "
                f"{field.name} is {found} there, {wanted} in the weights.\n"
                "Take a new --workdir for another model."
            )
    _named_dtype(config)


def _named_dtype(config: Mapping[str, Any]) -> str:
    """The type that a config.json names, "" if none."""
    for key in _DTYPE_KEYS:
        name = config.get(key)
        if name is not None and name not in NAMES:
            raise ConfigError(
                f"{CONFIG} has {key}: {json.dumps(name)}.\n"
                f"Expected one of {', '.join(NAMES)}."
            )
        if name is not None:
            return name
    return ""


def _config_text(
    model: ModelSpec,
    config: Mapping[str, Any] | None,
    raw: bytes | None,
    dtype: str | Mapping[str, str],
) -> bytes:
    """config.json to write: `raw` if nothing in it has to change."""
    if config is None:
        name = dtype if isinstance(dtype, str) and dtype else model.param_dtype
        config = {**config_from_spec(model), "torch_dtype": name}
        return _json(config)
    check(model, config)
    if isinstance(dtype, str) and dtype and dtype != _named_dtype(config):
        keys = [key for key in _DTYPE_KEYS if key in config] or ["torch_dtype"]
        return _json({**config, **dict.fromkeys(keys, dtype)})
    return _json(config) if raw is None else raw


def _new_config(
    model: ModelSpec, source: pathlib.Path, dtype: str | Mapping[str, str]
) -> bytes:
    """config.json of a model that had none, with the token ids of its tokenizer."""
    config = json.loads(_config_text(model, None, None, dtype))
    if (source / GENERATION_CONFIG).is_file():
        ids = read_json(source / GENERATION_CONFIG)
        keys = ("bos_token_id", "eos_token_id", "pad_token_id")
        config |= {key: ids[key] for key in keys if key in ids}
    return _json(config)


def _json(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a stored tensor is in our tree: a leaf, or layer `layer` of one."""

    weight: Weight
    leaf: int  # among the leaves of the tree
    layer: int | None


def _places(model: ModelSpec) -> dict[str, _Place]:
    """Stored name -> its place, in the order of the model's modules."""
    placed = []
    for i, weight in enumerate(jax.tree.leaves(weights(model))):
        for j, name in enumerate(weight.names):
            layer = j if weight.is_stacked else None
            # The embedding, which is the first leaf, layer by layer, then the rest.
            at = j if weight.is_stacked else model.num_layers if i else -1
            placed.append((at, name, _Place(weight, i, layer)))
    placed.sort(key=lambda item: item[0])
    return {name: place for _, name, place in placed}


def _types(
    model: ModelSpec,
    config: Mapping[str, Any] | None,
    dtype: str | Mapping[str, str],
) -> dict[str, str]:
    """Stored name -> name of its type."""
    names = tensor_names(model)
    if not isinstance(dtype, str):
        return {name: dtype[name] for name in names}
    dtype = dtype or _named_dtype(config or {}) or model.param_dtype
    if dtype not in NAMES:
        raise ConfigError(f"dtype={dtype!r}.\nExpected one of {', '.join(NAMES)}.")
    return dict.fromkeys(names, dtype)


def _save(
    params: Params,
    model: ModelSpec,
    folder: str | os.PathLike,
    texts: Mapping[str, bytes],
    types: Mapping[str, str],
    shard_bytes: int,
    *,
    replace: bool,
) -> Exported:
    places = _places(model)
    outlines = {
        name: Outline(jnp.dtype(types[name]), place.weight.stored_shape)
        for name, place in places.items()
    }
    leaves = jax.tree.leaves(params)
    files = weight_files.divide(outlines, shard_bytes)
    texts = dict(texts)
    if len(files) > 1:
        texts[weight_files.INDEX] = weight_files.index_text(files, outlines).encode()
    target = contextlib.nullcontext(pathlib.Path())
    if is_lead():
        target = written_whole(folder, replace=replace)
    with target as unfinished:
        for file, names in files.items():
            part = {name: outlines[name] for name in names}
            part = {name: part[name] for name in weight_files.stored_order(part)}
            blocks = (_blocks(name, places[name], leaves, part[name]) for name in part)
            if not is_lead():
                for tensor in blocks:
                    next(tensor)  # takes its part in fetching it
                continue
            path = unfinished / file
            sums = weight_files.write_tensors(path, part, blocks)
            weight_files.read_back(path, part, sums)
        if is_lead():
            for name, text in texts.items():
                (unfinished / name).write_bytes(text)
            sizes = {p.name: p.stat().st_size for p in sorted(unfinished.iterdir())}
        else:
            sizes = {}
    num_params = sum(math.prod(outline.shape) for outline in outlines.values())
    dtype = ", ".join(sorted(set(types.values())))
    return Exported(pathlib.Path(folder), sizes, num_params, dtype)


def _blocks(
    name: str, place: _Place, leaves: list[jax.Array], outline: Outline
) -> Iterator[np.ndarray]:
    """The tensor as it is stored, in contiguous blocks of rows."""
    weight, leaf = place.weight, leaves[place.leaf]
    part = leaf if place.layer is None else _layer(leaf, place.layer)
    value = np.asarray(multihost_utils.process_allgather(part, tiled=True))
    order = [weight.ours.index(c) for c in weight.letters]
    stored = value.transpose(order).reshape(weight.stored_shape)
    for rows in weight_files.rows_of_blocks(outline.shape, outline.dtype.itemsize):
        # On the host: XLA on CPUs takes numbers below the normal range for zero.
        with np.errstate(over="ignore"):
            block = np.asarray(stored[rows], outline.dtype, order="C")
        if block.dtype != stored.dtype and not np.isfinite(block).all():
            _check_range(name, stored[rows], outline.dtype)
        yield block


@jax.jit
def _layer(leaf: jax.Array, i: int) -> jax.Array:
    # On the device: np.asarray(leaf) would keep a copy of the whole leaf on the host.
    return jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False)


def _check_range(name: str, values: np.ndarray, dtype: np.dtype) -> None:
    """Raises ConfigError if a finite value is beyond the range of `dtype`."""
    values = np.abs(values.astype(np.float32))
    largest, limit = values[np.isfinite(values)].max(initial=0), jnp.finfo(dtype).max
    if largest > limit:
        raise ConfigError(
            f"{name} has a value of size {largest:g}, beyond the range of "
            f"{dtype.name} (up to {float(limit):g}).\n"
            "Write it with `python -m rl_jax.convert --dtype=bfloat16` or float32."
        )
