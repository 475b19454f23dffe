"""Names and numbers of a loss, each fault told in three lines."""

import math
from collections.abc import Sequence
from typing import Any

from rl_jax.errors import ConfigError


def check_name(what: str, owner: str, value: Any, names: Sequence[str]) -> None:
    """Raises ConfigError unless a field of the owner has one of the names."""
    if value not in names:
        raise ConfigError(
            f"{what} of the {owner} is {value!r}.\n"
            f"Expected one of: {', '.join(names)}.\n"
            f"Write for example {what}={names[0]!r}."
        )


def check_number(
    what: str,
    owner: str,
    value: Any,
    low: float,
    high: float,
    *,
    usual: float,
    expected: str = "",
) -> None:
    """Raises ConfigError unless a field of the owner is a finite number in the range.

    Args:
        usual: a value to write instead.
        expected: the range in words.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and low <= value <= high):
        raise ConfigError(
            f"{what} of the {owner} is {value!r}.\n"
            f"Expected {expected or f'a finite number in [{low}, {high}]'}.\n"
            f"Write for example {what}={usual}."
        )
