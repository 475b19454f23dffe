"""Weights of Hugging Face Llama folders: safetensors to our tree, and back.

Legend: the letters of params.py. A stored matrix has its outputs first, and heads and
channels as one axis: "HC D" is [H * C, D].
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from safetensors.numpy import save_file

from rl_jax.errors import ConfigError
from rl_jax.mesh import is_lead
from rl_jax.models.huggingface_config import CONFIG, config_from_spec, spec_from_config
from rl_jax.models.params import Layers, Leaf, Params, abstract_params, layout
from rl_jax.models.spec import ModelSpec
from rl_jax.models.weight_files import SINGLE, Stored, model_folder, open_tensors

__all__ = ["load_params", "save_params", "spec_from_config"]

_DTYPES = ("F32", "BF16", "F16")

# Field of `Layers` -> (name inside model.layers.{i}, axes as stored).
_LAYER_NAMES = {
    "attn_norm_LD": ("input_layernorm", "D"),
    "w_q_LDHC": ("self_attn.q_proj", "HC D"),
    "w_k_LDKC": ("self_attn.k_proj", "KC D"),
    "w_v_LDKC": ("self_attn.v_proj", "KC D"),
    "w_o_LHCD": ("self_attn.o_proj", "D HC"),
    "mlp_norm_LD": ("post_attention_layernorm", "D"),
    "w_gate_LDF": ("mlp.gate_proj", "F D"),
    "w_up_LDF": ("mlp.up_proj", "F D"),
    "w_down_LFD": ("mlp.down_proj", "D F"),
}
_EMBED = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
# Computed from config.json; checkpoints of transformers before 4.32 hold them.
_ROTARY_BUFFER = "rotary_emb.inv_freq"


@dataclasses.dataclass(frozen=True)
class _Weight:
    """How one leaf of our tree lies in the files.

    Attributes:
        names: the stored tensors: one a layer if stacked, else one.
        is_stacked: the leaf has the axis L in front.
        ours: letters of one stored tensor's axes in our order, without L.
        stored: the same in the file's order, axes that are merged there in one word.
        sizes: of each letter.
    """

    names: tuple[str, ...]
    is_stacked: bool
    ours: str
    stored: str
    sizes: dict[str, int]

    @property
    def stored_shape(self) -> list[int]:
        return [math.prod(self.sizes[c] for c in word) for word in self.stored.split()]

    @property
    def letters(self) -> str:
        """Axes in the file's order, merged ones apart."""
        return self.stored.replace(" ", "")


def _weight(field: str, leaf: Leaf, names: list[str], stored: str) -> _Weight:
    axes = field.rpartition("_")[2]
    sizes = dict(zip(axes, leaf.shape, strict=True))
    is_stacked = axes.startswith("L")
    return _Weight(tuple(names), is_stacked, axes.removeprefix("L"), stored, sizes)


def _weights(model: ModelSpec) -> Params:
    """The parameter tree with a `_Weight` in place of each leaf."""
    tree = layout(model)
    layers = {}
    for field, (name, stored) in _LAYER_NAMES.items():
        names = [f"model.layers.{i}.{name}.weight" for i in range(model.num_layers)]
        layers[field] = _weight(field, getattr(tree.layers, field), names, stored)
    head = tree.head_VD
    return Params(
        embed_VD=_weight("embed_VD", tree.embed_VD, [_EMBED], "V D"),
        layers=Layers(**layers),
        norm_D=_weight("norm_D", tree.norm_D, ["model.norm.weight"], "D"),
        head_VD=None if head is None else _weight("head_VD", head, [_HEAD], "V D"),
    )


def load_params(folder: str | os.PathLike, model: ModelSpec, mesh: Mesh) -> Params:
    """Weights of a Hugging Face folder, cast to param_dtype and laid out on `mesh`.

    Reads model.safetensors, else the files of model.safetensors.index.json. Each
    process reads the parts that its devices hold, one leaf of the tree at a time, so
    its memory peaks at its share of the largest stacked leaf (pages of mapped files
    aside). Every name, dtype and shape is checked before the first weight is read.

    A tied model may store lm_head.weight if it equals the embedding; if it differs,
    the config and the weights disagree, and neither is chosen.

    Raises:
        ConfigError: if files are missing, damaged or pickled, or a tensor is missing,
            surplus, of another shape than config.json says, or not F32, BF16 or F16.
    """
    folder = model_folder(folder)
    weights, shapes = _weights(model), abstract_params(model, mesh)
    with contextlib.ExitStack() as stack:
        tensors = open_tensors(folder, stack)
        _check(weights, tensors, model)

        def load(weight: _Weight, shape: jax.ShapeDtypeStruct) -> jax.Array:
            # Kept by bounds, not read again for each device with the same part.
            part = functools.cache(
                lambda bounds: _read(weight, bounds, tensors, np.dtype(shape.dtype))
            )

            def at(index):
                pairs = zip(index, shape.shape, strict=True)
                return part(tuple(s.indices(size)[:2] for s, size in pairs))

            array = jax.make_array_from_callback(shape.shape, shape.sharding, at)
            # Else the host copies of several leaves may wait for their transfer.
            return jax.block_until_ready(array)

        return jax.tree.map(load, weights, shapes)


def _read(
    weight: _Weight,
    bounds: tuple[tuple[int, int], ...],
    tensors: Mapping[str, Stored],
    dtype: np.dtype,
) -> np.ndarray:
    """The part of one leaf within (first, end) of each of its axes."""
    out = np.empty([end - first for first, end in bounds], dtype)
    if weight.is_stacked:
        rows, names, bounds = out, weight.names[slice(*bounds[0])], bounds[1:]
    else:
        rows, names = out[None], weight.names
    at = dict(zip(weight.ours, bounds, strict=True))
    window = []
    for first, *rest in weight.stored.split():
        # Of axes merged into one only the first, heads, is ever divided.
        assert all(at[c] == (0, weight.sizes[c]) for c in rest), at
        inner = math.prod(weight.sizes[c] for c in rest)
        window.append(slice(*(inner * edge for edge in at[first])))
    split = [at[c][1] - at[c][0] for c in weight.letters]
    order = [weight.letters.index(c) for c in weight.ours]
    for row, name in zip(rows, names, strict=True):
        value = tensors[name].handle.get_slice(name)[tuple(window)]
        row[...] = value.reshape(split).transpose(order)
    return out


def _check(weights: Params, tensors: dict[str, Stored], model: ModelSpec) -> None:
    """Raises ConfigError unless the files hold exactly the tensors of the model."""
    paths = sorted({str(stored.path) for stored in tensors.values()})
    rest = {name for name in tensors if not name.endswith(_ROTARY_BUFFER)}
    for weight in jax.tree.leaves(weights):
        for name in weight.names:
            if name not in tensors:
                tied = '\nIf the head is tied, write "tie_word_embeddings": true there.'
                raise ConfigError(
                    f"{name} is missing from {', '.join(paths[:2])}"
                    f"{f' and {len(paths) - 2} more' if paths[2:] else ''}; {CONFIG} "
                    f"asks for it, with shape {weight.stored_shape}."
                    f"{tied if name == _HEAD else ''}"
                )
            stored = tensors[name]
            if stored.shape != weight.stored_shape or stored.dtype not in _DTYPES:
                raise ConfigError(
                    f"{name} in {stored.path} is {stored.dtype} {stored.shape}.\n"
                    f"Expected {weight.stored_shape} by the sizes in {CONFIG}, as one "
                    f"of {', '.join(_DTYPES)}."
                )
            rest.discard(name)
    if model.tie_embeddings and _HEAD in rest:
        _check_tied(tensors[_HEAD], tensors[_EMBED])
        rest.discard(_HEAD)
    if rest:
        name = min(rest)
        more = f" and {len(rest) - 1} other tensors" if rest - {name} else ""
        raise ConfigError(
            f"{tensors[name].path} holds {name} {tensors[name].shape}{more}, which the "
            f"model of {CONFIG} does not have.\n"
            "Check that both are of the same checkpoint, and that it is a plain Llama."
        )


def _check_tied(head: Stored, embed: Stored) -> None:
    def blocks(stored: Stored, name: str):
        # Blocks of rows: a large vocabulary is not read at once.
        part, num_rows = stored.handle.get_slice(name), stored.shape[0]
        for first in range(0, num_rows, 4096):
            yield part[first : min(first + 4096, num_rows)].astype(np.float32)

    if head.shape == embed.shape and all(
        np.array_equal(a, b)
        for a, b in zip(blocks(head, _HEAD), blocks(embed, _EMBED), strict=True)
    ):
        return
    raise ConfigError(
        f"{head.path} holds {_HEAD} {head.shape}, which differs from {_EMBED} "
        f'{embed.shape}, but {CONFIG} has "tie_word_embeddings": true.\n'
        'Write "tie_word_embeddings": false there to train with that head.'
    )


def save_params(
    params: Params,
    model: ModelSpec,
    folder: str | os.PathLike,
    *,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Writes model.safetensors, in param_dtype, and config.json for transformers.

    The whole model is held in host memory once. With several processes all must call
    this; the lead one writes.

    Args:
        folder: made if need be; the two files in it are replaced.
        extra: more keys for config.json, such as eos_token_id and
            max_position_embeddings, which `ModelSpec` does not know.
    """
    tensors = {}
    for weight, leaf in zip(
        jax.tree.leaves(_weights(model)), jax.tree.leaves(params), strict=True
    ):
        value = np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
        order = [weight.ours.index(c) for c in weight.letters]
        rows = value if weight.is_stacked else value[None]
        for name, row in zip(weight.names, rows, strict=True):
            # A copy in C order: safetensors 0.8 writes the bytes under a transposed
            # view as they lie, under the view's shape.
            tensors[name] = np.ascontiguousarray(
                row.transpose(order).reshape(weight.stored_shape)
            )
    if not is_lead():
        return
    folder = pathlib.Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    config = {**config_from_spec(model), **(extra or {})}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    unfinished = folder / f"{SINGLE}.unfinished"
    # Some versions of transformers refuse a file whose metadata names no format.
    save_file(tensors, unfinished, metadata={"format": "pt"})
    # safetensors 0.8 makes files for their owner only, whatever the umask.
    unfinished.chmod((folder / CONFIG).stat().st_mode)
    unfinished.replace(folder / SINGLE)
