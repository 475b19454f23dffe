"""The inside end of a session: a line of JSON comes in, a line of JSON goes out.

Part of what runs inside the sandbox: standard library only.
"""

import json
import os
from typing import Any

# As rl_jax.rewards.sandbox.limits has them, which is out of reach in there.
REQUEST_FD, REPLY_FD = 3, 4

_request: dict[str, Any] = {"id": None}  # the last one's number


def receive() -> dict[str, Any]:
    """The next request; ends the process if there will be none.

    Never reads beyond it, so that another process may read the one after it.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(REQUEST_FD, 1 << 16)
        if not data:
            os._exit(0)
        line += data
    request = json.loads(line)
    _request["id"] = request.pop("id")
    return request


def send(message: dict[str, Any]) -> None:
    """The reply to the last request, with its number."""
    line = memoryview(json.dumps({**message, **_request}).encode() + b"\n")
    while line:
        line = line[os.write(REPLY_FD, line) :]
