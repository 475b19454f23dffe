"""AdamW and its schedule, with its moments on the devices or on their hosts."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rl_jax import host_moments
from rl_jax.models.params import map_layout
from rl_jax.models.spec import ModelSpec
from rl_jax.placement import moved


class Optimiser(NamedTuple):
    """What makes steps of gradients; plain functions, to be compiled.

    init(params) -> opt_state
    apply(grads, opt_state, params, norm) -> (params, opt_state), where norm is the
        global norm of the gradients
    """

    init: Callable[..., Any]
    apply: Callable[..., tuple[Any, Any]]


def optimiser(
    model: ModelSpec,
    *,
    lr: float,
    schedule: str,
    warmup_steps: int,
    total_steps: int,
    final_lr_fraction: float,
    weight_decay: float,
    b1: float,
    b2: float,
    eps: float,
    clip_norm: float,
    decayed: Any = None,
    host: bool = False,
) -> tuple[Optimiser, optax.Schedule]:
    """AdamW after clipping by global norm, and its learning rate by step.

    Weight decay leaves norm scales alone. `clip_norm` 0 clips nothing. Moments are
    float32 whatever the weights are.

    Args:
        decayed: tree of bools, the weights that decay; None: the matrices of a policy.
        host: the moments stay in the hosts' pinned memory (host_moments.py).
    """
    end = lr * final_lr_fraction
    rest = max(1, total_steps - warmup_steps)
    after = {
        "constant": optax.constant_schedule(lr),
        "linear": optax.linear_schedule(lr, end, rest),
        "cosine": optax.cosine_decay_schedule(lr, rest, final_lr_fraction),
    }[schedule]
    if warmup_steps:
        # The first step already moves: step k of the warm-up has lr * (k+1) / steps.
        warm = optax.linear_schedule(lr / warmup_steps, lr, max(1, warmup_steps - 1))
        after = optax.join_schedules([warm, after], [warmup_steps])
    if decayed is None:
        decayed = map_layout(lambda leaf: leaf.fan_in > 0, model)
    clip = _clip_by_norm(clip_norm) if clip_norm else optax.identity()

    def chained(decayed):
        adamw = optax.adamw(
            after, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay, mask=decayed
        )
        return optax.chain(clip, adamw)

    tx = chained(decayed)

    def init(params):
        # optax begins with moments of the weights' dtype and goes on in that of the
        # gradients, float32: they are float32 from the start.
        opt_state = tx.init(jax.tree.map(lambda w: w.astype(jnp.float32), params))
        return moved(opt_state, jax.memory.Space.Host) if host else opt_state

    def apply(grads, opt_state, params, norm):
        if host:
            return host_moments.apply(
                chained, decayed, grads, opt_state, params, norm=norm
            )
        updates, opt_state = tx.update(grads, opt_state, params, norm=norm)
        return optax.apply_updates(params, updates), opt_state

    return Optimiser(init, apply), after


def _clip_by_norm(most: float) -> optax.GradientTransformationExtraArgs:
    """`optax.clip_by_global_norm`, given the norm: of one weight it could not know."""

    def update(updates, state, params=None, **more):
        del params
        norm = more["norm"]
        return jax.tree.map(
            lambda g: jnp.where(norm < most, g, g / norm.astype(g.dtype) * most),
            updates,
        ), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
