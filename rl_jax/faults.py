"""The error of a wrong config: what is wrong, and what to write instead."""

from typing import Any

from rl_jax import schema
from rl_jax.errors import ConfigError


def fault(text: str, *fixes: tuple[str, Any], note: str = "") -> ConfigError:
    """The error of a fault, with the overrides to try: (key, value) each."""
    writes = " or ".join(schema.override(key, value) for key, value in fixes)
    return ConfigError(f"{text}.\nWrite {writes}{note}.")


def divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return next(d for d in range(min(number, limit), 0, -1) if number % d == 0)


def multiple(number: int, factor: int) -> int:
    """The smallest multiple of `factor` that is at least `number`."""
    return -(-number // factor) * factor
