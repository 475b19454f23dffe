"""Weights of Hugging Face folders: safetensors to our tree.

What each family's tensors are called is in families.py.

Legend: the letters of params.py. A stored matrix has its outputs first, and heads and
channels as one axis: "HC D" is [H * C, D].
"""

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rl_jax.errors import ConfigError
from rl_jax.models.families import EMBED, FAMILIES, HEAD, NORM
from rl_jax.models.huggingface_config import CONFIG, spec_from_config
from rl_jax.models.params import Layers, Leaf, Params, abstract_params, layout
from rl_jax.models.spec import ModelSpec
from rl_jax.models.weight_files import Stored, model_folder, open_tensors

__all__ = ["Weight", "load_params", "spec_from_config", "weights"]

_DTYPES = ("F32", "BF16", "F16")
# Computed from config.json; checkpoints of transformers before 4.32 hold them.
_ROTARY_BUFFER = "rotary_emb.inv_freq"
# What the host holds of a leaf at once, or one layer of it if that is more.
_CHUNK_BYTES = 2**27

Bounds = tuple[tuple[int, int], ...]  # (first, end) of each axis of a leaf


@dataclasses.dataclass(frozen=True)
class Weight:
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


def _weight(field: str, leaf: Leaf, names: list[str], stored: str) -> Weight:
    axes = field.rpartition("_")[2]
    sizes = dict(zip(axes, leaf.shape, strict=True))
    is_stacked = axes.startswith("L")
    return Weight(tuple(names), is_stacked, axes.removeprefix("L"), stored, sizes)


def weights(model: ModelSpec) -> Params:
    """The parameter tree with a `Weight` in place of each leaf."""
    tree, tensors = layout(model), FAMILIES[model.family].tensors
    layers: dict[str, Any] = {}
    for field in dataclasses.fields(Layers):
        leaf = getattr(tree.layers, field.name)
        if leaf is not None:
            name, stored = tensors[field.name]
            names = [f"model.layers.{i}.{name}" for i in range(model.num_layers)]
            layers[field.name] = _weight(field.name, leaf, names, stored)
    head = tree.head_VD
    return Params(
        embed_VD=_weight("embed_VD", tree.embed_VD, [EMBED], "V D"),
        layers=Layers(**layers),
        norm_D=_weight("norm_D", tree.norm_D, [NORM], "D"),
        head_VD=None if head is None else _weight("head_VD", head, [HEAD], "V D"),
    )


def load_params(folder: str | os.PathLike, model: ModelSpec, mesh: Mesh) -> Params:
    """Weights of a Hugging Face folder, cast to param_dtype and laid out on `mesh`.

    Reads model.safetensors, else the files of model.safetensors.index.json. Each
    process reads the parts that its devices hold, a chunk at a time, which goes to its
    devices before the next is read. Beside the arrays themselves (which on a CPU are
    in the host's memory) it holds a chunk and one stored tensor. Every name, dtype and
    shape is checked before the first weight is read.

    A tied model may store lm_head.weight if it equals the embedding; if it differs,
    the config and the weights disagree, and neither is chosen.

    Raises:
        ConfigError: if files are missing, damaged or pickled, or a tensor is missing,
            surplus, of another shape than config.json says, or not F32, BF16 or F16.
    """
    folder = model_folder(folder)
    tree, shapes = weights(model), abstract_params(model, mesh)
    tensors = open_tensors(folder)
    check_tensors(tree, tensors, model)
    return jax.tree.map(
        lambda weight, shape: _load(weight, shape, tensors), tree, shapes
    )


def _load(
    weight: Weight, shape: jax.ShapeDtypeStruct, tensors: Mapping[str, Stored]
) -> jax.Array:
    """One leaf, part by part; a part that several devices hold is read once."""
    where = shape.sharding.addressable_devices_indices_map(shape.shape)
    parts: dict[Bounds, list[Any]] = {}
    for device, index in where.items():
        assert index is not None
        pairs = zip(index, shape.shape, strict=True)
        bounds = tuple(s.indices(size)[:2] for s, size in pairs)
        parts.setdefault(bounds, []).append(device)
    on: dict[Any, jax.Array] = {}
    for bounds, devices in parts.items():
        size = [end - first for first, end in bounds]
        for row, chunk in _chunks(weight, bounds, tensors, np.dtype(shape.dtype)):
            for device in devices:
                new = jax.device_put(chunk, device)
                if len(chunk) < size[0]:
                    if row == 0:
                        on[device] = jnp.zeros(size, shape.dtype, device=device)
                    new = _filled(on[device], new, row)
                # Else chunks would wait on the host for their transfer.
                on[device] = jax.block_until_ready(new)
            del chunk, new  # before the next is read
    arrays = [on[device] for device in where]
    return jax.make_array_from_single_device_arrays(shape.shape, shape.sharding, arrays)


def _filled(whole: jax.Array, chunk: jax.Array, first: int) -> jax.Array:
    """`whole`, of one device, with the chunk in its rows from `first` on."""
    # A mesh that the caller has set would not fit the one device.
    with jax.set_mesh(jax.make_mesh((1,), ("device",), devices=[*whole.devices()])):
        return _fill(whole, chunk, first)


_fill = jax.jit(
    lambda whole, chunk, first: jax.lax.dynamic_update_slice_in_dim(
        whole, chunk, first, 0
    ),
    donate_argnums=0,
)


def _chunks(
    weight: Weight, bounds: Bounds, tensors: Mapping[str, Stored], dtype: np.dtype
) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, rows) of one part, in chunks along its first axis."""
    (first, end), *rest = bounds
    row_bytes = math.prod(b - a for a, b in rest) * dtype.itemsize
    step = max(1, _CHUNK_BYTES // row_bytes)
    for at in range(first, end, step):
        rows = (at, min(at + step, end))
        yield at - first, _read(weight, (rows, *rest), tensors, dtype)


def _read(
    weight: Weight,
    bounds: Bounds,
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


def check_tensors(tree: Params, tensors: dict[str, Stored], model: ModelSpec) -> None:
    """Raises ConfigError unless the files hold exactly the tensors of the model."""
    paths = sorted({str(stored.path) for stored in tensors.values()})
    rest = {name for name in tensors if not name.endswith(_ROTARY_BUFFER)}
    for weight in jax.tree.leaves(tree):
        for name in weight.names:
            if name not in tensors:
                tied = '\nIf the head is tied, write "tie_word_embeddings": true there.'
                raise ConfigError(
                    f"{name} is missing from {', '.join(paths[:2])}"
                    f"{f' and {len(paths) - 2} more' if paths[2:] else ''}; {CONFIG} "
                    f"asks for it, with shape {weight.stored_shape}."
                    f"{tied if name == HEAD else ''}"
                )
            stored = tensors[name]
            if stored.shape != weight.stored_shape or stored.dtype not in _DTYPES:
                raise ConfigError(
                    f"{name} in {stored.path} is {stored.dtype} {stored.shape}.\n"
                    f"Expected {weight.stored_shape} by the sizes in {CONFIG}, as one "
                    f"of {', '.join(_DTYPES)}."
                )
            rest.discard(name)
    if model.tie_embeddings and HEAD in rest:
        _check_tied(tensors[HEAD], tensors[EMBED])
        rest.discard(HEAD)
    if rest:
        name = min(rest)
        more = f" and {len(rest) - 1} other tensors" if rest - {name} else ""
        raise ConfigError(
            f"{tensors[name].path} holds {name} {tensors[name].shape}{more}, which the "
            f"model of {CONFIG} does not have.\n"
            f"Check that both are of the same checkpoint, a plain {model.family}."
        )


def _check_tied(head: Stored, embed: Stored) -> None:
    def blocks(stored: Stored, name: str):
        # Blocks of rows: a large vocabulary is not read at once.
        part, num_rows = stored.handle.get_slice(name), stored.shape[0]
        for first in range(0, num_rows, 4096):
            yield part[first : min(first + 4096, num_rows)].astype(np.float32)

    if head.shape == embed.shape and all(
        np.array_equal(a, b)
        for a, b in zip(blocks(head, HEAD), blocks(embed, EMBED), strict=True)
    ):
        return
    raise ConfigError(
        f"{head.path} holds {HEAD} {head.shape}, which differs from {EMBED} "
        f'{embed.shape}, but {CONFIG} has "tie_word_embeddings": true.\n'
        'Write "tie_word_embeddings": false there to train with that head.'
    )
