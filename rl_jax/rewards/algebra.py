r"""Equality of two LaTeX answers by computer algebra (math-verify over sympy).

Nothing here is bounded in time: it runs in a worker that can be killed. The library
is asked to parse LaTeX only, never plain Python-like expressions, and the one place
where sympy would evaluate text is closed besides.
"""

import dataclasses
import functools
import itertools
import logging
import re
from fractions import Fraction
from typing import Any

from rl_jax.rewards import notation

# Symbols are replaced by these when two expressions are compared by value: nothing
# special, of both signs. Where too few give real values, algebra decides.
_PROBES = (
    "0.7390851332",
    "-1.2020569031",
    "2.6854520010",
    "-0.5671432904",
    "3.3598856",
)
_MIN_PROBES = 3
_COUNTERS = {"k", "m", "n"}  # names of whole numbers
_WHOLE = (3, 5, 8, 13, 22)
# 50 digits are worked out and 40 must agree: e^(pi sqrt(163)) is an integer to 30.
_DIGITS = 50
_EXACT = Fraction(1, 10**40)
_NEARLY_ZERO = 1e-45
_MAX_SET = 50


@functools.cache
def _library() -> Any:
    """Imports math-verify: 0.8 s and 50 MiB, so not before it is needed."""
    import math_verify
    import sympy
    import sympy.physics.units  # solve() would import it, and it evaluates its names
    from sympy.parsing import sympy_parser

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # "no timeout" warnings

    def atom_only(code: str, *_: Any, **__: Any) -> Any:
        atom = _ATOM_CODE.fullmatch(code)
        if not atom:
            raise ValueError("text is never evaluated as Python here")
        return getattr(sympy, atom[1])(atom[2])

    # All of sympy's ways from text to an expression end in this function's eval(),
    # and even the digits of a LaTeX number go there. One number or name, built without
    # eval(), is all that gets through.
    sympy_parser.eval_expr = atom_only
    return math_verify, sympy


# What sympy has made of the text by then: "Integer (12 )", "Symbol ('x' )".
_ATOM_CODE = re.compile(r"\s*(Integer|Float|Symbol)\s*\(\s*'?([\w.+-]+)'?\s*\)\s*")


@functools.cache
def _extraction() -> Any:
    """LaTeX in a box. The library's unit stripping is off: it takes 5h for 5."""
    math_verify, _ = _library()
    config = math_verify.LatexExtractionConfig(
        try_extract_without_anchor=False, boxed_match_priority=0
    )
    rules = dataclasses.replace(config.normalization_config, units=False)
    return dataclasses.replace(config, normalization_config=rules)


_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\\circ")
_CURRENCY = re.compile(r"\\(?:dollar|euro|pound|yen|rupee)(?![a-z])|\^\\circ")


# 2\frac{1}{2}\pi: a whole number with a proper fraction behind it.
_MIXED = re.compile(
    r"(?<![\d.}^_/])(\d+)\s*\\frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))(?!\d)"
)


def _mixed(match: re.Match[str]) -> str:
    whole, top, bottom = match[1], match[2] or match[3], match[4] or match[5]
    if int(top) >= int(bottom):
        return match.group()
    return rf"({whole}+\frac{{{top}}}{{{bottom}}})"


@functools.lru_cache(maxsize=512)
def parse(text: str) -> Any | None:
    """A normalised LaTeX answer as a sympy object, or None if it cannot be read."""
    math_verify, sympy = _library()
    if not notation.balanced(text):
        return None  # the box would close early, on a part of the answer
    text = _MIXED.sub(_mixed, text)
    if "\\circ" in text or "\\dollar" in text:
        text = _DEGREES.sub(r"(\\frac{\1\\pi}{180})", text)
        text = _CURRENCY.sub("", text)
    found = math_verify.parse(
        "\\boxed{" + text + "}",
        [_extraction()],
        fallback_mode="no_fallback",
        # The box or nothing: else a fraction inside what cannot be read is the answer.
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    # A list (the rows of a matrix) would be taken for several answers to choose from.
    if not found or not isinstance(found[0], (sympy.Basic, sympy.MatrixBase)):
        return None
    return found[0]


def rational(value: Fraction) -> Any:
    """A number as a sympy object."""
    _, sympy = _library()
    return sympy.Rational(value.numerator, value.denominator)


def constant(x: Any) -> tuple[Fraction, bool] | None:
    """A real constant's value, and whether it is exact; None if it is none.

    What is irrational is worked out to 50 digits.
    """
    _, sympy = _library()
    if not _is_scalar(x) or x.free_symbols:
        return None
    x = _exact(x)
    value = x if x.is_Rational else sympy.N(x, _DIGITS)
    if not (value.is_Number and value.is_real and value.is_finite):
        return None
    close = sympy.Rational(str(value))
    return Fraction(int(close.p), int(close.q)), bool(x.is_Rational)


def scaled(x: Any, factor: Fraction) -> Any:
    """The object times a rational number."""
    return x * rational(factor)


def number(text: str) -> float | None:
    """The value of a constant; None if it is none. Infinity is a value."""
    x = parse(text)
    if x is None or not _is_scalar(x):
        return None
    try:
        return float(x.doit())
    except (TypeError, ValueError, OverflowError):
        return None


def same_equation(
    gold: tuple[str, ...], reply: tuple[str, ...], *, positive: bool = False
) -> bool | None:
    """True if two equations have the same solutions; None if one cannot be read.

    left - right of one must be a constant times that of the other; failing that, both
    are solved for one of their variables.

    Args:
        gold, reply: sides, of which the first and the last count.
        positive: the constant must be above 0, as for inequalities of one direction.
    """
    _, sympy = _library()
    sides: list[Any] = [parse(x) for x in (gold[0], gold[-1], reply[0], reply[-1])]
    if not all(side is not None and _is_scalar(side) for side in sides):
        return None
    one, other = (_exact(sides[i] - sides[i + 1]) for i in (0, 2))
    names = sorted({symbol.name for symbol in one.free_symbols})
    if not names or names != sorted({symbol.name for symbol in other.free_symbols}):
        return False
    ratios = []
    for point in _points(names):
        values = [
            x.subs({symbol: point[symbol.name] for symbol in x.free_symbols})
            for x in (one, other)
        ]
        a, b = (sympy.N(value, _DIGITS) for value in values)
        if a.is_number and b.is_number and a.is_finite and b.is_finite and b != 0:
            ratios.append(a / b)
    if len(ratios) < _MIN_PROBES:
        return False
    if all(r != 0 and _close_values(r, ratios[0]) for r in ratios):
        return not positive or bool(ratios[0] > 0)
    return not positive and _same_solutions(one, other, names[-1])


def _same_solutions(one: Any, other: Any, name: str) -> bool:
    _, sympy = _library()
    roots = []
    for x in (one, other):
        symbol = next(s for s in x.free_symbols if s.name == name)
        try:
            roots.append(sympy.solve(x, symbol))
        except (NotImplementedError, ValueError, TypeError):
            return False
    return bool(roots[0]) and _equal_sets(*roots)


def _points(names: list[str]) -> list[dict[str, Any]]:
    """Values for variables: nothing special, the same each time."""
    _, sympy = _library()
    points = []
    for shift in range(len(_PROBES)):
        values = itertools.islice(itertools.cycle(_PROBES), shift, None)
        points.append(
            {
                name: sympy.Rational(value) + i // len(_PROBES)
                for i, (name, value) in enumerate(zip(names, values, strict=False))
            }
        )
    return points


def equal(gold: Any, reply: Any) -> bool:
    """True if the reply's sympy object is the gold one; the order matters.

    Numbers and expressions are compared by value to 40 digits, sets, tuples,
    intervals and matrices member by member, all else as math-verify does.
    """
    math_verify, sympy = _library()
    # sympy draws random points in places: the same input must get the same verdict.
    sympy.core.random.seed(0)
    gold, reply = _unwrapped(gold, reply)
    if _undefined(reply) or _undefined(gold):
        return False
    verdict = _equal_members(gold, reply)
    if verdict is None and _is_scalar(gold) and _is_scalar(reply):
        verdict = _equal_scalars(gold, reply)
    if verdict is not None:
        return verdict
    return math_verify.verify(
        gold, reply, allow_set_relation_comp=True, timeout_seconds=None
    )


def _unwrapped(gold: Any, reply: Any) -> tuple[Any, Any]:
    """Drops "n =" from the one side that has it, and braces around a single member."""
    _, sympy = _library()
    relations = (sympy.core.relational.Relational, sympy.logic.boolalg.BooleanFunction)

    def single(x: Any) -> Any:
        alone = isinstance(x, sympy.FiniteSet) and len(x.args) == 1
        return x.args[0] if alone else x

    gold, reply = single(gold), single(reply)
    if isinstance(reply, sympy.Eq) and not isinstance(gold, relations):
        if reply.lhs.free_symbols:
            return gold, single(reply.rhs)
    if isinstance(gold, sympy.Eq) and not isinstance(reply, relations):
        if gold.lhs.is_Symbol:
            return single(gold.rhs), reply
    return gold, reply


def _undefined(x: Any) -> bool:
    _, sympy = _library()
    return bool(hasattr(x, "has") and x.has(sympy.nan, sympy.zoo))


def _is_scalar(x: Any) -> bool:
    _, sympy = _library()
    return isinstance(x, sympy.Expr) and not isinstance(x, sympy.MatrixExpr)


def _equal_members(gold: Any, reply: Any) -> bool | None:
    """Compares two containers of one kind; None if that is not what they are."""
    _, sympy = _library()
    if isinstance(gold, sympy.Tuple) and isinstance(reply, sympy.Tuple):
        return len(gold) == len(reply) and all(map(equal, gold, reply))
    if isinstance(gold, sympy.Interval) and isinstance(reply, sympy.Interval):
        return (gold.left_open, gold.right_open) == (
            reply.left_open,
            reply.right_open,
        ) and all(map(equal, gold.args[:2], reply.args[:2]))
    if isinstance(gold, sympy.FiniteSet) and isinstance(reply, sympy.FiniteSet):
        return _equal_sets(list(gold.args), list(reply.args))
    if isinstance(gold, sympy.MatrixBase) and isinstance(reply, sympy.MatrixBase):
        return gold.shape == reply.shape and all(map(equal, gold, reply))
    return None


def _equal_sets(golds: list[Any], replies: list[Any]) -> bool:
    """True if the members can be paired off."""
    if len(golds) != len(replies) or len(golds) > _MAX_SET:
        return False
    for gold in golds:
        partner = next((r for r in replies if equal(gold, r)), None)
        if partner is None:
            return False
        replies.remove(partner)
    return True


def _equal_scalars(gold: Any, reply: Any) -> bool | None:
    """Compares two expressions by value; None if values do not decide.

    A decimal stands for exactly what it says: who knows it to be rounded asks
    `exact.rounds_to` with the `constant`.
    """
    _, sympy = _library()
    if gold == reply:
        return True
    gold, reply = _exact(gold), _exact(reply)
    if gold.is_Rational and reply.is_Rational:
        return bool(gold == reply)
    # By name: the two sides may differ in what they assume of the same variable.
    symbols = gold.free_symbols | reply.free_symbols
    names = sorted({symbol.name for symbol in symbols})
    if not names:
        return _close_values(gold, reply)
    same = _agree_at(_points(names), gold, reply)
    if not same and _COUNTERS.intersection(names):
        # (a/b)^n is a^n/b^n for whole n only.
        whole = [
            {name: n + i for i, name in enumerate(sorted(_COUNTERS))} for n in _WHOLE
        ]
        points = [a | b for a, b in zip(_points(names), whole, strict=True)]
        same = _agree_at(points, gold, reply)
    return same


def _agree_at(points: list[dict[str, Any]], gold: Any, reply: Any) -> bool | None:
    """Whether two expressions agree at points; None if too few have a value."""
    agreed = 0
    for value_of in points:
        values = [
            x.subs({symbol: value_of[symbol.name] for symbol in x.free_symbols})
            for x in (gold, reply)
        ]
        same = _close_values(values[0], values[1])
        if same is False:
            return False
        agreed += same is True
    return True if agreed >= _MIN_PROBES else None


def _exact(x: Any) -> Any:
    """Floats as the rationals they were written as, i as the imaginary unit."""
    _, sympy = _library()
    exact_of = {f: sympy.Rational(str(f)) for f in x.atoms(sympy.Float)}
    units = {s: sympy.I for s in x.free_symbols if s.name == "i"}
    return x.xreplace(exact_of | units).doit()


def _close_values(a: Any, b: Any) -> bool | None:
    """Compares two constants; None if one of them has no real or complex value."""
    _, sympy = _library()
    a, b = sympy.N(a, _DIGITS), sympy.N(b, _DIGITS)
    if not (a.is_number and b.is_number) or _undefined(a) or _undefined(b):
        return None
    if not (a.is_finite and b.is_finite):
        return bool(a == b) if a.is_infinite or b.is_infinite else None
    if a.is_real is False or b.is_real is False:
        if not (_is_complex(a) and _is_complex(b)):
            return None
    size = max(abs(a), abs(b))
    if min(abs(a), abs(b)) < _NEARLY_ZERO and a != b:
        return None if size < _NEARLY_ZERO else False  # what is left of a zero?
    return bool(abs(a - b) <= size * sympy.Rational(_EXACT))


def _is_complex(x: Any) -> bool:
    """True for a + b i with both parts plain numbers."""
    return all(part.is_Number for part in x.as_real_imag())
