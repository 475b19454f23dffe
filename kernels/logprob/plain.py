"""Log-probability, entropy and KL by tiles of the logits, in plain JAX.

No [N, V] array is ever held: both passes walk the vocabulary in chunks of `CHUNK`
words, and within a chunk the tokens in blocks of `BLOCK`, as many blocks as hold tokens
that count. Arrays of one tile, [BLOCK, CHUNK], are the largest temporaries beside the
gradients themselves.

`head` says what the four functions take and give; these also work in float64.

Legend: N tokens, D model width (E the teacher's), V vocabulary of this shard, B tokens
of a block, Q words of a chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .head import Head, KLStats, Logits, Stats

# Measured on a 2-core CPU at N = 2,048, D = 576, V = 49,152 float32, in CPU seconds: of
# 256 to 1,024 tokens by 1,024 to 4,096 words this tile is the fastest, if by a few
# percent, and has nearly the smallest temporaries. More tokens a block would be wasted
# where the last one is only partly live.
BLOCK = 512
CHUNK = 1024


class _Model(NamedTuple):
    hidden_ND: jax.Array
    head: Head
    logits: Logits


class _Block(NamedTuple):
    """B tokens from `first` on; those that an earlier block holds too are not new."""

    first: jax.Array
    new_B: jax.Array


def stats(
    hidden_ND: jax.Array,
    head: Head,
    target_N: jax.Array,
    num_live: jax.Array,
    logits: Logits,
) -> Stats:
    """Maximum, sum, dot product and target's logit of each live token."""

    def tile(start, block, z, carry):
        (z_BQ,) = z
        target_B, old = _at(block, (target_N, carry))
        top_B, shift_B, e_BQ = _exponentials(old.top_N, z_BQ)
        dot_B = (e_BQ * (z_BQ - top_B[:, None])).sum(axis=1)
        # What was summed relative to the old maximum is now relative to this one.
        dot_B += shift_B * (old.dot_N + (old.top_N - top_B) * old.sum_N)
        sum_B = shift_B * old.sum_N + e_BQ.sum(axis=1)
        target_B = old.target_N + _picked(z_BQ, target_B - start)
        return _put(block, carry, Stats(top_B, sum_B, dot_B, target_B), old)

    zero_N = _zeros(hidden_ND.shape[:1], hidden_ND, head, target_N, num_live)
    init = Stats(_lowest(zero_N), zero_N, zero_N, zero_N)
    return _over_tiles([_Model(hidden_ND, head, logits)], num_live, tile, init)


def grads(
    hidden_ND: jax.Array,
    head: Head,
    target_N: jax.Array,
    num_live: jax.Array,
    lse_N: jax.Array,
    entropy_N: jax.Array,
    d_logp_N: jax.Array,
    d_entropy_N: jax.Array,
    d_lse_N: jax.Array,
    logits: Logits,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Gradients by hidden states, weight and bias; the logits are made again.

    d_z = d_logp * (onehot - p) - d_entropy * p * (log p + entropy) + d_lse * p
    """

    def d_logits(start, z, known, cotangents):
        (z_BQ,), (target_B, lse_B) = z, known
        d_p_B1, d_entropy_B1, d_logp_B1 = (x[:, None] for x in cotangents)
        logp_BQ = z_BQ - lse_B[:, None]
        hit_BQ = (target_B - start)[:, None] == jnp.arange(z_BQ.shape[1])
        d_z_BQ = jnp.exp(logp_BQ) * (d_p_B1 - d_entropy_B1 * logp_BQ)
        return d_z_BQ + jnp.where(hit_BQ, d_logp_B1, 0)

    d_p_N = d_lse_N - d_logp_N - d_entropy_N * entropy_N
    return _gradients(
        [_Model(hidden_ND, head, logits)],
        num_live,
        (target_N, lse_N),
        (d_p_N, d_entropy_N, d_logp_N),
        d_logits,
    )


def kl_stats(
    hidden_ND: jax.Array,
    head: Head,
    teacher_hidden_NE: jax.Array,
    teacher_head: Head,
    num_live: jax.Array,
    logits: Logits,
    teacher_logits: Logits,
) -> KLStats:
    """Maximum, sum and dot product of student and teacher, from the same tiles."""

    def tile(start, block, z, carry):
        old = _at(block, carry)
        apart_BQ = z[0] - z[1]
        top_B, shift_B, e_BQ = _exponentials(old.top_N, z[0])
        sum_B = shift_B * old.sum_N + e_BQ.sum(axis=1)
        dot_B = shift_B * old.dot_N + (e_BQ * apart_BQ).sum(axis=1)
        student = (top_B, sum_B, dot_B)
        top_B, shift_B, e_BQ = _exponentials(old.teacher_top_N, z[1])
        sum_B = shift_B * old.teacher_sum_N + e_BQ.sum(axis=1)
        dot_B = shift_B * old.teacher_dot_N - (e_BQ * apart_BQ).sum(axis=1)
        return _put(block, carry, KLStats(*student, top_B, sum_B, dot_B), old)

    models = [
        _Model(hidden_ND, head, logits),
        _Model(teacher_hidden_NE, teacher_head, teacher_logits),
    ]
    arrays = [(m.hidden_ND, m.head) for m in models]
    zero_N = _zeros(hidden_ND.shape[:1], arrays, num_live)
    init = KLStats(*[_lowest(zero_N), zero_N, zero_N] * 2)
    return _over_tiles(models, num_live, tile, init)


def kl_grads(
    hidden_ND: jax.Array,
    head: Head,
    teacher_hidden_NE: jax.Array,
    teacher_head: Head,
    num_live: jax.Array,
    lse_N: jax.Array,
    teacher_lse_N: jax.Array,
    reverse_N: jax.Array,
    d_reverse_N: jax.Array,
    d_forward_N: jax.Array,
    logits: Logits,
    teacher_logits: Logits,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Gradients by the student's hidden states, weight and bias.

    d_z = d_reverse * p_s * (log p_s - log p_t - reverse) + d_forward * (p_s - p_t)
    """

    def d_logits(start, z, known, cotangents):
        lse_B1, teacher_lse_B1, reverse_B1 = (x[:, None] for x in known)
        d_reverse_B1, d_forward_B1 = (x[:, None] for x in cotangents)
        logp_BQ, teacher_logp_BQ = z[0] - lse_B1, z[1] - teacher_lse_B1
        d_p_BQ = d_reverse_B1 * (logp_BQ - teacher_logp_BQ - reverse_B1) + d_forward_B1
        return jnp.exp(logp_BQ) * d_p_BQ - d_forward_B1 * jnp.exp(teacher_logp_BQ)

    models = [
        _Model(hidden_ND, head, logits),
        _Model(teacher_hidden_NE, teacher_head, teacher_logits),
    ]
    known, cotangents = (lse_N, teacher_lse_N, reverse_N), (d_reverse_N, d_forward_N)
    return _gradients(models, num_live, known, cotangents, d_logits)


def _gradients(
    models: Sequence[_Model],
    num_live: jax.Array,
    known: Any,
    cotangents: Any,
    d_logits: Callable[..., jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Gradients of the first model.

    Args:
        known, cotangents: trees of [N] arrays; d_z is linear in the second.
        d_logits: (start, z of each model, known, cotangents) of a tile to d_z_BQ.
    """
    hidden_ND, head, logits = models[0]
    arrays = [(m.hidden_ND, m.head) for m in models], num_live, known, cotangents

    def chunk(start, parts, carry):
        d_hidden_ND, d_head = carry

        def tile(block, carry):
            d_hidden_ND, d_part = carry
            hidden_BD, felt = _at(block, (hidden_ND, cotangents))
            # So that no token is counted twice.
            felt = jax.tree.map(lambda x: jnp.where(block.new_B, x, 0), felt)
            z = _logits(models, parts, block)
            d_z_BQ = d_logits(start, z, _at(block, known), felt) * _slope(z[0], logits)
            of_hidden_BD, of_part = _through(d_z_BQ, hidden_BD, parts[0], logits)
            old_BD = _at(block, d_hidden_ND)
            d_hidden_ND = _put(block, d_hidden_ND, old_BD + of_hidden_BD)
            return d_hidden_ND, jax.tree.map(jnp.add, d_part, of_part)

        d_part = jax.tree.map(lambda x: _zeros(x.shape, arrays), parts[0])
        N = hidden_ND.shape[0]
        d_hidden_ND, d_part = _over_blocks(N, num_live, tile, (d_hidden_ND, d_part))
        return d_hidden_ND, _with_part(d_head, d_part, start, logits)

    init = (
        _zeros(hidden_ND.shape, arrays),
        jax.tree.map(lambda x: _zeros(x.shape, arrays).astype(x.dtype), head),
    )
    d_hidden_ND, d_head = _over_chunks(models, chunk, init)
    return d_hidden_ND.astype(hidden_ND.dtype), d_head.weight, d_head.bias_V


def _over_tiles(models, num_live, tile, carry):
    """Calls tile(start, block, z of each model, carry) over all tiles."""

    def chunk(start, parts, carry):
        def inner(block, carry):
            return tile(start, block, _logits(models, parts, block), carry)

        return _over_blocks(models[0].hidden_ND.shape[0], num_live, inner, carry)

    return _over_chunks(models, chunk, carry)


def _over_chunks(models, body, carry):
    """Calls body(start, part of each head, carry); the last chunk may be short."""
    _, head, logits = models[0]
    V = head.weight.shape[logits.vocab_dim]

    def chunk(start, size, carry):
        return body(start, [_part(m, start, size) for m in models], carry)

    if V >= CHUNK:
        carry = jax.lax.fori_loop(
            0, V // CHUNK, lambda i, c: chunk(i * CHUNK, CHUNK, c), carry
        )
    if V % CHUNK:
        carry = chunk(V - V % CHUNK, V % CHUNK, carry)
    return carry


def _over_blocks(N, num_live, body, carry):
    """Calls body(block, carry) on the blocks with live tokens; the last may overlap."""
    B = min(BLOCK, N)

    def step(i, carry):
        first = jnp.minimum(i * B, N - B)
        return body(_Block(first, first + jnp.arange(B) >= i * B), carry)

    return jax.lax.fori_loop(0, (num_live + B - 1) // B, step, carry)


def _at(block, tree):
    B = block.new_B.size
    return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, block.first, B), tree)


def _put(block, tree, new, old=None):
    """`tree` with `new` in place of the block; where it is not new, `old` if given."""
    if old is not None:
        new = jax.tree.map(lambda n, o: jnp.where(block.new_B, n, o), new, old)
    return jax.tree.map(
        lambda x, n: jax.lax.dynamic_update_slice_in_dim(x, n, block.first, axis=0),
        tree,
        new,
    )


def _part(model, start, size):
    """Some words of the head, in the dtype of the products."""
    weight, bias_V = model.head
    weight = jax.lax.dynamic_slice_in_dim(weight, start, size, model.logits.vocab_dim)
    if bias_V is not None:
        bias_V = jax.lax.dynamic_slice_in_dim(bias_V, start, size)
    return Head(weight.astype(_wide(model.hidden_ND, weight)), bias_V)


def _with_part(head, part, start, logits):
    def put(x, new, axis):
        new = new.astype(x.dtype)
        return jax.lax.dynamic_update_slice_in_dim(x, new, start, axis)

    bias_V = None if head.bias_V is None else put(head.bias_V, part.bias_V, 0)
    return Head(put(head.weight, part.weight, logits.vocab_dim), bias_V)


def _logits(models, parts, block):
    """z_BQ of each model."""
    return [
        _tile_logits(_at(block, m.hidden_ND), part, m.logits)
        for m, part in zip(models, parts, strict=True)
    ]


def _tile_logits(hidden_BD, part, logits):
    z_BQ = _dot(hidden_BD.astype(part.weight.dtype), part.weight, 1, logits.width_dim)
    if part.bias_V is not None:
        z_BQ += part.bias_V
    if logits.softcap:
        z_BQ = logits.softcap * jnp.tanh(z_BQ / logits.softcap)
    return z_BQ / logits.temperature


def _slope(z_BQ, logits):
    """Derivative of z by the bare logits."""
    if not logits.softcap:
        return 1 / logits.temperature
    capped_BQ = z_BQ * (logits.temperature / logits.softcap)
    return (1 - capped_BQ**2) / logits.temperature


def _through(d_z_BQ, hidden_BD, part, logits):
    """Gradients by hidden states and a part of the head, from those by bare logits."""
    wide = part.weight.dtype
    d_bias_Q = None if part.bias_V is None else d_z_BQ.sum(axis=0)
    d_z_BQ, hidden_BD = d_z_BQ.astype(wide), hidden_BD.astype(wide)
    d_hidden_BD = _dot(d_z_BQ, part.weight, 1, logits.vocab_dim)
    if logits.layout == "VD":
        return d_hidden_BD, Head(_dot(d_z_BQ, hidden_BD, 0, 0), d_bias_Q)
    return d_hidden_BD, Head(_dot(hidden_BD, d_z_BQ, 0, 0), d_bias_Q)


def _dot(a, b, a_dim, b_dim):
    return jax.lax.dot_general(
        a,
        b,
        (((a_dim,), (b_dim,)), ((), ())),
        preferred_element_type=jnp.promote_types(a.dtype, jnp.float32),
        # A float32 head is asked for to be exact; TPUs would round it to bfloat16.
        precision=jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None,
    )


def _exponentials(old_top_B, z_BQ):
    """(the new maximum, exp of what the old one lies below it, exp(z - maximum))."""
    top_B = jnp.maximum(old_top_B, z_BQ.max(axis=1))
    return top_B, jnp.exp(old_top_B - top_B), jnp.exp(z_BQ - top_B[:, None])


def _picked(z_BQ, index_B):
    """z at each token's index, 0 where that is outside of the chunk."""
    inside_B = (index_B >= 0) & (index_B < z_BQ.shape[1])
    z_B1 = jnp.take_along_axis(z_BQ, index_B[:, None], axis=1, mode="clip")
    return jnp.where(inside_B, z_B1[:, 0], 0)


def _wide(*arrays):
    return jnp.result_type(*[x.dtype for x in arrays])


def _zeros(shape, *like):
    """Zeros of the dtype of sums, varying over every mesh axis that `like` vary over.

    Inside `jax.shard_map` what a loop carries must vary from the start.
    """
    arrays = jax.tree.leaves(like)
    kinds: list[Any] = [jax.typeof(x) for x in arrays]
    axes = tuple(frozenset().union(*(k.manual_axis_type.varying for k in kinds)))
    floats = [x for x in arrays if jnp.issubdtype(x.dtype, jnp.floating)]
    zeros = jnp.zeros(shape, jnp.promote_types(_wide(*floats), jnp.float32))
    return jax.lax.pcast(zeros, axes, to="varying") if axes else zeros


def _lowest(x):
    """A maximum of nothing: finite, and so are differences from it."""
    return jnp.full_like(x, jnp.finfo(x.dtype).min / 2)
