"""The start-up check that sampler and trainer mean the same distribution.

At temperature, mask and weights that agree, the log-probability a token was drawn with
is the one that the trainer computes, up to rounding. A larger gap is a bug that
training would learn from in silence, so the run stops and says what explains it.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import numpy as np

from rl_jax import config as configs
from rl_jax.learner import Batch, batch_logprobs, to_device
from rl_jax.mesh import fetch
from rl_jax.models.params import Params
from rl_jax.stages.context import Context

if TYPE_CHECKING:
    from rl_jax.stages.planning import Plan

# Mean absolute gap in nats. float32 disagrees by about 1e-6 on a CPU; bfloat16 by
# 0.01 to 0.02 in what trainers report, and a wrong temperature by 0.1 and more.
LARGEST_GAP = {"float32": 1e-3, "bfloat16": 5e-2}


class DisagreementError(RuntimeError):
    """Drawn and recomputed log-probabilities differ: the run must not go on."""


def gap(logp_BT: np.ndarray, sampler_logp_BT: np.ndarray, mask_BT: np.ndarray) -> float:
    """Mean absolute difference over the mask, in nats; 0 without any token."""
    if not mask_BT.any():
        return 0.0
    return float(np.abs(logp_BT - sampler_logp_BT)[mask_BT].mean())


def check_agreement(
    context: Context,
    stage: configs.StageConfig,
    score: Callable[[Params, Batch], jax.Array],
    params: Params,
    plan: "Plan",
) -> float:
    """Compares on the first micro-batch of a plan; returns the mean gap.

    Args:
        score: the learner's own, so that what is checked is what trains.

    Raises:
        DisagreementError: with the likeliest cause, if the gap is too large.
    """
    packed = plan.updates[0].packed.rows(0, stage.batch.micro_rows)
    batch = to_device(packed, context.mesh)

    def recomputed(temperature: float) -> np.ndarray:
        logprobs = functools.partial(
            batch_logprobs, model=context.model, temperature=temperature
        )
        return fetch(jax.jit(logprobs)(params, batch)[0])

    drawn_BT, mask_BT = packed.sampler_logp_BT, packed.mask_BT
    temperature = stage.rollout.temperature
    logp_BT = fetch(score(params, batch))
    found, limit = gap(logp_BT, drawn_BT, mask_BT), LARGEST_GAP[context.model.dtype]
    if found <= limit:
        return found
    suspects = {
        "temperature (the trainer's is not the sampler's)": min(
            gap(recomputed(t), drawn_BT, mask_BT)
            for t in (temperature, 1.0, temperature**2)
        ),
        "mask (log-probabilities are one token late)": gap(
            logp_BT[:, :-1], drawn_BT[:, 1:], mask_BT[:, 1:] & mask_BT[:, :-1]
        ),
        "mask (log-probabilities are one token early)": gap(
            logp_BT[:, 1:], drawn_BT[:, :-1], mask_BT[:, 1:] & mask_BT[:, :-1]
        ),
    }
    cause = min(suspects, key=suspects.__getitem__)
    if suspects[cause] > max(limit, 0.1 * found):
        cause = "weights (the sampler draws from others than the trainer holds)"
    raise DisagreementError(
        f"Drawn and recomputed log-probabilities differ by {found:.3g} nats a token on "
        f"average; at {context.model.dtype} at most {limit:g} is rounding.\n"
        f"Likely cause: {cause}."
    )
