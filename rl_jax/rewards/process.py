"""One worker process as the pool sees it: start, send, receive, kill. Never blocks.

A worker is started by exec (subprocess, which uses vfork) and never forked: a fork of
a process that runs JAX's threads can deadlock.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parents[2]
# A score is a few hundred bytes; more than this without a line break is no protocol.
_MAX_LINE_BYTES = 4 << 20
_PIPE_BYTES = 1 << 20


class ProtocolError(Exception):
    """The worker sent what is not a line of the protocol."""


class WorkerProcess:
    """A running worker and its two pipes."""

    def __init__(self, settings: Mapping[str, Any]):
        """Starts it and queues `settings` as its first line.

        Must be called from a thread that lives as long as the worker should: the
        kernel kills the worker when the thread that started it ends.

        Raises:
            OSError: the process cannot be started.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rl_jax.rewards.worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # own process group; Ctrl-C is the trainer's
            bufsize=0,
            env=_environment(),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.pid = self._process.pid
        self.stdin, self.stdout = self._process.stdin, self._process.stdout
        # Long replies then go in with one write; an unprivileged user may ask for this.
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.stdin.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self.stdin.fileno(), False)
        os.set_blocking(self.stdout.fileno(), False)
        self._to_write = bytearray()
        self._read = bytearray()
        self.send(json.dumps(settings).encode())

    def send(self, line: bytes) -> bool:
        """Queues a line and writes what fits now; True if some is left for `flush`."""
        self._to_write += line + b"\n"
        return self.flush()

    def flush(self) -> bool:
        """Writes what fits into the pipe; True if some is left.

        A worker that is gone takes nothing: its end shows when reading.
        """
        try:
            while self._to_write:
                written = os.write(self.stdin.fileno(), self._to_write[:_PIPE_BYTES])
                del self._to_write[:written]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            self._to_write.clear()
        return False

    def receive(self) -> list[dict[str, Any]]:
        """The messages that have arrived.

        Raises:
            EOFError: the worker has ended.
            ProtocolError: what arrived is not a line of JSON.
        """
        try:
            data = os.read(self.stdout.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError
        self._read += data
        *lines, rest = self._read.split(b"\n")
        self._read = bytearray(rest)
        if len(rest) > _MAX_LINE_BYTES:
            raise ProtocolError("a line without an end")
        return [_message(bytes(line)) for line in lines]

    def kill(self) -> None:
        """Kills the worker with all of its process group, and closes the pipes.

        `ended` then has to be asked until it says so, or a zombie stays.
        """
        # A leader that has died keeps its number until it is reaped, which only
        # `ended` does: the group cannot have become someone else's before that.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.stdin.close()
        self.stdout.close()

    def cause_of_death(self) -> str:
        """Says how a worker that has closed its output died, and cleans up after it."""
        # It closes its pipes a moment before its status can be had.
        deadline = time.monotonic() + 0.2
        while not self.is_dead() and time.monotonic() < deadline:
            time.sleep(0.002)
        self.kill()  # what it has started; a status that is there does not change
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "does not end"
        if code >= 0:
            return f"ended with exit code {code}"
        known = -code in list(signal.Signals)
        return f"was killed by {signal.Signals(-code).name if known else -code}"

    def ended(self) -> bool:
        """True once the process is gone and reaped."""
        return self._process.poll() is not None

    def is_dead(self) -> bool:
        """True if it has died, without reaping it."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self.pid, flags) is not None
        except ChildProcessError:  # reaped by whoever set SIGCHLD to be ignored
            return True


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ProtocolError(f"not a message: {line[:80]!r}")
    return message


def _environment() -> dict[str, str]:
    """The trainer's environment, less what would make a worker slow or dangerous."""
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path),
        # Sets and dicts in the same order in every worker: same input, same verdict.
        "PYTHONHASHSEED": "0",
        # A user's function that imports JAX must not take the accelerator.
        "JAX_PLATFORMS": "cpu",
        # One core a worker; there are as many workers as cores are wanted.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
