"""Process 0's side of the lines in `rl_jax.line`: who came, who is late, who is lost.

It names those that are missing, takes no process that was started otherwise than the
rest, and tells all to end when one is gone.
"""

import collections
import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from rl_jax.line import BEAT_SECS, CLOSE_SECS, LOST_SECS, Address, Ended, send

FEW = 8  # processes named in a message, at most
TOLD_SECS = 30.0  # between two lines about who is still waited for
_MAX_LINE = 1 << 24
_ALIKE = "All processes of a job need the same"


class _Peer:
    """A connection, as process 0 sees it."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self.unread = b""
        self.id = -1  # until its hello
        self.hello: dict[str, Any] = {}
        self.heard = time.monotonic()
        self.note = ""
        self.is_leaving = False

    def send(self, **message: Any) -> None:
        try:
            send(self.connection, **message)
        except OSError:
            # Half a line may have gone out: this line is of no more use.
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)


class RollCall:
    """What process 0 runs, in a thread of its own.

    Args:
        address: to listen on; host "" is every interface of the machine.
        num_processes: that have to come.
        secs: for all of them to come.
        same: names of what every hello must say alike.
        lost_secs: silence of a process that means it is gone.
        say: prints a line that tells how the wait goes.

    Raises:
        Ended: if the port is taken.
    """

    def __init__(
        self,
        address: Address,
        num_processes: int,
        secs: float,
        *,
        same: Iterable[str] = (),
        lost_secs: float = LOST_SECS,
        say: Callable[[str], None] = print,
    ):
        self._count, self._secs, self._lost_secs = num_processes, secs, lost_secs
        self._same, self._say = tuple(same), say
        self._peers: dict[int, _Peer] = {}
        self._values: dict[str, dict[int, Any]] = collections.defaultdict(dict)
        self._began = self._told = self._ticked = time.monotonic()
        self._has_gone = False  # all had come
        self._end_of_all: tuple[int, str, _Peer | None] | None = None
        self._selector = selectors.DefaultSelector()
        self._listener = _listener(address)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True, name="roll call")
        self._thread.start()

    def close(self, secs: float) -> None:
        """Waits for the others to leave, but no longer than this."""
        self._thread.join(secs)

    def _run(self) -> None:
        while not self._end_of_all and not (self._has_gone and not self._peers):
            for key, _ in self._selector.select(timeout=0.2):
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._read(key.data)
            self._look_at_the_clock()
        self._selector.unregister(self._listener)
        self._listener.close()
        if self._end_of_all:
            self._tell_the_end(*self._end_of_all)
        self._selector.close()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        # Messages are short: only a peer that hangs fills its buffer.
        connection.settimeout(5.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _read(self, peer: _Peer) -> None:
        try:
            received = peer.connection.recv(1 << 16)
        except OSError:
            received = b""
        *lines, peer.unread = (peer.unread + received).split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
                self._take(peer, message["say"], message)
            except (ValueError, KeyError, TypeError):
                received = b""  # something else than one of ours has called
        if not received or len(peer.unread) > _MAX_LINE:
            self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        self._selector.unregister(peer.connection)
        peer.connection.close()
        if self._peers.get(peer.id) is not peer:
            return
        # Before all have come, a process may go and be started anew.
        del self._peers[peer.id]
        if self._has_gone and not peer.is_leaving:
            text = "it was killed (out of memory?), or its machine is gone"
            self._end(1, f"{_named([peer])} ended without a word{_after(peer)}: {text}")

    def _take(self, peer: _Peer, say: str, message: dict[str, Any]) -> None:
        peer.heard = time.monotonic()
        if say == "hello":
            return self._welcome(peer, message)
        if peer.id < 0:
            raise ValueError("no hello")
        if say == "beat":
            peer.note = message["note"]
        elif say == "at":
            self._meet(peer, message["name"], message["value"])
        elif say == "who":
            peer.send(say="missing", text=self._missing(message["name"]))
        elif say == "state":
            peer.send(say="state", text=self._state())
        elif say == "bye":
            peer.is_leaving = True
            peer.send(say="bye")
        elif say == "fail":
            peer.is_leaving = True
            text = f"{_named([peer])} ended{_after(peer)}: {message['text']}"
            self._end(message["code"], text, peer)

    def _welcome(self, peer: _Peer, hello: dict[str, Any]) -> None:
        peer.id, peer.hello = hello["id"], hello
        one = _named([peer])
        if hello["num_processes"] != self._count:
            return self._refuse(
                peer,
                f"{one} was started as one of {hello['num_processes']} processes, "
                f"process 0 as one of {self._count}.\n{_ALIKE} "
                "config.runtime.num_processes",
            )
        if peer.id in self._peers:
            return self._refuse(
                peer,
                f"Two processes have number {peer.id}: "
                f"{_named([self._peers[peer.id]])} and {one}.\n"
                "Each needs a config.runtime.process_id of its own",
            )
        for other in list(self._peers.values()):
            for name in self._same:
                if other.hello.get(name) != hello.get(name):
                    return self._refuse(
                        peer,
                        f"{one} has {name} {hello.get(name)}, {_named([other])} has "
                        f"{other.hello.get(name)}.\n{_ALIKE} code, packages and config",
                    )
        self._peers[peer.id] = peer
        if len(self._peers) == self._count:
            self._has_gone = True
            port = _free_port(self._listener)
            for one in self._peers.values():
                one.heard = time.monotonic()
                one.send(say="go", port=port)

    def _refuse(self, peer: _Peer, text: str) -> None:
        """Nobody can go on: the settings are wrong."""
        peer.send(say="end", code=2, text=text)
        peer.is_leaving = True
        self._end(2, text)

    def _meet(self, peer: _Peer, name: str, value: Any) -> None:
        values = self._values[name]
        values[peer.id] = value
        if len(values) == self._count:
            del self._values[name]
            in_order = [values[i] for i in range(self._count)]
            for one in list(self._peers.values()):
                one.send(say="all", name=name, values=in_order)

    def _missing(self, name: str) -> str:
        """Who has not reached a meeting, and how far they were."""
        absent = set(range(self._count)) - set(self._values.get(name, ()))
        known = [self._peers[i] for i in sorted(absent) if i in self._peers]
        return f"{_named(known)}{_after(known[0])}" if known else _numbers(absent)

    def _state(self) -> str:
        """What each did last; first those that differ from the rest."""
        groups: dict[str, list[_Peer]] = collections.defaultdict(list)
        for i in sorted(self._peers):
            groups[self._peers[i].note].append(self._peers[i])
        ordered = sorted(groups.items(), key=lambda item: len(item[1]))
        return "; ".join(
            f"{note or 'at the start'}: {_named(g)}" for note, g in ordered
        )

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if self._end_of_all:
            return
        if not self._has_gone:
            absent = _numbers(set(range(self._count)) - set(self._peers))
            if now - self._began > self._secs:
                here = _named(self._peers[i] for i in sorted(self._peers))
                self._end(
                    1,
                    f"{absent} of {self._count} did not come within {self._secs:g} s; "
                    f"here: {here}.\nStart them, or wait for longer: "
                    "--config.runtime.start_secs=...",
                )
            elif now - self._told > TOLD_SECS:
                self._told = now
                self._say(f"processes: still waiting for {absent}")
        elif now - self._ticked > min(BEAT_SECS, self._lost_secs / 3):
            self._ticked = now
            peers = list(self._peers.values())
            for peer in peers:
                peer.send(say="tick")
            silent = [p for p in peers if now - p.heard > self._lost_secs]
            if silent:
                self._end(
                    1,
                    f"nothing was heard of {_named(silent)} for {self._lost_secs:g} s"
                    f"{_after(silent[0])}: machine gone, cut off or stuck",
                )

    def _end(self, code: int, text: str, told_by: _Peer | None = None) -> None:
        self._end_of_all = self._end_of_all or (code, text, told_by)

    def _tell_the_end(self, code: int, text: str, told_by: _Peer | None) -> None:
        """Tells all why they end; process 0 last, as this thread ends with it."""
        last = []
        for peer in self._peers.values():
            farewell = {"say": "end", "code": code, "text": text}
            if peer is told_by:
                farewell = {"say": "bye"}
            if peer.id:
                peer.send(**farewell)
            else:
                last.append((peer, farewell))
        # Until the others have closed their ends: what was sent is lost if this side
        # goes while the other still writes, and jax aborts a process, in the middle of
        # its traceback, when process 0 is gone.
        until = time.monotonic() + CLOSE_SECS
        while self._others() and time.monotonic() < until:
            for key, _ in self._selector.select(timeout=0.1):
                received = b""
                with contextlib.suppress(OSError):
                    received = key.data.connection.recv(1 << 16)
                if not received:
                    self._selector.unregister(key.data.connection)
                    key.data.connection.close()
        for peer, farewell in last:
            peer.send(**farewell)

    def _others(self) -> bool:
        """True if another than process 0 is still connected."""
        return any(key.data.id for key in self._selector.get_map().values())


def _listener(address: Address) -> socket.socket:
    """Listens; tries for some seconds, as an earlier run may be about to end."""
    host, port = address
    until = time.monotonic() + 10
    while True:
        try:
            if not host and socket.has_dualstack_ipv6():
                family = socket.AF_INET6
                return socket.create_server(
                    ("", port), family=family, dualstack_ipv6=True, backlog=4096
                )
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family, backlog=4096)
        except OSError as error:
            if time.monotonic() > until:
                raise Ended(
                    1,
                    f"process 0 cannot listen on port {port} of this machine ({error})."
                    f"\nAnother run may have it: ss -ltnp | grep {port}",
                ) from error
            time.sleep(0.5)


def _free_port(listener: socket.socket) -> int:
    """A port that nobody else has, where `listener` listens."""
    host = listener.getsockname()[0]
    with socket.create_server((host, 0), family=listener.family) as one:
        return one.getsockname()[1]


def _named(peers: Iterable[_Peer]) -> str:
    """Processes with machine and pid, the first few of them."""
    peers = list(peers)
    words = [f"{p.id} ({p.hello['host']}, pid {p.hello['pid']})" for p in peers[:FEW]]
    return _plural(words, len(peers))


def _numbers(ids: Iterable[int]) -> str:
    """Processes of which nothing but the number is known."""
    ids = sorted(ids)
    return _plural([str(i) for i in ids[:FEW]], len(ids))


def _plural(words: list[str], count: int) -> str:
    more = f" and {count - len(words)} more" if count > len(words) else ""
    return f"process{'es' if count > 1 else ''} {', '.join(words)}{more}"


def _after(peer: _Peer) -> str:
    return f" {peer.note}" if peer.note else ""
