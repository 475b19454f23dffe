"""Log-probability and entropy by chunks of the vocabulary, in plain JAX.

The [N, V] logits are never held, forward or backward: both passes walk the
vocabulary in chunks of `CHUNK` rows of the head and keep [N, CHUNK] at a time.

Legend: N tokens, D model width, V vocabulary (of this shard), Q rows of a chunk.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

# Measured on a 2-core CPU at N = 2,048, D = 576, V = 49,152: chunks of 512 to 4,096
# run at the bare matmul's speed; 2,048 keeps the temporaries at a few MiB.
CHUNK = 2048


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _logprob(hidden_ND, head_VD, target_N, scale, vocab_axis, varying):
    return _forward(hidden_ND, head_VD, target_N, scale, vocab_axis, varying)[0]


def token_logprob(
    hidden_ND: jax.Array,
    head_VD: jax.Array,
    target_N: jax.Array,
    *,
    temperature: float = 1.0,
    softcap: float = 0.0,
    vocab_axis: str | None = None,
    varying: tuple[str, ...] = (),
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of each target and entropy of each distribution, in nats.

    logp[n] = z[n, target[n]] - logsumexp(z[n])
    entropy[n] = logsumexp(z[n]) - sum_v softmax(z[n])[v] * z[n, v]
    z = cap(hidden @ head.T) / temperature, cap(x) = softcap * tanh(x / softcap)

    Args:
        hidden_ND: hidden states, any float dtype; products accumulate in float32.
        head_VD: output head, or this shard's rows of it inside `jax.shard_map`.
        target_N: int32 ids in the whole vocabulary.
        temperature: the sampling temperature; the trainer must use the sampler's.
        softcap: bound of the logits, before the temperature; 0: none. Of Gemma 2
            (arXiv:2408.00118, section 2).
        vocab_axis: mesh axis over which the rows of the head are divided, if any.
        varying: inside `jax.shard_map`, every mesh axis over which an argument
            varies (rows and vocabulary); gradients are summed over the others.

    Returns:
        (logp_N, entropy_N), float32.

    Source: objectives of PPO-type losses; gradients dlogp/dz = onehot - p and
    dentropy/dz = -p * (log p + entropy), both over temperature; with a soft cap
    times 1 - (cap / softcap) ** 2.
    """
    if varying:
        # Arguments that do not vary over an axis become varying here, so that the
        # transpose of this cast sums their gradients over it.
        hidden_ND = _vary(hidden_ND, varying)
        head_VD = _vary(head_VD, varying)
        target_N = _vary(target_N, varying)
    both: Any = _logprob(
        hidden_ND,
        head_VD,
        target_N,
        (float(temperature), float(softcap)),
        vocab_axis,
        varying,
    )
    return both


def _vary(x, axes):
    varying: Any = jax.typeof(x).manual_axis_type.varying
    missing = tuple(a for a in axes if a not in varying)
    return jax.lax.pcast(x, missing, to="varying") if missing else x


def _full(shape, value, varying):
    x = jnp.full(shape, value, jnp.float32)
    return jax.lax.pcast(x, varying, to="varying") if varying else x


def _over_chunks(body, carry, V):
    """Calls body(start, size, carry) over the vocabulary; the last may be short."""
    num_full = V // CHUNK
    if num_full:
        carry = jax.lax.fori_loop(
            0, num_full, lambda i, c: body(i * CHUNK, CHUNK, c), carry
        )
    if V % CHUNK:
        carry = body(num_full * CHUNK, V % CHUNK, carry)
    return carry


def _chunk_logits(hidden_ND, head_VD, start, size, scale):
    temperature, softcap = scale
    head_QD = jax.lax.dynamic_slice_in_dim(head_VD, start, size)
    z_NQ = jax.lax.dot_general(
        hidden_ND,
        head_QD,
        (((1,), (1,)), ((), ())),
        preferred_element_type=jnp.float32,
        precision=_precision(hidden_ND),
    )
    if softcap:
        z_NQ = softcap * jnp.tanh(z_NQ / softcap)
    return head_QD, z_NQ / temperature


def _precision(x):
    # A float32 head is asked for to be exact; TPUs would round it to bfloat16.
    return jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None


def _first_id(V, vocab_axis):
    return 0 if vocab_axis is None else jax.lax.axis_index(vocab_axis) * V


def _hits(target_N, first_id, start, size):
    return (target_N - first_id - start)[:, None] == jnp.arange(size)[None, :]


def _forward(hidden_ND, head_VD, target_N, scale, vocab_axis, varying):
    N, V = hidden_ND.shape[0], head_VD.shape[0]
    first_id = _first_id(V, vocab_axis)

    def body(start, size, carry):
        top_N, sum_N, dot_N, z_target_N = carry
        _, z_NQ = _chunk_logits(hidden_ND, head_VD, start, size, scale)
        new_top_N = jnp.maximum(top_N, z_NQ.max(axis=1))
        scale_N = jnp.exp(top_N - new_top_N)
        e_NQ = jnp.exp(z_NQ - new_top_N[:, None])
        hit_NQ = _hits(target_N, first_id, start, size)
        return (
            new_top_N,
            sum_N * scale_N + e_NQ.sum(axis=1),
            dot_N * scale_N + (e_NQ * z_NQ).sum(axis=1),
            z_target_N + jnp.where(hit_NQ, z_NQ, 0.0).sum(axis=1),
        )

    init = tuple(_full((N,), v, varying) for v in (-jnp.inf, 0.0, 0.0, 0.0))
    top_N, sum_N, dot_N, z_target_N = _over_chunks(body, init, V)
    if vocab_axis is not None:
        all_top_N = jax.lax.pmax(top_N, vocab_axis)
        scale_N = jnp.exp(top_N - all_top_N)
        sum_N, dot_N, z_target_N = jax.lax.psum(
            (sum_N * scale_N, dot_N * scale_N, z_target_N), vocab_axis
        )
        top_N = all_top_N
    lse_N = top_N + jnp.log(sum_N)
    out = (z_target_N - lse_N, lse_N - dot_N / sum_N)
    return out, (hidden_ND, head_VD, target_N, lse_N, out[1])


def _backward(scale, vocab_axis, varying, saved, cotangents):
    temperature, softcap = scale
    hidden_ND, head_VD, target_N, lse_N, entropy_N = saved
    d_logp_N, d_entropy_N = cotangents
    V = head_VD.shape[0]
    first_id = _first_id(V, vocab_axis)

    def body(start, size, carry):
        d_hidden_ND, d_head_VD = carry
        head_QD, z_NQ = _chunk_logits(hidden_ND, head_VD, start, size, scale)
        logp_NQ = z_NQ - lse_N[:, None]
        p_NQ = jnp.exp(logp_NQ)
        hit_NQ = _hits(target_N, first_id, start, size)
        d_z_NQ = d_logp_N[:, None] * (hit_NQ - p_NQ)
        d_z_NQ -= d_entropy_N[:, None] * p_NQ * (logp_NQ + entropy_N[:, None])
        d_z_NQ /= temperature
        if softcap:
            d_z_NQ *= 1.0 - (z_NQ * (temperature / softcap)) ** 2
        d_z_NQ = d_z_NQ.astype(hidden_ND.dtype)
        dot = functools.partial(
            jax.lax.dot_general,
            preferred_element_type=jnp.float32,
            precision=_precision(hidden_ND),
        )
        d_hidden_ND += dot(d_z_NQ, head_QD, (((1,), (0,)), ((), ())))
        d_head_QD = dot(d_z_NQ, hidden_ND, (((0,), (0,)), ((), ())))
        return d_hidden_ND, jax.lax.dynamic_update_slice_in_dim(
            d_head_VD, d_head_QD, start, axis=0
        )

    init = (
        _full(hidden_ND.shape, 0.0, varying),
        _full(head_VD.shape, 0.0, varying),
    )
    d_hidden_ND, d_head_VD = _over_chunks(body, init, V)
    return d_hidden_ND.astype(hidden_ND.dtype), d_head_VD.astype(head_VD.dtype), None


_logprob.defvjp(_forward, _backward)
