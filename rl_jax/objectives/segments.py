"""Sums over the samples that share packed rows.

Everything here is local to a row and elementwise over rows, so it runs unchanged under
a mesh that divides rows, inside or outside `jax.shard_map`, and without communication.
Positions of a row must not be divided.

Legend: B packed rows, T positions of a row.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Samples(NamedTuple):
    """Which tokens of packed rows make up a sample.

    Attributes:
        mask_BT: bool, tokens that count.
        segment_BT: integers of at least 0, the same along the run of positions of
            one sample and found nowhere else in its row (1, 2, ... and 0 for
            padding). None where a caller needs no sums.
    """

    mask_BT: jax.Array
    segment_BT: jax.Array | None


def running_sums(
    x_BT: jax.Array, samples: Samples, *, reverse: bool = False
) -> jax.Array:
    """The sum of x over the counted tokens of a sample up to each position, inclusive.

    With `reverse`, from each position to the sample's end. What stands at a token that
    does not count is not read.

    Raises:
        ValueError: if there are no segments.
    """

    # After each step a position holds the sum of twice as many. A running sum of the
    # whole row, cut afterwards, would leave a short sample the error of a long row.
    def step(x_BT, distance):
        distance = distance if reverse else -distance
        other_BT, same_BT = _moved(x_BT, samples, distance)
        return x_BT + jnp.where(same_BT, other_BT, 0), None

    x_BT = jnp.where(samples.mask_BT, x_BT, 0)
    return jax.lax.scan(step, x_BT, _distances(samples))[0]


def sample_sums(x_BT: jax.Array, samples: Samples) -> jax.Array:
    """The sum of x over the counted tokens of each position's own sample.

    Every position of a sample, counted or not, gets the very same number.

    Reads, raises: as `running_sums`.
    """

    # The number at a sample's last position, copied back in steps that double.
    def step(x_BT, distance):
        other_BT, same_BT = _moved(x_BT, samples, distance)
        return jnp.where(same_BT, other_BT, x_BT), None

    x_BT = running_sums(x_BT, samples)
    return jax.lax.scan(step, x_BT, _distances(samples))[0]


def _distances(samples: Samples) -> jax.Array:
    """1, 2, 4, ... below the length of a row. A loop over them compiles in no time."""
    if samples.segment_BT is None:
        raise ValueError("a sum over samples needs segment_BT, got None")
    T = samples.segment_BT.shape[1]
    return 2 ** jnp.arange((T - 1).bit_length())


def _moved(
    x_BT: jax.Array, samples: Samples, distance: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """x[t + distance] at t, and whether t + distance is in the sample of t."""
    T = x_BT.shape[1]

    def moved(y_BT, fill):
        # A slice and not a roll or a gather: rows may be divided.
        y_BT = jnp.pad(y_BT, ((0, 0), (T, T)), constant_values=fill)
        return jax.lax.dynamic_slice_in_dim(y_BT, T + distance, T, axis=1)

    segment_BT = samples.segment_BT
    return moved(x_BT, 0), segment_BT == moved(segment_BT, -1)


def sample_counts(samples: Samples) -> jax.Array:
    """float32: the counted tokens of each position's own sample, at least 1."""
    counts_BT = sample_sums(samples.mask_BT.astype(jnp.int32), samples)
    return jnp.maximum(counts_BT, 1).astype(jnp.float32)


def sample_means(x_BT: jax.Array, samples: Samples) -> jax.Array:
    """The mean of x over the counted tokens of each position's own sample."""
    return sample_sums(x_BT, samples) / sample_counts(samples)


def last_counted(samples: Samples) -> jax.Array:
    """bool: the last counted token of every sample."""
    left_BT = running_sums(samples.mask_BT.astype(jnp.int32), samples, reverse=True)
    return samples.mask_BT & (left_BT == 1)


def sample_totals(
    x_BT: jax.Array, mask_BT: jax.Array, sample_BT: jax.Array, *, num_samples: int
) -> jax.Array:
    """The sum of x over the counted tokens of each sample, by its global id.

    Unlike the others a sum over rows: inside `jax.shard_map` over rows the result is
    this shard's part, to be added up with `jax.lax.psum` over the axes of the rows.

    Args:
        x_BT: summed in its own dtype. Not read where the mask is 0.
        sample_BT: integer in [0, num_samples) where the mask is 1.

    Returns:
        total_N of `num_samples` numbers.
    """
    x_BT = jnp.where(mask_BT != 0, x_BT, 0)
    sample_BT = jnp.where(mask_BT != 0, sample_BT, 0)
    return jax.ops.segment_sum(x_BT.reshape(-1), sample_BT.reshape(-1), num_samples)
