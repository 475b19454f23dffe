"""A program that is kept running and answers questions, a line of JSON each way."""

import json
import os
import select
import time
from collections.abc import Mapping
from typing import Any

from rl_jax.rewards.sandbox.limits import Limits, Outcome, SandboxError, SessionEnded
from rl_jax.rewards.sandbox.running import Running

# A program closes its channel a moment before it can be said how it ended.
_END_SECS = 0.2


class Session:
    """One program and its channel. Close it: a context manager does.

    The program reads requests from descriptor REQUEST_FD and writes one reply to each
    to REPLY_FD; both are pipes. `limits.wall_secs` bounds its whole life.
    """

    def __init__(self, running: Running, limits: Limits, requests: int, replies: int):
        self._running = running
        self._limits = limits
        self._requests, self._replies = requests, replies
        self._outcome: Outcome | None = None

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, message: Mapping[str, Any], timeout_secs: float) -> dict[str, Any]:
        """Sends a request and waits for its reply.

        Whatever the reply holds, it is what the program claims: plain JSON types.

        Raises:
            SandboxError: the program was not even started, by a fault of ours.
            SessionEnded: the program ended, was too slow (it is killed then), or wrote
                what is not one line of a JSON object. No further request is answered.
        """
        if self._outcome is not None:
            raise SessionEnded("ended", "the session is closed")
        line = json.dumps(message).encode() + b"\n"
        until = min(time.monotonic() + timeout_secs, self._running.deadline)
        self._send(line, until)
        reply = self._receive(until)
        try:
            value = json.loads(reply)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self._broken(f"not a JSON object: {reply[:80]!r}")
        return value

    def close(self, grace_secs: float = 0.0) -> Outcome:
        """Ends the program. May be repeated.

        Args:
            grace_secs: how long it has to end by itself, now that it finds no more
                requests. After that it is killed.

        Raises:
            SandboxError: it was not even started, by a fault of ours.
        """
        if self._outcome is None:
            os.close(self._requests)
            self._running.wait(time.monotonic() + grace_secs)
            self._outcome = self._running.end()
            os.close(self._replies)
            self._check_started()
        return self._outcome

    def _check_started(self) -> None:
        if self._running.error:
            raise SandboxError(self._running.error)

    def _send(self, line: bytes, until: float) -> None:
        view = memoryview(line)
        self._running.watch(self._requests, select.POLLOUT)
        try:
            while view:
                self._step(self._requests, until)
                try:
                    view = view[os.write(self._requests, view[: 1 << 16]) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:
                    raise self._ended("the program reads no more") from None
        finally:
            self._running.unwatch(self._requests)

    def _receive(self, until: float) -> bytes:
        read = bytearray()
        self._running.watch(self._replies, select.POLLIN)
        try:
            while True:
                self._step(self._replies, until)
                try:
                    data = os.read(self._replies, 1 << 16)
                except BlockingIOError:
                    continue
                if not data:
                    raise self._ended("the program writes no more")
                read += data
                if b"\n" in data:
                    break
                if len(read) > self._limits.message_bytes:
                    raise self._broken("a reply is too long")
        finally:
            self._running.unwatch(self._replies)
        line, _, rest = bytes(read).partition(b"\n")
        if rest:
            raise self._broken("more than one reply to a request")
        return line

    def _step(self, fd: int, until: float) -> None:
        """Waits for the channel; draining what the program prints meanwhile."""
        while True:
            if time.monotonic() >= until:
                self._running.expire()
                raise SessionEnded("timeout", "no reply in time")
            events = self._running.step(until)
            if fd in events:
                return
            if self._running.outcome is not None:
                raise self._ended("the program has ended")

    def _ended(self, detail: str) -> SessionEnded:
        self._running.wait(time.monotonic() + _END_SECS)
        self._check_started()
        return SessionEnded("ended", detail)

    def _broken(self, detail: str) -> SessionEnded:
        self._running.kill()
        return SessionEnded("protocol", detail)
