"""The optimiser of tests that look at single steps."""

from typing import Any

import optax

from rl_jax.models.spec import ModelSpec
from rl_jax.optimiser import Optimiser, optimiser


def adamw(model: ModelSpec, **changes: Any) -> tuple[Optimiser, optax.Schedule]:
    """`optimiser` of a constant rate, unless the changes say otherwise."""
    values: dict[str, Any] = {
        "lr": 1e-2,
        "schedule": "constant",
        "warmup_steps": 0,
        "total_steps": 3,
        "final_lr_fraction": 1.0,
        "weight_decay": 0.0,
        "b1": 0.9,
        "b2": 0.95,
        # Large: a small one makes Adam's first step the sign of the gradient, and
        # rounding decides the sign of a gradient that is nearly zero.
        "eps": 1e-3,
        "clip_norm": 0.5,
    }
    return optimiser(model, **values | changes)
