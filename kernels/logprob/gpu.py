"""The log-probability kernels for GPUs, in Pallas (Triton); the kernels themselves are
in gpu_kernels.py.

Every kernel is a tiled matmul with something done to its tiles. `stats` and `kl_stats`
give each program a tile of tokens and a span of the vocabulary: it makes one [R, Q]
tile of logits after another, keeps running maxima and sums, and writes what it knows of
its span; the spans, [S, N], are combined outside. The gradients walk the vocabulary in
chunks of [N, chunk], for which they hold the logits' cotangents in the products' dtype,
made anew from hidden states and head: three matmuls a chunk and no more, where making
each tile once for the hidden states and once for the head would take four.

There are no atomic operations: every sum has one order, and results repeat to the bit.
Programs whose tokens are all masked leave at once, and the sum over tokens that gives
the head's gradient ends at the last live tile.

jax 0.12 warns that Pallas will drop Triton. Mosaic, its other back end for GPUs, takes
a kernel for each generation; these compile for all since the A100.

Legend: N tokens, D model width (E the teacher's), V vocabulary of this shard, S spans
of it; of one tile: R tokens, Q words.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from ..platform import KernelError, result
from . import gpu_kernels
from .head import Head, KLStats, Logits, Stats
from .shards import axes_of, vary

# With fewer programs than this a GPU of 132 processors has idle ones at the end.
_PROGRAMS = 1024

# A program's span of the vocabulary, in tiles: longer ones leave less to combine.
_LONGEST_SPAN = 8


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Sizes of tiles, powers of two from 16 up, and how Triton compiles them.

    Attributes:
        rows, cols: of the tile that a program keeps in registers.
        depth: of the axis that is summed over, at a time.
        num_warps, num_stages: of 32 threads; copies of the inputs under way at once.
        chunk: words whose cotangents are held at a time; 0: by `_chunk`.
    """

    rows: int
    cols: int
    depth: int
    num_warps: int
    num_stages: int
    chunk: int = 0


# Shared memory is (rows + cols) * depth * bytes * num_stages: 144 KiB for the first
# (of 163 on an A100, 227 on an H100), 64 for the second (of 99 on the smaller ones), 48
# for the third. 128 * 256 sums are 128 of a thread's 255 registers.
_LARGE = Blocks(128, 256, 64, 8, 3)
_SMALL = Blocks(128, 128, 32, 8, 4)
# Products of float32 are exact: multiply-adds, without tensor cores.
_FLOAT32 = Blocks(64, 128, 32, 4, 2)
_LARGE_GPUS = ("A100", "H100", "H200", "H800", "GH200", "B200", "B300", "GB200")


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
    """Maximum, sums and target's logit of each token; see head.py.

    Args:
        blocks: sizes of tiles; None: by dtypes and the kind of GPU in the mesh.

    Raises:
        KernelError: if a dtype is neither float32 nor bfloat16.
    """
    N, V = len(hidden_ND), head.weight.shape[logits.vocab_dim]
    blocks = _fit(blocks, N, V, hidden_ND, head.weight)
    inputs = (jnp.reshape(num_live, 1), target_N, hidden_ND, head)
    kernel = functools.partial(gpu_kernels.stats, logits=logits)
    parts_SN = _spans(kernel, inputs, 4, N, V, blocks, interpret, "logprob_stats")
    top_SN, sum_SN, dot_SN, target_SN = _live_only(parts_SN, num_live)
    top_N = top_SN.max(axis=0)
    ahead_SN = top_SN - top_N
    scale_SN = jnp.exp(ahead_SN)
    return Stats(
        top_N,
        (sum_SN * scale_SN).sum(axis=0),
        ((dot_SN + sum_SN * ahead_SN) * scale_SN).sum(axis=0),
        target_SN.sum(axis=0),
    )


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
    """Maxima and sums of a student and its teacher; see head.py. Raises as `stats`."""
    N, V = len(hidden_ND), head.weight.shape[logits.vocab_dim]
    models = (hidden_ND, head, teacher_hidden_NE, teacher_head)
    arrays = (hidden_ND, head.weight, teacher_hidden_NE, teacher_head.weight)
    blocks = _halved(_fit(blocks, N, V, *arrays))
    inputs = (jnp.reshape(num_live, 1), *models)
    kernel = functools.partial(
        gpu_kernels.kl_stats, logits=logits, teacher_logits=teacher_logits
    )
    parts_SN = _spans(kernel, inputs, 6, N, V, blocks, interpret, "logprob_kl_stats")
    sums = _live_only(parts_SN, num_live)

    def combined(top_SN, sum_SN, dot_SN):
        top_N = top_SN.max(axis=0)
        scale_SN = jnp.exp(top_SN - top_N)
        return top_N, (sum_SN * scale_SN).sum(axis=0), (dot_SN * scale_SN).sum(axis=0)

    return KLStats(*combined(*sums[:3]), *combined(*sums[3:]))


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
    """Gradients of hidden states and head; see head.py. Raises as `stats`."""
    N, V = len(hidden_ND), head.weight.shape[logits.vocab_dim]
    blocks = _fit(blocks, N, V, hidden_ND, head.weight)
    kernel = functools.partial(gpu_kernels.d_logits, logits=logits, blocks=blocks)
    per_token = (target_N, lse_N, entropy_N, d_logp_N, d_entropy_N, d_lse_N)
    return _through_chunks(
        kernel, (hidden_ND, head, *per_token), num_live, logits, blocks, interpret
    )


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
    """The student's gradients; see head.py. Raises as `stats`."""
    N, V = len(hidden_ND), head.weight.shape[logits.vocab_dim]
    models = (hidden_ND, head, teacher_hidden_NE, teacher_head)
    arrays = (hidden_ND, head.weight, teacher_hidden_NE, teacher_head.weight)
    blocks = _fit(blocks, N, V, *arrays)
    kernel = functools.partial(
        gpu_kernels.kl_d_logits,
        logits=logits,
        teacher_logits=teacher_logits,
        blocks=_halved(blocks),
    )
    per_token = (lse_N, teacher_lse_N, reverse_N, d_reverse_N, d_forward_N)
    return _through_chunks(
        kernel, (*models, *per_token), num_live, logits, blocks, interpret
    )


# Sizes of tiles


def _fit(blocks: Blocks | None, N: int, V: int, *arrays: jax.Array) -> Blocks:
    """The blocks asked for, or those of these dtypes, no larger than N and V need."""
    for x in arrays:
        if x.dtype not in (jnp.float32, jnp.bfloat16):
            raise KernelError(
                f"the GPU's logprob kernel takes float32 and bfloat16, got {x.dtype}: "
                "cast hidden states and head, or set RL_JAX_KERNELS=plain"
            )
    if blocks is None:
        device: Any = jax.sharding.get_abstract_mesh().abstract_device
        kind = "" if device is None else device.device_kind
        if any(x.dtype == jnp.float32 for x in arrays):
            blocks = _FLOAT32
        elif any(name in kind for name in _LARGE_GPUS):
            blocks = _LARGE
        else:
            blocks = _SMALL
    return dataclasses.replace(
        blocks,
        rows=min(blocks.rows, max(16, pl.next_power_of_2(N))),
        cols=min(blocks.cols, max(16, pl.next_power_of_2(V))),
    )


def _halved(blocks: Blocks) -> Blocks:
    """For two tiles of logits in registers at once."""
    return dataclasses.replace(blocks, cols=max(16, blocks.cols // 2))


def _chunk(blocks: Blocks, N: int, V: int, itemsize: int) -> int:
    """Words whose cotangents, [N, chunk], are held at a time: whole tiles.

    64 MiB of them, but at least 2,048 words: below that, reading and writing the
    float32 gradient of the hidden states once a chunk takes longer than its matmul.
    """
    words = blocks.chunk or max(2048, 64 * 2**20 // (N * itemsize))
    unit = max(blocks.rows, blocks.cols)
    return min(pl.cdiv(V, unit), max(1, words // unit)) * unit


def _params(blocks: Blocks) -> plgpu.CompilerParams:
    return plgpu.CompilerParams(
        num_warps=blocks.num_warps, num_stages=blocks.num_stages
    )


# Forward


def _spans(kernel, inputs, num_out, N, V, blocks, interpret, name):
    """Calls a kernel for every tile of tokens and span; `num_out` float32 [S, N]."""
    tiles_n, tiles_v = pl.cdiv(N, blocks.rows), pl.cdiv(V, blocks.cols)
    span = max(1, min(_LONGEST_SPAN, tiles_n * tiles_v // _PROGRAMS))
    S = pl.cdiv(tiles_v, span)
    out = result((S, N), jnp.float32, *jax.tree.leaves(inputs))
    return pl.pallas_call(
        functools.partial(kernel, blocks=blocks, span=span),
        grid=(tiles_n * S,),
        out_shape=[out] * num_out,
        compiler_params=_params(blocks),
        interpret=interpret,
        name=name,
    )(*inputs)


def _live_only(parts_SN, num_live):
    """Zeros where no program wrote."""
    live_N = jnp.arange(parts_SN[0].shape[1]) < num_live
    return [jnp.where(live_N, x_SN, 0.0) for x_SN in parts_SN]


# Backward


def _through_chunks(d_logits_kernel, inputs, num_live, logits, blocks, interpret):
    """(d_hidden, d_weight, d_bias), from a kernel that makes the logits' cotangents.

    Args:
        d_logits_kernel: takes the refs of num_live, the chunk's number, `inputs` and
            its outputs.
        inputs: hidden states and head, then what else the kernel takes.
    """
    hidden_ND, head = inputs[:2]
    N, D = hidden_ND.shape
    V = head.weight.shape[logits.vocab_dim]
    dtype = jnp.promote_types(hidden_ND.dtype, head.weight.dtype)
    chunk = _chunk(blocks, N, V, dtype.itemsize)
    tiles_n = pl.cdiv(N, blocks.rows)
    like = jax.tree.leaves(inputs)
    call = functools.partial(
        pl.pallas_call, compiler_params=_params(blocks), interpret=interpret
    )
    # Padded to whole tiles, which nothing has to mask when it reads them.
    d_z_shape = result((tiles_n * blocks.rows, chunk), dtype, *like)
    bias_shape = result((tiles_n, chunk), jnp.float32, *like)
    cols = d_logits_kernel.keywords["blocks"].cols
    d_logits = call(
        d_logits_kernel,
        grid=(tiles_n * (chunk // cols),),
        out_shape=[d_z_shape] + [bias_shape] * (head.bias_V is not None),
        name="logprob_d_logits",
    )
    # What is summed over is read up to the last tile of `cols` that was written.
    d_hidden = call(
        functools.partial(
            gpu_kernels.d_hidden,
            logits=logits,
            blocks=dataclasses.replace(blocks, depth=min(blocks.depth, cols)),
        ),
        grid=(tiles_n * pl.cdiv(D, blocks.cols),),
        out_shape=result((N, D), jnp.float32, *like),
        input_output_aliases={4: 0},
        name="logprob_d_hidden",
    )
    shape = (chunk, D) if logits.layout == "VD" else (D, chunk)
    d_weight = call(
        functools.partial(
            gpu_kernels.d_weight,
            logits=logits,
            blocks=dataclasses.replace(blocks, depth=min(blocks.depth, blocks.rows)),
        ),
        grid=(pl.cdiv(shape[0], blocks.rows) * pl.cdiv(shape[1], blocks.cols),),
        out_shape=result(head.weight.shape, head.weight.dtype, *like),
        input_output_aliases={4: 0},
        name="logprob_d_weight",
    )

    def body(i, carry):
        d_hidden_ND, d_head, d_bias_V = carry
        at = (jnp.reshape(num_live, 1), jnp.reshape(i, 1))
        d_z_NQ, *d_bias = d_logits(*at, *inputs)
        if d_bias:
            written = jnp.arange(tiles_n)[:, None] * blocks.rows < num_live
            d_bias_Q = jnp.where(written, d_bias[0], 0.0).sum(axis=0)
            d_bias_V = jax.lax.dynamic_update_slice(d_bias_V, d_bias_Q, (i * chunk,))
        return (
            d_hidden(*at, d_z_NQ, head.weight, d_hidden_ND),
            d_weight(*at, d_z_NQ, hidden_ND, d_head),
            d_bias_V,
        )

    chunks = pl.cdiv(V, chunk)
    init = (
        jnp.zeros((N, D), jnp.float32),
        jnp.zeros_like(head.weight),
        None if head.bias_V is None else jnp.zeros(chunks * chunk, jnp.float32),
    )
    init = vary(init, axes_of(inputs))
    d_hidden_ND, d_head, d_bias_V = jax.lax.fori_loop(0, chunks, body, init)
    if head.bias_V is not None:
        d_bias_V = d_bias_V[:V].astype(head.bias_V.dtype)
    return d_hidden_ND.astype(hidden_ND.dtype), d_head, d_bias_V
