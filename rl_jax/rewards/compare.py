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

from rl_jax.rewards import exact, notation

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


@functools.lru_cache(maxsize=512)
def parse(text: str) -> Any | None:
    """A normalised LaTeX answer as a sympy object, or None if it cannot be read."""
    math_verify, sympy = _library()
    if not notation.balanced(text):
        return None  # the box would close early, on a part of the answer
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

    A decimal stands for exactly what it says, and is let off with six digits only
    against a value that no decimal can hold.
    """
    _, sympy = _library()
    if gold == reply:
        return True
    with_decimal = [x.has(sympy.Float) for x in (gold, reply)]
    gold, reply = _exact(gold), _exact(reply)
    if gold.is_Rational and reply.is_Rational:
        a, b = (Fraction(int(x.p), int(x.q)) for x in (gold, reply))
        lenient = any(with_decimal) and not (
            exact.terminates(a) and exact.terminates(b)
        )
        return exact.close(a, b, exact.DECIMAL_TOLERANCE if lenient else Fraction(0))
    tolerance = exact.DECIMAL_TOLERANCE if any(with_decimal) else _EXACT
    # By name: the two sides may differ in what they assume of the same variable.
    symbols = gold.free_symbols | reply.free_symbols
    names = sorted({symbol.name for symbol in symbols})
    if not names:
        return _close_values(gold, reply, tolerance)
    agreed = 0
    for shift in range(len(_PROBES)):
        values = itertools.islice(itertools.cycle(_PROBES), shift, None)
        value_of = {
            name: sympy.Rational(value) + i // len(_PROBES)
            for i, (name, value) in enumerate(zip(names, values, strict=False))
        }
        point = {symbol: value_of[symbol.name] for symbol in symbols}
        same = _close_values(gold.subs(point), reply.subs(point), tolerance)
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


def _close_values(a: Any, b: Any, tolerance: Fraction) -> bool | None:
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
    return bool(abs(a - b) <= size * sympy.Rational(tolerance))


def _is_complex(x: Any) -> bool:
    """True for a + b i with both parts plain numbers."""
    return all(part.is_Number for part in x.as_real_imag())
