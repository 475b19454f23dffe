"""Values as JSON, so that nothing but plain data passes between processes.

What JSON has no form for is an object of one key that names its kind:

    {"tuple": [..]} {"set": [..]} {"frozenset": [..]} {"dict": [[key, value], ..]}
    {"int": "hex"} {"float": "inf"} {"complex": [re, im]} {"bytes": "hex"}
    {"bytearray": "hex"} {"range": [start, stop, step]} {"iterator": [..]}
    {"deque": [..]} {"counter": [[..]]} {"ordered": [[..]]}
    {"fraction": "1/3"} {"decimal": "0.1"} {"ellipsis": []}

Subclasses become what they are made of, by methods that they cannot override. Anything
else is not plain; the caller may have another form for it. No object of a program is
ever rebuilt from what was sent: reading makes the kinds above and no other.

This file is also part of what runs inside the sandbox: standard library only.
"""

import collections
import importlib
import math
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 150  # json's own reader gives up at about 1,000
MAX_ITEMS = 2_000_000
_PLAIN_INT_BITS = 64
_ITERATORS = tuple(type(iter(kind())) for kind in (list, tuple, set, str, dict, bytes))


class NotPlainError(TypeError):
    """The value has no form as plain data."""


class TooLargeError(NotPlainError):
    """The value is nested too deep, or has too many parts."""


def encode(value: Any, other: Callable[[Any], Any] | None = None) -> Any:
    """The value as what `json.dumps` takes.

    Args:
        value: anything.
        other: gives the form of a value that is not plain, an object of one key.

    Raises:
        NotPlainError: without `other`, for such a value.
        TooLargeError: it is too deep or too large, as one that contains itself is.
    """
    left = MAX_ITEMS

    def walk(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if depth > MAX_DEPTH or left < 0:
            raise TooLargeError("a value that is nested too deep, or too large")

        def items(values: Any) -> list[Any]:
            return [walk(item, depth + 1) for item in values]

        def pairs(kind: type, mapping: Any) -> list[Any]:
            return [items(pair) for pair in kind.items(mapping)]

        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            number = int.__int__(value)
            big = number.bit_length() > _PLAIN_INT_BITS
            return {"int": hex(number)} if big else number
        if isinstance(value, float):
            number = float.__float__(value)
            return number if math.isfinite(number) else {"float": repr(number)}
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, list):
            return items(list.__iter__(value))
        if isinstance(value, tuple):
            return {"tuple": items(tuple.__iter__(value))}
        if isinstance(value, collections.OrderedDict):
            return {"ordered": pairs(collections.OrderedDict, value)}
        if isinstance(value, dict):
            counted = isinstance(value, collections.Counter)
            return {"counter" if counted else "dict": pairs(dict, value)}
        if isinstance(value, set):
            return {"set": items(set.__iter__(value))}
        if isinstance(value, frozenset):
            return {"frozenset": items(frozenset.__iter__(value))}
        if isinstance(value, collections.deque):
            return {"deque": items(collections.deque.__iter__(value))}
        if isinstance(value, complex):
            return {"complex": items((value.real, value.imag))}
        if isinstance(value, bytes):
            return {"bytes": bytes.hex(value)}
        if isinstance(value, bytearray):
            return {"bytearray": bytearray.hex(value)}
        if type(value) is range:
            return {"range": items((value.start, value.stop, value.step))}
        if _type_name(value) == "fractions.Fraction":
            return {"fraction": items((value.numerator, value.denominator))}
        if _type_name(value) == "decimal.Decimal":
            return {"decimal": str(value)}
        if value is Ellipsis:
            return {"ellipsis": []}
        if type(value) in _ITERATORS:
            return {"iterator": items(value)}
        if _type_name(value).startswith("numpy.") and hasattr(value, "tolist"):
            return walk(value.tolist(), depth + 1)
        if other is None:
            raise NotPlainError(f"a value of type {type(value).__name__}")
        return other(value)

    return walk(value, 0)


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


# Modules that take long to import are, where they are first needed.
_READERS: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "counter": lambda pairs: collections.Counter(dict(pairs)),
    "ordered": collections.OrderedDict,
    "deque": collections.deque,
    "int": lambda text: int(text, 16),
    "float": float,
    "complex": lambda parts: complex(*parts),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": lambda parts: range(*parts),
    "iterator": iter,
    "fraction": lambda parts: importlib.import_module("fractions").Fraction(*parts),
    "decimal": lambda text: importlib.import_module("decimal").Decimal(text),
    "ellipsis": lambda parts: Ellipsis,
}


def decode(value: Any, other: Callable[[str, Any], Any] | None = None) -> Any:
    """The value that `encode` was given, made of the types above.

    Args:
        value: as `json.loads` gave it.
        other: reads a form of the caller's own, from its key and what that holds.

    Raises:
        NotPlainError: a form that is not known, or that is not well formed.
    """
    if isinstance(value, list):
        return [decode(item, other) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1:
        raise NotPlainError("a form needs exactly one key")
    [(kind, content)] = value.items()
    if kind not in _READERS:
        if other is None:
            raise NotPlainError(f"no form is called {kind!r}")
        return other(kind, content)
    try:
        return _READERS[kind](decode(content, other))
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise NotPlainError(f"a {kind} that is not well formed") from error
