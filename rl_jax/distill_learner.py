"""Compiled programs of distillation: a student's gradients beside a frozen teacher.

    soft        KL of the two at each token: over the whole vocabulary, through
                kernels/logprob, or over the teacher's likeliest tokens
    on policy   tokens that the student drew, scored by the teacher: a policy loss

The teacher may be another model of the same vocabulary. Its weights are an argument of
each program; nothing is ever differentiated by them.

Legend: B rows of a micro-batch, T positions, N tokens of a shard, D model width (E the
teacher's), V vocabulary of a shard, K tokens kept of the vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rl_jax import learner as learners
from rl_jax.kernels.logprob import token_kl  # pyright: ignore[reportMissingImports]
from rl_jax.learner import Batch, Metrics, State, advantages, per_token
from rl_jax.mesh import BATCH_AXES, TENSOR_AXIS, spec
from rl_jax.models.decoder import gather_head, hidden_states
from rl_jax.models.params import Params
from rl_jax.models.spec import ModelSpec
from rl_jax.objectives.distillation import (
    OnPolicy,
    on_policy_loss,
    soft_loss,
    top_k_kl,
)
from rl_jax.optimiser import Optimiser

CHUNK = 128  # tokens whose logits are held at once, where the KL is over few tokens


@dataclasses.dataclass(frozen=True)
class Soft:
    """A soft loss. Hashable.

    Attributes:
        temperature: both distributions are softened by it, the loss times its square.
        direction: "forward", KL(teacher || student), or "reverse".
        top_k: of the teacher's likeliest tokens that are compared; 0: all tokens.
        rest: what becomes of the others, see `objectives.distillation.top_k_kl`.
    """

    temperature: float = 1.0
    direction: str = "forward"
    top_k: int = 0
    rest: str = "bucket"


class Distiller(NamedTuple):
    """Compiled programs of a distillation stage.

    score(params, batch) -> logp_BT, of the student at the sampling temperature
    teacher_score(teacher_params, batch) -> logp_BT, the same of the teacher
    soft_gradient(params, grads, teacher_params, batch, weight_N, num_tokens)
        -> (grads, metrics)
    on_policy_gradient(params, grads, batch, outcome, num_tokens) -> (grads, metrics);
        the batch has the teacher's log-probabilities as `ref_logp_BT`
    total_kl(params, teacher_params, batch) -> KL(student || teacher) over the whole
        vocabulary at temperature 1, a sum over masked tokens
    apply_gradient(state, grads) -> (state, metrics)
    zero_gradient(params) -> grads
    """

    score: Callable[..., jax.Array]
    teacher_score: Callable[..., jax.Array]
    soft_gradient: Callable[..., tuple[Params, Metrics]]
    on_policy_gradient: Callable[..., tuple[Params, Metrics]]
    total_kl: Callable[..., jax.Array]
    apply_gradient: Callable[..., tuple[State, Metrics]]
    zero_gradient: Callable[..., Params]


def make_distiller(
    model: ModelSpec,
    teacher: ModelSpec,
    tx: Optimiser,
    lr_schedule: optax.Schedule,
    *,
    soft: Soft | None = None,
    on_policy: OnPolicy | None = None,
    num_groups: int = 0,
    temperature: float = 1.0,
) -> Distiller:
    """Compiles the programs of a stage, when they are first called.

    Args:
        soft, on_policy: the loss; the program of the other cannot be called.
        num_groups: of a step's samples, at the most.
        temperature: the sampler's. The teacher's log-probabilities of drawn tokens
            are taken under it too, so that a teacher that is the student agrees.
    """
    plain = learners.make_learner(model, tx, lr_schedule, temperature=temperature)
    logprobs = functools.partial(
        learners.batch_logprobs, model=model, temperature=temperature
    )

    def soft_fn(params, teacher_params, batch, weight_N, num_tokens):
        assert soft is not None
        kl = token_kls(params, teacher_params, batch, soft, model, teacher)
        loss, _ = soft_loss(
            kl[f"{soft.direction}_kl"],
            batch.mask_BT,
            per_token(weight_N, batch),
            temperature=soft.temperature,
        )
        counted = {n: jnp.where(batch.mask_BT, x, 0.0).sum() for n, x in kl.items()}
        metrics = {n: x / jnp.maximum(num_tokens, 1) for n, x in counted.items()}
        return loss, jax.lax.stop_gradient(metrics | {"loss": loss})

    def on_policy_fn(params, batch, outcome, num_tokens):
        assert on_policy is not None
        adv_BT = None
        if on_policy.outcome:
            adv_N = advantages(outcome, loss=on_policy.loss, num_groups=num_groups)
            adv_BT = per_token(adv_N, batch)
        logp_BT, entropy_BT = logprobs(params, batch)
        # Used once, a batch is trained on by the very weights that "old" means.
        old_logp_BT = batch.old_logp_BT
        if old_logp_BT is None:
            old_logp_BT = jax.lax.stop_gradient(logp_BT)
        return on_policy_loss(
            logp_BT,
            entropy_BT,
            old_logp_BT,
            batch.sampler_logp_BT,
            batch.ref_logp_BT,
            adv_BT,
            batch.mask_BT,
            per_token(outcome.weight_N, batch),
            batch.segment_BT,
            spec=on_policy,
            num_tokens=num_tokens,
        )

    def teacher_logprobs(teacher_params, batch):
        return learners.batch_logprobs(
            teacher_params, batch, model=teacher, temperature=temperature
        )[0]

    def total_kl(params, teacher_params, batch):
        kl = token_kls(params, teacher_params, batch, Soft(), model, teacher)
        return jnp.where(batch.mask_BT, kl["reverse_kl"], 0.0).sum()

    return Distiller(
        score=plain.score,
        teacher_score=jax.jit(teacher_logprobs),
        soft_gradient=learners.gradient_program(soft_fn),
        on_policy_gradient=learners.gradient_program(on_policy_fn),
        total_kl=jax.jit(total_kl),
        apply_gradient=plain.apply_gradient,
        zero_gradient=plain.zero_gradient,
    )


def token_kls(
    params: Params,
    teacher_params: Params,
    batch: Batch,
    soft: Soft,
    model: ModelSpec,
    teacher: ModelSpec,
) -> dict[str, jax.Array]:
    """KL of each token, [B, T]: "forward_kl", and "reverse_kl" unless it is over few.

    Student and teacher read the same rows. What stands where the mask is 0 is not to
    be read. No logits of all tokens are ever held.
    """
    inputs = (batch.token_BT, batch.position_BT, batch.segment_BT)
    hidden_BTD = hidden_states(params, *inputs, model).astype(model.head_dtype)
    hidden_BTE = hidden_states(teacher_params, *inputs, teacher)
    local = _whole if not soft.top_k else _likeliest
    rows, states = spec("batch", "time"), spec("batch", "time", "width")
    head = spec("vocab", "width")
    names = ("reverse_kl", "forward_kl") if not soft.top_k else ("forward_kl",)
    return jax.shard_map(
        functools.partial(local, soft=soft, model=model, teacher=teacher),
        in_specs=(states, head, states, head, rows),
        out_specs={name: rows for name in names},
    )(
        hidden_BTD,
        gather_head(params, model),
        hidden_BTE.astype(teacher.head_dtype),
        gather_head(teacher_params, teacher),
        batch.mask_BT,
    )


def _whole(hidden_BTD, head_VD, hidden_BTE, head_VE, mask_BT, *, soft, model, teacher):
    """Both directions over the vocabulary of all shards; local to a shard of rows."""
    B, T, _ = hidden_BTD.shape
    found = token_kl(
        _tokens(hidden_BTD),
        head_VD,
        _tokens(hidden_BTE),
        head_VE,
        mask_N=mask_BT.reshape(B * T),
        temperature=soft.temperature,
        softcap=model.final_softcap,
        teacher_softcap=teacher.final_softcap,
        vocab_axis=TENSOR_AXIS,
        varying=(*BATCH_AXES, TENSOR_AXIS),
    )
    return {
        "reverse_kl": found.reverse_N.reshape(B, T),
        "forward_kl": found.forward_N.reshape(B, T),
    }


def _tokens(x_BTD):
    return x_BTD.reshape(-1, x_BTD.shape[-1])


def _likeliest(
    hidden_BTD, head_VD, hidden_BTE, head_VE, mask_BT, *, soft, model, teacher
):
    """Forward KL over the teacher's likeliest tokens; local to a shard of rows.

    Logits are made for `CHUNK` tokens at a time, and again for their gradient.
    """
    B, T = mask_BT.shape
    size = min(CHUNK, B * T)
    # Varying before the loop, so that the head's gradient is summed over rows once.
    head_VD = jax.lax.pcast(head_VD, BATCH_AXES, to="varying")

    def chunks(x_ND):
        missing = -len(x_ND) % size
        return jnp.pad(x_ND, ((0, missing), (0, 0))).reshape(-1, size, x_ND.shape[-1])

    @jax.checkpoint
    def kl(hidden):
        hidden_ND, hidden_NE = hidden
        z_NV = _logits(hidden_ND, head_VD, model, soft.temperature)
        teacher_z_NV = _logits(hidden_NE, head_VE, teacher, soft.temperature)
        id_NK = _likeliest_ids(teacher_z_NV, soft.top_k)
        return top_k_kl(
            _logps(z_NV, id_NK), _logps(teacher_z_NV, id_NK), rest=soft.rest
        )

    hidden = (chunks(_tokens(hidden_BTD)), chunks(_tokens(hidden_BTE)))
    kl_N = jax.lax.map(kl, hidden).reshape(-1)
    return {"forward_kl": kl_N[: B * T].reshape(B, T)}


def _logits(hidden_ND, head_VD, model, temperature):
    """Float32 logits of this shard's words, over the temperature."""
    z_NV = jnp.einsum(
        "ND,VD->NV",
        hidden_ND,
        head_VD,
        preferred_element_type=jnp.float32,
        precision="highest" if model.float32_head else None,
    )
    if model.final_softcap:
        z_NV = model.final_softcap * jnp.tanh(z_NV / model.final_softcap)
    return z_NV / temperature


def _likeliest_ids(z_NV, num_kept):
    """Ids, in the whole vocabulary, of the tokens with the largest logits."""
    V = z_NV.shape[-1]
    top_NK, id_NK = jax.lax.top_k(z_NV, min(num_kept, V))
    id_NK += V * jax.lax.axis_index(TENSOR_AXIS)
    top_NK, id_NK = (
        jax.lax.all_gather(x, TENSOR_AXIS, axis=1, tiled=True) for x in (top_NK, id_NK)
    )
    _, at_NK = jax.lax.top_k(top_NK, num_kept)
    return jnp.take_along_axis(id_NK, at_NK, axis=1)


def _logps(z_NV, id_NK):
    """Log-probabilities of some words over the whole vocabulary."""
    V = z_NV.shape[-1]
    at_NK = id_NK - V * jax.lax.axis_index(TENSOR_AXIS)
    here_NK = (at_NK >= 0) & (at_NK < V)
    z_NK = jnp.take_along_axis(z_NV, jnp.clip(at_NK, 0, V - 1), axis=1)
    z_NK = jax.lax.psum(jnp.where(here_NK, z_NK, 0.0), TENSOR_AXIS)
    top_N = jax.lax.pmax(jax.lax.stop_gradient(z_NV.max(-1)), TENSOR_AXIS)
    sum_N = jax.lax.psum(jnp.exp(z_NV - top_N[:, None]).sum(-1), TENSOR_AXIS)
    return z_NK - (top_N + jnp.log(sum_N))[:, None]
