"""A running program as the grader sees it: its pipes, its clock, its end."""

import contextlib
import json
import math
import os
import select
import signal
import socket
import time
from typing import Any

from rl_jax.rewards.sandbox import kernel
from rl_jax.rewards.sandbox.cgroup import Group
from rl_jax.rewards.sandbox.limits import Limits, Outcome

_CHUNK_BYTES = 1 << 16
# What a program prints beyond its limit is thrown away; one that goes on and on
# takes the grader's time, and is stopped.
_MAX_OVERFLOW = 16
# A monitor that was asked to end its program, and has not: it is killed itself.
_GRACE_SECS = 1.0


class Running:
    """Drains the output of one program and waits for its end.

    Args:
        pidfd: of the process above the program; owned from here on, as the others.
        status: where that process says how the program ended.
        stdout, stderr: read ends, not blocking.
        group: control group of the family's memory, if there is one.
        whole: killing that process kills all of the program's.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        pidfd: int,
        status: socket.socket,
        stdout: int,
        stderr: int,
        whole: bool,
        group: Group | None = None,
    ):
        self.limits = limits
        self._pidfd, self._status = pidfd, status
        self._kept = {stdout: bytearray(), stderr: bytearray()}
        self._num_printed = {stdout: 0, stderr: 0}
        self._stdout, self._stderr = stdout, stderr
        self._poller = select.poll()
        for fd in (pidfd, stdout, stderr):
            self._poller.register(fd, select.POLLIN)
        self._timed_out = False
        self._killed_at: float | None = None
        self._whole = whole
        self._group = group
        self._num_killed = group.num_killed() if group else 0
        self.outcome: Outcome | None = None
        self.error = ""  # why the program could not be started
        with contextlib.suppress(OSError):  # its end will show
            status.send(b"g")
        self._start = time.monotonic()
        self.deadline = self._start + limits.wall_secs

    def watch(self, fd: int, events: int) -> None:
        self._poller.register(fd, events)

    def unwatch(self, fd: int) -> None:
        with contextlib.suppress(KeyError):
            self._poller.unregister(fd)

    def step(self, until: float) -> dict[int, int]:
        """Waits for something to happen, at most until then and until the deadline.

        Returns:
            the events of watched descriptors. `outcome` is set once all is over.
        """
        now = time.monotonic()
        if self.outcome is None and now >= self.deadline and self._killed_at is None:
            self.expire()
        if self._killed_at is not None:
            until = now + _GRACE_SECS
            if now >= self._killed_at + _GRACE_SECS and self.outcome is None:
                kernel.kill(self._pidfd)
        elif self.outcome is None:
            until = min(until, self.deadline)
        events = dict(self._poller.poll(max(0, math.ceil(1000 * (until - now)))))
        for fd in (self._stdout, self._stderr):
            if fd in events:
                self._drain(fd)
        if self._pidfd in events:
            self._finish()
        return events

    def wait(self, until: float = math.inf) -> Outcome | None:
        """Waits for the end, at most until then. The deadline brings it about."""
        while self.outcome is None and (now := time.monotonic()) < until:
            self.step(min(until, now + 60.0))
        return self.outcome

    def end(self) -> Outcome:
        """Kills the program if it runs, and waits until nothing is left of it."""
        self.kill()
        outcome = self.wait()
        assert outcome is not None
        return outcome

    def expire(self) -> None:
        """Kills the program for having taken too long."""
        if self.outcome is None and self._killed_at is None:
            self._timed_out = True
        self.kill()

    def kill(self) -> None:
        """Sees to it that the end comes. Returns at once."""
        if self.outcome is None and self._killed_at is None:
            self._killed_at = time.monotonic()
            if self._whole:
                kernel.kill(self._pidfd)
            with contextlib.suppress(OSError):
                self._status.shutdown(socket.SHUT_WR)

    def _drain(self, fd: int) -> int:
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self.unwatch(fd)
            return 0
        kept = self._kept[fd]
        self._num_printed[fd] += len(data)
        limit = self.limits.output_bytes
        if fd == self._stdout:
            kept += data[: max(0, limit - len(kept))]
        else:
            kept += data
            del kept[: max(0, len(kept) - limit)]
        if sum(self._num_printed.values()) > _MAX_OVERFLOW * limit:
            self.kill()
        return len(data)

    def _finish(self) -> None:
        seconds = time.monotonic() - self._start
        for fd in (self._stdout, self._stderr):
            # Nobody is left to write; a pipe holds at most a megabyte.
            while self._drain(fd):
                pass
        end = self._end()
        code, number = end.get("exit_code"), end.get("signal")
        if code is None and number is None:
            number = int(signal.SIGKILL)
        over_cpu = number == signal.SIGXCPU or (
            number == signal.SIGKILL
            and end.get("cpu_secs", 0.0) >= self.limits.cpu_secs
        )
        self.outcome = Outcome(
            exit_code=code,
            signal=number,
            timed_out=self._timed_out or over_cpu,
            out_of_memory=self._ran_out(end, code, number),
            blocked=", ".join(end.get("refused", ()))
            or ("a forbidden system call" if number == signal.SIGSYS else ""),
            stdout=bytes(self._kept[self._stdout]),
            stderr=bytes(self._kept[self._stderr]),
            output_cut=max(self._num_printed.values()) > self.limits.output_bytes,
            seconds=seconds,
        )
        self.error = end.get("error", "")
        self._close()

    def _ran_out(
        self, end: dict[str, Any], code: int | None, number: int | None
    ) -> bool:
        if end.get("out_of_memory"):
            return True
        if code == 1:
            last = self._kept[self._stderr].rstrip().rpartition(b"\n")[2]
            return last.startswith(b"MemoryError")
        if number == signal.SIGKILL and self._group:
            return self._group.num_killed() > self._num_killed
        return False

    def _end(self) -> dict[str, Any]:
        self._status.setblocking(False)
        end: dict[str, Any] = {}
        with contextlib.suppress(OSError):
            while data := self._status.recv(4096):
                end |= json.loads(data)
        return end

    def _close(self) -> None:
        self._status.close()
        for fd in (self._pidfd, self._stdout, self._stderr):
            self.unwatch(fd)
            os.close(fd)
        self._pidfd = self._stdout = self._stderr = -1
