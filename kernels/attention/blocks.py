"""Block sizes of packed attention on TPUs.

Legend: T positions of a row, C channels of a head.
"""

import dataclasses

import jax.numpy as jnp

from ..platform import Generation

LANES = 128


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Positions of a block.

    Attributes:
        query, key: of the forward kernel.
        back_query, back_key: of the backward kernels.
        fused: one backward kernel, which writes a part of d_q for every block of keys;
            False: one for d_k and d_v, and one for d_q.
    """

    query: int
    key: int
    back_query: int
    back_key: int
    fused: bool


def block_sizes(T: int, C: int, dtype, generation: Generation) -> Blocks:
    """The largest blocks that divide a row, up to the generation's limit.

    Rows of a multiple of 1,024 get those limits; one of 640 gets blocks of 128. T is a
    multiple of `LANES`.
    """
    wide = C * jnp.dtype(dtype).itemsize > _NARROW_BYTES
    limits = _WIDE if wide else _LIMITS[generation.name]
    query, key, back_query, back_key = (_largest(T, limit) for limit in limits)
    fused = T // back_key <= _MOST_PARTS
    return Blocks(query, key, back_query, back_key, fused)


def _largest(T, limit):
    return max(n for n in range(LANES, min(T, limit) + 1, LANES) if T % n == 0)


# Final instruction bundles of a visit at C = 128, bfloat16, over the clock (its time is
# no less), by block of queries x block of keys:
#                       forward               its matmuls alone   backward
#     v5e    512 x 512   1,192 at 1.5 GHz   0.79 us    0.68        2,451   1.6 us
#            512 x 1024                                            4,821   3.2
#     v5p    512 x 512   1,164 at 1.75      0.67       0.58 (on one of its two cores)
#            512 x 1024  2,454              1.40       1.17        4,614   2.6
#     v6e    512 x 512     938 at 1.75      0.54       0.15        1,605   0.9
#            512 x 1024  2,001              1.14       0.29        3,040   1.7
#            1024 x 1024 3,729              2.13       0.58        5,992   3.4
#     tpu7x  512 x 512     934 at 2.2       0.42       0.12        1,574   0.7
#            512 x 1024  2,044              0.93       0.23        3,077   1.4
#            1024 x 1024 3,826              1.74       0.47        5,545   2.5
# Larger blocks make a visit no cheaper by area, and leave fewer blocks out. So the
# rule: the smallest at which a visit is at least twice the third of a microsecond that
# a step of a grid costs whatever it does; backward, keys of 512 would do on some, but
# double the parts of d_q. All compile within the vector memory that a kernel gets
# unasked.
_LIMITS = {
    "v5e": (512, 512, 512, 1024),
    "v5p": (512, 512, 512, 1024),
    "v6e": (512, 1024, 512, 1024),
    "tpu7x": (512, 1024, 512, 1024),
}
# Of wider heads, or of float32, a position takes more vector memory.
_NARROW_BYTES = 256
_WIDE = (512, 512, 512, 512)
# The fused kernel's parts of d_q take T / back_key times the memory of d_q.
_MOST_PARTS = 8
