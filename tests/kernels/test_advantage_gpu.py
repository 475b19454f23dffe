"""The GPU's advantage kernels where their own tiles end, and on a GPU if there is one.

`test_advantage.py` runs them over the table of cases in Pallas's interpreter. With a
GPU, run them for real, over the table too:

    RL_JAX_TEST_PLATFORM=cuda python -m pytest tests/kernels/test_advantage_gpu.py

Legend: N samples, B packed rows, T positions of a row.
"""

import advantage_cases as cases
import advantage_reference as reference
import jax
import numpy as np
import pytest

from rl_jax.kernels import advantage  # pyright: ignore[reportMissingImports]

ON_GPU = jax.default_backend() == "gpu"
HOW = "gpu" if ON_GPU else "gpu_interpret"
EPS = 1e-6
TILE = 64

group_advantage = jax.jit(
    advantage.group_advantage,
    static_argnames=("num_groups", "centre", "scale", "implementation"),
)
gae = jax.jit(advantage.gae, static_argnames=("gamma", "lam", "implementation"))


def check_groups(case: cases.Groups, centre="group_mean", scale="group_std"):
    adv_N = group_advantage(
        *case[:3],
        num_groups=case.num_groups,
        centre=centre,
        scale=scale,
        implementation=HOW,
    )
    expected_N = reference.slow_group_advantage(*case[:3], centre, scale, EPS)
    size_N = reference.group_size_of_error(expected_N, *case[1:3], centre)
    assert np.all(np.abs(np.asarray(adv_N, float) - expected_N) <= 1e-5 * size_N)


def check_rows(case: cases.Rows, gamma, lam):
    adv_BT, _ = gae(
        *case[:4],
        bootstrap_BT=case.bootstrap_BT,
        gamma=gamma,
        lam=lam,
        implementation=HOW,
    )
    expected_BT = reference.slow_gae(*case, gamma, lam)
    largest = max(np.abs(x[case.mask_BT]).max() for x in (*case[:2], expected_BT))
    largest = max(largest, np.nanmax(np.abs(case.bootstrap_BT)))
    error_BT = np.abs(np.asarray(adv_BT, float) - expected_BT)
    assert error_BT.max() <= 1e-5 * largest


@pytest.mark.parametrize("T", [TILE - 1, TILE, TILE + 1, 3 * TILE])
def test_segments_may_end_where_a_tile_does(T):
    for lengths in ([TILE], [TILE - 1, 1], [TILE + 1], [2, TILE, 3], [T]):
        check_rows(cases.rows(0, 2, T, lengths=[min(T, n) for n in lengths]), 0.99, 0.9)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.5, 0.9), (1.0, 0.0)])
def test_a_segment_may_span_many_tiles_with_few_tokens_that_count(gamma, lam):
    case = cases.rows(1, 1, 9 * TILE + 5, lengths=[8 * TILE + 3, 9], share_live=0.02)
    check_rows(case, gamma, lam)


def test_a_group_may_have_its_samples_in_any_tile():
    N = 3 * TILE + 7
    rng = np.random.default_rng(2)
    reward_N = rng.normal(size=N)
    for group_N in (
        np.zeros(N, int),
        np.arange(N) % 5,
        np.arange(N) // 50,
        # Tiles whose ids begin and end alike, and have others between.
        np.where(np.arange(N) % TILE == 0, 7, rng.integers(0, 9, N)),
    ):
        case = cases.groups(reward_N, group_N, rng.random(N) < 0.9, num_groups=9)
        check_groups(case)
        check_groups(case, "leave_one_out", "batch_sample_std")


def test_tiles_without_a_valid_sample_give_zeros():
    N = 4 * TILE
    valid_N = np.arange(N) // TILE == 2
    case = cases.groups(np.arange(N) % 7, np.arange(N) % 3, valid_N)
    check_groups(case)


@pytest.mark.skipif(not ON_GPU, reason="test_advantage.py does this on a CPU")
def test_the_table_of_cases_comes_out_on_a_gpu():
    for case in cases.GROUPS.values():
        for centre in advantage.CENTRES:
            for scale in advantage.SCALES:
                check_groups(case, centre, scale)
    for case in cases.ROWS.values():
        if case.mask_BT.any():
            check_rows(case, 1.0, 0.95)
            check_rows(case, 0.9, 0.8)
