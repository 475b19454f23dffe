"""The state of training and the compiled programs that update it.

A step is: `policy_gradient` (or `supervised_gradient`) for each micro-batch of packed
rows of fixed shape, which adds to the sum of gradients, then `apply_gradient` once.
Advantages come from the rewards of all samples of the step, and a token's weight in the
loss is fixed before the rows are split (objectives/aggregate.py), so that any split
gives the same gradient.

Legend: B rows of a micro-batch, T positions, N samples of the optimiser's batch.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from rl_jax.data.packing import Packed
from rl_jax.mesh import put, spec
from rl_jax.models.decoder import hidden_states, target_logprobs
from rl_jax.models.params import Params
from rl_jax.models.spec import ModelSpec
from rl_jax.objectives.advantage import group_advantage, group_varies
from rl_jax.objectives.policy import PolicyLoss, policy_loss
from rl_jax.objectives.supervised import cross_entropy
from rl_jax.optimiser import Optimiser

Metrics = dict[str, jax.Array]


@flax.struct.dataclass
class State:
    """Everything that an optimiser step reads and writes.

    Attributes:
        step: int32 scalar, optimiser steps taken; also the weights' version.
    """

    step: jax.Array
    params: Params
    opt_state: Any


@flax.struct.dataclass
class Referenced:
    """A state with the reference that its KL is to, as a checkpoint has them."""

    step: jax.Array
    params: Params
    opt_state: Any
    reference: Params


def with_reference(state: State, reference: Params) -> Referenced:
    """Both in one."""
    return Referenced(state.step, state.params, state.opt_state, reference)


def without_reference(state: Referenced) -> tuple[State, Params]:
    """Undoes `with_reference`."""
    return State(state.step, state.params, state.opt_state), state.reference


@functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
def replaced(reference: Params, params: Params) -> Params:
    """The weights of now as the new reference, in the memory of the old one.

    A copy, as the arrays of a state are donated to the next update.
    """

    def one(old, new):
        return jax.device_put(jnp.copy(new), jax.typeof(old).memory_space)

    return jax.tree.map(one, reference, params)


@flax.struct.dataclass
class Batch:
    """Packed rows on the device; see `data.packing.Packed` for what t speaks of.

    Attributes:
        old_logp_BT, ref_logp_BT: float32 under the weights before this batch's
            updates, and under the reference; None where not needed.
        adv_BT: float32, where the tokens of a sample differ (credit.py); None: each
            has what its sample has.
    """

    token_BT: jax.Array
    target_BT: jax.Array
    position_BT: jax.Array
    segment_BT: jax.Array
    mask_BT: jax.Array
    sampler_logp_BT: jax.Array
    sample_BT: jax.Array
    group_BT: jax.Array
    old_logp_BT: jax.Array | None = None
    ref_logp_BT: jax.Array | None = None
    adv_BT: jax.Array | None = None


@flax.struct.dataclass
class Outcome:
    """What became of the samples of a step; whole on every device.

    Attributes:
        reward_N: float32 as trained on; not read where not valid.
        group_N: int32 group of each sample, from 0.
        valid_N: bool, the sample has a reward.
        weight_N: float32 weight in the loss of each of its tokens.
    """

    reward_N: jax.Array | np.ndarray
    group_N: jax.Array | np.ndarray
    valid_N: jax.Array | np.ndarray
    weight_N: jax.Array | np.ndarray


class Learner(NamedTuple):
    """Compiled programs of one stage.

    score(params, batch) -> logp_BT
    policy_gradient(params, grads, batch, outcome, num_tokens) -> (grads, metrics)
    supervised_gradient(params, grads, batch, weight_N, num_tokens) -> (grads, metrics)
    apply_gradient(state, grads) -> (state, metrics)
    zero_gradient(params) -> grads
    """

    score: Callable[..., jax.Array]
    policy_gradient: Callable[..., tuple[Params, Metrics]]
    supervised_gradient: Callable[..., tuple[Params, Metrics]]
    apply_gradient: Callable[..., tuple[State, Metrics]]
    zero_gradient: Callable[..., Params]


def init_state(params: Params, tx: Optimiser) -> State:
    """A state at step 0; the optimiser's arrays are laid out as the parameters."""
    opt_state = jax.jit(tx.init)(params)
    return State(jnp.zeros((), jnp.int32, device=_scalar(params)), params, opt_state)


def _scalar(params: Params):
    first = jax.tree.leaves(params)[0]
    return jax.sharding.NamedSharding(first.sharding.mesh, jax.P())


def to_device(packed: Packed, mesh: Mesh) -> Batch:
    """Rows onto the mesh."""
    arrays = {
        name: put(np.asarray(value), mesh, "batch", "time")
        for name, value in vars(packed).items()
    }
    return Batch(**arrays)


def per_token(x_N: jax.Array, batch: Batch) -> jax.Array:
    """Gives each target what its sample has, [B, T], and 0 where the mask is."""
    x_BT = x_N.at[batch.sample_BT].get(out_sharding=spec("batch", "time"))
    return jnp.where(batch.mask_BT, x_BT, 0.0)


@functools.partial(jax.jit, static_argnames=("loss", "num_groups"))
def advantages(outcome: Outcome, *, loss: PolicyLoss, num_groups: int) -> jax.Array:
    """adv_N of the samples of a step, whole on every device."""
    local = functools.partial(
        group_advantage,
        num_groups=num_groups,
        centre=loss.centre,
        scale=loss.scale,
        eps=loss.eps,
    )
    return _everywhere(local, outcome.reward_N, outcome.group_N, outcome.valid_N)


@functools.partial(jax.jit, static_argnames="num_groups")
def varies(
    reward_N: jax.Array | np.ndarray,
    group_N: jax.Array | np.ndarray,
    valid_N: jax.Array | np.ndarray,
    *,
    num_groups: int,
) -> jax.Array:
    """`objectives.advantage.group_varies` of samples that every device has."""
    local = functools.partial(group_varies, num_groups=num_groups)
    return _everywhere(local, reward_N, group_N, valid_N)


def _everywhere(local, *samples):
    """Every device computes the same: a kernel is not divided by the compiler."""
    return jax.shard_map(local, in_specs=jax.P(), out_specs=jax.P())(*samples)


def batch_logprobs(
    params: Params, batch: Batch, *, model: ModelSpec, temperature: float
) -> tuple[jax.Array, jax.Array]:
    """(logp_BT, entropy_BT) of the targets of packed rows, float32; 0 if not masked."""
    hidden_BTD = hidden_states(
        params, batch.token_BT, batch.position_BT, batch.segment_BT, model
    )
    return target_logprobs(
        params,
        hidden_BTD,
        batch.target_BT,
        batch.mask_BT,
        model,
        temperature=temperature,
    )


def make_learner(
    model: ModelSpec,
    tx: Optimiser,
    lr_schedule: optax.Schedule,
    *,
    loss: PolicyLoss | None = None,
    num_groups: int = 0,
    temperature: float = 1.0,
) -> Learner:
    """Compiles the programs of a stage, when they are first called.

    Args:
        loss: the policy loss; None for a supervised stage.
        num_groups: of a step's samples, at the most.
        temperature: the sampler's; log-probabilities are taken under it. 1 for a
            supervised stage.
    """
    gradients = _gradients(model, loss, num_groups, temperature)

    def apply(state, grads):
        norm = optax.tree.norm(grads)
        params, opt_state = tx.apply(grads, state.opt_state, state.params, norm)
        metrics = {
            "grad_norm": norm,
            "learning_rate": lr_schedule(state.step),
        }
        return State(state.step + 1, params, opt_state), metrics

    return Learner(*gradients[:3], jax.jit(apply, donate_argnums=0), gradients[3])


@functools.lru_cache(maxsize=8)
def _gradients(
    model: ModelSpec, loss: PolicyLoss | None, num_groups: int, temperature: float
):
    """(score, policy_gradient, supervised_gradient, zero_gradient), compiled once for
    all stages of a chain that are alike."""
    logprobs = functools.partial(batch_logprobs, model=model, temperature=temperature)

    def policy(params, batch, outcome, num_tokens):
        assert loss is not None
        adv_BT = batch.adv_BT
        if adv_BT is None:
            adv_N = advantages(outcome, loss=loss, num_groups=num_groups)
            adv_BT = per_token(adv_N, batch)
        logp_BT, entropy_BT = logprobs(params, batch)
        # Used once, a batch is trained on by the very weights that "old" means.
        old_logp_BT = batch.old_logp_BT
        if old_logp_BT is None:
            old_logp_BT = jax.lax.stop_gradient(logp_BT)
        return policy_loss(
            logp_BT,
            entropy_BT,
            old_logp_BT,
            batch.sampler_logp_BT,
            batch.ref_logp_BT,
            adv_BT,
            batch.mask_BT,
            per_token(outcome.weight_N, batch),
            batch.segment_BT,
            spec=loss,
            num_tokens=num_tokens,
        )

    def supervised(params, batch, weight_N, num_tokens):
        del num_tokens  # already in the weights
        logp_BT, _ = logprobs(params, batch)
        return cross_entropy(logp_BT, batch.mask_BT, per_token(weight_N, batch))

    def zeros(params):
        return jax.tree.map(lambda w: jnp.zeros_like(w, jnp.float32), params)

    return (
        jax.jit(lambda params, batch: logprobs(params, batch)[0]),
        gradient_program(policy),
        gradient_program(supervised),
        jax.jit(zeros),
    )


def gradient_program(
    loss_fn: Callable[..., tuple[jax.Array, Metrics]],
) -> Callable[..., tuple[Any, Metrics]]:
    """Compiles (params, grads, *rest) -> (grads + those of this micro-batch, metrics).

    Args:
        loss_fn: (params, *rest) -> (loss, metrics).
    """

    def add_gradient(params, grads, *rest):
        (_, metrics), new = jax.value_and_grad(loss_fn, has_aux=True)(params, *rest)
        return jax.tree.map(lambda a, b: a + b.astype(a.dtype), grads, new), metrics

    return jax.jit(add_gradient, donate_argnums=1)


def merge_metrics(parts: list[Metrics]) -> dict[str, float]:
    """Metrics of micro-batches as those of their union; fetches from the device.

    They add up, as they are divided by the whole batch's token count already, except
    those whose names end in `_max` and `_min`.
    """
    fetched = jax.device_get(parts)
    merged: dict[str, float] = {}
    for name in fetched[0]:
        values = [float(part[name]) for part in fetched]
        pick = {"_max": max, "_min": min}.get(name[-4:], sum)
        merged[name] = pick(values)
    return merged
