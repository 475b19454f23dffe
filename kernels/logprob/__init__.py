"""Log-probability, entropy and KL of tokens, from hidden states and the output head.

Logits are never held: whichever implementation runs makes them tile by tile, forward
and again backward. Here are the public functions and the rules of their gradients; the
work on one shard is in plain.py, tpu.py and gpu.py.

Legend: N tokens, D model width (E the teacher's), V vocabulary.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..platform import KernelError, choose, forms
from .head import Head, Layout, Logits
from .live import back, front, live_tokens
from .rules import check_model, check_tokens
from .shards import (
    axes_of,
    by_vocabulary,
    combined,
    combined_kl,
    first_word,
    vary,
    whole_cotangents,
)

__all__ = ["KL", "Logprob", "token_kl", "token_logprob"]


class Logprob(NamedTuple):
    """Of each token, in nats; float32 (float64 from float64)."""

    logp_N: jax.Array
    entropy_N: jax.Array
    lse_N: jax.Array


class KL(NamedTuple):
    """Of each token's two distributions, in nats; float32 (float64 from float64)."""

    reverse_N: jax.Array
    forward_N: jax.Array


@dataclasses.dataclass(frozen=True)
class _Options:
    logits: Logits
    teacher_logits: Logits | None
    axes: tuple[str, ...]
    implementation: str | None


def token_logprob(
    hidden_ND: jax.Array,
    weight: jax.Array,
    target_N: jax.Array,
    *,
    mask_N: jax.Array | None = None,
    bias_V: jax.Array | None = None,
    layout: Layout = "VD",
    temperature: float = 1.0,
    softcap: float = 0.0,
    vocab_axis: str | None = None,
    width_axis: str | None = None,
    varying: tuple[str, ...] = (),
    implementation: str | None = None,
) -> Logprob:
    """Log-probability of each target; entropy and log-normaliser of its distribution.

    logp[n] = z[n, target[n]] - lse[n]
    entropy[n] = lse[n] - sum_v softmax(z[n])[v] * z[n, v]
    lse[n] = log(sum_v exp(z[n, v]))
    z = cap(hidden @ head.T + bias) / temperature, cap(x) = softcap * tanh(x / softcap)

    Args:
        hidden_ND: hidden states, float32 or bfloat16.
        weight: output head, [V, D] or [D, V] as `layout` says, float32 or bfloat16.
            Products are made in the wider dtype of the two, sums in float32.
        target_N: int32 ids in the whole vocabulary.
        mask_N: any dtype; tokens where it is 0 get 0 and have no gradient, whatever
            their hidden states are, and whole tiles of them cost nothing.
        bias_V: added before the cap.
        temperature: the sampling temperature; the trainer must use the sampler's.
        softcap: bound of the logits before the temperature; 0: none. Of Gemma 2
            (arXiv:2408.00118, section 2).
        vocab_axis, width_axis: inside `jax.shard_map`, the mesh axes over which the
            head's vocabulary and width are divided, if any; the hidden states' width
            is then divided too. Rows may be divided over other axes.
        varying: inside `jax.shard_map`, mesh axes over which to make hidden states and
            head vary beside those over which an argument varies anyway. Their
            gradients are summed over the axes over which they themselves do not.
        implementation: overrides the choice by platform, see `rl_jax.kernels.platform`.

    Raises:
        KernelError: for arguments that no implementation, or the chosen one, can take.

    Source: gradients dlogp/dz = onehot - p, dentropy/dz = -p * (log p + entropy) and
    dlse/dz = p, over temperature; with a soft cap times 1 - (cap / softcap) ** 2.
    """
    hidden_ND, target_N, mask_N = _arrays(hidden_ND, target_N, mask_N)
    head = Head(*_arrays(weight, bias_V))
    logits = Logits(layout, float(temperature), float(softcap))
    check_model("token_logprob", hidden_ND, head, logits)
    check_tokens("token_logprob", len(hidden_ND), target_N=target_N, mask_N=mask_N)
    axes = tuple(axis for axis in (vocab_axis, width_axis) if axis is not None)
    everywhere = _everywhere((hidden_ND, head, target_N, mask_N), varying, axes)
    hidden_ND, head = _spread(hidden_ND, head, logits, width_axis, everywhere)
    V = head.weight.shape[logits.vocab_dim]
    target_N = target_N.astype(jnp.int32) - first_word(V, axes)
    options = _Options(logits, None, axes, implementation)
    out: Any = _logprob(hidden_ND, head, target_N, mask_N, options)
    return out


def token_kl(
    hidden_ND: jax.Array,
    weight: jax.Array,
    teacher_hidden_NE: jax.Array,
    teacher_weight: jax.Array,
    *,
    mask_N: jax.Array | None = None,
    bias_V: jax.Array | None = None,
    teacher_bias_V: jax.Array | None = None,
    layout: Layout = "VD",
    teacher_layout: Layout = "VD",
    temperature: float = 1.0,
    softcap: float = 0.0,
    teacher_softcap: float = 0.0,
    vocab_axis: str | None = None,
    width_axis: str | None = None,
    varying: tuple[str, ...] = (),
    implementation: str | None = None,
) -> KL:
    """Exact KL of a student and its teacher over the whole vocabulary, at each token.

    reverse[n] = sum_v p[v] * (log p[v] - log q[v]), forward[n] = the same with the
    student's p and the teacher's q exchanged. Only the student has gradients.

    Args:
        hidden_ND, weight, bias_V, layout, softcap: of the student, as in
            `token_logprob`; those of the teacher have the same V and may have another
            width, dtype, layout and soft cap.
        temperature: of both.
        vocab_axis, width_axis: over which both heads are divided.
        mask_N, varying, implementation: as in `token_logprob`.

    Raises:
        KernelError: for arguments that no implementation, or the chosen one, can take.

    Source: generalised knowledge distillation, arXiv:2306.13649, equations 1 to 3.
    """
    hidden_ND, teacher_hidden_NE, mask_N = _arrays(hidden_ND, teacher_hidden_NE, mask_N)
    head = Head(*_arrays(weight, bias_V))
    teacher_head = Head(*_arrays(teacher_weight, teacher_bias_V))
    teacher = jax.lax.stop_gradient((teacher_hidden_NE, teacher_head))
    logits = Logits(layout, float(temperature), float(softcap))
    teacher_logits = Logits(teacher_layout, float(temperature), float(teacher_softcap))
    V = check_model("token_kl", hidden_ND, head, logits)
    teacher_V = check_model("token_kl", *teacher, teacher_logits, "teacher's ")
    if V != teacher_V:
        raise KernelError(
            f"token_kl: student and teacher must have the same vocabulary, got V = {V} "
            f"and {teacher_V}"
        )
    N = len(hidden_ND)
    check_tokens("token_kl", N, mask_N=mask_N, teacher_hidden_NE=teacher_hidden_NE)
    axes = tuple(axis for axis in (vocab_axis, width_axis) if axis is not None)
    everywhere = _everywhere((hidden_ND, head, teacher, mask_N), varying, axes)
    hidden_ND, head = _spread(hidden_ND, head, logits, width_axis, everywhere)
    teacher = _spread(*teacher, teacher_logits, width_axis, everywhere)
    options = _Options(logits, teacher_logits, axes, implementation)
    out: Any = _kl(hidden_ND, head, *teacher, mask_N, options)
    return out


def _arrays(*arrays):
    return jax.tree.map(jnp.asarray, arrays)


def _everywhere(arrays, more, axes):
    return tuple(dict.fromkeys((*axes_of(arrays), *more, *axes)))


def _spread(hidden_ND, head, logits, width_axis, everywhere):
    """Hidden states and head as the kernels take them, varying alike."""
    # Before the exchange: what does not vary yet has its gradients summed.
    hidden_ND, head = vary((hidden_ND, head), everywhere)
    if width_axis is None:
        return hidden_ND, head
    return by_vocabulary(hidden_ND, head, logits, width_axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _logprob(hidden_ND, head, target_N, mask_N, options):
    return _logprob_forward(hidden_ND, head, target_N, mask_N, options)[0]


def _logprob_forward(hidden_ND, head, target_N, mask_N, options):
    live = live_tokens(mask_N, len(hidden_ND))
    stats = _chosen("stats", options)(
        front(live, hidden_ND), head, front(live, target_N), live.num
    )
    top_N, sum_N, dot_N, z_target_N = combined(stats, options.axes)
    sum_N = _or_one(live, sum_N)
    log_sum_N = jnp.log(sum_N)
    lse_N = top_N + log_sum_N
    entropy_N = log_sum_N - dot_N / sum_N
    # In this order: the difference is exact where the target is near the top.
    logp_N = (z_target_N - top_N) - log_sum_N
    out = Logprob(*(back(live, x) for x in (logp_N, entropy_N, lse_N)))
    return out, (hidden_ND, head, target_N, mask_N, lse_N, entropy_N)


def _logprob_backward(options, saved, cotangents):
    hidden_ND, head, target_N, mask_N, lse_N, entropy_N = saved
    live = live_tokens(mask_N, len(hidden_ND))
    cotangents = whole_cotangents(cotangents, options.axes)
    d_hidden_ND, *d_head = _chosen("grads", options)(
        front(live, hidden_ND),
        head,
        front(live, target_N),
        live.num,
        lse_N,
        entropy_N,
        *(front(live, d) for d in cotangents),
    )
    return *_vary_as((back(live, d_hidden_ND), Head(*d_head)), hidden_ND), None, None


_logprob.defvjp(_logprob_forward, _logprob_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _kl(hidden_ND, head, teacher_hidden_NE, teacher_head, mask_N, options):
    return _kl_forward(
        hidden_ND, head, teacher_hidden_NE, teacher_head, mask_N, options
    )[0]


def _kl_forward(hidden_ND, head, teacher_hidden_NE, teacher_head, mask_N, options):
    live = live_tokens(mask_N, len(hidden_ND))
    stats = _chosen("kl_stats", options)(
        front(live, hidden_ND),
        head,
        front(live, teacher_hidden_NE),
        teacher_head,
        live.num,
    )
    stats = combined_kl(stats, options.axes)
    log_sum_N, teacher_log_sum_N = (
        jnp.log(_or_one(live, x)) for x in (stats.sum_N, stats.teacher_sum_N)
    )
    # Differences first: with equal logits they are exact.
    apart_N = stats.top_N - stats.teacher_top_N
    sums_apart_N = log_sum_N - teacher_log_sum_N
    reverse_N = stats.dot_N / _or_one(live, stats.sum_N) - apart_N - sums_apart_N
    forward_N = stats.teacher_dot_N / _or_one(live, stats.teacher_sum_N)
    forward_N += apart_N + sums_apart_N
    lse_N = stats.top_N + log_sum_N
    teacher_lse_N = stats.teacher_top_N + teacher_log_sum_N
    out = KL(back(live, reverse_N), back(live, forward_N))
    arrays = (hidden_ND, head, teacher_hidden_NE, teacher_head, mask_N)
    return out, (*arrays, lse_N, teacher_lse_N, reverse_N)


def _kl_backward(options, saved, cotangents):
    hidden_ND, head, teacher_hidden_NE, teacher_head, mask_N, *of_token = saved
    live = live_tokens(mask_N, len(hidden_ND))
    cotangents = whole_cotangents(cotangents, options.axes)
    d_hidden_ND, *d_head = _chosen("kl_grads", options)(
        front(live, hidden_ND),
        head,
        front(live, teacher_hidden_NE),
        teacher_head,
        live.num,
        *of_token,
        *(front(live, d) for d in cotangents),
    )
    found = _vary_as((back(live, d_hidden_ND), Head(*d_head)), hidden_ND)
    return *found, None, None, None


_kl.defvjp(_kl_forward, _kl_backward)


def _or_one(live, sum_N):
    """Sums as they are, and 1 for masked tokens, to be divided by."""
    if live.mask_N is None:
        return sum_N
    return jnp.where(jnp.arange(len(sum_N)) < live.num, sum_N, 1)


def _vary_as(tree, x):
    return vary(tree, axes_of(x))


def _chosen(name, options):
    """The named function of whichever implementation is to run."""
    static = {"logits": options.logits}
    if options.teacher_logits is not None:
        static["teacher_logits"] = options.teacher_logits
    found = forms(__name__, name, **static)
    return functools.partial(choose, implementation=options.implementation, **found)
