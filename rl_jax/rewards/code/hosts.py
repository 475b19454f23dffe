"""Processes in the sandbox as a grader talks to them, and what their ends mean.

Whatever a program answers is a claim of its own, of any shape: nothing here relies on
what it holds, and nothing it says can turn a failure into a missing score.
"""

import re
import secrets
import signal
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from rl_jax.rewards.code.sources import source
from rl_jax.rewards.sandbox import Limits, Outcome, Sandbox, SessionEnded
from rl_jax.rewards.score import Verdict


class Result(NamedTuple):
    """What one test found; `detail` in a few words, without anything expected."""

    verdict: Verdict
    detail: str = ""


PASSED = Result(Verdict.CORRECT)


class GoneError(Exception):
    """A process gave no answer that can be used. `result`: what that means."""

    def __init__(self, result: Result):
        super().__init__(result.detail)
        self.result = result


class Host:
    """One running side (sources.py). Close it: a context manager does.

    Raises:
        SandboxError: it cannot be started.
    """

    def __init__(self, sandbox: Sandbox, side: str, limits: Limits):
        self._session = sandbox.start(source(side), limits=limits)
        self._num_asked = 0
        # A reply that was written before its request was read cannot have it.
        self.token = secrets.token_hex(16)

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def close(self, leave_secs: float = 0.0) -> Outcome:
        """Ends the process, which may leave by itself for so long."""
        return self._session.close(leave_secs)

    def ask(self, message: Mapping[str, Any], until: float) -> dict[str, Any]:
        """A request and its reply, which repeats the request's number.

        Args:
            until: of time.monotonic(); the process is killed then.

        Raises:
            GoneError: it ended, was too slow, or spoke out of turn.
            SandboxError: it was not even started, by a fault of ours.
        """
        self._num_asked += 1
        number = f"{self.token}.{self._num_asked}"
        secs = max(0.0, until - time.monotonic())
        try:
            reply = self._session.ask({**message, "id": number}, secs)
        except SessionEnded as error:
            raise GoneError(self._end(error)) from error
        if "left" in reply:
            raise GoneError(left_by(reply["left"]))
        if reply.get("id") != number:
            raise GoneError(Result(Verdict.CRASH, "spoke out of turn"))
        return reply

    def _end(self, error: SessionEnded) -> Result:
        outcome = self.close()
        if error.reason == "timeout":
            return Result(Verdict.TIMEOUT, "out of time")
        if error.reason == "protocol":
            return Result(Verdict.CRASH, "spoke out of turn")
        return ended(outcome) or left_by(0)


def ended(outcome: Outcome) -> Result | None:
    """What the end of a whole program means; None if it ended well."""
    if outcome.timed_out:
        return Result(Verdict.TIMEOUT, "out of time")
    if outcome.out_of_memory:
        return Result(Verdict.CRASH, "out of memory")
    if outcome.output_cut:
        return Result(Verdict.WRONG, "printed too much")
    if outcome.signal is not None:
        return left_by(-outcome.signal)
    if outcome.exit_code != 0:
        return Result(Verdict.CRASH, _last_exception(outcome.stderr))
    return None


def left_by(status: Any) -> Result:
    """What it means that a process left in the middle of a test.

    status: exit status, or minus the signal that killed it; of any type, as a program
        may have said it.
    """
    if not isinstance(status, int) or status >= 0:
        return Result(Verdict.CRASH, "left before it had answered")
    if -status == signal.SIGXCPU:
        return Result(Verdict.TIMEOUT, "out of time")
    try:
        return Result(Verdict.CRASH, f"killed by {signal.Signals(-status).name}")
    except ValueError:
        return Result(Verdict.CRASH, "killed by a signal")


# Last words of a text that does not compile, and may not have been meant as a program.
NOT_PYTHON = ("SyntaxError", "IndentationError", "TabError")
_EXCEPTION = re.compile(rb"([A-Za-z_][\w.]{0,80})(?::|$)")


def _last_exception(stderr: bytes) -> str:
    match = _EXCEPTION.match(stderr.rstrip().rpartition(b"\n")[2])
    return match[1].decode() if match else "exit status other than 0"


def raised(reply: Mapping[str, Any]) -> Result:
    """What a program raised, or says that it raised."""
    error = reply.get("raised")
    kind = error.get("type") if isinstance(error, dict) else None
    return Result(Verdict.CRASH, short_name(kind) or "an exception")


def missing(name: Any) -> Result:
    """What the tests use is not there."""
    return Result(Verdict.WRONG, f"the program defines no {short_name(name)}")


def short_name(value: Any) -> str:
    """A name that a program gave, as far as it is one."""
    return re.sub(r"[^\w.]", "", value[:60]) if isinstance(value, str) else ""
