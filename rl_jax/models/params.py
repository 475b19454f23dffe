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


@flax.struct.dataclass(kw_only=True)
class Layers:
    """Weights of all layers, stacked on the first axis.

    Those that not every model has are None where they are missing; the field of
    `ModelSpec` that asks for them stands beside them.
    """

    attn_norm_LD: Any = None  # pre_norm
    w_q_LDHC: Any
    w_k_LDKC: Any
    w_v_LDKC: Any
    b_q_LHC: Any = None  # qkv_bias
    b_k_LKC: Any = None  # qkv_bias
    b_v_LKC: Any = None  # qkv_bias
    q_norm_LC: Any = None  # qk_norm "head"
    k_norm_LC: Any = None  # qk_norm "head"
    q_norm_LHC: Any = None  # qk_norm "whole"
    k_norm_LKC: Any = None  # qk_norm "whole"
    w_o_LHCD: Any
    attn_post_norm_LD: Any = None  # post_norm
    mlp_norm_LD: Any = None  # pre_norm
    w_gate_LDF: Any
    w_up_LDF: Any
    w_down_LFD: Any
    mlp_post_norm_LD: Any = None  # post_norm


@flax.struct.dataclass
class Params:
    """Weights of a decoder; `head_VD` is None when it is tied to the embedding."""

    embed_VD: Any
    layers: Layers
    norm_D: Any
    head_VD: Any


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One weight: its shape, its logical axes, and how it begins.

    Attributes:
        fan_in: the size its inputs sum over; 0: no matrix, but a bias or a norm's
            scale.
        start: where one that is no matrix begins.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    fan_in: int = 0
    start: float = 0.0


def layout(spec: ModelSpec) -> Params:
    """Tree of `Leaf`: every weight's shape and logical axes, declared once."""
    L, D, F, V = spec.num_layers, spec.width, spec.ffn_width, spec.vocab_size
    H, K, C = spec.num_heads, spec.num_kv_heads, spec.head_dim
    heads, kv_heads = ("heads", "head_dim"), ("kv_heads", "head_dim")

    def norm(shape: tuple[int, ...], *axes: str) -> Leaf:
        return Leaf(shape, axes, start=1.0 - spec.norm_offset)

    optional: dict[str, Leaf] = {}
    if spec.pre_norm:
        optional["attn_norm_LD"] = norm((L, D), "layers", "width")
        optional["mlp_norm_LD"] = norm((L, D), "layers", "width")
    if spec.post_norm:
        optional["attn_post_norm_LD"] = norm((L, D), "layers", "width")
        optional["mlp_post_norm_LD"] = norm((L, D), "layers", "width")
    if spec.qkv_bias:
        optional["b_q_LHC"] = Leaf((L, H, C), ("layers", *heads))
        optional["b_k_LKC"] = Leaf((L, K, C), ("layers", *kv_heads))
        optional["b_v_LKC"] = Leaf((L, K, C), ("layers", *kv_heads))
    if spec.qk_norm == "head":
        optional["q_norm_LC"] = norm((L, C), "layers", "head_dim")
        optional["k_norm_LC"] = norm((L, C), "layers", "head_dim")
    if spec.qk_norm == "whole":
        optional["q_norm_LHC"] = norm((L, H, C), "layers", *heads)
        optional["k_norm_LKC"] = norm((L, K, C), "layers", *kv_heads)
    layers = Layers(
        w_q_LDHC=Leaf((L, D, H, C), ("layers", "embed", *heads), D),
        w_k_LDKC=Leaf((L, D, K, C), ("layers", "embed", *kv_heads), D),
        w_v_LDKC=Leaf((L, D, K, C), ("layers", "embed", *kv_heads), D),
        w_o_LHCD=Leaf((L, H, C, D), ("layers", *heads, "embed"), H * C),
        w_gate_LDF=Leaf((L, D, F), ("layers", "embed", "ffn"), D),
        w_up_LDF=Leaf((L, D, F), ("layers", "embed", "ffn"), D),
        w_down_LFD=Leaf((L, F, D), ("layers", "ffn", "embed"), F),
        **optional,
    )
    head = None if spec.tie_embeddings else Leaf((V, D), ("vocab", "embed"), D)
    return Params(
        embed_VD=Leaf((V, D), ("vocab", "embed"), D),
        layers=layers,
        norm_D=norm((D,), "width"),
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
    """New weights: normal of std fan_in**-0.5 clipped at two of them.

    The clipping leaves 0.96 of that std. The embedding has width**-0.5 too, for a tied
    head. Residual outputs (w_o, w_down) are divided by sqrt(2 * layers), as in GPT-2
    (section 2.3). Norms begin at one, biases at zero. Values do not depend on the mesh.
    """
    leaves, treedef = jax.tree.flatten(
        layout(spec), is_leaf=lambda x: isinstance(x, Leaf)
    )

    def value(i: int, leaf: Leaf) -> np.ndarray:
        if leaf.fan_in == 0:
            return np.full(leaf.shape, leaf.start, np.float32)
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
