"""Optimiser steps whose moments live on the hosts: those of one layer at a time.

Left to the compiler, all moments are fetched at once: for v5e:2x2, 3.7 GiB of weights
and as much of gradients a device, it then wants 16.2 GiB, more than if they had stayed
on the device (15.0 GiB). In order, a layer's moments and no more are on the device.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax

from rl_jax.placement import moved

_HOST, _DEVICE = jax.memory.Space.Host, jax.memory.Space.Device


def apply(
    tx_of: Callable[[Any], optax.GradientTransformationExtraArgs],
    marks: Any,
    grads: Any,
    opt_state: Any,
    params: Any,
    **more: jax.Array,
) -> tuple[Any, Any]:
    """(params, opt_state) after optax's `update` and `apply_updates`; to be compiled.

    Args:
        tx_of: the optimiser of some of the weights, by their leaves of `marks`. It
            must treat each number of a weight alone.
        opt_state: as that of an optimiser of all weights; its arrays on the hosts, as
            are those of the result.
        more: for `update`; what it needs to know of all weights together.
    """
    weights, structure = jax.tree.flatten(params)

    def is_by_weight(node: Any) -> bool:
        return jax.tree.structure(node) == structure

    nodes, around = jax.tree.flatten(opt_state, is_leaf=is_by_weight)
    columns = [jax.tree.leaves(x) if is_by_weight(x) else None for x in nodes]
    marks, grads = jax.tree.leaves(marks), jax.tree.leaves(grads)
    stacked = [i for i, weight in enumerate(weights) if _is_stacked(weight)]
    others = [i for i in range(len(weights)) if i not in stacked]
    after, new = list(weights), list(nodes)
    for step, chosen in ((_by_layer, stacked), (_whole, others)):
        if not chosen:
            continue

        def some(leaves: Sequence[Any], chosen: list[int] = chosen) -> list[Any]:
            return [leaves[i] for i in chosen]

        part = around.unflatten(
            [x if c is None else some(c) for x, c in zip(nodes, columns, strict=True)]
        )
        # Not before the moments of the layers are back on the hosts.
        part, after = jax.lax.optimization_barrier((part, after))
        args = (tx_of(some(marks)), some(grads), part, some(after), more)
        changed, part = step(*args)
        for i, weight in zip(chosen, changed, strict=True):
            after[i] = weight
        for k, x in enumerate(around.flatten_up_to(part)):
            column = columns[k]
            if column is None:
                new[k] = x
                continue
            for i, moment in zip(chosen, x, strict=True):
                column[i] = moment
    new = [
        x if c is None else structure.unflatten(c)
        for x, c in zip(new, columns, strict=True)
    ]
    return structure.unflatten(after), around.unflatten(new)


def _is_stacked(weight: jax.Array) -> bool:
    """Whether the first axis is of layers: whole on each device."""
    return weight.ndim > 2 and jax.typeof(weight).sharding.spec[0] is None


def _whole(tx, grads, part, weights, more):
    """Weights and their part of the optimiser's state after a step."""
    # Barriers, so that it is compiled as it is without copies: to the same bits.
    grads, part, weights = jax.lax.optimization_barrier(
        (grads, moved(part, _DEVICE), weights)
    )
    updates, part = tx.update(grads, part, weights, **more)
    after = optax.apply_updates(weights, updates)
    after, part = jax.lax.optimization_barrier((after, part))
    return after, moved(part, _HOST)


def _by_layer(tx, grads, part, weights, more):
    """`_whole` for one layer after the other, in the memory of what there was."""
    old, structure = jax.tree.flatten(part)

    def step(layer, carried):
        weights, new = carried

        def at(x):
            return jax.lax.dynamic_index_in_dim(x, layer, keepdims=False)

        def put(x, there):
            return jax.lax.dynamic_update_index_in_dim(x, there, layer, 0)

        # Scalars, such as the count of steps, are for every layer what they were.
        here = [at(b) if b.ndim else a for a, b in zip(old, new, strict=True)]
        after, here = _whole(
            *(tx, [at(g) for g in grads], structure.unflatten(here)),
            *([at(w) for w in weights], more),
        )
        pairs = zip(new, jax.tree.leaves(here), strict=True)
        new = [put(x, y) if x.ndim else y for x, y in pairs]
        return [put(w, x) for w, x in zip(weights, after, strict=True)], new

    num_layers = weights[0].shape[0]
    weights, new = jax.lax.fori_loop(0, num_layers, step, (weights, old))
    return weights, structure.unflatten(new)
