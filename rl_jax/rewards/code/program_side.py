"""Runs inside the sandbox, around the program: loads it, and does what tests ask of it.

Nothing in this process is to be trusted once the program has been loaded. What it
answers is what the program claims; it never sees a test or an expected value.

    load    programs, preamble, fill,
            recursion, forks            -> loaded | raised
    names   names                       -> names: {name: [kind, more]}
    begin                               -> begun; what follows, until end, runs in a
                                           fork if it may
    end                                 -> ended
    do      what, on, args, kwargs      -> value, changed | raised | missing
                                           left: the process of this test is gone
"""

import builtins
import copy
import operator
import os
import re
import sys
import types
from collections.abc import Callable
from typing import Any

from rl_jax.rewards.code.channel import receive, send
from rl_jax.rewards.code.plain import decode, encode

_ENDED = 87  # exit status of a test's process that was told to end
_MAX_TEXT = 300  # characters of an exception's text
_WHAT: dict[str, Callable[..., Any]] = {
    "call": lambda on, *args, **kwargs: on(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "len": len,
    "iter": iter,
    "next": next,
    "bool": bool,
    "str": str,
    "repr": repr,
    "hash": hash,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "isinstance": lambda on, value: isinstance(value, on),
    **{
        name: getattr(operator, name)
        for name in ("eq", "lt", "le", "gt", "ge", "add", "sub", "mul", "neg")
    },
}
# What people have at hand on the sites that ask for functions.
_AT_HAND = ("string", "re", "operator", "random", "sys", "datetime", "copy")
_STARRED = (
    *("typing", "collections", "heapq", "bisect", "itertools", "functools", "math"),
)


class _MissingError(Exception):
    """The program has no such name."""


_forked = {"may": False, "alone": False}
_module = types.ModuleType("solution")
_objects: list[Any] = []  # what is no plain data, by the number it goes by


def main() -> None:
    while True:
        request = receive()
        reply = _reply(request)
        if reply is not None:
            send(reply)


def _reply(request: dict[str, Any]) -> dict[str, Any] | None:
    operation = request["op"]
    if operation == "load":
        return _load(request)
    if operation == "names":
        return {"names": {name: _description(name) for name in request["names"]}}
    if operation == "begin":
        return _begin()
    if operation == "end":
        send({"ended": True})
        if _forked["alone"]:
            os._exit(_ENDED)
        return None
    return _do(request)


def _load(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the first of the texts that compiles, as the module `solution`."""
    _forked["may"] = request["forks"]
    sys.set_int_max_str_digits(0)
    if request["recursion"]:
        sys.setrecursionlimit(request["recursion"])
    # Classes and pickles of the program look their module up by its name.
    sys.modules["solution"] = _module
    names = vars(_module)
    code = error = None
    for text in request["programs"]:
        try:
            code = compile(text, "solution.py", "exec", dont_inherit=True)
            break
        except (SyntaxError, ValueError, RecursionError, MemoryError) as caught:
            error = error or caught
    if code is None:
        assert error is not None
        return _raised(error)
    try:
        if request["fill"]:
            names["__builtins__"] = _at_hand(code)
        exec(compile(request["preamble"], "preamble.py", "exec"), names)
        exec(code, names)
    except BaseException as caught:
        return _raised(caught)
    return {"loaded": True}


def _at_hand(code: types.CodeType) -> dict[str, Any]:
    """Builtins, and the usual imports as far as the program uses their names.

    They are no names of the program: a function that it does not define is missing,
    and not the one of a module that is called the same.
    """
    found = dict(vars(builtins))
    wanted = _used(code) - found.keys()
    for module_name in (*_STARRED, *_AT_HAND):
        module = __import__(module_name) if wanted else None
        if module_name in wanted:
            found[module_name] = module
        if module_name in _STARRED:
            for name in wanted & set(getattr(module, "__all__", dir(module))):
                found.setdefault(name, getattr(module, name))
    return found


def _used(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _used(constant)
    return found


def _begin() -> dict[str, Any] | None:
    """Goes on in a child, so that no state is left over for the next test."""
    if not _forked["may"]:
        return {"begun": True}
    pid = os.fork()
    if pid == 0:
        _forked["alone"] = True
        return {"begun": True}
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    # Else it has read a request that it will not answer.
    return None if code == _ENDED else {"left": code}


def _resolved(path: str) -> Any:
    """A name of the program; `Solution().f` too, which `f` alone may stand for.

    Raises:
        _MissingError: there is none.
    """
    steps = re.findall(r"(\w+)((?:\(\))?)", path)
    names = vars(_module)
    first = steps[0][0]
    if first not in names:
        solution = names.get("Solution")
        if not hasattr(solution, first):
            raise _MissingError
        steps.insert(0, ("Solution", "()"))
    value: Any = None
    for place, (name, called) in enumerate(steps):
        value = getattr(value, name) if place else names[name]
        value = value() if called else value
    return value


def _description(name: str) -> list[Any]:
    """What a name of the program stands for, and what more the tests need of it."""
    try:
        value = _resolved(name)
    except BaseException:
        return ["missing", None]
    if isinstance(value, types.ModuleType):
        return ["module", None]
    if isinstance(value, type) and issubclass(value, BaseException):
        return ["exception", _bases(value)]
    form = encode(value, _handle)
    plain = not isinstance(form, dict) or "handle" not in form
    return ["value", form] if plain else ["object", None]


def _bases(kind: type) -> list[str]:
    return [base.__name__ for base in kind.__mro__ if base.__module__ == "builtins"]


def _do(request: dict[str, Any]) -> dict[str, Any]:
    try:
        args = [decode(form, _object) for form in request["args"]]
        kwargs = {
            name: decode(form, _object) for name, form in request["kwargs"].items()
        }
        on = decode(request["on"], _object)
    except _MissingError:
        return {"missing": True}
    except BaseException as caught:
        return _raised(caught)
    try:
        value = _WHAT[request["what"]](on, *args, **kwargs)
        reply = {"value": encode(value, _handle)}
        if request["what"] == "call" and value is None:
            reply["changed"] = _changed(args, request["args"])
        return reply
    except BaseException as caught:
        return _raised(caught)


def _object(kind: str, content: Any) -> Any:
    if kind == "name":
        return _resolved(content)
    return _objects[content]


def _handle(value: Any) -> dict[str, Any]:
    _objects.append(value)
    return {"handle": [len(_objects) - 1, type(value).__name__]}


def _changed(args: list[Any], forms: list[Any]) -> dict[str, Any]:
    """The arguments that the call changed in place, by their place.

    Only a function that returns nothing works in that way. Of another one, a test may
    compare the value with what it makes of the same list: that must not have changed.
    """
    after: dict[str, Any] = {}
    for place, (value, form) in enumerate(zip(args, forms, strict=True)):
        if isinstance(value, (list, dict, set, bytearray)):
            now = encode(value, _handle)
            if now != form:
                after[str(place)] = now
    return after


def _raised(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)[:_MAX_TEXT]
    except BaseException:
        text = ""
    kind = type(error)
    return {"raised": {"type": kind.__name__, "bases": _bases(kind), "text": text}}
