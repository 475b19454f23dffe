"""The tests that judge a program, in the three shapes that public data sets write.

    stdin    the program reads standard input and prints
    call     one function is called with arguments and returns a value
    assert   Python text that calls functions of the program and asserts

spellings.py knows the names that data sets give to these things. A row whose tests
cannot be used is a mistake in the data and never a verdict on a reply.
"""

import builtins
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.rewards.code import compare


class UnusableTestsError(ValueError):
    """The row has no tests that could judge a reply; the message says why."""


@dataclasses.dataclass(frozen=True)
class InputCase:
    """One run of the program: what it is given and what it should print."""

    stdin: str
    output: str


@dataclasses.dataclass(frozen=True)
class CallCase:
    """One call. `accepts`: values from JSON, any of which is right to return."""

    args: tuple[Any, ...]
    accepts: tuple[Any, ...]
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Suite:
    """All tests of one row.

    Attributes:
        kind: "stdin", "call" or "assert".
        cases: one test each: InputCase, CallCase, or text that asserts.
        entry_point: the function that is called, perhaps `Solution().f`; "" for
            programs and for asserts that name what they call.
        setup: text that runs before the asserts, in their process.
        preamble: text that runs before the program, in its process.
        stub: text that holds the head of the entry point, which a reply completes.
        checker: one of compare.CHECKERS, for standard output.
        checker_source: Python text that defines `check(input, output)`, perhaps with
            the expected output as a third parameter, for the checker "custom".
        rel_tol, abs_tol: for numbers with a decimal point.
        wall_secs: the row's own limit for one test; None for the configured one.
        at_least_secs: a limit of the data set, which may have been made for another
            language: it can only lengthen the configured one.
        memory_bytes: the row's own limit; None for the configured one.
    """

    kind: str
    cases: tuple[Any, ...]
    entry_point: str = ""
    setup: str = ""
    preamble: str = ""
    stub: str = ""
    checker: str = "auto"
    checker_source: str = ""
    rel_tol: float = compare.REL_TOL
    abs_tol: float = compare.ABS_TOL
    wall_secs: float | None = None
    at_least_secs: float = 0.0
    memory_bytes: int | None = None

    def __post_init__(self):
        if not self.cases:
            raise UnusableTestsError("the list of tests is empty")
        if self.kind == "call" and not self.entry_point:
            raise UnusableTestsError("the tests do not name the function to call")
        if self.checker not in compare.CHECKERS:
            raise UnusableTestsError(
                f"no checker is called {self.checker!r}: "
                f"known are {', '.join(compare.CHECKERS)}"
            )
        if self.checker == "custom" and "def check(" not in self.checker_source:
            raise UnusableTestsError("the custom checker defines no check(...)")
        if self.checker == "custom" and self.kind != "stdin":
            raise UnusableTestsError("a custom checker reads standard output")
        for name in ("wall_secs", "memory_bytes"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise UnusableTestsError(f"{name} is {limit}, not above 0")
        if not re.fullmatch(r"(?:\w+(?:\(\))?(?:\.\w+)*)?", self.entry_point):
            raise UnusableTestsError(f"{self.entry_point!r} names no function")

    @property
    def names(self) -> tuple[str, ...]:
        """What the program is likely to define, the function that counts first."""
        if self.entry_point:
            return (re.split(r"\W", self.entry_point)[0], "Solution")
        if self.kind != "assert":
            return ()
        texts = [case for case in self.cases if isinstance(case, str)]
        return called_names(texts)

    def capped(self, max_tests: int) -> "Suite":
        """At most so many, spread evenly: data sets begin with the easy ones."""
        if len(self.cases) <= max_tests:
            return self
        places = [i * len(self.cases) // max_tests for i in range(max_tests)]
        cases = tuple(self.cases[i] for i in places)
        return dataclasses.replace(self, cases=cases)


_CALLED = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\s*\(")
_DEFINED = re.compile(r"\b(?:def|class)\s+(\w+)")
_MAX_SEARCHED = 20_000  # characters: EvalPlus has tests of megabytes


def called_names(texts: Sequence[str]) -> tuple[str, ...]:
    """Names that tests call and do not define, the most frequent first."""
    text = "\n".join(texts)[:_MAX_SEARCHED]
    known = {*dir(builtins), *_DEFINED.findall(text), "assert", "check"}
    calls = [name for name in _CALLED.findall(text) if name not in known]
    return tuple(sorted(set(calls), key=lambda name: (-calls.count(name), name)))
