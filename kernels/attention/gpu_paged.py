"""Attention of one new token a slot over a paged cache, on GPUs, in Pallas (Triton).

A program takes the queries of a slot that share a key/value head through the slot's
pages, from the first that holds something in its window to the last.

Legend: W decode slots, H = K * R query heads, K key/value heads, C channels of a head,
M pages of S positions.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from ..platform import KernelError, result
from .gpu import _HIDDEN, _dot, _scores
from .scoring import Scoring


def paged(
    q_WHC: jax.Array,
    k_pages_KMSC: jax.Array,
    v_pages_KMSC: jax.Array,
    page_WJ: jax.Array,
    length_W: jax.Array,
    *,
    scoring: Scoring,
    interpret: bool,
) -> jax.Array:
    """As `plain.paged`. Raises: KernelError for pages of other sizes than it takes."""
    W, H, _ = q_WHC.shape
    K, _, S, C = k_pages_KMSC.shape
    if S & (S - 1) or not 16 <= S <= 128:
        raise KernelError(
            "paged attention on GPUs takes pages of 16, 32, 64 or 128 positions, got "
            f"{S}"
        )
    arrays = q_WHC, k_pages_KMSC, v_pages_KMSC, page_WJ, length_W
    return pl.pallas_call(
        functools.partial(_paged_kernel, scoring=scoring),
        grid=(K, W),
        out_shape=result(q_WHC.shape, q_WHC.dtype, *arrays),
        # Two stages of keys and values of 128 x 128 bfloat16 are 128 KiB.
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="attention_paged",
    )(*arrays)


def _paged_kernel(
    q_ref, k_pages_ref, v_pages_ref, page_ref, length_ref, out_ref, *, scoring
):
    """The queries of one slot and key/value head."""
    kv_head, slot = pl.program_id(0), pl.program_id(1)
    (_, H, C), (K, _, S, _) = q_ref.shape, k_pages_ref.shape
    R = H // K
    # Tensor cores take 16 rows or more; those beyond R are zeros.
    r_R = jnp.arange(max(16, pl.next_power_of_2(R)))
    c_C = jnp.arange(pl.next_power_of_2(C))
    of_slot = slot, (kv_head * R + r_R)[:, None], c_C[None, :]
    inside_RC = (r_R < R)[:, None] & (c_C < C)[None, :]
    q_RC = plgpu.load(q_ref.at[of_slot], mask=inside_RC, other=0.0)
    length = length_ref[slot]
    oldest = 0 if scoring.window is None else jnp.maximum(length - scoring.window, 0)

    def visit(j, carry):
        top_R, sum_R, out_RC = carry
        page = page_ref[slot, j]
        at_S = j * S + jnp.arange(S)
        seen_S = (oldest <= at_S) & (at_S < length)
        # What has not been written may be anything, and 0 * NaN is NaN.
        seen_SC = seen_S[:, None] & (c_C < C)[None, :]
        at = kv_head, page, jnp.arange(S)[:, None], c_C[None, :]
        k_SC = plgpu.load(k_pages_ref.at[at], mask=seen_SC, other=0.0)
        v_SC = plgpu.load(v_pages_ref.at[at], mask=seen_SC, other=0.0)
        score_RS, _ = _scores(q_RC, k_SC, scoring)
        score_RS = jnp.where(seen_S[None, :], score_RS, _HIDDEN)
        new_R = jnp.maximum(top_R, score_RS.max(axis=1))
        weight_RS = jnp.exp2(score_RS - new_R[:, None])
        keep_R = jnp.exp2(top_R - new_R)
        sum_R = sum_R * keep_R + weight_RS.sum(axis=1)
        added_RC = _dot(weight_RS.astype(v_SC.dtype), v_SC, 1, 0)
        return new_R, sum_R, out_RC * keep_R[:, None] + added_RC

    carry = (
        jnp.full(len(r_R), _HIDDEN, jnp.float32),
        jnp.zeros(len(r_R), jnp.float32),
        jnp.zeros(q_RC.shape, jnp.float32),
    )
    begin = jax.lax.div(oldest, S)
    end = jax.lax.div(length + S - 1, S)
    _, sum_R, out_RC = jax.lax.fori_loop(begin, end, visit, carry)
    # An empty slot has visited nothing.
    out_RC /= jnp.where(length > 0, sum_R, 1.0)[:, None]
    plgpu.store(out_ref.at[of_slot], out_RC.astype(out_ref.dtype), mask=inside_RC)
