"""Heads divided over mesh axes, inside `jax.shard_map`; sizes are local there.

A head may be divided by its vocabulary, by its width, or both. One that is divided by
width is exchanged for one divided by vocabulary alone, so that kernels see whole
columns of logits and know of no axis.

Legend: N tokens, D model width of this shard, V vocabulary of this shard.
"""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from ..platform import KernelError
from .head import Head, KLStats, Logits, Stats

Axes = tuple[str, ...]
_Tree = TypeVar("_Tree")


def axes_of(*trees: Any) -> Axes:
    """Every mesh axis over which an array of the trees varies."""
    kinds: list[Any] = [jax.typeof(x) for x in jax.tree.leaves(trees)]
    return tuple(sorted(set().union(*(k.manual_axis_type.varying for k in kinds))))


def vary(tree: _Tree, axes: Axes) -> _Tree:
    """The same values, typed as varying over `axes`.

    The transpose of this cast sums gradients over the axes that it adds.
    """

    def cast(x):
        missing = tuple(a for a in axes if a not in axes_of(x))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(cast, tree)


def by_vocabulary(
    hidden_ND: jax.Array, head: Head, logits: Logits, axis: str
) -> tuple[jax.Array, Head]:
    """From D divided over `axis` to V divided over it, by one all-to-all of the head.

    Returns:
        hidden states of the whole width, and V / size rows of the head of that width:
        the shard of index i has the i-th V / size of the rows that all had.

    Raises:
        KernelError: if V is not a multiple of the axis' size.
    """
    size = jax.lax.axis_size(axis)
    V = head.weight.shape[logits.vocab_dim]
    if V % size:
        raise KernelError(
            f"a head whose width is divided over {axis!r} is exchanged for one whose "
            f"vocabulary is: a shard's {V} words are not a multiple of the axis' size "
            f"{size}. Pad the vocabulary"
        )
    weight = jax.lax.all_to_all(
        head.weight, axis, logits.vocab_dim, logits.width_dim, tiled=True
    )
    bias_V = head.bias_V
    if bias_V is not None:
        first = jax.lax.axis_index(axis) * (V // size)
        bias_V = jax.lax.dynamic_slice_in_dim(bias_V, first, V // size)
    hidden_ND = jax.lax.all_gather(hidden_ND, axis, axis=1, tiled=True)
    return hidden_ND, Head(weight, bias_V)


def first_word(V: int, axes: Axes) -> jax.Array | int:
    """Id in the whole vocabulary of this shard's first word, V words a shard."""
    return jax.lax.axis_index(axes) * V if axes else 0


def combined(stats: Stats, axes: Axes) -> Stats:
    """Of the whole vocabulary, from each shard's."""
    if not axes:
        return stats
    top_N = jax.lax.pmax(stats.top_N, axes)
    below_N = stats.top_N - top_N
    scale_N = jnp.exp(below_N)
    dot_N = scale_N * (stats.dot_N + below_N * stats.sum_N)
    sum_N, dot_N, target_N = jax.lax.psum(
        (scale_N * stats.sum_N, dot_N, stats.target_N), axes
    )
    return Stats(top_N, sum_N, dot_N, target_N)


def combined_kl(stats: KLStats, axes: Axes) -> KLStats:
    """Of the whole vocabulary, from each shard's."""
    if not axes:
        return stats

    def of_one(top_N, sum_N, dot_N):
        all_top_N = jax.lax.pmax(top_N, axes)
        scale_N = jnp.exp(top_N - all_top_N)
        return all_top_N, *jax.lax.psum((scale_N * sum_N, scale_N * dot_N), axes)

    return KLStats._make((*of_one(*stats[:3]), *of_one(*stats[3:])))


def whole_cotangents(cotangents: _Tree, axes: Axes) -> _Tree:
    """Cotangents of what `combined` gives, as its sums' transpose needs them.

    With `check_vma=True` they are whole on every shard; without, jax gives every shard
    a share, as it does to any sum over shards.
    """
    if not axes or axes_of(jax.lax.axis_index(axes)):
        return cotangents
    return jax.lax.psum(cotangents, axes)
