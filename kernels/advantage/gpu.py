"""Group advantages, GAE and discounted returns for GPUs, in Pallas (Triton).

The functions have the signatures of plain.py and `interpret`. Nothing is added with
atomic operations, so results repeat to the bit (XLA's own sums over groups do not).

Legend: N samples, B packed rows, T positions of a row, A tiles of a row; of one tile:
R samples or positions, and C others beside them.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from ..platform import result

# Powers of two. A program compares every one of a tile with every one of another:
# 64 * 64 values are 32 registers a thread.
_TILE = 64


def group_advantage(
    reward_N: jax.Array,
    group_N: jax.Array,
    valid_N: jax.Array,
    num_groups: int,
    centre: str,
    scale: str,
    eps: float,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """As `plain.group_advantage`.

    A program takes a tile of samples and walks over the tiles for each moment, passing
    over those whose ids cannot be among its own: if groups come in order, the work is
    linear in N; if all are one group, it is N * N comparisons. What is over the batch
    is left to XLA.
    """
    (N,) = reward_N.shape
    tiles = pl.cdiv(N, _TILE)
    padding = (0, tiles * _TILE - N)
    id_N = jnp.pad(jnp.where(valid_N, group_N, -1), padding, constant_values=-1)
    reward_N = jnp.pad(jnp.where(valid_N, reward_N, 0.0), padding)
    id_AR = id_N.reshape(tiles, _TILE)
    highest_A = id_AR.max(axis=1)
    lowest_A = jnp.where(id_AR < 0, num_groups, id_AR).min(axis=1)
    adv_N, varies_N = pl.pallas_call(
        functools.partial(
            _group,
            centre=centre,
            scale=scale if scale.startswith("group") else "none",
            eps=eps,
        ),
        grid=(tiles,),
        out_shape=[
            result(id_N.shape, reward_N.dtype, reward_N, id_N),
            result(id_N.shape, jnp.int32, reward_N, id_N),
        ],
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="advantage_group",
    )(lowest_A, highest_A, id_N, reward_N)
    adv_N, varies_N = adv_N[:N], varies_N[:N] != 0
    if scale in ("batch_std", "batch_sample_std", "varying_std"):
        counted_N = varies_N if scale == "varying_std" else valid_N
        free = jnp.sum(counted_N).astype(adv_N.dtype) - (scale == "batch_sample_std")
        square = jnp.sum(jnp.square(adv_N)) / jnp.maximum(free, 1)
        adv_N = adv_N / (jnp.sqrt(square) + eps)
    return adv_N, varies_N


def _group(
    lowest_ref,
    highest_ref,
    id_ref,
    reward_ref,
    adv_ref,
    varies_ref,
    *,
    centre,
    scale,
    eps,
):
    tile = pl.program_id(0)
    here = _range(tile)
    id_R, reward_R = plgpu.load(id_ref.at[here]), plgpu.load(reward_ref.at[here])
    lowest, highest = lowest_ref[tile], highest_ref[tile]
    dtype = reward_R.dtype

    # The first tile that may hold members of this one's groups, and the last.
    tiles = len(lowest_ref)
    a_A = jax.lax.iota(jnp.int32, pl.next_power_of_2(tiles))
    lowest_A = plgpu.load(lowest_ref.at[a_A], mask=a_A < tiles, other=highest + 1)
    highest_A = plgpu.load(highest_ref.at[a_A], mask=a_A < tiles, other=-1)
    meets_A = (lowest_A <= highest) & (highest_A >= lowest)
    first = jnp.where(meets_A, a_A, tiles).min()
    end = jnp.where(meets_A, a_A + 1, 0).max()

    def moment(update, *init):
        """Folds update(state, member_RC, reward_C) over all samples."""

        def over_tile(other, state):
            def there(state):
                at = _range(other)
                id_C = plgpu.load(id_ref.at[at])
                member_RC = (id_R[:, None] == id_C[None, :]) & (id_C >= 0)[None, :]
                return update(state, member_RC, plgpu.load(reward_ref.at[at]))

            meets = (lowest_ref[other] <= highest) & (highest_ref[other] >= lowest)
            return jax.lax.cond(meets, there, lambda state: state, state)

        state = tuple(jnp.full(_TILE, x, dtype) for x in init)
        return jax.lax.fori_loop(first, end, over_tile, state)

    def extremes(state, member_RC, reward_C):
        low_R, high_R, count_R = state
        low_RC = jnp.where(member_RC, reward_C[None, :], jnp.inf)
        high_RC = jnp.where(member_RC, reward_C[None, :], -jnp.inf)
        return (
            jnp.minimum(low_R, low_RC.min(axis=1)),
            jnp.maximum(high_R, high_RC.max(axis=1)),
            count_R + member_RC.astype(dtype).sum(axis=1),
        )

    low_R, high_R, count_R = moment(extremes, jnp.inf, -jnp.inf, 0.0)
    varies_R = (id_R >= 0) & (high_R > low_R)
    plgpu.store(varies_ref.at[here], varies_R.astype(jnp.int32))
    if centre == "none" and scale == "none":
        plgpu.store(adv_ref.at[here], reward_R)
        return

    # From the smallest reward up, so that what rounds is a difference and not a reward.
    low_R = jnp.where(varies_R, low_R, 0.0)
    count_R = jnp.maximum(count_R, 1.0)

    def add(state, member_RC, reward_C):
        above_RC = jnp.where(member_RC, reward_C[None, :] - low_R[:, None], 0.0)
        return (state[0] + above_RC.sum(axis=1),)

    mean_R = moment(add, 0.0)[0] / count_R
    adv_R = reward_R - low_R - mean_R if centre != "none" else reward_R
    if centre == "leave_one_out":
        adv_R = adv_R * (count_R / jnp.maximum(count_R - 1.0, 1.0))
    if scale != "none":

        def add_square(state, member_RC, reward_C):
            centred_RC = reward_C[None, :] - low_R[:, None] - mean_R[:, None]
            square_RC = jnp.where(member_RC, centred_RC * centred_RC, 0.0)
            return (state[0] + square_RC.sum(axis=1),)

        free_R = count_R - (1.0 if scale == "group_sample_std" else 0.0)
        square_R = moment(add_square, 0.0)[0] / jnp.maximum(free_R, 1.0)
        adv_R = adv_R / (jnp.sqrt(square_R) + eps)
    plgpu.store(adv_ref.at[here], jnp.where(varies_R, adv_R, 0.0))


def gae(
    reward_BT: jax.Array,
    value_BT: jax.Array,
    segment_BT: jax.Array,
    mask_BT: jax.Array,
    bootstrap_BT: jax.Array,
    gamma: float,
    lam: float,
    interpret: bool,
) -> jax.Array:
    """As `plain.gae`, any B and T."""
    arrays = (reward_BT, bootstrap_BT, value_BT)
    return _recursion(
        arrays, segment_BT, mask_BT, gamma, lam, "advantage_gae", interpret
    )


def discounted_returns(
    reward_BT: jax.Array,
    segment_BT: jax.Array,
    mask_BT: jax.Array,
    bootstrap_BT: jax.Array,
    gamma: float,
    interpret: bool,
) -> jax.Array:
    """As `plain.discounted_returns`, any B and T."""
    arrays = (reward_BT, bootstrap_BT)
    return _recursion(
        arrays, segment_BT, mask_BT, gamma, 1.0, "advantage_returns", interpret
    )


def _recursion(arrays, segment_BT, mask_BT, gamma, lam, name, interpret):
    """The recursion of `plain.gae`, every tile of every row at once.

    h[t] = add[t] + keep[t] * h[t + 1], and keep is gamma * lam, 1 or 0: products of it
    are powers, known from counts. So a first kernel sums up each tile on its own, and
    a second one has what comes after its tile from the sums of the tiles after it.
    """
    B, T = segment_BT.shape
    tiles = pl.cdiv(T, _TILE)
    inputs = (segment_BT, mask_BT.astype(jnp.int32), *arrays)
    dtype = arrays[0].dtype
    call = functools.partial(
        pl.pallas_call,
        grid=(B, tiles),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
    )
    static = {"gamma": gamma, "lam": lam}
    of_tiles = call(
        functools.partial(_tile_sums, **static),
        out_shape=[
            result((B, tiles), dtype, *inputs),
            result((B, tiles), jnp.int32, *inputs),
            result((B, tiles), jnp.int32, *inputs),
        ],
        name=name + "_tiles",
    )(*inputs)
    return call(
        functools.partial(_tile_values, **static),
        out_shape=result((B, T), dtype, *inputs),
        name=name,
    )(*of_tiles, *inputs)


def _tile_sums(segment_ref, mask_ref, *refs, gamma, lam):
    """h at the first position of a tile if it is 0 behind it; live tokens; ends."""
    *refs, h_ref, num_live_ref, num_last_ref = refs
    row, tile = pl.program_id(0), pl.program_id(1)
    t_R = _range(tile)
    live_R, last_R, add_R, *_ = _tokens(
        segment_ref, mask_ref, refs, row, t_R, gamma, lam
    )
    live_R, last_R = live_R.astype(jnp.int32), last_R.astype(jnp.int32)
    lives_R, lasts_R = _before(live_R), _before(last_R)
    h_R = jnp.where(
        lasts_R == 0, _power(gamma * lam, lives_R, add_R.dtype) * add_R, 0.0
    )
    h_ref[row, tile] = h_R.sum()
    num_live_ref[row, tile] = live_R.sum(dtype=jnp.int32)
    num_last_ref[row, tile] = last_R.sum(dtype=jnp.int32)


def _tile_values(
    h_ref, num_live_ref, num_last_ref, segment_ref, mask_ref, *refs, gamma, lam
):
    """out[t] = reward[t] + gamma * h[t + 1] - value[t] for a tile."""
    *refs, out_ref = refs
    row, tile = pl.program_id(0), pl.program_id(1)
    decay, (tiles, T) = gamma * lam, (h_ref.shape[1], out_ref.shape[1])

    # h after this tile, from the tiles that follow it up to the first end of a segment.
    a_A = jax.lax.iota(jnp.int32, pl.next_power_of_2(tiles))
    after_A = (a_A > tile) & (a_A < tiles)

    def loaded(ref):
        return plgpu.load(ref.at[row, a_A], mask=after_A, other=0)

    num_live_A, num_last_A = loaded(num_live_ref), loaded(num_last_ref)
    lives_A = _before(num_live_A)
    seen_A = after_A & (_before(num_last_A) == 0)
    h_A = loaded(h_ref)
    carry = jnp.where(seen_A, _power(decay, lives_A, h_A.dtype) * h_A, 0.0).sum()

    t_R = _range(tile)
    live_R, last_R, add_R, reward_R, bootstrap_R, baseline_R = _tokens(
        segment_ref, mask_ref, refs, row, t_R, gamma, lam
    )
    # Counts up to and with each position, those of rows; those before it, of columns.
    num_live_R, num_last_R = live_R.astype(jnp.int32), last_R.astype(jnp.int32)
    lives_C, lasts_C = _before(num_live_R), _before(num_last_R)
    lives_R, lasts_R = lives_C + num_live_R, lasts_C + num_last_R
    seen_RC = (t_R[None, :] > t_R[:, None]) & (lasts_C[None, :] == lasts_R[:, None])
    power_RC = _power(decay, lives_C[None, :] - lives_R[:, None], add_R.dtype)
    # Not 0 * add: whatever another segment holds, infinity or NaN, stays there.
    next_R = jnp.where(seen_RC, power_RC * add_R[None, :], 0.0).sum(axis=1)
    power_R = _power(decay, num_live_R.sum(dtype=jnp.int32) - lives_R, add_R.dtype)
    next_R += jnp.where(
        lasts_R == num_last_R.sum(dtype=jnp.int32), power_R * carry, 0.0
    )
    next_R = jnp.where(last_R, bootstrap_R, next_R)
    out_R = jnp.where(live_R, reward_R + gamma * next_R - baseline_R, 0.0)
    plgpu.store(out_ref.at[row, t_R], out_R, mask=t_R < T)


def _tokens(segment_ref, mask_ref, refs, row, t_R, gamma, lam):
    """(live_R, last_R, add_R, reward_R, bootstrap_R, value_R), all 0 beyond T."""
    T = segment_ref.shape[1]
    inside_R = t_R < T

    def loaded(ref, t_R):
        return plgpu.load(ref.at[row, t_R], mask=inside_R, other=0)

    live_R = loaded(mask_ref, t_R) != 0
    following_R = loaded(segment_ref, jnp.minimum(t_R + 1, T - 1))
    last_R = (loaded(segment_ref, t_R) != following_R) | (t_R == T - 1)
    reward_R, bootstrap_R, *value_R = (loaded(ref, t_R) for ref in refs)
    value_R = value_R[0] if value_R else jnp.zeros_like(reward_R)
    x_R = (1 - lam) * value_R + lam * reward_R
    add_R = jnp.where(live_R, x_R, 0.0)
    keep_R = jnp.where(live_R, gamma * lam, 1.0).astype(add_R.dtype)
    add_R += jnp.where(last_R, keep_R * bootstrap_R, 0.0)
    return live_R, last_R, add_R, reward_R, bootstrap_R, value_R


def _power(base: float, count, dtype):
    """base ** count; counts below 0 give anything finite."""
    if base == 1:
        return jnp.ones(count.shape, dtype)
    if base == 0:
        return (count == 0).astype(dtype)
    return jnp.exp2(jnp.maximum(count, 0).astype(dtype) * math.log2(base))


def _range(tile):
    return tile * _TILE + jax.lax.iota(jnp.int32, _TILE)


def _before(count):
    """Sums of what stands before each position."""
    return jax.lax.cumsum(count) - count
