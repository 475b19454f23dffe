"""What a user may set about code rewards."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.rewards.sandbox import LEVELS

CREDITS = ("binary", "pass_rate")


@dataclasses.dataclass(frozen=True)
class CodeOptions:
    """Options of the code reward. A row may have limits of its own.

    Raises:
        ConfigError: a value that cannot be.
    """

    isolation: str = "namespaces"  # the least that will do: namespaces, landlock, none
    credit: str = "binary"  # 1 or 0; or pass_rate: the share of tests that pass
    threshold: float = -1.0  # share of tests for any credit; -1: binary 1, else 0
    max_tests: int = 50  # of one reply, taken evenly from all that the row has
    # Wall time of one test, from when it begins. MBPP's slowest reference solution
    # (task 123) computes for 3.7 s; EvalPlus gives at least 4.
    test_secs: float = 6.0
    # Of all tests of one reply: it bounds programs that are slow without failing, as
    # the first test that hangs settles the matter.
    total_secs: float = 60.0
    memory_bytes: int = 1 << 30  # of the program with its children
    output_bytes: int = 4 << 20  # printed in one test

    def __post_init__(self):
        for name, known in (("isolation", LEVELS), ("credit", CREDITS)):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"rewards.code.{name} is {getattr(self, name)!r}.\n"
                    f"Expected one of: {', '.join(known)}."
                )
        for name in (
            *("max_tests", "test_secs", "total_secs"),
            *("memory_bytes", "output_bytes"),
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"rewards.code.{name} is {getattr(self, name)}.\n"
                    "Expected a number above 0."
                )
        if self.threshold != -1 and not 0 <= self.threshold <= 1:
            raise ConfigError(
                f"rewards.code.threshold is {self.threshold}.\n"
                "Expected a share of the tests, from 0 to 1, or -1."
            )

    @property
    def needed(self) -> float:
        """The share of tests that must pass for any credit."""
        if self.threshold != -1:
            return self.threshold
        return 1.0 if self.credit == "binary" else 0.0

    @property
    def stops_early(self) -> bool:
        """True if one test that fails settles the matter."""
        return self.credit == "binary" and self.needed == 1.0


def from_options(options: Mapping[str, Any]) -> CodeOptions:
    """Reads what the reward functions share: the mapping under "code".

    Raises:
        ConfigError: an unknown key, or a value that cannot be.
    """
    given = options.get("code") or {}
    known = [field.name for field in dataclasses.fields(CodeOptions)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ConfigError(
            f"rewards.code has no option {unknown[0]!r}.\nKnown: {', '.join(known)}."
        )
    return CodeOptions(**given)
