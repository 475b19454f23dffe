"""A decoder that says how good a whole reply is: one number instead of logits.

The score of a reply is a linear function of the decoder's final hidden state at the
reply's last token, its end-of-sequence token: attention is causal, so that this one has
seen all of it. The decoder's own output head is left out, and no logits are made.

Source: InstructGPT, arXiv:2203.02155, section 3.5.

Legend: B rows, T positions, D width, P prompts, K replies to each.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rl_jax.mesh import sharding, spec
from rl_jax.models import params as decoder_params
from rl_jax.models.decoder import hidden_states
from rl_jax.models.params import Leaf, Params
from rl_jax.models.spec import ModelSpec


@flax.struct.dataclass
class RewardParams:
    """Weights of a reward model.

    Attributes:
        trunk: the decoder, without an output head.
        score_D, bias: float32, the score is hidden . score + bias. A loss on
            differences leaves the bias where it is; one on labels needs it.
    """

    trunk: Params
    score_D: Any
    bias: Any


def layout(model: ModelSpec) -> RewardParams:
    """Tree of `Leaf`, as `params.layout` for a policy."""
    headless = dataclasses.replace(model, tie_embeddings=True)
    return RewardParams(
        trunk=decoder_params.layout(headless),
        score_D=Leaf((model.width,), ("width",), model.width),
        bias=Leaf((), ()),
    )


def map_layout(fn: Callable[[Leaf], Any], model: ModelSpec) -> RewardParams:
    """`layout` with `fn(leaf)` in place of each leaf."""
    return jax.tree.map(fn, layout(model), is_leaf=lambda x: isinstance(x, Leaf))


def decayed(model: ModelSpec) -> RewardParams:
    """Tree of bools: the weights that weight decay is for."""
    return map_layout(lambda leaf: leaf.fan_in > 0, model)


def abstract_params(model: ModelSpec, mesh: Mesh) -> RewardParams:
    """The tree as `jax.ShapeDtypeStruct`s with their shardings."""
    headless = dataclasses.replace(model, tie_embeddings=True)
    whole = layout(model)

    def head(leaf: Leaf) -> jax.ShapeDtypeStruct:
        where = sharding(mesh, *leaf.axes)
        return jax.ShapeDtypeStruct(leaf.shape, jnp.float32, sharding=where)

    trunk = decoder_params.abstract_params(headless, mesh)
    return RewardParams(trunk, head(whole.score_D), head(whole.bias))


def from_policy(params: Params, model: ModelSpec) -> RewardParams:
    """A reward model that begins as a policy, its head at zero.

    All scores are 0 and the loss of pairs log 2, whatever the seed. The head moves in
    the first step, and the trunk, whose gradient passes through the head, from the
    second on.
    """
    mesh = params.embed_VD.sharding.mesh

    def zeros(leaf: Leaf) -> jax.Array:
        where, whole = sharding(mesh, *leaf.axes), np.zeros(leaf.shape, np.float32)
        return jax.make_array_from_callback(leaf.shape, where, lambda at: whole[at])

    head = layout(model)
    trunk = dataclasses.replace(params, head_VD=None)
    return RewardParams(trunk, zeros(head.score_D), zeros(head.bias))


def scores(
    params: RewardParams,
    token_BT: jax.Array,
    position_BT: jax.Array,
    segment_BT: jax.Array,
    model: ModelSpec,
) -> jax.Array:
    """score_BT, float32: of what each position of packed rows has seen of its sample.

    The arguments are those of `decoder.hidden_states`. A reply's score is that at its
    last token (`at_last`).
    """
    hidden_BTD = hidden_states(params.trunk, token_BT, position_BT, segment_BT, model)
    score_BT = jnp.einsum(
        "BTD,D->BT",
        hidden_BTD.astype(jnp.float32),
        params.score_D,
        precision="highest",
    )
    return score_BT + params.bias


def at_last(score_BT: jax.Array, row_PK: jax.Array, column_PK: jax.Array) -> jax.Array:
    """score_PK: what `scores` gave where replies end, whole on every device."""
    whole_BT = jax.reshard(score_BT, spec())
    return whole_BT.at[row_PK, column_PK].get(out_sharding=spec())
