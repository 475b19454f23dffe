"""Arguments that every implementation of the advantages must get right.

One table of groups and one of packed rows, float32. What must not be read holds nan.
"""

from typing import NamedTuple

import numpy as np


class Groups(NamedTuple):
    reward_N: np.ndarray
    group_N: np.ndarray
    valid_N: np.ndarray
    num_groups: int


class Rows(NamedTuple):
    reward_BT: np.ndarray
    value_BT: np.ndarray
    segment_BT: np.ndarray
    mask_BT: np.ndarray
    bootstrap_BT: np.ndarray


def groups(reward, group, valid=None, num_groups=None) -> Groups:
    reward_N = np.array(reward, np.float32)
    group_N = np.array(group, np.int32)
    valid_N = np.ones(len(reward_N), bool) if valid is None else np.array(valid, bool)
    num_groups = int(group_N.max()) + 1 if num_groups is None else num_groups
    # Neither the reward nor the group of an invalid sample may be looked at.
    wild_N = np.where(np.arange(len(reward_N)) % 2, np.nan, np.inf)
    reward_N = np.where(valid_N, reward_N, wild_N).astype(np.float32)
    group_N = np.where(valid_N, group_N, -7 + 10**6 * (group_N % 2)).astype(np.int32)
    return Groups(reward_N, group_N, valid_N, num_groups)


def _ragged(seed, N, num_groups, reward, share_valid=0.9, in_order=False) -> Groups:
    rng = np.random.default_rng(seed)
    group_N = rng.integers(0, num_groups, N)
    if in_order:
        group_N = np.sort(group_N)
    valid_N = rng.random(N) < share_valid
    return groups(reward(rng, N), group_N, valid_N, num_groups)


def _binary(rng, N):
    return rng.integers(0, 2, N)


def _normal(rng, N):
    return rng.normal(size=N)


GROUPS: dict[str, Groups] = {
    "one sample": groups([0.7], [0]),
    "one group": groups([0.0, 1.0, 1.0, 0.25, -3.0, 0.5, 1.0], [0] * 7),
    "a group of one beside one of two": groups([1.0, 0.0, 5.0], [1, 1, 0]),
    "three of four agree": groups([1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1], [0, 1, 2] * 4),
    "empty groups": groups([1.0, 0.0, 0.5, 2.0], [9, 9, 4, 4], num_groups=13),
    "nothing valid": groups([1.0, 2.0, 3.0], [0, 0, 1], [False] * 3),
    "all equal": groups([0.1] * 23, np.arange(23) % 3),
    "one valid in each group": groups(
        [1.0, 2.0, 3.0, 4.0], [0, 0, 1, 1], [True, False, False, True]
    ),
    "ragged, out of order": _ragged(0, 37, 11, _binary),
    "large beside small": groups(
        np.concatenate([_normal(np.random.default_rng(1), 24)] * 2)
        * np.repeat([1e4, 1e-8], 24),
        np.repeat(np.arange(6), 8),
    ),
    "large and small in one group": groups(
        [1e4, -1e4, 1e-8, -1e-8, 1e4, 0.0], [0, 0, 0, 0, 1, 1]
    ),
    "large and nearly equal": groups(1e4 + np.arange(12) % 5 / 1024, np.arange(12) % 2),
    "a rare success": groups(np.arange(1500) % 397 == 5, np.zeros(1500, int)),
    "more groups than a tile holds": _ragged(2, 300, 203, _normal),
    "samples of two tiles": _ragged(6, 1031, 9, _normal),
    "many groups in order": _ragged(3, 2500, 150, _binary, in_order=True),
}


def padded(case: Groups, N: int = 2500, num_groups: int = 203) -> Groups:
    """The case with invalid samples after its own and more groups."""
    more = N - len(case.reward_N)
    return Groups(
        np.pad(case.reward_N, (0, more), constant_values=np.nan),
        np.pad(case.group_N, (0, more), constant_values=3),
        np.pad(case.valid_N, (0, more)),
        num_groups,
    )


# Slow in an interpreter.
LARGE_GROUPS: dict[str, Groups] = {
    "more samples than are held at a time": _ragged(4, 70_001, 3, _normal),
    "the same reward almost always": groups(
        np.where(np.arange(65_536) % 4001 == 0, 0.3, 0.1), np.zeros(65_536, int)
    ),
}


def rows(seed, B, T, *, lengths, share_live=0.8, scale=1.0, share_cut=0.3) -> Rows:
    """Rows packed with segments of the given (cycled) lengths, padding at the end."""
    rng = np.random.default_rng(seed)
    segment_BT = np.zeros((B, T), np.int32)
    bootstrap_BT = np.full((B, T), np.nan)
    k = 0
    for b in range(B):
        start, segment = 0, 1
        while start + lengths[k % len(lengths)] <= T:
            stop = start + lengths[k % len(lengths)]
            segment_BT[b, start:stop] = segment
            start, segment, k = stop, segment + 1, k + 1
    last_BT = segment_BT != np.pad(
        segment_BT[:, 1:], ((0, 0), (0, 1)), constant_values=-1
    )
    cut_BT = rng.random((B, T)) < share_cut
    numbers_BT = rng.normal(size=(B, T)) * scale
    bootstrap_BT[last_BT] = np.where(cut_BT, numbers_BT, 0.0)[last_BT]
    mask_BT = (rng.random((B, T)) < share_live) & (segment_BT > 0)
    reward_BT = np.where(mask_BT, rng.normal(size=(B, T)) * scale, np.nan)
    value_BT = np.where(mask_BT, rng.normal(size=(B, T)) * scale, np.nan)
    floats = (x.astype(np.float32) for x in (reward_BT, value_BT, bootstrap_BT))
    reward_BT, value_BT, bootstrap_BT = floats
    return Rows(reward_BT, value_BT, segment_BT, mask_BT, bootstrap_BT)


def _alternating(scales, B, T) -> Rows:
    """Segments of very different size beside each other."""
    made = rows(9, B, T, lengths=[5, 3, 7])
    scale_BT = np.asarray(scales, np.float32)[made.segment_BT % len(scales)]
    return Rows(
        made.reward_BT * scale_BT,
        made.value_BT * scale_BT,
        made.segment_BT,
        made.mask_BT,
        made.bootstrap_BT * scale_BT,
    )


ROWS: dict[str, Rows] = {
    "one token": rows(0, 1, 1, lengths=[1], share_live=1.0),
    "one position a row": rows(1, 3, 1, lengths=[1]),
    "segments of one token": rows(2, 2, 9, lengths=[1]),
    "one segment": rows(3, 1, 13, lengths=[13], share_live=1.0, share_cut=0.0),
    "odd sizes": rows(4, 3, 17, lengths=[4, 1, 6]),
    "masks inside segments": rows(5, 5, 70, lengths=[30, 8, 23], share_live=0.3),
    "everything masked": rows(6, 2, 11, lengths=[4], share_live=0.0),
    "large beside small": _alternating([1e4, 1e-8], 2, 40),
    "longer than 128": rows(7, 2, 300, lengths=[150, 1, 97]),
    "one long segment": rows(8, 1, 1300, lengths=[1300]),
    "many rows": rows(9, 19, 140, lengths=[140, 60, 3]),
    "several tiles": rows(10, 9, 2500, lengths=[1111, 389, 2]),
}


def padded_rows(case: Rows, B: int = 19, T: int = 300) -> Rows:
    """The case with more rows, and padding at the end of its own."""
    more = (0, B - len(case.mask_BT)), (0, T - case.mask_BT.shape[1])
    reward_BT, value_BT, bootstrap_BT = (
        np.pad(x, more, constant_values=np.nan)
        for x in (case.reward_BT, case.value_BT, case.bootstrap_BT)
    )
    bootstrap_BT[:, -1] = 0.0  # the end of the padding
    segment_BT = np.pad(case.segment_BT, more)
    return Rows(
        reward_BT, value_BT, segment_BT, np.pad(case.mask_BT, more), bootstrap_BT
    )


# (gamma, lam) where a term of the recursion drops out.
EXTREMES = [(0.99, 0.0), (0.0, 0.5)]
