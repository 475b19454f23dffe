"""Names and objects of a program, as the tests see them from another process.

Plain data arrives as plain data, of types of this process. Anything else is a
`Remote`: calls, attributes and items are asked of the program. Whether it equals what
a test expects is never asked, because the program must not see that, let alone decide
it: a Remote equals no plain value. Only two Remotes are compared by the program.

Part of what runs inside the sandbox: standard library only.
"""

import builtins
from typing import Any

from rl_jax.rewards.code.channel import receive, send
from rl_jax.rewards.code.plain import NotPlainError, TooLargeError, decode, encode

FROM_PROGRAM = "raised_by_program"  # attribute of an exception that came from there
# Raised by a function, these would end a loop of the tests, or the tests themselves.
_MEANT_FOR_PYTHON = (StopIteration, StopAsyncIteration, GeneratorExit, SystemExit)

state: dict[str, Any] = {"asked": 0, "unsendable": ""}


class UnsendableError(BaseException):
    """The tests hand the program what cannot be sent: out of reach of `Exception`."""


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Asks the program, by way of the grader."""
    send({"ask": request})
    return receive()["answer"]


class Remote:
    """Something of the program that is no plain data."""

    __slots__ = ("_ref", "__weakref__")

    def __init__(self, ref: dict[str, Any]):
        object.__setattr__(self, "_ref", ref)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _do("call", self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__") and name not in _NAMES:
            raise AttributeError(name)
        return _do("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _do("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return _do("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _do("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        _do("delitem", self, key)

    def __len__(self) -> int:
        return int(_do("len", self))

    def __iter__(self) -> Any:
        return _do("iter", self)

    def __next__(self) -> Any:
        try:
            return _do("next", self)
        except RuntimeError as error:
            if getattr(error, FROM_PROGRAM, "") == "StopIteration":
                raise StopIteration from None
            raise

    def __contains__(self, value: Any) -> bool:
        return any(item == value for item in self)  # here: see the top of the file

    def __bool__(self) -> bool:
        return _do("bool", self) is True

    def __str__(self) -> str:
        return str(_do("str", self))

    def __repr__(self) -> str:
        return str(_do("repr", self))

    def __hash__(self) -> int:
        return hash(_do("hash", self))

    def __copy__(self) -> Any:
        return _do("copy", self)

    def __deepcopy__(self, memo: Any) -> Any:
        return _do("deepcopy", self)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and _do("isinstance", self, value) is True

    def __eq__(self, other: Any) -> Any:
        return _between("eq", self, other)

    def __lt__(self, other: Any) -> Any:
        return _between("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return _between("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return _between("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return _between("ge", self, other)

    def __add__(self, other: Any) -> Any:
        return _between("add", self, other)

    def __sub__(self, other: Any) -> Any:
        return _between("sub", self, other)

    def __mul__(self, other: Any) -> Any:
        return _between("mul", self, other)

    def __neg__(self) -> Any:
        return _do("neg", self)


_NAMES = ("__name__", "__doc__", "__qualname__")


def named(name: str) -> Remote:
    """A function, class or object that goes by a name of the program."""
    return Remote({"name": name})


def _between(what: str, one: Remote, other: Any) -> Any:
    return _do(what, one, other) if isinstance(other, Remote) else NotImplemented


def _do(what: str, on: Remote, *args: Any, **kwargs: Any) -> Any:
    """Has the program do it.

    Raises:
        UnsendableError: an argument has no form as plain data.
        Exception: whatever the program raised, marked with FROM_PROGRAM.
    """
    state["asked"] += 1
    try:
        request = {
            "op": "do",
            "what": what,
            "on": _reference(on),
            "args": [encode(value, _reference) for value in args],
            "kwargs": {name: encode(kwargs[name], _reference) for name in kwargs},
        }
    except TooLargeError as error:  # which a program may have brought about
        raise _marked(ValueError(str(error)), "") from None
    except NotPlainError as error:
        state["unsendable"] = str(error)
        raise UnsendableError(str(error)) from None
    reply = ask(request)
    if "raised" in reply:
        raise _exception(reply["raised"])
    if "missing" in reply:
        raise _marked(NameError("a name is not defined by the program"), "NameError")
    try:
        for place, form in reply.get("changed", {}).items():
            _update(args[int(place)], decode(form, _remote))
        return decode(reply["value"], _remote)
    except (NotPlainError, LookupError) as error:
        raise _marked(TypeError(f"what the program returned: {error}"), "") from None


def _reference(value: Any) -> dict[str, Any]:
    if type(value) is Remote:
        return object.__getattribute__(value, "_ref")
    raise NotPlainError(f"a value of type {type(value).__name__}")


def _remote(kind: str, content: Any) -> Remote:
    if kind != "handle":
        raise NotPlainError(f"no form is called {kind!r}")
    return Remote({"handle": int(content[0])})


def _update(value: Any, after: Any) -> None:
    """Does to an argument what the call did to its copy."""
    if type(value) is not type(after):
        return
    if isinstance(value, (list, bytearray)):
        value[:] = after
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(after)


_classes: dict[str, type[BaseException]] = {}


def exception_class(name: str, bases: list[str]) -> type[BaseException]:
    """The class that stands for one of the program's, the same each time.

    A builtin exception is itself. Any other is new: none that a library has, as a
    program that could raise unittest.SkipTest would skip its tests.
    """
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        return known
    if name not in _classes:
        kinds = [getattr(builtins, base, None) for base in bases]
        base = next(
            (k for k in kinds if isinstance(k, type) and issubclass(k, Exception)),
            Exception,
        )
        if issubclass(base, _MEANT_FOR_PYTHON):
            base = RuntimeError
        made: Any = type(str(name), (base,), {})
        _classes[name] = made
    return _classes[name]


def _exception(raised: dict[str, Any]) -> BaseException:
    name, text = str(raised["type"]), raised["text"]
    kind = exception_class(name, raised["bases"])
    if issubclass(kind, _MEANT_FOR_PYTHON):
        kind = RuntimeError
    try:
        error = kind(text)
    except TypeError:  # it wants more than a text
        error = RuntimeError(text)
    return _marked(error, name)


def _marked(error: BaseException, name: str) -> BaseException:
    setattr(error, FROM_PROGRAM, name or type(error).__name__)
    return error
