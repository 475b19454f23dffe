"""Three samples of two prompts, and the loss of a spec on them, for tests.

The first two samples share a packed row, and both rows end in garbage under a zero
mask. "grad" is by token of each sample, everything that papers hold fixed held fixed.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.objectives.aggregate import token_weights
from rl_jax.objectives.policy import PRESETS, PolicyLoss, policy_loss

LOGP = [[-0.50, -1.20, -0.30], [-0.90, -0.40], [-1.50, -0.20, -0.70, -2.00]]
OLD = [[-0.70, -1.00, -0.30], [-0.60, -0.90], [-1.40, -0.60, -0.70, -1.60]]
SAMPLER = [[-0.75, -1.05, -0.28], [-0.55, -1.00], [-1.42, -0.61, -2.00, -1.61]]
REF = [[-0.60, -1.10, -0.50], [-0.80, -0.80], [-1.20, -0.50, -0.90, -1.00]]
TEACHER = [[-0.20, -1.50, -0.30], [-1.90, -0.40], [-1.00, -0.90, -0.10, -3.00]]
ADV = [[1.0] * 3, [-0.5] * 2, [0.8] * 4]
ZERO_ADV = [[0.0] * 3, [0.0] * 2, [0.0] * 4]
PROMPTS = [0, 0, 1]

# Tokens of two samples and their old log-probabilities, as used to compare trainers.
PEER_LOGP = [[-1.0, -0.5], [-0.7, -2.0, -0.3, -1.1]]
PEER_OLD = [[-1.2, -0.9], [-0.5, -1.0, -0.3, -2.5]]
PEER_ADV = [[1.0] * 2, [-1.0] * 4]

# What the loss does not read: specs that differ in these share a program.
NOT_READ = (
    "centre",
    "scale",
    "eps",
    "whiten",
    "aggregate",
    "dynamic_sampling",
    "overlong_buffer",
)

jitted_loss = jax.jit(
    jax.value_and_grad(policy_loss, argnums=(0, 1), has_aux=True),
    static_argnames=("spec",),
)
jitted_weights = jax.jit(
    token_weights, static_argnames=("mode", "num_groups", "constant")
)


def make(name="grpo", **changes) -> PolicyLoss:
    return dataclasses.replace(PRESETS[name], **changes)


def pack(ragged, garbage) -> np.ndarray:
    """Two rows: the first two samples end to end, then the others; 7 positions."""
    rows = [sum(ragged[:2], []), sum(ragged[2:], [])]
    return np.array([row + [garbage] * (7 - len(row)) for row in rows])


def unpack(x_BT, ragged) -> list[np.ndarray]:
    tokens_N = np.concatenate(
        [np.asarray(x_BT)[0, : len(sum(ragged[:2], []))], *np.asarray(x_BT)[1:]]
    )
    return np.split(tokens_N, np.cumsum([len(x) for x in ragged]))[: len(ragged)]


def packed_masks(ragged) -> tuple[jax.Array, jax.Array]:
    """(mask_BT, segment_BT) of samples packed so."""
    mask_BT = pack([[1] * len(x) for x in ragged], 0)
    segment_BT = pack([[i + 1] * len(x) for i, x in enumerate(ragged)], 0)
    return jnp.array(mask_BT), jnp.array(segment_BT)


def loss_and_grads(
    spec,
    dtype="float32",
    *,
    logp=LOGP,
    old=OLD,
    sampler=SAMPLER,
    ref=REF,
    adv=ADV,
    prompts=PROMPTS,
    constant=4.0,
    garbage=np.nan,
):
    """Loss, gradient to logp per sample, metrics, gradient to the entropies."""
    lengths = [len(x) for x in logp]
    weight_N = jitted_weights(
        jnp.array(lengths),
        jnp.array(prompts),
        jnp.ones(len(lengths), bool),
        mode=spec.aggregate,
        num_groups=max(prompts) + 1,
        constant=constant,
    )
    weights = [[float(w)] * n for w, n in zip(weight_N, lengths, strict=True)]
    entropies = [[0.1 * n + 0.3] * n for n in lengths]
    packed = [
        jnp.array(pack(x, garbage), dtype)
        for x in (logp, entropies, old, sampler, ref, adv)
    ]
    mask_BT, segment_BT = packed_masks(logp)
    program = dataclasses.replace(
        spec, **{name: getattr(PRESETS["grpo"], name) for name in NOT_READ}
    )
    (loss, metrics), (grad_BT, entropy_grad_BT) = jitted_loss(
        *packed,
        mask_BT,
        jnp.array(pack(weights, garbage), dtype),
        segment_BT,
        spec=program,
        num_tokens=sum(lengths),
    )
    assert loss.dtype == dtype and loss.shape == ()
    assert grad_BT.shape == mask_BT.shape
    np.testing.assert_array_equal(np.where(mask_BT, 0.0, grad_BT), 0.0)
    return loss, unpack(grad_BT, logp), metrics, unpack(entropy_grad_BT, logp)


def peer_loss(spec, dtype="float32", **others):
    """The loss of the tokens that trainers are compared on."""
    arguments: dict[str, Any] = {"old": PEER_OLD, "sampler": PEER_OLD, "ref": PEER_OLD}
    arguments |= {"adv": PEER_ADV, "prompts": [0, 0], "constant": 8.0}
    return loss_and_grads(spec, dtype, logp=PEER_LOGP, **(arguments | others))[0]


def assert_close(actual, expected, atol=1.5e-6):
    """1.5e-6: the expected numbers have six decimals, float32 weights an ulp."""
    for actual_T, expected_T in zip(actual, expected, strict=True):
        np.testing.assert_allclose(actual_T, expected_T, rtol=0, atol=atol)
