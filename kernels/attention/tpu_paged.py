"""Attention of one new token a slot over a paged cache, on TPUs.

jax ships kernels for this; none takes a window and any head size. Here one program a
slot walks the pages that the slot's token sees, some at a time, while the next ones are
on their way to fast memory: those of the same slot, or the first of the next slot.

Legend: W decode slots, H = K * R query heads, K key/value heads, C channels of a head,
M pages of S positions, J pages of a slot; N positions of a step's pages.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..platform import GENERATIONS, KernelError, result, tpu_generation
from .scoring import Scoring

# Keys and values of a step, both of its two buffers: a quarter of the 16 MiB that a
# kernel may use unasked.
_BUFFER_BYTES = 4 * 2**20
# Positions of a step: enough for a transfer to take longer than it takes to begin one
# (half a microsecond), few enough that a short slot wastes little.
_STEP_POSITIONS = 512
_HIDDEN = -1e30


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
    """As `plain.paged`.

    Raises:
        KernelError: if pages are no whole tiles, or too large for fast memory.
    """
    generation = GENERATIONS["TPU v5 lite"] if interpret else tpu_generation()
    W, H, C = q_WHC.shape
    K, _, S, _ = k_pages_KMSC.shape
    step_pages = _step_pages(k_pages_KMSC.shape, k_pages_KMSC.dtype, page_WJ.shape[1])
    # Two cores of a v5p work as one device: each takes half of the slots.
    parts = 2 if generation.name == "v5p" and W % 2 == 0 else 1
    slots = W // parts
    q_WKRC = (q_WHC * scoring.scale).reshape(W, K, H // K, C)
    reach = 2**30 if scoring.window is None else scoring.window
    # Every slot has a step, so that there is always a next one to begin: of an empty
    # slot all is hidden.
    last_W = jnp.maximum(length_W - 1, 0)
    oldest_W = jnp.maximum(last_W - (reach - 1), 0)
    newest_page_W = last_W // S
    of_slot = pl.BlockSpec(
        (None, K, H // K, C), lambda part, i, *_: (part * slots + i, 0, 0, 0)
    )
    buffer = pltpu.VMEM((2, K, step_pages * S, C), k_pages_KMSC.dtype)
    out_WKRC = pl.pallas_call(
        functools.partial(
            _kernel, slots=slots, step_pages=step_pages, page_size=S, scoring=scoring
        ),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(parts, slots),
            in_specs=[
                of_slot,
                pl.BlockSpec(memory_space=pl.ANY),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=of_slot,
            scratch_shapes=[
                buffer,
                buffer,
                pltpu.SMEM((1,), jnp.int32),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary")
        ),
        out_shape=result(q_WKRC.shape, q_WHC.dtype, q_WHC, k_pages_KMSC, v_pages_KMSC),
        interpret=interpret,
        name="attention_paged",
    )(
        page_WJ.astype(jnp.int32),
        oldest_W.astype(jnp.int32),
        newest_page_W.astype(jnp.int32),
        length_W.astype(jnp.int32),
        q_WKRC,
        k_pages_KMSC,
        v_pages_KMSC,
    )
    return out_WKRC.reshape(W, H, C)


def _step_pages(shape, dtype, pages_of_slot):
    """How many pages a step takes."""
    K, _, S, C = shape
    itemsize = jnp.dtype(dtype).itemsize
    tile = 32 // itemsize
    if S % tile:
        raise KernelError(
            f"paged attention on TPUs takes pages of a multiple of {tile} positions of "
            f"{jnp.dtype(dtype).name}, got {S}"
        )
    if C % 128:
        raise KernelError(
            f"paged attention on TPUs takes pages of a multiple of 128 channels, got "
            f"{C}, which would be copied to another layout whole at each call: make "
            f"pages of {C + -C % 128} channels, the last of them zeros"
        )
    page_bytes = 4 * K * S * C * itemsize
    if page_bytes > 2 * _BUFFER_BYTES:
        raise KernelError(
            f"a page of {S} positions, {K} key/value heads and {C} channels takes "
            f"{page_bytes} bytes of fast memory, and paged attention on TPUs has "
            f"{2 * _BUFFER_BYTES}: use smaller pages"
        )
    most = min(_STEP_POSITIONS // S, _BUFFER_BYTES // page_bytes, pages_of_slot)
    return max(most, 1)


def _kernel(
    page_ref,
    oldest_ref,
    newest_page_ref,
    length_ref,
    q_ref,
    k_pages_ref,
    v_pages_ref,
    out_ref,
    k_buffer,
    v_buffer,
    turn_ref,
    arrived,
    *,
    slots,
    step_pages,
    page_size,
    scoring,
):
    i = pl.program_id(1)
    slot = pl.program_id(0) * slots + i

    def transfers(slot, step, turn, act):
        """Begins or awaits the pages of a step of a slot, in buffer `turn`."""
        first = oldest_ref[slot] // page_size + step * step_pages
        for n in range(step_pages):

            @pl.when(first + n <= newest_page_ref[slot])
            def _(n=n):
                page = page_ref[slot, first + n]
                into = pl.ds(n * page_size, page_size)
                for pages, buffer in ((k_pages_ref, k_buffer), (v_pages_ref, v_buffer)):
                    act(
                        pltpu.make_async_copy(
                            pages.at[:, page],
                            buffer.at[turn, :, into],
                            arrived.at[turn],
                        )
                    )

    def begin(slot, step, turn):
        transfers(slot, step, turn, lambda copy: copy.start())

    @pl.when(i == 0)
    def _():
        turn_ref[0] = 0
        begin(slot, 0, 0)

    first_page = oldest_ref[slot] // page_size
    num_steps = (newest_page_ref[slot] - first_page) // step_pages + 1
    turn = turn_ref[0]
    q_KRC = q_ref[...]

    def visit(step, carry):
        top_KR1, sum_KR1, out_KRC = carry
        now = (turn + step) % 2

        @pl.when(step + 1 < num_steps)
        def _():
            begin(slot, step + 1, 1 - now)

        @pl.when((step + 1 == num_steps) & (i + 1 < slots))
        def _():
            begin(slot + 1, 0, 1 - now)

        transfers(slot, step, now, lambda copy: copy.wait())
        k_KNC, v_KNC = k_buffer[now], v_buffer[now]
        score_KRN = _dot(q_KRC, k_KNC, 2)
        if scoring.softcap:
            score_KRN = scoring.softcap * jnp.tanh(score_KRN / scoring.softcap)
        start = (first_page + step * step_pages) * page_size

        def seen(shape, axis):
            at = start + jax.lax.broadcasted_iota(jnp.int32, shape, axis)
            return (oldest_ref[slot] <= at) & (at < length_ref[slot])

        score_KRN = jnp.where(seen(score_KRN.shape, 2), score_KRN, _HIDDEN)
        # A buffer holds anything where no page has been, and 0 * NaN is NaN.
        v_KNC = jnp.where(seen(v_KNC.shape, 1), v_KNC, jnp.zeros_like(v_KNC))
        new_KR1 = jnp.maximum(top_KR1, score_KRN.max(axis=2, keepdims=True))
        weight_KRN = jnp.exp(score_KRN - new_KR1)
        keep_KR1 = jnp.exp(top_KR1 - new_KR1)
        sum_KR1 = sum_KR1 * keep_KR1 + weight_KRN.sum(axis=2, keepdims=True)
        added_KRC = _dot(weight_KRN.astype(v_KNC.dtype), v_KNC, 1)
        return new_KR1, sum_KR1, out_KRC * keep_KR1 + added_KRC

    K, R, C = q_KRC.shape
    begin_with = (
        jnp.full((K, R, 1), _HIDDEN, jnp.float32),
        jnp.zeros((K, R, 1), jnp.float32),
        jnp.zeros((K, R, C), jnp.float32),
    )
    _, sum_KR1, out_KRC = jax.lax.fori_loop(0, num_steps, visit, begin_with)
    turn_ref[0] = (turn + num_steps) % 2
    out_ref[...] = (out_KRC / sum_KR1).astype(out_ref.dtype)


def _dot(x_KRA, y, axis):
    """Contracts the last axis of x with `axis` of y, over key/value heads."""
    return jax.lax.dot_general(
        x_KRA, y, (((2,), (axis,)), ((0,), (0,))), preferred_element_type=jnp.float32
    )
