"""Packed attention on TPUs: jax's splash attention, on blocks that segments leave over.

Splash attention takes its mask as a schedule of blocks to visit and a function of
positions. Made by its own helpers, the schedule knows the causal mask and the window;
here it is made from `spans` for each row, as data, so that blocks of other segments are
left out too. Rows go through the kernels one by one: a schedule has no axis of rows.

Inside `jax.shard_map` this needs `check_vma=False`: splash attention does not say over
which axes of a mesh its results vary.

Source: jax.experimental.pallas.ops.tpu.splash_attention.

Legend: B rows, T positions, H = K * R query heads, K key/value heads, C channels of a
head; U query blocks and Y key blocks of a row.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask_info as masks,
)

from ..platform import GENERATIONS, KernelError, tpu_generation
from .blocks import LANES, Blocks, block_sizes
from .scoring import Scoring
from .spans import first_seen, key_blocks, query_blocks


def forward(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segment_BT: jax.Array,
    window: jax.Array | None,
    *,
    scoring: Scoring,
    residuals: bool,
    interpret: bool,
    blocks: Blocks | None = None,
):
    """As `plain.forward`."""
    T = q_BTHC.shape[1]
    if T % LANES:
        longer = functools.partial(
            forward, scoring=scoring, residuals=residuals, interpret=interpret
        )
        rows = [_lengthened(x) for x in (q_BTHC, k_BTKC, v_BTKC, segment_BT)]
        out: Any = longer(*[*rows, window])
        if not residuals:
            return out[:, :T]
        return out[0][:, :T], out[1][..., :T]
    blocks = blocks or _blocks(q_BTHC, interpret)

    def one_row(window, row):
        q_THC, k_TKC, v_TKC, segment_T = row
        first_T = first_seen(segment_T[None], window)[0]
        kernel = splash.SplashAttentionKernel(
            _visits(first_T, window, blocks.query, blocks.key),
            None,
            None,
            save_residuals=residuals,
            **_options(scoring, window, blocks, interpret),
        )
        out = kernel(
            _heads(q_THC * scoring.scale),
            _heads(k_TKC),
            _heads(v_TKC),
            splash.SegmentIds(segment_T, segment_T),
        )
        if not residuals:
            return _heads(out)
        out_HTC, (lse_HT,) = out
        return _heads(out_HTC), lse_HT

    with jax.named_scope("attention_splash"):
        rows = q_BTHC, k_BTKC, v_BTKC, segment_BT
        return _by_window(one_row, scoring, window, rows)


def backward(
    q_BTHC: jax.Array,
    k_BTKC: jax.Array,
    v_BTKC: jax.Array,
    segment_BT: jax.Array,
    window: jax.Array | None,
    out_BTHC: jax.Array,
    lse_BHT: jax.Array,
    d_out_BTHC: jax.Array,
    *,
    scoring: Scoring,
    interpret: bool,
    blocks: Blocks | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As `plain.backward`."""
    T = q_BTHC.shape[1]
    if T % LANES:
        longer = functools.partial(backward, scoring=scoring, interpret=interpret)
        rows = [_lengthened(x) for x in (q_BTHC, k_BTKC, v_BTKC, segment_BT)]
        kept = [_lengthened(out_BTHC), _lengthened(lse_BHT, 2), _lengthened(d_out_BTHC)]
        grads: Any = longer(*[*rows, window, *kept])
        dq_BTHC, dk_BTKC, dv_BTKC = (x[:, :T] for x in grads)
        return dq_BTHC, dk_BTKC, dv_BTKC
    blocks = blocks or _blocks(q_BTHC, interpret)

    def one_row(window, row):
        q_THC, k_TKC, v_TKC, segment_T, out_THC, lse_HT, d_out_THC = row
        first_T = first_seen(segment_T[None], window)[0]
        sizes = blocks.back_query, blocks.back_key
        kept = (
            _heads(q_THC * scoring.scale),
            _heads(k_TKC),
            _heads(v_TKC),
            splash.SegmentIds(segment_T, segment_T),
            None,  # no attention sinks
            _heads(out_THC),
            lse_HT,
            None if blocks.fused else _visits(first_T, window, *sizes),
            _visits_from_keys(first_T, window, *sizes, every_step=blocks.fused),
        )
        # Splash attention's own backward pass, without the forward pass that
        # `jax.vjp` would run again. A private name: jax 0.10 and 0.12 have it.
        grads = splash._splash_attention_bwd(
            save_residuals=False,
            res=kept,
            do=_heads(d_out_THC),
            **_options(scoring, window, blocks, interpret),
        )
        dq_HTC, dk_KTC, dv_KTC = grads[3:6]
        return _heads(dq_HTC) * scoring.scale, _heads(dk_KTC), _heads(dv_KTC)

    with jax.named_scope("attention_splash"):
        rows = q_BTHC, k_BTKC, v_BTKC, segment_BT, out_BTHC, lse_BHT, d_out_BTHC
        return _by_window(one_row, scoring, window, rows)


def _lengthened(x, axis=1):
    """Padding behind each row, up to a whole number of lanes."""
    behind = [(0, 0)] * x.ndim
    behind[axis] = (0, -x.shape[axis] % LANES)
    return jnp.pad(x, behind)


def _blocks(q_BTHC, interpret):
    generation = GENERATIONS["TPU v5 lite"] if interpret else tpu_generation()
    _, T, _, C = q_BTHC.shape
    return block_sizes(T, C, q_BTHC.dtype, generation)


def _by_window(one_row, scoring, window, rows):
    """`one_row(static window, row)` of every row, by the window that data names."""

    def branch(static):
        function = functools.partial(one_row, static)
        if rows[0].shape[0] > 1:
            return lambda rows: jax.lax.map(function, rows)
        return lambda rows: jax.tree.map(
            lambda x: x[None], function([x[0] for x in rows])
        )

    if window is None:
        return branch(scoring.window)(rows)
    if scoring.windows is None:
        raise KernelError(
            "a window that is data needs `windows`, every value that it can take: the "
            "masks of packed attention on TPUs are compiled in"
        )
    which = (jnp.asarray(scoring.windows, jnp.int32) == window).argmax()
    return jax.lax.switch(which, [branch(w) for w in scoring.windows], rows)


@dataclasses.dataclass(frozen=True)
class _Sees:
    """The mask of positions, for splash attention: hashable, as a closure is not."""

    window: int | None

    def __call__(self, query, key):
        seen = key <= query
        return seen if self.window is None else seen & (query - key < self.window)


def _options(scoring, window, blocks, interpret):
    return {
        "is_mqa": False,
        "mask_value": splash.DEFAULT_MASK_VALUE,
        "block_sizes": splash.BlockSizes(
            block_q=blocks.query,
            block_kv=blocks.key,
            block_q_dkv=blocks.back_query,
            block_kv_dkv=blocks.back_key,
            block_q_dq=None if blocks.fused else blocks.back_query,
            block_kv_dq=None if blocks.fused else blocks.back_key,
            use_fused_bwd_kernel=blocks.fused,
        ),
        "residual_checkpoint_name": None,
        "attn_logits_soft_cap": scoring.softcap or None,
        "mask_function": _Sees(window),
        "interpret": interpret,
    }


def _visits(first_T, window, query_block, key_block):
    """Blocks of keys for each block of queries, by step: the forward pass, and d_q.

    Steps after the last hold the block that the next block of queries begins with, so
    that it is on its way early.
    """
    oldest_U, newest_U = (
        x[0] for x in key_blocks(first_T[None], query_block, key_block)
    )
    T = first_T.shape[0]
    step_Y = jnp.arange(_most(T, window, query_block, key_block), dtype=jnp.int32)
    block_UY = oldest_U[:, None] + step_Y
    visit_UY = block_UY <= newest_U[:, None]
    next_U = jnp.roll(oldest_U, -1)
    return _schedule(jnp.where(visit_UY, block_UY, next_U[:, None]), visit_UY, T)


def _visits_from_keys(first_T, window, query_block, key_block, *, every_step):
    """Blocks of queries for each block of keys, by step: d_k and d_v.

    With `every_step` (the fused kernel, whose d_q goes by step) step u is block u.
    """
    oldest_Y, newest_Y = (
        x[0] for x in query_blocks(first_T[None], query_block, key_block)
    )
    T = first_T.shape[0]
    if every_step:
        block_UY = jnp.arange(T // query_block, dtype=jnp.int32)[:, None]
        visit_UY = (oldest_Y <= block_UY) & (block_UY <= newest_Y)
    else:
        steps = _most(T, window, key_block, query_block)
        block_UY = oldest_Y + jnp.arange(steps, dtype=jnp.int32)[:, None]
        visit_UY = block_UY <= newest_Y
    return _schedule(jnp.clip(block_UY, oldest_Y, newest_Y), visit_UY, T)


def _most(T, window, block, other_block):
    """Most blocks of the other kind that one block can see, or be seen by."""
    if window is None:
        return T // other_block
    return min(T // other_block, (block + window - 2) // other_block + 2)


def _schedule(block_UY, visit_UY, T):
    position_T: Any = jnp.arange(T, dtype=jnp.int32)
    return masks.MaskInfo(
        data_next=block_UY[None].astype(jnp.int32),
        mask_next=None,
        block_mask=visit_UY[None].astype(jnp.int32),
        partial_mask_blocks=None,
        q_sequence=position_T,
    )


def _heads(x):
    """Heads first, or back."""
    return x.swapaxes(0, 1)
