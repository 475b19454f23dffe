"""Log-probability kernels for TPUs, in Pallas (Mosaic).

Four kernels, named as an HLO shows them: `logprob_stats` and `logprob_kl_stats`
(forward), `logprob_grads` and `logprob_kl_grads` (backward, one kernel each). Here are
the arrays and how they are cut into blocks; the bodies are in tpu_kernels.py, the sizes
of blocks in blocks.py.

Backward, a tile of the vocabulary stays in VMEM with its float32 d_weight while all
tokens pass; the float32 sums of d_hidden live in HBM (tpu_sums.py).

Tiles of tokens from `num_live` on are skipped, their copies too: their block indices
are those of the last live tile, and a block that stays is not fetched again. Edges need
no padded copy of anything: what lies outside of an array is cleared in VMEM where a
product would spread it.

Legend: N tokens, D model width (E the teacher's), V vocabulary of this shard, K rows of
numbers of each token.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..platform import GENERATIONS, Generation, KernelError, result, tpu_generation
from . import tpu_kernels as kernels
from .blocks import (
    Blocks,
    Width,
    grads_blocks,
    round_up,
    stats_blocks,
    vmem_limit_bytes,
)
from .head import Head, KLStats, Logits, Stats
from .tpu_kernels import LOWEST, Plan, last_tile
from .tpu_sums import num_arrays, total_kernel

_F32 = jnp.float32


def stats(
    hidden_ND: jax.Array,
    head: Head,
    target_N: jax.Array,
    num_live: jax.Array,
    logits: Logits,
    *,
    interpret: bool = False,
    blocks: Blocks | None = None,
) -> Stats:
    """As head.py says; masked tokens get (0, 1, 0, 0). `blocks` overrides the rule."""
    models = (_Model(hidden_ND, head, logits),)
    call = _Call("stats", models, target_N, num_live, interpret, blocks)
    return Stats(*_forward(call, kernels.stats_kernel, fill=(0.0, 1.0, 0.0, 0.0)))


def kl_stats(
    hidden_ND: jax.Array,
    head: Head,
    teacher_hidden_NE: jax.Array,
    teacher_head: Head,
    num_live: jax.Array,
    logits: Logits,
    teacher_logits: Logits,
    *,
    interpret: bool = False,
    blocks: Blocks | None = None,
) -> KLStats:
    """As head.py says; masked tokens get (0, 1, 0) twice."""
    student = _Model(hidden_ND, head, logits)
    teacher = _Model(teacher_hidden_NE, teacher_head, teacher_logits)
    call = _Call("kl_stats", (student, teacher), None, num_live, interpret, blocks)
    return KLStats(*_forward(call, kernels.kl_stats_kernel, fill=(0.0, 1.0, 0.0) * 2))


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
    *,
    interpret: bool = False,
    blocks: Blocks | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """As head.py says.

    d_z = d_logp * (onehot - p) - d_entropy * p * (logp + entropy) + d_lse * p
        = d_logp * onehot + p * (rest - d_entropy * logp)
    with rest = d_lse - d_logp - d_entropy * entropy.
    """
    models = (_Model(hidden_ND, head, logits),)
    call = _Call("grads", models, target_N, num_live, interpret, blocks)
    rest_N = d_lse_N - d_logp_N - d_entropy_N * entropy_N
    d_K = (x / logits.temperature for x in (rest_N, d_entropy_N, d_logp_N))
    return _backward(call, kernels.logprob_d_z, (lse_N,), tuple(d_K))


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
    *,
    interpret: bool = False,
    blocks: Blocks | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """As head.py says, of the student only.

    d_z = d_reverse * p * (logp - logq - reverse) + d_forward * (p - q)
    """
    student = _Model(hidden_ND, head, logits)
    teacher = _Model(teacher_hidden_NE, teacher_head, teacher_logits)
    call = _Call("kl_grads", (student, teacher), None, num_live, interpret, blocks)
    d_K = (x / logits.temperature for x in (d_reverse_N, d_forward_N))
    lse_K = (lse_N, teacher_lse_N)
    return _backward(call, kernels.kl_d_z, lse_K, (reverse_N, *d_K))


class _Model(NamedTuple):
    """Hidden states, a head, and how logits come from them."""

    hidden_ND: jax.Array
    head: Head
    logits: Logits

    @property
    def width(self) -> Width:
        itemsizes = (x.dtype.itemsize for x in (self.hidden_ND, self.head.weight))
        return Width(self.hidden_ND.shape[1], *itemsizes)

    def as_stored(self) -> "_Model":
        """The same with its weight's axes in the order in which a TPU stores them.

        XLA lays out a program's arguments so that tiles of 8 x 128 are padded least: a
        [D, 50257] weight lies in memory as [50257, D]. Taken like that, it need not be
        copied.
        """
        weight = self.head.weight
        rows, columns = weight.shape
        if _padded(rows, columns) <= _padded(columns, rows):
            return self
        layout = "DV" if self.logits.layout == "VD" else "VD"
        return _Model(
            self.hidden_ND,
            self.head._replace(weight=weight.T),
            dataclasses.replace(self.logits, layout=layout),
        )


def _padded(rows, columns):
    return round_up(rows, 8) * round_up(columns, 128)


class _Call(NamedTuple):
    """What all four have in common; the student is the first model."""

    name: str
    models: tuple[_Model, ...]
    target_N: jax.Array | None
    num_live: jax.Array
    interpret: bool
    blocks: Blocks | None


def _forward(call: _Call, kernel: Callable, fill: tuple[float, ...]) -> list[jax.Array]:
    """The kernel's statistics, [N] float32 each, and `fill` of masked tokens."""
    call = call._replace(models=tuple(model.as_stored() for model in call.models))
    generation, N, plan = _plan(call, stats_blocks)
    tokens, last_v = plan.blocks.tokens, plan.num_vocab_tiles - 1

    def token_tile(t, v, live):
        return jnp.minimum(t, last_tile(live[0], tokens))

    def vocab_tile(t, v, live):
        return jnp.where(t * tokens < live[0], v, last_v)

    inputs, in_specs = _inputs(call, plan.blocks, token_tile, vocab_tile)
    (stats_KN,) = _pallas_call(
        call,
        functools.partial(kernel, plan=plan),
        generation,
        grid=(pl.cdiv(N, tokens), plan.num_vocab_tiles),
        semantics=("parallel", "arbitrary"),
        inputs=inputs,
        in_specs=in_specs,
        out_shape=[result((8, N), _F32, call.num_live, *inputs)],
        out_specs=[pl.BlockSpec((8, tokens), lambda t, v, live: (0, t))],
        scratch_shapes=[pltpu.VMEM((len(fill), 8, tokens), _F32)],
    )
    live_N = jnp.arange(N) < call.num_live
    return [jnp.where(live_N, stats_KN[i], x) for i, x in enumerate(fill)]


def _backward(call: _Call, d_z: Callable, lse_K: tuple, others_K: tuple):
    """The student's gradients, from each token's log-normalisers and other numbers."""
    layout = call.models[0].logits.layout
    call = call._replace(models=tuple(model.as_stored() for model in call.models))
    generation, N, plan = _plan(call, grads_blocks)
    student, blocks = call.models[0], plan.blocks
    weight, D = student.head.weight, student.hidden_ND.shape[1]
    num_tiles = pl.cdiv(N, blocks.tokens)

    def token_tile(core, i, t, live):
        return jnp.minimum(t, last_tile(live[0], blocks.tokens))

    def out_tile(core, i, t, live):
        # A core that has one tile less than the others stays at its last one.
        return jnp.minimum(core * plan.core_tiles + i, plan.num_vocab_tiles - 1)

    def vocab_tile(core, i, t, live):
        return jnp.where(live[0] > 0, out_tile(core, i, t, live), 0)

    # Masked tokens, and those that fill the last tile: p = exp(z - 1e30) = 0, and all
    # else of theirs is 0.
    padding = (0, num_tiles * blocks.tokens - N)
    live_N = jnp.arange(N + padding[1]) < call.num_live
    rows_KN = [(x, -LOWEST) for x in lse_K] + [(x, 0.0) for x in others_K]
    of_token_KN = jnp.stack(
        [jnp.where(live_N, jnp.pad(x, padding), fill) for x, fill in rows_KN]
    )
    of_token_KN = jnp.pad(of_token_KN, ((0, 8 - len(rows_KN)), (0, 0)))
    inputs, in_specs = _inputs(call, blocks, token_tile, vocab_tile)
    inputs.append(of_token_KN)
    in_specs.append(_token_spec(8, blocks, token_tile))
    like = (call.num_live, *inputs)
    product = jnp.promote_types(student.hidden_ND.dtype, weight.dtype)
    num_parts = num_arrays(student.hidden_ND.dtype)
    out = [(weight.shape, weight.dtype, _weight_spec(student, blocks, out_tile))]
    scratch_shapes = [
        *[pltpu.VMEM((2, blocks.tokens, D), student.hidden_ND.dtype)] * num_parts,
        pltpu.SemaphoreType.DMA((2, num_parts)),
        pltpu.VMEM((blocks.vocab, D), _F32),
        pltpu.VMEM((blocks.vocab, blocks.tokens), product),
        pltpu.VMEM((blocks.tokens, blocks.vocab), product),
    ]
    if plan.biased[0]:
        out.append(((1, plan.V), _F32, _vocab_spec(blocks, out_tile)))
        scratch_shapes.append(pltpu.VMEM((blocks.vocab, 128), _F32))
    sums_shape = (num_tiles * blocks.tokens, D)
    in_memory = pl.BlockSpec(memory_space=pl.ANY)
    out += [(sums_shape, student.hidden_ND.dtype, in_memory)] * num_parts * plan.cores
    d_weight, *rest = _pallas_call(
        call,
        functools.partial(
            kernels.grads_kernel, plan=plan, d_z=d_z, num_parts=num_parts
        ),
        generation,
        grid=(plan.cores, plan.core_tiles, num_tiles),
        semantics=("parallel", "arbitrary", "arbitrary"),
        inputs=inputs,
        in_specs=in_specs,
        out_shape=[result(shape, dtype, *like) for shape, dtype, _ in out],
        out_specs=[spec for *_, spec in out],
        scratch_shapes=scratch_shapes,
    )
    if student.logits.layout != layout:
        d_weight = d_weight.T
    d_bias_V = None
    if student.head.bias_V is not None:
        d_bias_V = rest.pop(0)[0].astype(student.head.bias_V.dtype)
    if plan.cores > 1:
        rest = _total(call, generation, plan, rest, num_parts)
    return rest[0][:N], d_weight, d_bias_V


def _total(call: _Call, generation: Generation, plan: Plan, sums: list, num_parts: int):
    """Adds up the cores' sums of d_hidden, in the memory of the first."""
    num_tokens, D = sums[0].shape
    tokens = plan.blocks.tokens
    columns = D if D % 128 else math.gcd(D, plan.blocks.columns)
    spec = pl.BlockSpec((tokens, columns), lambda t, c, live: (t, c))
    return _pallas_call(
        call._replace(name="total"),
        functools.partial(total_kernel, num_parts=num_parts),
        generation,
        grid=(num_tokens // tokens, D // columns),
        semantics=("parallel", "arbitrary"),
        inputs=sums,
        in_specs=[spec] * len(sums),
        out_shape=[result(sums[0].shape, sums[0].dtype, call.num_live, *sums)],
        out_specs=[spec],
        scratch_shapes=[],
        aliases={1: 0},  # past num_live
    )


def _pallas_call(
    call: _Call,
    kernel: Callable,
    generation: Generation,
    *,
    grid: tuple[int, ...],
    semantics: Any,
    inputs: list,
    in_specs: list,
    out_shape: list,
    out_specs: list,
    scratch_shapes: list,
    aliases: dict[int, int] | None = None,
) -> Any:
    return pl.pallas_call(
        kernel,
        out_shape=out_shape,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid,
            in_specs=in_specs,
            out_specs=out_specs,
            scratch_shapes=scratch_shapes,
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=semantics,
            vmem_limit_bytes=vmem_limit_bytes(generation),
        ),
        input_output_aliases=aliases or {},
        interpret=pltpu.InterpretParams() if call.interpret else False,
        name=f"logprob_{call.name}",
    )(jnp.reshape(call.num_live, (1,)).astype(jnp.int32), *inputs)


def _plan(call: _Call, rule: Callable) -> tuple[Generation, int, Plan]:
    """(generation, N, plan) of a call, its blocks by the rule unless it has some."""
    for model in call.models:
        for x in (model.hidden_ND, model.head.weight):
            if x.dtype not in (jnp.float32, jnp.bfloat16):
                raise KernelError(
                    f"logprob_{call.name} on TPU: hidden states and head must be "
                    f"float32 or bfloat16, got {x.dtype}"
                )
    # The interpreter takes any blocks; a v5e's are as good as others.
    generation = GENERATIONS["TPU v5 lite"] if call.interpret else tpu_generation()
    student = call.models[0]
    N, V = len(student.hidden_ND), student.head.weight.shape[student.logits.vocab_dim]
    widths = tuple(model.width for model in call.models)
    plan = Plan(
        blocks=call.blocks or rule(generation, N, V, widths),
        V=V,
        logits=tuple(model.logits for model in call.models),
        biased=tuple(model.head.bias_V is not None for model in call.models),
        targets=call.target_N is not None,
        interpret=call.interpret,
    )
    return generation, N, plan


def _inputs(call: _Call, blocks: Blocks, token_tile: Callable, vocab_tile: Callable):
    """Arrays and their blocks, in the order in which the kernels take them."""
    inputs, specs = [], []
    for model in call.models:
        D = model.hidden_ND.shape[1]
        inputs += [model.hidden_ND, model.head.weight]
        specs += [
            pl.BlockSpec((blocks.tokens, D), lambda *i: (token_tile(*i), 0)),
            _weight_spec(model, blocks, vocab_tile),
        ]
        if model.head.bias_V is not None:
            inputs.append(model.head.bias_V.astype(_F32)[None])
            specs.append(_vocab_spec(blocks, vocab_tile))
    if call.target_N is not None:
        # Words past the end fill the last tile: none of them is anyone's target.
        V = call.models[0].head.weight.shape[call.models[0].logits.vocab_dim]
        inputs.append(jnp.where(call.target_N < V, call.target_N, -1)[None])
        specs.append(_token_spec(1, blocks, token_tile))
    return inputs, specs


def _weight_spec(model, blocks, vocab_tile):
    D = model.hidden_ND.shape[1]
    if model.logits.layout == "VD":
        return pl.BlockSpec((blocks.vocab, D), lambda *i: (vocab_tile(*i), 0))
    return pl.BlockSpec((D, blocks.vocab), lambda *i: (0, vocab_tile(*i)))


def _vocab_spec(blocks, vocab_tile):
    return pl.BlockSpec((1, blocks.vocab), lambda *i: (0, vocab_tile(*i)))


def _token_spec(rows, blocks, token_tile):
    return pl.BlockSpec((rows, blocks.tokens), lambda *i: (0, token_tile(*i)))
