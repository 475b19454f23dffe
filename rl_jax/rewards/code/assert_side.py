"""Runs inside a sandbox of its own: the text that asserts, without the program.

Every name of the program that the text uses is a proxy (proxies.py). What the text
itself defines or imports, what builtins are called, and the helpers that the prompt
came with are its own: no program can put its own in their place.

    load    texts, setup, head, entry,
            first (test to be run)      -> ready: how many tests, and
                                           alone | missing | failed | unusable
    run                                 -> passed | failed, type | unusable
    answer  to what was asked           -> as the request that asked

Instead of its reply it may ask the program something, {"ask": request}, of the grader,
who passes it on and comes back with the answer.
"""

import builtins
import importlib
import sys
import types
from typing import Any

from rl_jax.rewards.code.assert_text import (
    Unit,
    called_builtins,
    free_names,
    helpers,
    solution_names,
    units,
)
from rl_jax.rewards.code.channel import receive, send
from rl_jax.rewards.code.numpy_side import install_numpy
from rl_jax.rewards.code.plain import decode
from rl_jax.rewards.code.proxies import (
    FROM_PROGRAM,
    Remote,
    ask,
    exception_class,
    named,
    state,
)

_NOTHING = object()


class _Tests:
    """The tests of one row: their names, and how far they have come."""

    def __init__(self, request: dict[str, Any]):
        """Reads the texts. Raises: SyntaxError and the like, if they are no Python."""
        self.names: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
        self.entry: str = request["entry"]
        texts, setup = request["texts"], request["setup"]
        own = helpers(request["head"], self.entry)
        self.units = [
            *([Unit(compile(setup, "setup", "exec"), False)] if setup else []),
            *units(texts, self.entry),
        ]
        self.next, self.skip = 0, request["first"]
        self.uses_values = False  # of the program; to use them is not to ask
        if "numpy" in "".join((setup, *texts)):
            install_numpy()
        sys.modules["solution"] = self.module = types.ModuleType("solution")
        for code in own:
            try:
                exec(code, self.names)
            except Exception:
                continue  # the prompt's own line; what lacks shows where it is used
        self.wanted = free_names([setup, *texts, request["head"]], self.names)
        self.imported = solution_names([setup, *texts])
        if not (self.wanted or self.imported or self.entry):
            self.wanted = called_builtins(texts)

    def resolve(self) -> str:
        """Asks the program for what the tests use of it. Returns what is missing."""
        root = self.entry.partition("(")[0].partition(".")[0]
        entries = {name for name in (self.entry, root) if name}
        wanted: list[str] = sorted(self.wanted | self.imported | entries)
        answer = ask({"op": "names", "names": wanted}).get("names", {})
        for name in wanted:
            value = self._value(name, answer)
            if value is _NOTHING:
                continue
            self.uses_values |= type(value) is not Remote
            if name in self.imported:
                setattr(self.module, name, value)
            if name in self.wanted or name == root:
                self.names[name] = value
            if name == self.entry:
                self.names["_candidate"] = value
        return "" if "_candidate" in self.names else self.entry

    def _value(self, name: str, answer: dict[str, Any]) -> Any:
        """What stands for a name here, by what the program says that it is."""
        try:
            kind, more = answer[name]
            if kind == "value":
                return decode(more)
            if kind == "exception":
                return exception_class(name, more)
            # Its own, by that very name: a program may call anything `math`.
            if kind == "module" and name in sys.stdlib_module_names:
                return importlib.import_module(name)
        except Exception:  # an answer that is none, or a module that is not here
            return _NOTHING
        return named(name) if kind == "object" else _NOTHING

    def go_on(self, test: bool) -> dict[str, Any]:
        """Runs what comes up to the next test, and that if asked."""
        while self.next < len(self.units):
            unit = self.units[self.next]
            if unit.tests and not test and not self.skip > 0:
                break
            self.next += 1
            self.skip -= unit.tests
            if unit.tests and self.skip >= 0:
                continue  # run before, by a process that is gone
            try:
                exec(unit.code, self.names)
            except BaseException as error:
                return _failure(error)
            if state["unsendable"]:
                return _unsendable()
            if unit.tests and not (state["asked"] or self.uses_values):
                return {"unusable": "a test passes without the program"}
            if unit.tests:
                break
        return {"passed": True}

    @property
    def alone(self) -> bool:
        """True if no test can depend on what another one did to the program."""
        return not state["asked"] and all(
            unit.tests for unit in self.units[self.next :]
        )


def _failure(error: BaseException) -> dict[str, Any]:
    """Why a test failed; only what is the tests' own fault makes them unusable."""
    raised = getattr(error, FROM_PROGRAM, "")
    if state["unsendable"]:
        return _unsendable()
    if raised:
        return {"failed": "raised", "type": raised}
    if isinstance(error, AssertionError):
        return {"failed": "assert", "type": ""}
    if isinstance(error, NameError) and error.name:
        return {"failed": "missing", "type": error.name}
    if isinstance(error, ImportError) and error.name == "solution":
        return {"failed": "missing", "type": str(error).split("'")[1]}
    if isinstance(error, ImportError):
        return {"unusable": f"the tests cannot import what they need: {error}"}
    return {"failed": "error", "type": type(error).__name__}


def _unsendable() -> dict[str, Any]:
    return {"unusable": f"the tests hand the program {state['unsendable']}"}


def _load(request: dict[str, Any]) -> tuple["_Tests | None", dict[str, Any]]:
    try:
        tests = _Tests(request)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return None, {"unusable": f"the tests are no Python: {error}"}
    count = sum(unit.tests for unit in tests.units)
    if not count:
        return None, {"unusable": "the tests assert nothing"}
    missing = tests.resolve()
    if missing:
        return None, {"missing": missing, "ready": count}
    before = tests.go_on(test=False)
    if "passed" not in before:
        return None, {"ready": count, **before}
    return tests, {"ready": count, "alone": tests.alone}


def main() -> None:
    tests, reply = _load(receive())
    while True:
        send(reply)
        receive()
        assert tests is not None  # nothing is run after a load that failed
        reply = tests.go_on(test=True)
