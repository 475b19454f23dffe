"""Group advantages, GAE and discounted returns as Pallas kernels for TPUs.

Signatures as in `plain.py`. Small next to a model's work, but on the path between
sampling and training: each is one kernel, however many samples, groups or tokens.

Legend: N samples, G groups of a tile, L lanes (128), B packed rows, T positions.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from ..platform import KernelError, result

LANES, SUBLANES = 128, 8
_TILE = (SUBLANES, LANES)

# Groups held at a time: three moments of 64 groups by 128 lanes, with the ids, are half
# of the 64 vector registers.
GROUP_TILE = 64
# Samples held at a time are 512 rows of 128, 65,536: 256 KiB for each of four arrays.
CHUNK_ROWS = 512
# Positions of a block of rows, at most: eight scans of 128 lanes that can overlap.
TIME_TILE = 8 * LANES


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
    """As `plain.group_advantage`, any N and `num_groups`.

    Samples lie along lanes, a tile of groups along sublanes: comparing ids gives the
    one-hot matrix of both, and each moment is a masked reduction over it. That is
    N * num_groups comparisons for each moment, but only from the first 1,024 samples
    that can be in the tile to the last: if groups come in order, work is linear in N.

    Raises:
        KernelError: for float64.
    """
    _check_float32(reward_N)
    (N,) = reward_N.shape
    rows = max(pl.cdiv(N, SUBLANES * LANES), 1) * SUBLANES
    chunk_rows = min(rows, CHUNK_ROWS)
    num_chunks = pl.cdiv(rows, chunk_rows)
    rows = num_chunks * chunk_rows

    def laid_out(x_N, fill):
        padding = rows * LANES - N
        return jnp.pad(x_N, (0, padding), constant_values=fill).reshape(rows, LANES)

    id_RL = laid_out(jnp.where(valid_N, group_N, -1), -1)
    reward_RL = laid_out(jnp.where(valid_N, reward_N, 0.0), 0.0)
    first, stop = _reach(id_RL.reshape(-1, SUBLANES * LANES), num_groups)

    # More than a chunk stays in HBM, and the kernel fetches chunk by chunk.
    chunk = functools.partial(pltpu.VMEM, (chunk_rows, LANES))
    arrays = pl.BlockSpec(memory_space=pltpu.VMEM if num_chunks == 1 else pl.ANY)
    scratch = [chunk(d) for d in (jnp.float32, jnp.int32, jnp.float32, jnp.float32)]
    adv_RL, varies_RL = pl.pallas_call(
        functools.partial(
            _group_kernel, num_groups=num_groups, centre=centre, scale=scale, eps=eps
        ),
        out_shape=[result((rows, LANES), jnp.float32, reward_RL, id_RL)] * 2,
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)] * 2 + [arrays] * 2,
        out_specs=[arrays] * 2,
        scratch_shapes=scratch if num_chunks > 1 else [],
        interpret=interpret,
        name="advantage_group",
    )(first, stop, reward_RL, id_RL)
    return adv_RL.reshape(-1)[:N], varies_RL.reshape(-1)[:N] > 0


def _reach(id_AN, num_groups):
    """For each tile of groups, the tiles A of samples that it has members in.

    Returns:
        (first, stop), int32: from `first` to before `stop`, if not all between.
    """
    lowest_A = jnp.min(jnp.where(id_AN < 0, num_groups, id_AN), 1)
    highest_A = jnp.max(id_AN, 1)
    group_G1 = jnp.arange(0, num_groups, GROUP_TILE)[:, None]
    meets_GA = (lowest_A < group_G1 + GROUP_TILE) & (highest_A >= group_G1)
    tile_A = jnp.arange(len(id_AN), dtype=jnp.int32)
    first_G = jnp.min(jnp.where(meets_GA, tile_A, len(id_AN)), 1)
    return first_G, jnp.max(jnp.where(meets_GA, tile_A + 1, 0), 1)


def _group_kernel(first_ref, stop_ref, *refs, num_groups, centre, scale, eps):
    """Fills adv and varies, tile of groups by tile of groups.

    Args:
        refs: rewards, ids, adv, varies; where they are in HBM also a chunk of each.
    """
    over_tiles = functools.partial(_over_tiles, refs[:4], refs[4:])

    def start(rows, held, state):
        _, _, adv_ref, varies_ref = held
        adv_ref[rows, :] = varies_ref[rows, :] = jnp.zeros(_TILE, jnp.float32)
        return state

    over_tiles(start, 0, writes=True)

    def tile_of_groups(g, state):
        id_GL = jax.lax.broadcasted_iota(jnp.int32, (GROUP_TILE, LANES), 0)
        _one_tile_of_groups(
            functools.partial(over_tiles, first=first_ref[g], stop=stop_ref[g]),
            id_GL + g * GROUP_TILE,
            centre,
            scale,
            eps,
        )
        return state

    jax.lax.fori_loop(0, pl.cdiv(num_groups, GROUP_TILE), tile_of_groups, 0)

    if centre == "none" and scale == "none":

        def keep(rows, held, state):
            reward_ref, id_ref, adv_ref, _ = held
            adv_ref[rows, :] = jnp.where(id_ref[rows, :] >= 0, reward_ref[rows, :], 0.0)
            return state

        over_tiles(keep, 0, writes=True)
    elif scale in ("batch_std", "batch_sample_std", "varying_std"):
        _divide_by_batch_spread(over_tiles, scale, eps)


def _over_tiles(refs, scratch, body, init, *, first=0, stop=None, writes=False):
    """Folds body(rows, refs, state) over tiles of samples.

    Args:
        refs, scratch: see `_group_kernel`.
        body: takes 8 rows of `refs`, or of the chunks that stand for them.
        first, stop: tiles to go over; None: all.
        writes: whether `body` changes adv or varies.
    """
    num_tiles = refs[0].shape[0] // SUBLANES
    stop = num_tiles if stop is None else stop

    def tile(held, start, i, state):
        rows = pl.ds(pl.multiple_of((i - start) * SUBLANES, SUBLANES), SUBLANES)
        return body(rows, held, state)

    if not scratch:
        return jax.lax.fori_loop(first, stop, functools.partial(tile, refs, 0), init)
    chunk_rows = scratch[0].shape[0]
    chunk_tiles = chunk_rows // SUBLANES

    def chunk(c, state):
        here = pl.ds(pl.multiple_of(c * chunk_rows, chunk_rows), chunk_rows)
        for ref, held in zip(refs, scratch, strict=True):
            pltpu.sync_copy(ref.at[here], held)
        start = c * chunk_tiles
        state = jax.lax.fori_loop(
            jnp.maximum(first, start),
            jnp.minimum(stop, start + chunk_tiles),
            functools.partial(tile, scratch, start),
            state,
        )
        if writes:
            for ref, held in list(zip(refs, scratch, strict=True))[2:]:
                pltpu.sync_copy(held, ref.at[here])
        return state

    stop_chunk = (stop + chunk_tiles - 1) // chunk_tiles
    return jax.lax.fori_loop(first // chunk_tiles, stop_chunk, chunk, init)


def _one_tile_of_groups(over_members, id_GL, centre, scale, eps):
    """Moments of some groups, then advantages of their members.

    Each moment is kept lane by lane while samples are gone over, and its lanes are
    added at the end.
    """

    def moment(update, init):
        def tile(rows, held, state):
            reward_RL, sample_id_RL = held[0][rows, :], held[1][rows, :]
            for r in range(SUBLANES):
                member_GL = sample_id_RL[r : r + 1] == id_GL
                state = update(state, member_GL, reward_RL[r : r + 1])
            return state

        return over_members(tile, init)

    def extremes(state, member_GL, reward_1L):
        low_GL, high_GL, count_GL = state
        return (
            jnp.minimum(low_GL, jnp.where(member_GL, reward_1L, jnp.inf)),
            jnp.maximum(high_GL, jnp.where(member_GL, reward_1L, -jnp.inf)),
            count_GL + jnp.where(member_GL, 1.0, 0.0),
        )

    zero_GL = jnp.zeros(id_GL.shape, jnp.float32)
    low_GL, high_GL, count_GL = moment(
        extremes, (zero_GL + jnp.inf, zero_GL - jnp.inf, zero_GL)
    )
    low_G1 = jnp.min(low_GL, 1, keepdims=True)
    varies_G1 = jnp.max(high_GL, 1, keepdims=True) > low_G1
    count_G1 = jnp.maximum(jnp.sum(count_GL, 1, keepdims=True), 1.0)
    factor_G1 = jnp.ones_like(low_G1)
    # Spread along lanes once: to broadcast along lanes is dear, along sublanes free.
    low_GL = jnp.broadcast_to(low_G1, id_GL.shape)

    mean_GL = zero_GL
    if centre != "none" or scale.startswith("group"):

        def add(sum_GL, member_GL, reward_1L):
            return sum_GL + jnp.where(member_GL, reward_1L - low_GL, 0.0)

        sum_G1 = jnp.sum(moment(add, zero_GL), 1, keepdims=True)
        mean_GL = jnp.broadcast_to(sum_G1 / count_G1, id_GL.shape)
    if centre == "leave_one_out":
        factor_G1 = count_G1 / jnp.maximum(count_G1 - 1.0, 1.0)
    if scale.startswith("group"):

        def add_square(sum_GL, member_GL, reward_1L):
            centred_GL = reward_1L - low_GL - mean_GL
            return sum_GL + jnp.where(member_GL, centred_GL * centred_GL, 0.0)

        sum_G1 = jnp.sum(moment(add_square, zero_GL), 1, keepdims=True)
        free_G1 = count_G1 - (1.0 if scale == "group_sample_std" else 0.0)
        std_G1 = jnp.sqrt(sum_G1 / jnp.maximum(free_G1, 1.0))
        factor_G1 = factor_G1 / (std_G1 + eps)
    factor_GL = jnp.broadcast_to(factor_G1, id_GL.shape)
    # No id is -2: a group that agrees, or is empty, has no members from here on.
    varying_id_GL = jnp.where(varies_G1, id_GL, -2)

    def give_back(rows, held, state):
        reward_ref, sample_id_ref, adv_ref, varies_ref = held
        reward_RL, sample_id_RL = reward_ref[rows, :], sample_id_ref[rows, :]
        adv, varies = [], []
        for r in range(SUBLANES):
            member_GL = sample_id_RL[r : r + 1] == varying_id_GL
            adv_GL = jnp.broadcast_to(reward_RL[r : r + 1], id_GL.shape)
            if centre != "none":
                adv_GL = adv_GL - low_GL - mean_GL
            adv_GL = jnp.where(member_GL, adv_GL * factor_GL, 0.0)
            adv.append(jnp.sum(adv_GL, 0, keepdims=True))
            one_GL = jnp.where(member_GL, 1.0, 0.0)
            varies.append(jnp.sum(one_GL, 0, keepdims=True))
        adv_ref[rows, :] += jnp.concatenate(adv)
        varies_ref[rows, :] += jnp.concatenate(varies)
        return state

    over_members(give_back, 0, writes=True)


def _divide_by_batch_spread(over_tiles, scale, eps):
    def measure(rows, held, state):
        _, id_ref, adv_ref, varies_ref = held
        square_RL, count_RL = state
        counts_RL = jnp.where(id_ref[rows, :] >= 0, 1.0, 0.0)
        if scale == "varying_std":
            counts_RL = varies_ref[rows, :]
        adv_RL = adv_ref[rows, :]
        return square_RL + adv_RL * adv_RL, count_RL + counts_RL

    zero_RL = jnp.zeros(_TILE, jnp.float32)
    square_RL, count_RL = over_tiles(measure, (zero_RL, zero_RL))
    free_11 = jnp.sum(count_RL, keepdims=True)
    free_11 = free_11 - (1.0 if scale == "batch_sample_std" else 0.0)
    square_11 = jnp.sum(square_RL, keepdims=True)
    std_11 = jnp.sqrt(square_11 / jnp.maximum(free_11, 1.0))
    factor_RL = jnp.broadcast_to(1.0 / (std_11 + eps), _TILE)

    def divide(rows, held, state):
        held[2][rows, :] = held[2][rows, :] * factor_RL
        return state

    over_tiles(divide, 0, writes=True)


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
    """As `plain.gae`, any B and T.

    Raises:
        KernelError: for float64.
    """
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
    """As `plain.discounted_returns`, any B and T.

    Raises:
        KernelError: for float64.
    """
    arrays = (reward_BT, bootstrap_BT)
    return _recursion(
        arrays, segment_BT, mask_BT, gamma, 1.0, "advantage_returns", interpret
    )


def _recursion(arrays, segment_BT, mask_BT, gamma, lam, name, interpret):
    """One walk from right to left over [8 rows, TIME_TILE] blocks; see `plain.gae`."""
    _check_float32(*arrays)
    B, T = segment_BT.shape
    last_BT = jnp.pad(
        segment_BT[:, 1:] != segment_BT[:, :-1], ((0, 0), (0, 1)), constant_values=True
    )
    flag_BT = mask_BT.astype(jnp.int32) * _LIVE + last_BT.astype(jnp.int32) * _LAST
    padding = ((0, 0), (0, -T % LANES))
    flag_BT = jnp.pad(flag_BT, padding, constant_values=_LAST)
    arrays = [jnp.pad(x_BT, padding) for x_BT in arrays]
    widths = [w for w in range(LANES, TIME_TILE + 1, LANES) if not flag_BT.shape[1] % w]
    rows, width = min(B, SUBLANES), widths[-1]
    num_tiles = flag_BT.shape[1] // width
    # What lies beyond the last row of the last block is computed on and never stored.
    block = pl.BlockSpec((rows, width), lambda b, t: (b, num_tiles - 1 - t))
    out_BT = pl.pallas_call(
        functools.partial(_recursion_kernel, gamma=gamma, lam=lam),
        out_shape=result(flag_BT.shape, jnp.float32, flag_BT, *arrays),
        grid=(pl.cdiv(B, rows), num_tiles),
        in_specs=[block] * (1 + len(arrays)),
        out_specs=block,
        scratch_shapes=[pltpu.VMEM((rows, LANES), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary")
        ),
        interpret=interpret,
        name=name,
    )(flag_BT, *arrays)
    return out_BT[:, :T]


_LIVE, _LAST = 1, 2


def _recursion_kernel(flag_ref, reward_ref, bootstrap_ref, *refs, gamma, lam):
    *value_refs, out_ref, carry_ref = refs
    rows, width = out_ref.shape
    lane_RL = jax.lax.broadcasted_iota(jnp.int32, (rows, LANES), 1)

    def shifted(x_RL, by, fill):
        """x[lane + by], and `fill` beyond the last lane."""
        x_RL = pltpu.roll(x_RL, LANES - by, 1)
        return jnp.where(lane_RL < LANES - by, x_RL, fill)

    def applied(keep_RL, add_RL, h_RL):
        # Not 0 * h: whatever another segment holds, infinity or NaN, stays there.
        return add_RL + jnp.where(keep_RL == 0, 0.0, keep_RL * h_RL)

    @pl.when(pl.program_id(1) == 0)
    def _():
        carry_ref[...] = jnp.zeros((rows, LANES), jnp.float32)

    carry_RL = carry_ref[...]
    for start in range(width - LANES, -1, -LANES):
        here = pl.ds(start, LANES)
        flag_RL = flag_ref[:, here]
        live_RL, last_RL = flag_RL & _LIVE != 0, flag_RL & _LAST != 0
        reward_RL, bootstrap_RL = reward_ref[:, here], bootstrap_ref[:, here]
        x_RL, baseline_RL = reward_RL, 0.0
        if value_refs:
            baseline_RL = value_refs[0][:, here]
            x_RL = (1 - lam) * baseline_RL + lam * reward_RL
        keep_RL = jnp.where(live_RL, gamma * lam, 1.0)
        add_RL = jnp.where(live_RL, x_RL, 0.0)
        add_RL = jnp.where(last_RL, add_RL + keep_RL * bootstrap_RL, add_RL)
        keep_RL = jnp.where(last_RL, 0.0, keep_RL)
        by = 1
        while by < LANES:
            add_RL = applied(keep_RL, add_RL, shifted(add_RL, by, 0.0))
            keep_RL = keep_RL * shifted(keep_RL, by, 1.0)
            by *= 2
        # Only here does a scan wait for that on its right.
        h_RL = applied(keep_RL, add_RL, carry_RL)
        next_RL = jnp.where(last_RL, bootstrap_RL, shifted(h_RL, 1, carry_RL))
        out_RL = reward_RL + gamma * next_RL - baseline_RL
        out_ref[:, here] = jnp.where(live_RL, out_RL, 0.0)
        carry_RL = jnp.broadcast_to(h_RL[:, :1], (rows, LANES))
    carry_ref[...] = carry_RL


def _check_float32(*arrays):
    for x in arrays:
        if x.dtype != jnp.float32:
            raise KernelError(
                f"the TPU advantage kernels compute in float32, got {x.dtype}: TPUs "
                "have no float64; set RL_JAX_KERNELS=plain"
            )
