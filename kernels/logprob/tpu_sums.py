"""The float32 sums of d_hidden, which the backward kernel keeps in HBM.

Each step of that kernel fetches its tile of them, adds to it and sends it back; the
copies run beside the matmuls.

The arrays that hold them have the dtype of the result. For bfloat16 they are two, and a
tile's float32 bits are divided between them, its first rows and its last: nothing is
rounded, and one array is the memory of the result itself, so that only the other is a
temporary. (Two bfloat16 numbers, one above the other, take the place of one float32:
between registers this is free.) The last step rounds. Where two cores share the
vocabulary each has sums of its own, and `total_kernel` adds them up, in place.

Legend: N tokens of a tile, D the whole width, C some columns of it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

_F32 = jnp.float32


def num_arrays(dtype: Any) -> int:
    """Arrays that hold the sums of one core."""
    return 4 // jnp.dtype(dtype).itemsize


class Sums(NamedTuple):
    """A core's sums between HBM and two tiles in VMEM.

    Steps are the live tiles of tokens, of one tile of the vocabulary after another; a
    step's tile lies in slot step % 2. Once a step has made its d_z, its own tile must
    have come and the tile of the step before must have gone; only then is the next
    step's tile sent for, into the slot that this frees. So even of two tiles none is
    read before it is written, and never are two reads, or two writes, on their way. A
    single tile stays where it is and is written once, at the end.

    Attributes:
        arrays: in HBM, of each core, as many as buffers.
        buffers: [2, N, D] in VMEM.
        semaphores: [2, number of buffers], of reads and of writes.
        step: (i, t): the core's tile of the vocabulary, and the tile of tokens.
        num_tiles, last_i: live tiles of tokens; the core's last tile of the vocabulary.
    """

    arrays: list[list[Any]]
    buffers: list[Any]
    semaphores: Any
    core: Any
    step: tuple[Any, Any]
    num_tiles: Any
    last_i: Any

    def fetch(self) -> Any:
        """Ends this step's read and starts the next one's; returns this step's slot."""
        i, t = self.step
        several = self.num_tiles > 1
        step = i * self.num_tiles + t
        slot = jnp.where(several, jax.lax.rem(step, 2), 0)
        ends = t + 1 == self.num_tiles
        next_i, next_t = jnp.where(ends, i + 1, i), jnp.where(ends, 0, t + 1)

        @pl.when(several & (i > 0))
        def _():
            self._read(t, slot, "wait")

        @pl.when(several & (step > 0))
        def _():
            self._write(0, 1 - slot, "wait")

        @pl.when(several & (next_i > 0) & (next_i <= self.last_i))
        def _():
            self._read(next_t, 1 - slot, "start")

        return slot

    def add(self, slot: Any, at: Any, x_NC: jax.Array) -> None:
        """Adds to the columns `at`."""
        rows = x_NC.shape[0] // len(self.buffers)
        for part, buffer in enumerate(self.buffers):
            sums = bits(buffer[slot, :, at], _F32)
            sums += x_NC[part * rows : (part + 1) * rows]
            buffer[slot, :, at] = bits(sums, buffer.dtype)

    def round(self, slot: Any, at: Any) -> None:
        """Makes the sums of the columns `at` a result, in the first buffer."""
        sums = whole([buffer[slot, :, at] for buffer in self.buffers])
        self.buffers[0][slot, :, at] = sums.astype(self.buffers[0].dtype)

    def store(self, slot: Any) -> None:
        """Starts this step's write, and ends it if no step follows."""
        i, t = self.step

        @pl.when((self.num_tiles > 1) | (i == self.last_i))
        def _():
            self._write(t, slot, "start")

        @pl.when((i == self.last_i) & (t + 1 == self.num_tiles))
        def _():
            self._write(t, slot, "wait")

    def store_zeros(self) -> None:
        """Writes zeros to the tile of this step, when no other copy is on its way."""

        def clear(i, carry):
            for buffer in self.buffers:
                zeros = jnp.zeros((128, buffer.shape[2]), buffer.dtype)
                buffer[0, pl.ds(pl.multiple_of(i * 128, 128), 128), :] = zeros
            return carry

        jax.lax.fori_loop(0, self.buffers[0].shape[1] // 128, clear, 0)
        self._write(self.step[1], 0, "start")
        self._write(self.step[1], 0, "wait")

    def _read(self, tile, slot, act):
        self._copy(tile, slot, act, 0)

    def _write(self, tile, slot, act):
        self._copy(tile, slot, act, 1)

    def _copy(self, tile, slot, act, write):
        N = self.buffers[0].shape[1]
        for core, arrays in enumerate(self.arrays):

            def copy(arrays=arrays):
                for part, (array, buffer) in enumerate(
                    zip(arrays, self.buffers, strict=True)
                ):
                    ends = [array.at[pl.ds(tile * N, N)], buffer.at[slot]]
                    semaphore = self.semaphores.at[write, part]
                    source, target = ends[::-1] if write else ends
                    getattr(pltpu.make_async_copy(source, target, semaphore), act)()

            if len(self.arrays) == 1:
                copy()
            else:
                pl.when(self.core == core)(copy)


def bits(x: jax.Array, dtype: Any) -> jax.Array:
    """The same bits: twice the rows in half the width of a number, or the reverse."""
    return x if x.dtype == dtype else pltpu.bitcast(x, dtype)


def whole(parts: list[jax.Array]) -> jax.Array:
    """Float32 sums from what the arrays of one core hold of a tile."""
    return jnp.concatenate([bits(x, _F32) for x in parts], axis=0)


def total_kernel(live_ref, *refs, num_parts: int) -> None:
    """Adds up the cores' sums of some columns of a tile; rounds; masks tokens."""
    *refs, out_NC = refs
    N, _ = out_NC.shape
    total_NC = whole([ref[...] for ref in refs[:num_parts]])
    for first in range(num_parts, len(refs), num_parts):
        total_NC += whole([ref[...] for ref in refs[first : first + num_parts]])
    token_NC = jax.lax.broadcasted_iota(jnp.int32, total_NC.shape, 0)
    live = token_NC < live_ref[0] - pl.program_id(0) * N
    out_NC[...] = jnp.where(live, total_NC, 0.0).astype(out_NC.dtype)
