"""Rows of a toy task: problems to be answered, and conversations to learn from."""

from rl_jax.data.generated import distinct
from rl_jax.data.rows import Row
from rl_jax.data.toys.table import TOYS
from rl_jax.data.toys.task import Problem


def problems(task: str, split: str, count: int, seed: int) -> list[Problem]:
    """`count` distinct problems of a split, the same for the same seed.

    Raises:
        ValueError, ConfigError: as `generated.distinct`.
    """
    return distinct(TOYS[task].problem, task, split, count, seed)


def rows(task: str, split: str, count: int, seed: int) -> list[Row]:
    """Problems to be answered, for reinforcement learning or evaluation."""
    return [
        Row(({"role": "user", "content": found.text},), found.answer, task, i, {})
        for i, found in enumerate(problems(task, split, count, seed))
    ]


def demonstrations(
    task: str, count: int, seed: int, wrong_share: float = 0.0, split: str = "sft"
) -> list[Row]:
    """Conversations, of which a share is answered wrongly, evenly spread.

    Args:
        wrong_share: from 0 to 1. Of any first n rows, n * wrong_share are wrong, in
            whole numbers. Which problems there are does not depend on it.
        split: of the problems.
    """
    made = []
    for i, found in enumerate(problems(task, split, count, seed)):
        is_wrong = _wrong_in(i + 1, wrong_share) > _wrong_in(i, wrong_share)
        messages = (
            {"role": "user", "content": found.text},
            {"role": "assistant", "content": found.wrong if is_wrong else found.right},
        )
        made.append(Row(messages, found.answer, task, i, {}))
    return made


def _wrong_in(count: int, share: float) -> int:
    return int(count * share + 1e-9)  # 10 * 0.3 may fall short of 3
