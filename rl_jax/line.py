r"""The line that a process of a job keeps to process 0, which is `rl_jax.roll_call`.

Each process, process 0 included, connects, says who it is, and is told to go when all
have come. From then on it sends a beat every few seconds with what it did last, and
its connection closes when it dies: process 0 sees it, and tells the others to end.

jax has such a service too, but that one ends a process with an abort and names no
machine; this one speaks first. One JSON object a line. Knows neither jax nor a config.

    process -> 0    hello, beat, at (with a value), who, state, fail, bye
    0 -> process    go, all (the values), missing, state, end, tick, bye
"""

import collections
import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

BEAT_SECS = 5.0
# As long as jax itself waits for a heartbeat. Less would end runs that only hold
# Python's lock for long; a process that is killed is noticed at once.
LOST_SECS = 100.0
CLOSE_SECS = 5.0  # for others to read why they end, before process 0 goes

Address = tuple[str, int]  # host and port


class Ended(Exception):  # noqa: N818 (not always an error of this process)
    """The job ends: `code` is the exit code for this process, the text the reason."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


def send(connection: socket.socket, **message: Any) -> None:
    """Writes one message; OSError if the connection is gone."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def spelt(address: Address) -> str:
    """host:port, with brackets around an IPv6 address."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Line:
    """One process's connection to process 0, open from `go` to `bye`.

    Args:
        address: of process 0.
        hello: what this process says of itself: id, num_processes, host, pid, and
            whatever must be the same everywhere.
        secs: for process 0 to answer, and for all to come.
        on_end: called in a thread of its own when the job has to end after `go`.
        lost_secs: silence of process 0 that means it is gone.

    Attributes:
        jax_port: a free port of process 0, for jax.
        note: what this process did last, as "after step 7"; set it.

    Raises:
        Ended: if the job cannot begin.
    """

    def __init__(
        self,
        address: Address,
        hello: dict[str, Any],
        secs: float,
        on_end: Callable[[Ended], None],
        *,
        lost_secs: float = LOST_SECS,
    ):
        self.note = ""
        self._zero = f"process 0 at {spelt(address)}"
        self._on_end, self._lost_secs = on_end, lost_secs
        self._beat_secs = min(BEAT_SECS, lost_secs / 3)
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._answers: dict[str, Any] = {}
        self._meetings: collections.Counter[str] = collections.Counter()
        self._is_leaving = False
        self._text = b""
        deadline = time.monotonic() + secs
        self._connection = _connected(address, deadline, secs)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._connection, selectors.EVENT_READ)
        self._tell(say="hello", **hello)
        # Process 0's own limit comes first, with names; this is for its being stuck.
        try:
            self.jax_port = self._wait_to_go(deadline + 30, secs)
        except Ended:
            self._connection.close()
            raise
        self._thread = threading.Thread(target=self._run, daemon=True, name="line")
        self._thread.start()

    def gather(self, name: str, value: Any, secs: float) -> list[Any]:
        """The values that all processes give under `name`, in their order.

        All call it in the same order. Values are what JSON can say, and small.

        Raises:
            Ended: if not all come within `secs`; the text names those missing.
        """
        with self._changed:
            meeting = f"{name} #{self._meetings[name]}"
            self._meetings[name] += 1
        self._tell(say="at", name=meeting, value=value)
        values = self._answer(f"all {meeting}", secs)
        if values is not None:
            return values
        self._tell(say="who", name=meeting)
        missing = self._answer("missing", BEAT_SECS)
        if missing is None:
            missing = f"{self._zero}, which does not answer"
        raise Ended(1, f"waited {secs:g} s at {name!r} for {missing}")

    def state(self) -> str:
        """What the processes did last, as far as process 0 knows."""
        self._tell(say="state")
        return self._answer("state", BEAT_SECS) or f"{self._zero} does not answer"

    def fail(self, code: int, text: str) -> None:
        """Says why this process ends; the others are told to end too."""
        self._is_leaving = True
        self._tell(say="fail", code=code, text=text)
        self._answer("bye", 2 * CLOSE_SECS)

    def bye(self) -> None:
        """Leaves; the others go on."""
        self._is_leaving = True
        self._tell(say="bye")
        self._answer("bye", CLOSE_SECS)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(CLOSE_SECS)
        self._connection.close()

    def _tell(self, **message: Any) -> None:
        # If process 0 is gone the reading thread finds out, and says so.
        with self._lock, contextlib.suppress(OSError):
            send(self._connection, **message)

    def _answer(self, key: str, secs: float) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: key in self._answers, timeout=secs)
            return self._answers.pop(key, None)

    def _messages(self, secs: float) -> list[dict[str, Any]]:
        """What process 0 has said; empty if nothing came within `secs`.

        Raises:
            EOFError: if the connection is closed.
            ValueError: if something else than process 0 speaks.
        """
        if not self._selector.select(timeout=secs):
            return []
        try:
            received = self._connection.recv(1 << 16)
        except OSError:
            received = b""
        if not received:
            raise EOFError
        *lines, self._text = (self._text + received).split(b"\n")
        return [json.loads(line) for line in lines]

    def _wait_to_go(self, deadline: float, secs: float) -> int:
        while time.monotonic() < deadline:
            try:
                for message in self._messages(1.0):
                    if message["say"] == "end":
                        raise Ended(message["code"], message["text"])
                    if message["say"] == "go":
                        return message["port"]
            except EOFError:
                text = f"{self._zero} closed the line before all processes had come"
                raise Ended(1, text) from None
            except (ValueError, KeyError, TypeError):
                text = f"something else than {self._zero} answers there: another port?"
                raise Ended(1, text) from None
        raise Ended(1, f"{self._zero} was reached, but did not say go in {secs:g} s")

    def _run(self) -> None:
        heard = sent = time.monotonic()
        while True:
            try:
                messages = self._messages(self._beat_secs / 5)
            except EOFError:
                return self._end(
                    1,
                    f"{self._zero} ended without a word: it was killed (out of "
                    "memory?), or its machine is gone",
                )
            now = time.monotonic()
            for message in messages:
                heard = now
                if message["say"] == "end":
                    return self._end(message["code"], message["text"])
                self._keep(message)
            if now - heard > self._lost_secs:
                return self._end(
                    1,
                    f"nothing was heard of {self._zero} for {self._lost_secs:g} s: its "
                    "machine is gone, cut off or stuck",
                )
            if now - sent > self._beat_secs:
                sent = now
                self._tell(say="beat", note=self.note)

    def _keep(self, message: dict[str, Any]) -> None:
        say = message["say"]
        key = f"all {message['name']}" if say == "all" else say
        with self._changed:
            self._answers[key] = message.get("values", message.get("text", True))
            self._changed.notify_all()

    def _end(self, code: int, text: str) -> None:
        if not self._is_leaving:
            self._on_end(Ended(code, text))


def _connected(address: Address, deadline: float, secs: float) -> socket.socket:
    while True:
        try:
            connection = socket.create_connection(address, timeout=10.0)
            if connection.getsockname() == connection.getpeername():
                # As may happen on one machine with a port that nobody listens on; it
                # would keep process 0 from it.
                connection.close()
                raise OSError("connected to itself")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError as error:
            if time.monotonic() + 0.5 > deadline:
                raise Ended(
                    1,
                    f"process 0 did not answer at {spelt(address)} within {secs:g} s "
                    f"({error}).\nIs it started, is that its address, and may this "
                    "machine reach that port?",
                ) from error
            time.sleep(0.5)
