"""The optimiser steps that a step's samples ask for: a gradient each, added up by rows.

Legend: B rows of a micro-batch, T positions of a row.
"""

from collections.abc import Callable, Sequence

import jax
from jax.sharding import Mesh

from rl_jax.distill_learner import Distiller
from rl_jax.learner import Batch, Learner, Metrics, State, merge_metrics, to_device
from rl_jax.models.params import Params
from rl_jax.stages.planning import Update


def micro_batches(one: Update, rows: int, mesh: Mesh) -> list[Batch]:
    """The rows of an optimiser step on the device, so many at a time."""
    starts = range(0, len(one.packed.token_BT), rows)
    return [to_device(one.packed.rows(i, i + rows), mesh) for i in starts]


def take_steps(
    learner: Learner | Distiller,
    gradient: Callable[..., tuple[Params, Metrics]],
    state: State,
    updates: Sequence[Update],
    prepared: Sequence[Sequence[Batch]],
    check_stop: Callable[[], None],
) -> tuple[State, list[dict[str, float]]]:
    """Takes the optimiser steps; of each its metrics.

    Args:
        gradient: the learner's program (params, grads, batch, outcome, num_tokens) ->
            (grads, metrics).
        prepared: the micro-batches of each update.
        check_stop: called before each gradient of the first step, and may raise: later
            the state of their beginning is gone.
    """
    merged: list[dict[str, float]] = []
    for one, batches in zip(updates, prepared, strict=True):
        grads = learner.zero_gradient(state.params)
        parts = []
        for batch in batches:
            if one is updates[0]:
                check_stop()
            grads, metrics = gradient(
                state.params, grads, batch, one.outcome, one.num_tokens
            )
            parts.append(metrics)
        state, metrics = learner.apply_gradient(state, grads)
        merged.append(merge_metrics(parts) | jax.device_get(metrics))
    return state, merged
