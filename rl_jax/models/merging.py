"""Averages of weights: mean, weighted, exponential. Trees of arrays in, one out.

Reading and writing models is in rl_jax/merge.py.

Source: Llama 3 (arXiv:2407.21783, section 4) averages models of its reward, SFT and
DPO stages; Kimi k1.5 (arXiv:2501.12599, long to short) a long- and a short-thinking
one; InstructGPT (arXiv:2203.02155, appendix C) keeps an exponential moving average.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import numpy as np

Tree = TypeVar("Tree")


def merge(trees: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """theta = sum_j weights[j] * trees[j], leaf by leaf, in float32.

    Leaves that are not floating point (counters, masks) are those of the first tree.

    Args:
        trees: of one structure, with arrays (JAX or NumPy) of one shape at each place.
        weights: one a tree; nothing is normalised here.

    Returns:
        The tree, each leaf in the first tree's type.

    Raises:
        ValueError: if there are no trees, or not as many weights.
    """
    if not trees or len(trees) != len(weights):
        raise ValueError(f"merge got {len(trees)} trees and {len(weights)} weights")
    return jax.tree.map(lambda *leaves: weighted_sum(leaves, weights), *trees)


def weighted_sum(leaves: Sequence[Any], weights: Sequence[float]) -> Any:
    """One leaf of `merge`."""
    first = leaves[0]
    if not jax.numpy.issubdtype(first.dtype, jax.numpy.floating):
        return first
    total = first.astype(np.float32) * np.float32(weights[0])
    for leaf, weight in zip(leaves[1:], weights[1:], strict=True):
        assert leaf.shape == first.shape, (leaf.shape, first.shape)
        total = total + leaf.astype(np.float32) * np.float32(weight)
    return total.astype(first.dtype)


def ema(average: Tree, params: Tree, decay: float) -> Tree:
    """The next exponential moving average: decay * average + (1 - decay) * params.

    Leaves that are not floating point are those of `params`, the newer tree.

    Args:
        average: so far, in the type that it is kept in: float32, as a change of
            (1 - decay) is below what bfloat16 can tell.

    Raises:
        ValueError: if the decay is not in 0 .. 1.
    """
    if not 0 <= decay <= 1:
        raise ValueError(f"ema needs 0 <= decay <= 1, got {decay}")

    def leaf(old: Any, new: Any) -> Any:
        if not jax.numpy.issubdtype(old.dtype, jax.numpy.floating):
            return new
        return weighted_sum((old, new), (decay, 1 - decay))

    return jax.tree.map(leaf, average, params)


def normalised(weights: Sequence[float]) -> tuple[float, ...]:
    """Weights divided by their sum.

    Raises:
        ValueError: if one is negative or not finite, or all are 0.
    """
    total = math.fsum(weights)
    if not (0 < total < math.inf) or min(weights) < 0:
        raise ValueError(
            f"weights are {tuple(weights)}: expected none below 0, one above"
        )
    return tuple(weight / total for weight in weights)


def ema_weights(num: int, decay: float) -> tuple[float, ...]:
    """What each of `num` trees, oldest first, weighs in their moving average.

    decay ** (num - 1) for the first, from which the average starts, and (1 - decay) *
    decay ** (num - 1 - j) for tree j; their sum is 1.
    """
    rest = [(1 - decay) * decay ** (num - 1 - j) for j in range(1, num)]
    return (decay ** (num - 1), *rest)
