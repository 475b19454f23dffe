"""The advantage kernels against loops in float64, and how they are called."""

import functools
import itertools

import advantage_cases as cases
import advantage_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.kernels import advantage  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.advantage import tpu  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.platform import KernelError  # pyright: ignore[reportMissingImports]

IMPLEMENTATIONS = ("plain", "tpu_interpret", "gpu_interpret")
# All names over the whole table would be 24 programs an implementation: these hold
# what differs within a group, and `every_pair` has the rest.
PAIRS = [
    ("group_mean", "group_std"),
    ("leave_one_out", "group_sample_std"),
    ("group_mean", "varying_std"),
]
EPS = 1e-6


@functools.partial(jax.jit, static_argnums=(3, 4, 5, 6))
def group_advantage(reward_N, group_N, valid_N, num_groups, centre, scale, how):
    return advantage.group_advantage(
        *(reward_N, group_N, valid_N),
        num_groups=num_groups,
        centre=centre,
        scale=scale,
        eps=EPS,
        implementation=how,
    )


group_varies = jax.jit(
    advantage.group_varies, static_argnames=("num_groups", "implementation")
)
gae = jax.jit(advantage.gae, static_argnames=("gamma", "lam", "implementation"))
returns = jax.jit(
    advantage.discounted_returns, static_argnames=("gamma", "implementation")
)


def check_groups(case: cases.Groups, centre, scale, how):
    adv_N = group_advantage(*case, centre, scale, how)
    assert adv_N.dtype == jnp.float32
    expected_N = reference.slow_group_advantage(*case[:3], centre, scale, EPS)
    size_N = reference.group_size_of_error(expected_N, *case[1:3], centre)
    error_N = np.abs(np.asarray(adv_N, np.float64) - expected_N)
    assert np.all(error_N <= 1e-5 * size_N), np.max(error_N / (size_N + 1e-30))


def check_rows(case: cases.Rows, gamma, lam, how):
    """Both recursions of one case; what has no reward, value or bootstrap is nan."""
    reward_BT, value_BT, segment_BT, mask_BT, bootstrap_BT = case
    both = gae(
        *(reward_BT, value_BT, segment_BT, mask_BT),
        bootstrap_BT=bootstrap_BT,
        gamma=gamma,
        lam=lam,
        implementation=how,
    )
    slow_BT = reference.slow_gae(*case, gamma, lam)
    slow_target_BT = np.where(mask_BT, slow_BT + value_BT, 0.0)
    size_BT = reference.segment_size_of_error(
        *(segment_BT, mask_BT, bootstrap_BT, reward_BT, value_BT, slow_BT)
    )
    for found_BT, expected_BT in zip(both, (slow_BT, slow_target_BT), strict=True):
        assert found_BT.dtype == jnp.float32
        error_BT = np.abs(np.asarray(found_BT, np.float64) - expected_BT)
        assert np.all(error_BT <= 1e-5 * size_BT), np.max(error_BT - 1e-5 * size_BT)


def check_returns(case: cases.Rows, gamma, how):
    reward_BT, _, segment_BT, mask_BT, bootstrap_BT = case
    found_BT = returns(
        *(reward_BT, segment_BT, mask_BT),
        bootstrap_BT=bootstrap_BT,
        gamma=gamma,
        implementation=how,
    )
    slow_BT = reference.slow_returns(
        reward_BT, segment_BT, mask_BT, bootstrap_BT, gamma
    )
    size_BT = reference.segment_size_of_error(
        *(segment_BT, mask_BT, bootstrap_BT, reward_BT, slow_BT)
    )
    assert found_BT.dtype == jnp.float32
    error_BT = np.abs(np.asarray(found_BT, np.float64) - slow_BT)
    assert np.all(error_BT <= 1e-5 * size_BT), np.max(error_BT - 1e-5 * size_BT)


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
@pytest.mark.parametrize(("centre", "scale"), PAIRS)
@pytest.mark.parametrize("name", cases.GROUPS)
def test_groups_match_the_slow_version(name, centre, scale, how):
    # Of one size, so that one program serves the whole table.
    check_groups(cases.padded(cases.GROUPS[name]), centre, scale, how)


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", cases.GROUPS)
def test_a_group_varies_if_two_of_its_valid_rewards_differ(name, how):
    case = cases.padded(cases.GROUPS[name])
    varies_N = group_varies(*case[:3], num_groups=case.num_groups, implementation=how)
    expected_N = np.zeros(len(case.valid_N), bool)
    for group in np.unique(case.group_N):
        members_N = case.valid_N & (case.group_N == group)
        expected_N[members_N] = not reference.agree(case.reward_N[members_N])
    assert varies_N.dtype == bool
    np.testing.assert_array_equal(varies_N, expected_N)


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "name",
    [
        "one sample",
        "empty groups",
        "more groups than a tile holds",
        "samples of two tiles",
        "many groups in order",
    ],
)
def test_any_number_of_samples_and_groups_will_do(name, how):
    check_groups(cases.GROUPS[name], "group_mean", "group_std", how)


def every_pair():
    """All centres with all scales; of the interpreters' the slow ones apart.

    A baseline of the batch is made of the other calls.
    """
    for centre, scale in itertools.product(advantage.CENTRES, advantage.SCALES):
        for how in IMPLEMENTATIONS:
            quick = how == "plain" or (centre, scale) in (
                ("group_mean", "batch_std"),
                ("leave_one_out", "batch_sample_std"),
                ("none", "group_std"),
            )
            marks = [] if quick else [pytest.mark.slow]
            yield pytest.param(centre, scale, how, marks=marks)


@pytest.mark.parametrize(("centre", "scale", "how"), [*every_pair()])
def test_every_centre_goes_with_every_scale(centre, scale, how):
    check_groups(cases.GROUPS["ragged, out of order"], centre, scale, how)


# In its interpreter the GPU's kernel would take minutes: a group of N is N * N work.
@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "tpu_interpret"])
@pytest.mark.parametrize("name", cases.LARGE_GROUPS)
def test_nothing_is_lost_in_a_group_of_many_samples(name, how):
    check_groups(cases.LARGE_GROUPS[name], "group_mean", "group_std", how)


@pytest.mark.parametrize(("centre", "scale"), [*PAIRS, ("none", "none")])
def test_more_samples_than_fit_are_fetched_chunk_by_chunk(centre, scale, monkeypatch):
    monkeypatch.setattr(tpu, "CHUNK_ROWS", tpu.SUBLANES)
    case = cases.GROUPS["many groups in order"]
    assert len(case.reward_N) > 2 * tpu.SUBLANES * tpu.LANES
    check_groups(case, centre, scale, "tpu_interpret")


SMALL_ROWS = [k for k, case in cases.ROWS.items() if case.mask_BT.shape[1] <= 300]


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", SMALL_ROWS)
def test_rows_match_the_slow_version(name, how):
    # Of one size, so that one program serves all.
    case = cases.padded_rows(cases.ROWS[name])
    check_rows(case, 1.0, 0.95, how)
    check_returns(case, 0.97, how)


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["one token", "one position a row", "several tiles"])
def test_any_number_of_rows_and_positions_will_do(name, how):
    check_rows(cases.ROWS[name], 0.9, 0.8, how)


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_nothing_is_lost_along_a_long_segment(how):
    check_rows(cases.ROWS["one long segment"], 1.0, 1.0, how)
    check_returns(cases.ROWS["one long segment"], 1.0, how)


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
@pytest.mark.parametrize(("gamma", "lam"), cases.EXTREMES)
def test_without_a_future_or_a_trace_rows_match_the_slow_version(gamma, lam, how):
    check_rows(cases.ROWS["odd sizes"], gamma, lam, how)


def test_float64_is_kept_where_it_can_be_and_refused_where_it_cannot():
    with jax.enable_x64(True):
        reward_N = jnp.array([1.0, 0.0, 0.0], jnp.float64)
        arguments = reward_N, jnp.zeros(3, int), jnp.ones(3, bool), 1
        names = "group_mean", "group_sample_std"
        adv_N = group_advantage(*arguments, *names, "plain")
        assert adv_N.dtype == jnp.float64
        exact_N = np.array([2.0, -1.0, -1.0]) / 3 / (np.sqrt(1 / 3) + EPS)
        np.testing.assert_allclose(adv_N, exact_N, rtol=0, atol=1e-14)
        with pytest.raises(KernelError, match="float64"):
            group_advantage(*arguments, *names, "tpu_interpret")
        with pytest.raises(KernelError, match="float64"):
            check_rows(
                jax.tree.map(_as_float64, cases.ROWS["odd sizes"]),
                *(1.0, 0.95, "tpu_interpret"),
            )


def _as_float64(x):
    return jnp.asarray(x, jnp.float64) if x.dtype == np.float32 else x


def test_narrow_rewards_are_widened():
    for dtype in (jnp.bfloat16, jnp.int32, bool):
        arrays = jnp.array([1, 0, 0], dtype), jnp.zeros(3, int), jnp.ones(3, int)
        adv_N = group_advantage(*arrays, 1, "leave_one_out", "none", "plain")
        assert adv_N.dtype == jnp.float32
        np.testing.assert_allclose(adv_N, [1.0, -0.5, -0.5], rtol=0, atol=1e-6)
    row_BT = jnp.ones((1, 3), jnp.bfloat16)
    total_BT = returns(row_BT, jnp.ones((1, 3), int), jnp.ones((1, 3), int), gamma=0.5)
    assert total_BT.dtype == jnp.float32
    np.testing.assert_array_equal(total_BT, [[1.75, 1.5, 1.0]])


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_no_gradient_flows_through_an_advantage(how):
    case, rows = cases.GROUPS["three of four agree"], cases.ROWS["odd sizes"]

    def total(reward_N, reward_BT):
        adv_N = group_advantage(
            *(reward_N, case.group_N, case.valid_N, case.num_groups),
            *("group_mean", "group_std", how),
        )
        both = gae(reward_BT, *rows[1:4], gamma=1.0, lam=0.95, implementation=how)
        return jnp.sum(adv_N * reward_N) + jnp.sum(both[0] + both[1])

    grad_N, grad_BT = jax.jit(jax.grad(total, (0, 1)))(*map(_as_is, (case, rows)))
    adv_N = group_advantage(*case, "group_mean", "group_std", how)
    np.testing.assert_array_equal(grad_N, adv_N)  # of the factor beside it alone
    np.testing.assert_array_equal(grad_BT, np.zeros_like(rows.reward_BT))


def _as_is(case):
    return jnp.nan_to_num(jnp.asarray(case[0]))


@pytest.mark.parametrize("how", IMPLEMENTATIONS)
def test_what_is_not_a_number_in_one_segment_or_group_stays_there(how):
    case = cases.GROUPS["more groups than a tile holds"]
    reward_N = case.reward_N.copy()
    ill_N = case.group_N == case.group_N[case.valid_N][0]
    reward_N[ill_N] = np.nan
    names = "group_mean", "group_std", how
    well = group_advantage(*case, *names)
    found = group_advantage(reward_N, *case[1:], *names)
    np.testing.assert_array_equal(found[~ill_N], well[~ill_N])

    rows = cases.ROWS["longer than 128"]
    ill_BT = (rows.segment_BT == 2) & (np.arange(2) == 0)[:, None]
    broken_BT = np.where(ill_BT, np.nan, rows.reward_BT)
    options = dict(
        bootstrap_BT=rows.bootstrap_BT, gamma=1.0, lam=0.95, implementation=how
    )
    well_BT, _ = gae(*rows[:4], **options)
    found_BT, _ = gae(broken_BT, *rows[1:4], **options)
    assert np.isnan(found_BT[ill_BT & rows.mask_BT]).all()
    np.testing.assert_array_equal(found_BT[~ill_BT], well_BT[~ill_BT])


ROW_SPEC = jax.P(("replica", "fsdp"))


@pytest.fixture(scope="module")
def mesh():
    axes = (jax.sharding.AxisType.Explicit,) * 3
    return jax.make_mesh((2, 2, 2), ("replica", "fsdp", "tensor"), axis_types=axes)


def in_shards(f, specs, how):
    # The interpreters of Pallas know nothing of varying axes.
    return jax.jit(
        jax.shard_map(f, in_specs=specs, out_specs=specs, check_vma=how is None)
    )


@pytest.mark.parametrize("how", [None, "tpu_interpret", "gpu_interpret"])
def test_replicated_groups_are_right_on_every_device(mesh, how):
    case = cases.GROUPS["ragged, out of order"]

    def local(*arrays):
        return group_advantage(*arrays, case.num_groups, "group_mean", "group_std", how)

    with jax.set_mesh(mesh):
        arrays = [jax.device_put(x, jax.NamedSharding(mesh, jax.P())) for x in case[:3]]
        adv_N = in_shards(local, jax.P(), how)(*arrays)
    assert jax.typeof(adv_N).sharding.spec == jax.P(None)
    whole_N = group_advantage(*case, "group_mean", "group_std", how or "plain")
    assert len(adv_N.addressable_shards) == 8
    for shard in adv_N.addressable_shards:
        np.testing.assert_array_equal(shard.data, whole_N)


@pytest.mark.parametrize("how", [None, "tpu_interpret", "gpu_interpret"])
def test_rows_divided_over_devices_give_what_whole_rows_give(mesh, how):
    rows = cases.rows(11, 8, 140, lengths=[40, 1, 60])
    options = dict(gamma=0.9, lam=0.8, implementation=how)

    def local(reward_BT, value_BT, segment_BT, mask_BT, bootstrap_BT):
        arrays = reward_BT, value_BT, segment_BT, mask_BT
        both = gae(*arrays, bootstrap_BT=bootstrap_BT, **options)
        total_BT = returns(
            *(reward_BT, segment_BT, mask_BT), gamma=0.9, implementation=how
        )
        return *both, total_BT

    with jax.set_mesh(mesh):
        placed = [jax.device_put(x, jax.NamedSharding(mesh, ROW_SPEC)) for x in rows]
        divided = in_shards(local, ROW_SPEC, how)(*placed)
    for x_BT, whole_BT in zip(divided, local(*rows), strict=True):
        assert x_BT.addressable_shards[0].data.shape == (2, 140)
        np.testing.assert_array_equal(x_BT, whole_BT)


@pytest.mark.parametrize("name", [{"centre": "mean"}, {"scale": "std"}, {"eps": 0.0}])
def test_a_name_or_number_that_means_nothing_is_refused(name):
    options = {"centre": "group_mean", "scale": "group_std", "eps": EPS} | name
    ((_, value),) = name.items()
    with pytest.raises(ValueError, match=str(value)):
        advantage.group_advantage(
            jnp.ones(2), jnp.zeros(2, int), jnp.ones(2), num_groups=1, **options
        )


@pytest.mark.parametrize("options", [{"gamma": 1.5}, {"lam": -0.1}, {"lam": np.nan}])
def test_a_discount_outside_of_0_to_1_is_refused(options):
    ones_BT = jnp.ones((1, 2))
    options = {"gamma": 1.0, "lam": 1.0} | options
    with pytest.raises(ValueError, match="must be in"):
        advantage.gae(ones_BT, ones_BT, ones_BT, ones_BT, **options)


def test_rows_of_different_shapes_are_refused():
    ones_BT = jnp.ones((1, 2))
    with pytest.raises(ValueError, match=r"\(1, 3\)"):
        advantage.discounted_returns(jnp.ones((1, 3)), ones_BT, ones_BT, gamma=1.0)
    with pytest.raises(ValueError, match="one shape"):
        advantage.gae(*[jnp.ones(3)] * 4, gamma=1.0, lam=1.0)


def test_an_unknown_implementation_is_refused():
    with pytest.raises(KernelError, match="'cuda'"):
        check_rows(cases.ROWS["odd sizes"], 1.0, 1.0, "cuda")
