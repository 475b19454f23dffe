"""Problems made by a program: distinct, in splits that never share one."""

import random
import zlib
from collections.abc import Callable
from typing import TypeVar

from rl_jax.errors import ConfigError

SPLITS = ("sft", "rl", "eval")
# The share of a hundred that each split owns, in the order of SPLITS.
_BOUNDS = (40, 80, 100)
# Draws in a row without a new problem: by then all but a few in a thousand are found.
_MOST_IN_VAIN = 10_000

Problem = TypeVar("Problem", bound=tuple)  # its text comes first


def split_of(text: str) -> str:
    """The split that a problem belongs to, for ever: its checksum decides."""
    bucket = zlib.crc32(text.encode()) % 100
    return SPLITS[sum(bucket >= bound for bound in _BOUNDS)]


def distinct(
    make: Callable[[random.Random], Problem],
    task: str,
    split: str,
    count: int,
    seed: int,
) -> list[Problem]:
    """`count` different problems of a split, the same for the same seed.

    Args:
        make: draws a problem.
        task: its name, for the draws and for messages.

    Raises:
        ValueError: if `split` is not one of SPLITS.
        ConfigError: if there are not that many.
    """
    if split not in SPLITS:
        raise ValueError(f"split {split!r} is not one of {', '.join(SPLITS)}")
    draw = random.Random(f"{task}/{split}/{seed}")
    found: dict[str, Problem] = {}
    in_vain = 0
    while len(found) < count:
        problem = make(draw)
        if split_of(problem[0]) == split and problem[0] not in found:
            found[problem[0]], in_vain = problem, 0
            continue
        in_vain += 1
        if in_vain == _MOST_IN_VAIN:
            raise ConfigError(
                f"{task} has no {count} different problems of split {split!r}: "
                f"{len(found)} were found.\nAsk for fewer: "
                f"--config.data.num_problems={len(found)} (or num_eval_problems)"
            )
    return list(found.values())
