"""Messages with descriptors between the grader and the zygote: one packet each."""

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

_MAX_BYTES = 1 << 16
_MAX_FDS = 16


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that keep packets apart; both closed by exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(
    end: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()
) -> None:
    data = json.dumps(message).encode()
    assert len(data) <= _MAX_BYTES
    socket.send_fds(end, [data], list(fds), socket.MSG_NOSIGNAL)


def receive(end: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its descriptors, which the caller must close.

    Raises:
        EOFError: the other side is gone.
        OSError: no descriptor is left to receive one, or the time is up.
    """
    try:
        data, fds, _, _ = socket.recv_fds(end, _MAX_BYTES, _MAX_FDS)
    except ConnectionError as error:
        raise EOFError from error
    for fd in fds:
        os.set_inheritable(fd, False)
    if not data:
        raise EOFError
    return json.loads(data), fds
