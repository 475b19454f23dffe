"""Bodies of the TPU kernels of the log-probability; tpu.py calls them.

A tile of logits is made with the vocabulary along sublanes and tokens along lanes, so
that sums over the vocabulary are plain additions of registers. Every name with shape
letters is a tile, in VMEM: N tokens, V words, D (E the teacher's) the whole width, R
eights of words, K rows of numbers, C some columns of the width, 8 and 1 themselves.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from .blocks import Blocks
from .head import Logits
from .tpu_sums import Sums

# Stands for -inf where a difference of two of them must be 0, not NaN.
LOWEST = -1e30
_F32 = jnp.float32


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a kernel knows when it is traced.

    Attributes:
        V: of the whole head of this shard.
        logits, biased: of each model.
        targets: True if targets are among the inputs.
        interpret: True if XLA's CPU compiler sees the kernel.
    """

    blocks: Blocks
    V: int
    logits: tuple[Logits, ...]
    biased: tuple[bool, ...]
    targets: bool
    interpret: bool

    @property
    def num_vocab_tiles(self) -> int:
        return pl.cdiv(self.V, self.blocks.vocab)

    @property
    def cores(self) -> int:
        """How many share the tiles of the vocabulary, backward."""
        return min(self.blocks.cores, self.num_vocab_tiles)

    @property
    def core_tiles(self) -> int:
        """Tiles of the vocabulary that a core goes through; the last may have fewer."""
        return pl.cdiv(self.num_vocab_tiles, self.cores)


def last_tile(num_live, tokens: int):
    """The last tile with a live token, or 0."""
    return jax.lax.div(jnp.maximum(num_live - 1, 0), tokens)


# What the kernels share.


class _Block(NamedTuple):
    """One model's blocks in VMEM."""

    logits: Logits
    hidden_ND: Any
    weight: Any
    bias_1V: Any
    interpret: bool

    @property
    def dtype(self):
        return jnp.promote_types(self.hidden_ND.dtype, self.weight.dtype)


def _take(plan, refs) -> tuple[list[_Block], Any, list]:
    """(each model's block, targets or None, the references after them)."""
    refs = list(refs)
    models = []
    for logits, biased in zip(plan.logits, plan.biased, strict=True):
        hidden_ND, weight = refs.pop(0), refs.pop(0)
        bias_1V = refs.pop(0) if biased else None
        models.append(_Block(logits, hidden_ND, weight, bias_1V, plan.interpret))
    return models, refs.pop(0) if plan.targets else None, refs


def _dot(a, b, dims):
    exact = a.dtype == jnp.float32
    return jax.lax.dot_general(
        a,
        b,
        (((dims[0],), (dims[1],)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if exact else None,
        preferred_element_type=_F32,
    )


def _z(model: _Block, start, rows: int):
    """z of `rows` words from `start` on, float32 [rows, tokens]."""
    logits = model.logits
    words = pl.ds(start, rows)
    hidden_ND = model.hidden_ND[...].astype(model.dtype)
    if logits.layout == "VD":
        z_VN = _dot(model.weight[words, :].astype(model.dtype), hidden_ND, (1, 1))
    else:
        weight_DV = model.weight[:, words].astype(model.dtype)
        if model.interpret:  # XLA's CPU dot cannot give a transposed bfloat16 product
            hidden_ND, weight_DV = hidden_ND.astype(_F32), weight_DV.astype(_F32)
        z_VN = _dot(hidden_ND, weight_DV, (1, 0)).T
    if model.bias_1V is not None:
        bias_8V = jnp.broadcast_to(model.bias_1V[:, words], (8, rows))
        z_VN += bias_8V.T[:, :1]
    if logits.softcap:
        z_VN = logits.softcap * jnp.tanh(z_VN * (1 / logits.softcap))
    if logits.temperature != 1:
        z_VN *= 1 / logits.temperature
    return z_VN


def _spans(size, step, body):
    """Calls body(start, length) along `size`; the last length may be shorter."""

    def one(i, carry):
        body(pl.multiple_of(i * step, step), step)
        return carry

    if size >= step:
        jax.lax.fori_loop(0, size // step, one, 0)
    if size % step:
        body(size - size % step, size % step)


def _pairs(size, step, body):
    """As `_spans`, two steps a trip: one's matmul hides the other's arithmetic."""

    def both(start, length):
        for done in range(0, length, step):
            body(start + done, min(step, length - done))

    _spans(size, 2 * step, both)


def _clear(ref, axis, first, step):
    """Zeroes a block from index `first` of one of its two axes on."""

    def clear(start, length):
        span = pl.ds(start, length)
        at = (slice(None), span) if axis == 0 else (span, slice(None))
        x = ref[at]
        index = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)
        ref[at] = jnp.where(index < first, x, jnp.zeros_like(x))

    _spans(ref.shape[1 - axis], step, clear)


# Forward.


def stats_kernel(live_ref, *refs, plan: Plan):
    (model,), target_1N, (out_KN, sums_K8N) = _take(plan, refs)
    v = pl.program_id(1)

    def words(start, rows):
        first = v * plan.blocks.vocab + start
        z_R8N = _by_eights(_z(model, start, rows), plan, first)
        e_R8N, x_R8N, scale_8N, fall_8N = _raise_top(sums_K8N, 0, z_R8N)
        sum_8N, dot_8N = sums_K8N[1], sums_K8N[2]
        sums_K8N[1] = scale_8N * sum_8N + e_R8N.sum(0)
        sums_K8N[2] = scale_8N * (dot_8N + fall_8N * sum_8N) + (e_R8N * x_R8N).sum(0)
        hit_R8N = _word_ids(z_R8N.shape) == target_1N[...] - first
        sums_K8N[3] += jnp.where(hit_R8N, z_R8N, 0.0).sum(0)

    _over_words(plan, live_ref, sums_K8N, words)

    @pl.when(v == plan.num_vocab_tiles - 1)
    def _():
        top_1N, scale_8N, fall_8N = _whole_top(sums_K8N[0])
        dot_8N = scale_8N * (sums_K8N[2] + fall_8N * sums_K8N[1])
        rows = (scale_8N * sums_K8N[1], dot_8N, sums_K8N[3])
        out_KN[0:1] = top_1N
        for i, x_8N in enumerate(rows):
            out_KN[i + 1 : i + 2] = x_8N.sum(0, keepdims=True)


def kl_stats_kernel(live_ref, *refs, plan: Plan):
    (student, teacher), _none, (out_KN, sums_K8N) = _take(plan, refs)
    v = pl.program_id(1)

    def words(start, rows):
        first = v * plan.blocks.vocab + start
        z_R8N = _by_eights(_z(student, start, rows), plan, first)
        teacher_z_R8N = _by_eights(_z(teacher, start, rows), plan, first)
        apart_R8N = z_R8N - teacher_z_R8N
        for i, z_R8N, sign in ((0, z_R8N, 1), (3, teacher_z_R8N, -1)):
            e_R8N, _x, scale_8N, _fall = _raise_top(sums_K8N, i, z_R8N)
            dot_8N = sign * (e_R8N * apart_R8N).sum(0)
            sums_K8N[i + 1] = scale_8N * sums_K8N[i + 1] + e_R8N.sum(0)
            sums_K8N[i + 2] = scale_8N * sums_K8N[i + 2] + dot_8N

    _over_words(plan, live_ref, sums_K8N, words)

    @pl.when(v == plan.num_vocab_tiles - 1)
    def _():
        for i in (0, 3):
            top_1N, scale_8N, _fall = _whole_top(sums_K8N[i])
            out_KN[i : i + 1] = top_1N
            for j in (i + 1, i + 2):
                out_KN[j : j + 1] = (scale_8N * sums_K8N[j]).sum(0, keepdims=True)


def _over_words(plan, live_ref, sums_K8N, words):
    """Calls words(start, rows) over a tile of live tokens, from clear sums on."""
    t, v = pl.program_id(0), pl.program_id(1)
    rows = plan.blocks.rows

    @pl.when(v == 0)
    def _():
        for i in range(sums_K8N.shape[0]):
            fill = LOWEST if i in (0, 3 * (len(plan.logits) - 1)) else 0.0
            sums_K8N[i] = jnp.full(sums_K8N.shape[1:], fill, _F32)

    @pl.when(t * plan.blocks.tokens < live_ref[0])
    def _():
        _pairs(plan.blocks.vocab, rows, words)


def _by_eights(z_VN, plan, first):
    """[rows / 8, 8, tokens], lowest where there is no such word."""
    z_R8N = z_VN.reshape(-1, 8, z_VN.shape[1])
    if plan.V % plan.blocks.vocab == 0:
        return z_R8N
    return jnp.where(_word_ids(z_R8N.shape) < plan.V - first, z_R8N, LOWEST)


def _word_ids(shape):
    iota = functools.partial(jax.lax.broadcasted_iota, jnp.int32, shape)
    return iota(0) * 8 + iota(1)


def _raise_top(sums_K8N, i, z_R8N):
    """Raises the top in row i.

    Returns:
        (exp(z - top), z - top, what older sums shrink by, old top - top).
    """
    old_8N = sums_K8N[i]
    top_8N = jnp.maximum(old_8N, z_R8N.max(0))
    sums_K8N[i] = top_8N
    x_R8N = z_R8N - top_8N
    fall_8N = old_8N - top_8N
    return jnp.exp(x_R8N), x_R8N, jnp.exp(fall_8N), fall_8N


def _whole_top(top_8N):
    """(top of the eight, what each one's sums shrink by, top of each - top)."""
    top_1N = top_8N.max(0, keepdims=True)
    fall_8N = top_8N - top_1N
    return top_1N, jnp.exp(fall_8N), fall_8N


# Backward.


def logprob_d_z(z_VN, of_token_KN, hit_VN):
    lse_1N, rest_1N, d_entropy_1N, d_logp_1N = (
        of_token_KN[i : i + 1] for i in range(4)
    )
    logp_VN = z_VN[0] - lse_1N
    d_z_VN = jnp.exp(logp_VN) * (rest_1N - d_entropy_1N * logp_VN)
    return d_z_VN + jnp.where(hit_VN, d_logp_1N, 0.0)


def kl_d_z(z_VN, of_token_KN, hit_VN):
    """d_z of `tpu.kl_grads` from the z of student and teacher."""
    lse_1N, teacher_lse_1N, reverse_1N, d_reverse_1N, d_forward_1N = _rows(
        of_token_KN, 5
    )
    logp_VN = z_VN[0] - lse_1N
    teacher_logp_VN = z_VN[1] - teacher_lse_1N
    apart_VN = logp_VN - teacher_logp_VN - reverse_1N
    d_z_VN = jnp.exp(logp_VN) * (d_reverse_1N * apart_VN + d_forward_1N)
    return d_z_VN - d_forward_1N * jnp.exp(teacher_logp_VN)


def grads_kernel(live_ref, *refs, plan: Plan, d_z, num_parts: int):
    """All gradients: d_weight's tile in VMEM, d_hidden's sums in `num_parts` arrays."""
    models, target_1N, refs = _take(plan, refs)
    of_token_KN, d_weight, *refs = refs
    d_bias_1V = refs.pop(0) if plan.biased[0] else None
    arrays = [[refs.pop(0) for _ in range(num_parts)] for _ in range(plan.cores)]
    buffers = [refs.pop(0) for _ in range(num_parts)]
    semaphores, d_weight_VD, d_z_VN, d_z_NV, *d_bias = refs
    blocks, student = plan.blocks, models[0]
    core, i, t = (pl.program_id(axis) for axis in range(3))
    v = core * plan.core_tiles + i
    num_live, first = live_ref[0], t * blocks.tokens
    # A core may have a tile of the vocabulary less than the others.
    mine = v < plan.num_vocab_tiles
    last_i = jnp.minimum(plan.core_tiles, plan.num_vocab_tiles - v + i) - 1
    num_tiles = last_tile(num_live, blocks.tokens) + 1
    sums = Sums(arrays, buffers, semaphores, core, (i, t), num_tiles, last_i)
    last_word = plan.V % blocks.vocab  # of the last tile; 0: that tile is whole

    @pl.when(mine & (t == 0))
    def _():
        _clear(d_weight_VD, 0, 0, blocks.columns)
        for ref in d_bias:
            _clear(ref, 0, 0, 128)
        if last_word:

            @pl.when(v == plan.num_vocab_tiles - 1)
            def _():
                vocab_dim = student.logits.vocab_dim
                _clear(student.weight, vocab_dim, last_word, blocks.columns)

    @pl.when(mine & (first < num_live))
    def _():
        @pl.when(first + blocks.tokens > num_live)
        def _():
            for model in models:
                _clear(model.hidden_ND, 0, num_live - first, blocks.columns)

        _make_d_z(plan, models, target_1N, of_token_KN, d_z, v, d_z_VN, d_z_NV, d_bias)
        if last_word:

            @pl.when(v == plan.num_vocab_tiles - 1)
            def _():
                _clear(d_z_NV, 1, last_word, blocks.columns)

        slot = sums.fetch()

        @pl.when(i == 0)
        def _():
            for buffer in buffers:
                _clear(buffer.at[slot], 0, 0, blocks.columns)

        _add_products(blocks, student, d_z_VN, d_z_NV, d_weight_VD, sums, slot)
        if plan.cores == 1:

            @pl.when(i == last_i)
            def _():
                D, step = d_weight_VD.shape[1], blocks.columns
                _spans(D, step, lambda at, size: sums.round(slot, pl.ds(at, size)))

        sums.store(slot)

    if plan.cores == 1:
        pl.when((i == last_i) & (first >= num_live))(sums.store_zeros)

    @pl.when(mine & (t == pl.num_programs(2) - 1))
    def _():
        _give(blocks, student.logits.layout, d_weight_VD, d_weight)
        if d_bias_1V is not None:
            d_bias_1V[...] = d_bias[0][...].T.sum(0, keepdims=True)


def _add_products(blocks, student, d_z_VN, d_z_NV, d_weight_VD, sums, slot):
    """Adds d_z.T @ hidden to d_weight, and d_z @ weight to the sums of d_hidden."""

    def add(start, length):
        at = pl.ds(start, length)
        hidden_NC = student.hidden_ND[:, at].astype(student.dtype)
        d_weight_VD[:, at] += _dot(d_z_VN[...], hidden_NC, (1, 0))
        if student.logits.layout == "VD":
            weight_VC = student.weight[:, at].astype(student.dtype)
            d_hidden_NC = _dot(d_z_NV[...], weight_VC, (1, 0))
        else:
            weight_CV = student.weight[at, :].astype(student.dtype)
            d_hidden_NC = _dot(d_z_NV[...], weight_CV, (1, 1))
        sums.add(slot, at, d_hidden_NC)

    _spans(d_weight_VD.shape[1], blocks.columns, add)


def _give(blocks, layout, d_weight_VD, d_weight):
    """Hands a tile of d_weight over, in the layout and the dtype of the weight."""

    def give(start, length):
        at = pl.ds(start, length)
        x_VC = d_weight_VD[:, at]
        if layout == "VD":
            d_weight[:, at] = x_VC.astype(d_weight.dtype)
        else:
            d_weight[at, :] = x_VC.T.astype(d_weight.dtype)

    _spans(d_weight_VD.shape[1], blocks.columns, give)


def _make_d_z(plan, models, target_1N, of_token_KN, d_z, v, d_z_VN, d_z_NV, d_bias):
    """Fills a tile of d_z and its transpose, and adds to d_bias."""
    logits = models[0].logits

    def words(start, rows):
        z_VN = [_z(model, start, rows) for model in models]
        hit_VN = None
        if target_1N is not None:
            word_VN = jax.lax.broadcasted_iota(jnp.int32, z_VN[0].shape, 0)
            hit_VN = word_VN == target_1N[...] - (v * plan.blocks.vocab + start)
        x_VN = d_z(z_VN, of_token_KN, hit_VN)
        if logits.softcap:
            slope_VN = z_VN[0] * (logits.temperature / logits.softcap)
            x_VN *= 1.0 - slope_VN * slope_VN
        for ref in d_bias:
            tokens = x_VN.shape[1]
            ref[pl.ds(start, rows), :] += sum(
                x_VN[:, n : n + 128] for n in range(0, tokens, 128)
            )
        x_VN = x_VN.astype(d_z_VN.dtype)
        d_z_VN[pl.ds(start, rows), :] = x_VN
        d_z_NV[:, pl.ds(start, rows)] = x_VN.T

    _pairs(plan.blocks.vocab, plan.blocks.rows, words)


def _rows(x_KN, num):
    return (x_KN[i : i + 1] for i in range(num))
