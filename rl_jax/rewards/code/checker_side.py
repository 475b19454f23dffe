"""Runs inside a sandbox of its own: a checker that came with the tests.

    load    source                      -> ready | unusable
    check   input, output, expected     -> right

Standard library only.
"""

import inspect
from typing import Any

from rl_jax.rewards.code.channel import receive, send


def main() -> None:
    request = receive()
    names: dict[str, Any] = {"__name__": "checker"}
    check: Any = None
    wants_expected = False
    try:
        exec(compile(request["source"], "checker.py", "exec"), names)
        check = names["check"]
        wants_expected = len(inspect.signature(check).parameters) > 2
        send({"ready": True})
    except Exception as error:
        send({"unusable": f"{type(error).__name__}: {error}"})
        return
    while True:
        request = receive()
        given = [request["input"], request["output"]]
        try:
            right = check(*given, *([request["expected"]] if wants_expected else []))
        except Exception:  # output that is not even of the right form
            right = False
        if isinstance(right, tuple):  # with a message, as some are written
            right = right[0]
        send({"right": bool(right)})
