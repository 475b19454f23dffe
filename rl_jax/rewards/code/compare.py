"""Does what a program gave agree with what a test expects? In the grader's process.

Standard output is compared as text. Values come as the forms of plain.py and are
compared as such: no object is built from them, and nothing of theirs is called.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any

# How near a number with a decimal point must come, where a test does not say: six
# significant digits, as EvalPlus and the judges of most contests ask for.
REL_TOL = 1e-6
# Around an expected 0, where nothing is relatively near. EvalPlus has 1e-6, which
# would take any small number for any other.
ABS_TOL = 1e-9

_INTEGER = re.compile(r"[+-]?[0-9]+")
_MAX_DIGITS = 400  # beyond the largest float
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")


def same_output(
    checker: str, expected: str, got: str, *, rel_tol: float, abs_tol: float
) -> str:
    """Compares standard output. Returns "" or, in short, where it differs.

    Args:
        checker: "lines": equal but for blanks at the ends of lines and empty lines at
            the end. "tokens": equal words, however they are spaced. "float": words,
            of which numbers may differ by the tolerances, unless both are integers.
            "auto": line by line, and within a line as "float" if the expected word
            has a decimal point, else as "tokens"; 3.0 will do for 3.
    """
    if checker in ("tokens", "float"):
        number = _near(rel_tol, abs_tol) if checker == "float" else _never
        return _words(expected.split(), got.split(), number)
    want, have = _lines(expected), _lines(got)
    for index, (one, other) in enumerate(zip(want, have, strict=False)):
        if one == other:
            continue
        if checker == "lines" or _words(
            one.split(), other.split(), _near_decimal(rel_tol, abs_tol)
        ):
            return f"line {index + 1} differs"
    if len(want) != len(have):
        return f"{_count(len(have), 'line')} instead of {len(want)}"
    return ""


CHECKERS = ("auto", "lines", "tokens", "float", "custom")


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _words(want: list[str], have: list[str], number: Callable[[str, str], bool]) -> str:
    for index, (one, other) in enumerate(zip(want, have, strict=False)):
        if one != other and not number(one, other):
            return f"word {index + 1} differs"
    if len(want) != len(have):
        return f"{_count(len(have), 'word')} instead of {len(want)}"
    return ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _never(want: str, have: str) -> bool:
    return False


def _near(rel_tol: float, abs_tol: float) -> Callable[[str, str], bool]:
    def near(want: str, have: str) -> bool:
        if not _NUMBER.fullmatch(want) or not _NUMBER.fullmatch(have):
            return False
        if _INTEGER.fullmatch(want) and _INTEGER.fullmatch(have):
            return False  # 10^9 + 7 is not 10^9 + 8, however near it comes
        if max(len(want), len(have)) > _MAX_DIGITS:
            return False
        return _isclose(float(want), float(have), rel_tol, abs_tol)

    return near


def _near_decimal(rel_tol: float, abs_tol: float) -> Callable[[str, str], bool]:
    near = _near(rel_tol, abs_tol)

    def near_decimal(want: str, have: str) -> bool:
        if _INTEGER.fullmatch(want):
            return have.startswith(f"{want}.") and not have[len(want) + 1 :].strip("0")
        return near(want, have)

    return near_decimal


def _isclose(want: float, have: float, rel_tol: float, abs_tol: float) -> bool:
    """As math.isclose, but relative to the expected value alone."""
    if not math.isfinite(want) or not math.isfinite(have):
        return want == have or (math.isnan(want) and math.isnan(have))
    return abs(want - have) <= max(rel_tol * abs(want), abs_tol)


def same_value(expected: Any, form: Any, *, rel_tol: float, abs_tol: float) -> bool:
    """Compares a returned value, as its form, with an expected one from JSON.

    As Python's == does, except that a tuple is as good as a list (JSON has no tuples),
    that an expected float may be missed by the tolerances, that NaN equals NaN, and
    that the keys of an object, which JSON makes strings, may be numbers in the value.
    """

    def same(want: Any, have: Any) -> bool:
        kind, content = _opened(have)
        if isinstance(want, list):
            return (
                kind in ("list", "tuple")
                and len(content) == len(want)
                and all(map(same, want, content))
            )
        if isinstance(want, dict):
            return kind in ("dict", "ordered", "counter") and same_items(want, content)
        if want is None or isinstance(want, str):
            return kind == "" and type(content) is type(want) and content == want
        return _same_number(want, kind, content, rel_tol, abs_tol)

    def same_items(want: dict[str, Any], pairs: Any) -> bool:
        have: dict[str, Any] = {}
        for key, item in pairs:
            inner_kind, inner = _opened(key)
            if inner_kind or isinstance(inner, float):
                return False
            name = inner if isinstance(inner, str) else _key_text(inner)
            if name in have:  # 1 and "1": JSON could not tell them apart
                return False
            have[name] = item
        return want.keys() == have.keys() and all(
            same(item, have[name]) for name, item in want.items()
        )

    try:
        return same(expected, form)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return False  # a form that nobody who encodes a value would write


def _opened(form: Any) -> tuple[str, Any]:
    """Kind and content; "" for what JSON has itself. "?" is equal to nothing."""
    if isinstance(form, list):
        return "list", form
    if not isinstance(form, dict):
        return "", form
    if len(form) != 1:
        return "?", None
    [(kind, content)] = form.items()
    sequence = kind in ("tuple", "dict", "ordered", "counter")
    return (kind, content) if isinstance(content, list) or not sequence else ("?", None)


def _key_text(key: Any) -> str:
    return json.dumps(key) if key is None or isinstance(key, bool) else str(key)


def _same_number(
    want: Any, kind: str, content: Any, rel_tol: float, abs_tol: float
) -> bool:
    if kind == "int" and isinstance(content, str):
        content, kind = int(content, 16), ""
    if kind == "float" and isinstance(content, str):
        content, kind = float(content), ""
    if kind or not isinstance(content, (int, float)):
        return False
    if isinstance(want, float):
        return _isclose(float(want), float(content), rel_tol, abs_tol)
    return want == content
