"""Tests that are text: one sandbox runs the text, another the program.

The grader stands between them and passes on what the text asks of the program, and what
the program answers: plain data, which it does not read.
"""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from rl_jax.rewards.code.bench import LATE, Bench, Results
from rl_jax.rewards.code.head import head_of
from rl_jax.rewards.code.hosts import (
    PASSED,
    GoneError,
    Host,
    Result,
    missing,
    short_name,
)
from rl_jax.rewards.code.tests import UnusableTestsError
from rl_jax.rewards.score import Verdict


def asserted(bench: Bench) -> Results:
    """One result a test, in order.

    A test that takes one of the two processes down costs only itself: the next one
    gets new ones.
    """
    done, count = 0, len(bench.suite.cases)
    while done < count:
        pair = None
        try:
            pair = _Pair(bench, done)
            count = pair.count
            if pair.failure is not None:
                yield from [pair.failure] * (count - done)
                return
            while done < count:
                result = pair.run(bench.until())
                done += 1
                yield result
                if pair.alone and not bench.forks:
                    break  # the next test must not find what this one left
        except GoneError as error:
            if pair is None:  # it would not load another time either
                yield from [error.result] * (count - done)
                return
            done += 1
            yield error.result
        finally:
            if pair is not None:
                pair.close()


class _Pair:
    """The text's process and the program's, both loaded.

    Attributes:
        count: of all tests, once the text is taken apart.
        alone: no test depends on what another one did to the program.
        failure: what all of them come to, if none can be run.

    Raises:
        GoneError: the program does not load.
        UnusableTestsError: the tests do not.
    """

    def __init__(self, bench: Bench, first: int):
        self._bench = bench
        with contextlib.ExitStack() as stack:
            # Both at once, so that one comes up while the other does.
            self._program = bench.start()
            stack.callback(bench.close, self._program)
            self._tests = Host(bench.sandbox, "tests", bench.own_limits(bench.deadline))
            stack.callback(self._tests.close)
            reply = self._load(first, _in_time(bench.until()))
            self._open = stack.pop_all()
        self.count: int = reply["ready"]
        self.alone: bool = reply.get("alone", False)
        self.failure: Result | None = None
        if "missing" in reply:
            self.failure = missing(reply["missing"])
        elif "failed" in reply:
            self.failure = _failure(reply)

    def close(self) -> None:
        self._open.close()

    def run(self, until: float) -> Result:
        """The next test.

        Raises:
            GoneError: the program or the text did not come to an end.
        """
        _in_time(until)
        if self.alone:
            self._program.ask({"op": "begin"}, until)
        reply = self._talk({"run": True}, until)
        if self.alone:
            self._program.ask({"op": "end"}, until)
        return _failure(reply) if "failed" in reply else PASSED

    def _load(self, first: int, until: float) -> dict[str, Any]:
        suite = self._bench.suite
        found = head_of(suite.stub, suite.names[0]) if suite.entry_point else None
        request = {
            "texts": list(suite.cases),
            "setup": suite.setup,
            "head": found[0] if found else "",
            "entry": suite.entry_point,
            "first": first,
        }
        try:
            question = self._tests.ask(request, until)
        except GoneError as error:
            if first:
                raise
            # There is no program yet whose fault it could be.
            raise UnusableTestsError(f"the tests: {error}") from error
        question = _usable(question)
        self._bench.load(self._program, until)
        return self._talk({"answer": self._answer(question, until)}, until)

    def _talk(self, message: Mapping[str, Any], until: float) -> dict[str, Any]:
        """Passes on what the text asks, until it has its reply."""
        while True:
            try:
                reply = self._tests.ask(message, until)
            except GoneError as error:
                if error.result.verdict == Verdict.TIMEOUT:
                    raise
                broken = Result(Verdict.WRONG, "the tests broke at what it returned")
                raise GoneError(broken) from error
            if "ask" not in reply:
                return _usable(reply)
            message = {"answer": self._answer(reply, until)}

    def _answer(self, reply: Mapping[str, Any], until: float) -> dict[str, Any]:
        return self._program.ask(reply["ask"], until)


def _in_time(until: float) -> float:
    if until <= time.monotonic():
        raise GoneError(LATE)
    return until


def _usable(reply: dict[str, Any]) -> dict[str, Any]:
    if "unusable" in reply:
        raise UnusableTestsError(" ".join(str(reply["unusable"]).split())[:300])
    return reply


def _failure(reply: Mapping[str, Any]) -> Result:
    """What it means that a test failed, in words that say nothing of the test."""
    kind, name = reply["failed"], short_name(reply["type"])
    if kind == "raised":
        return Result(Verdict.CRASH, name or "an exception")
    if kind == "missing":
        return missing(name)
    if kind == "error":
        return Result(Verdict.WRONG, f"{name} in the test")
    return Result(Verdict.WRONG, "an assertion failed")
