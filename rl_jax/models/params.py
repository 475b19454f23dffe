"""The parameter tree of the decoder: shapes, logical axes and initial values.

One tree serves training, sampling, reference, checkpoints and export. Layers are
stacked on L.

Legend: V vocabulary, D width, L layers, H query heads, K key/value heads, C channels
of a head, F feed-forward width.
"""

import dataclasses
import math
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rl_jax.mesh import sharding
from rl_jax.models.spec import ModelSpec


@flax.struct.dataclass
class Layers:
    """Weights of all layers, stacked on the first axis."""

    attn_norm_LD: Any
    w_q_LDHC: Any
    w_k_LDKC: Any
    w_v_LDKC: Any
    w_o_LHCD: Any
    mlp_norm_LD: Any
    w_gate_LDF: Any
    w_up_LDF: Any
    w_down_LFD: Any


@flax.struct.dataclass
class Params:
    """Weights of a decoder; `head_VD` is None when it is tied to the embedding."""

    embed_VD: Any
    layers: Layers
    norm_D: Any
    head_VD: Any


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One weight: its shape, its logical axes, and the size its inputs sum over."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    fan_in: int  # 0: a norm's scale, which begins at one


def layout(spec: ModelSpec) -> Params:
    """Tree of `Leaf`: every weight's shape and logical axes, declared once."""
    L, D, F, V = spec.num_layers, spec.width, spec.ffn_width, spec.vocab_size
    H, K, C = spec.num_heads, spec.num_kv_heads, spec.head_dim
    layers = Layers(
        attn_norm_LD=Leaf((L, D), ("layers", "width"), 0),
        w_q_LDHC=Leaf((L, D, H, C), ("layers", "embed", "heads", "head_dim"), D),
        w_k_LDKC=Leaf((L, D, K, C), ("layers", "embed", "kv_heads", "head_dim"), D),
        w_v_LDKC=Leaf((L, D, K, C), ("layers", "embed", "kv_heads", "head_dim"), D),
        w_o_LHCD=Leaf((L, H, C, D), ("layers", "heads", "head_dim", "embed"), H * C),
        mlp_norm_LD=Leaf((L, D), ("layers", "width"), 0),
        w_gate_LDF=Leaf((L, D, F), ("layers", "embed", "ffn"), D),
        w_up_LDF=Leaf((L, D, F), ("layers", "embed", "ffn"), D),
        w_down_LFD=Leaf((L, F, D), ("layers", "ffn", "embed"), F),
    )
    head = None if spec.tie_embeddings else Leaf((V, D), ("vocab", "embed"), D)
    return Params(
        embed_VD=Leaf((V, D), ("vocab", "embed"), D),
        layers=layers,
        norm_D=Leaf((D,), ("width",), 0),
        head_VD=head,
    )


def map_layout(fn, spec: ModelSpec) -> Params:
    """`layout` with `fn(leaf)` in place of each leaf."""
    return jax.tree.map(fn, layout(spec), is_leaf=lambda x: isinstance(x, Leaf))


def abstract_params(spec: ModelSpec, mesh: Mesh) -> Params:
    """The tree as `jax.ShapeDtypeStruct`s with their shardings."""
    return map_layout(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, spec.param_dtype, sharding=sharding(mesh, *leaf.axes)
        ),
        spec,
    )


def init_params(spec: ModelSpec, mesh: Mesh, seed: int) -> Params:
    """New weights: normal of std fan_in**-0.5 clipped at two of them, norms at one.

    The clipping leaves 0.96 of that std. The embedding has width**-0.5 too, for a tied
    head. Residual outputs (w_o, w_down) are divided by sqrt(2 * layers), as in GPT-2
    (section 2.3). Values do not depend on the mesh.
    """
    leaves, treedef = jax.tree.flatten(
        layout(spec), is_leaf=lambda x: isinstance(x, Leaf)
    )

    def value(i: int, leaf: Leaf) -> np.ndarray:
        if leaf.fan_in == 0:
            return np.ones(leaf.shape, np.float32)
        is_residual = leaf.axes[0] == "layers" and leaf.axes[-1] == "embed"
        scale = 1.0 / math.sqrt(2 * spec.num_layers) if is_residual else 1.0
        draw = np.random.default_rng((seed, i))
        x = draw.standard_normal(leaf.shape, np.float32).clip(-2.0, 2.0)
        return x * np.float32(scale * leaf.fan_in**-0.5)

    def placed(i: int, leaf: Leaf) -> jax.Array:
        # Drawn by NumPy, one weight at a time: jax.random took 10 s to compile, and
        # these numbers are the same on every mesh.
        whole = value(i, leaf).astype(jnp.dtype(spec.param_dtype))
        where = sharding(mesh, *leaf.axes)
        return jax.make_array_from_callback(leaf.shape, where, lambda at: whole[at])

    return treedef.unflatten([placed(i, leaf) for i, leaf in enumerate(leaves)])


def num_params(spec: ModelSpec) -> int:
    """Number of weights, the tied head counted once."""
    leaves = jax.tree.leaves(map_layout(lambda leaf: math.prod(leaf.shape), spec))
    return sum(leaves)
