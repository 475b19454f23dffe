r"""Answers that are plain numbers, compared with exact rational arithmetic.

Most answers are: this path needs no computer algebra, cannot hang, and is a thousand
times quicker. What it cannot read it leaves alone (None).
"""

import dataclasses
import re
from fractions import Fraction

# How near a decimal must come to a value that no decimal can hold (1/3, pi): six
# significant digits, as the libraries in use accept.
DECIMAL_TOLERANCE = Fraction(1, 1_000_000)
# Beyond these a number is left to the guarded path; a float's range is 10^308.
_MAX_DIGITS = 1_000
_MAX_EXPONENT = 400


@dataclasses.dataclass(frozen=True)
class Number:
    """An exact value, and how it was written.

    `base` is 0 if none was given.
    """

    value: Fraction
    decimal: bool = False
    percent: bool = False
    base: int = 0


_DECIMAL = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
_BRACED = rf"(?:\{{\s*-?\s*{_DECIMAL}\s*\}}|\d)"
_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*"
    rf"(?:(?P<whole>\d+)?\s*\\frac\s*(?P<top>{_BRACED})\s*(?P<bottom>{_BRACED})"
    rf"|(?:(?P<mixed>\d+)\s+)?(?P<over>{_DECIMAL})\s*/\s*(?P<under>{_DECIMAL})"
    rf"|(?P<plain>{_DECIMAL})"
    r"(?:[eE](?P<exp>[-+]?\d{1,4})"
    r"|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*(?P<power>[-+]?\s*\d{1,4})\s*\}"
    r"|(?P<digit>\d)))?"
    r"(?:_\{?(?P<base>\d{1,2})\}?)?)"
    r"(?:\s*(?P<percent>%|percent|\\text\s*\{\s*percent\s*\}))?\s*"
)


def read(text: str, factor: int = 1) -> Number | None:
    r"""Reads a number from a normalised answer without unit, times `factor`.

    Knows 1,234, .5, -3/4, 2\frac{1}{2}, 2 1/2, 1.5e-3, 2\times 10^{5}, 5%, 1011_2.
    None if it is anything else, or too long to be sane.
    """
    if len(text) > _MAX_DIGITS:
        return None
    text = _outer_braces(text)
    match = _NUMBER.fullmatch(text)
    if not match:
        return None
    value = _value(match)
    if value is None:
        return None
    if match["sign"] == "-":
        value = -value
    written = "".join(match[name] or "" for name in ("top", "bottom", "over", "under"))
    return Number(
        value=value * factor,
        decimal="." in (match["plain"] or "") or "." in written,
        percent=bool(match["percent"]),
        base=int(match["base"] or 0),
    )


def _value(match: re.Match[str]) -> Fraction | None:
    if match["top"]:
        top, bottom = _decimal(match["top"]), _decimal(match["bottom"])
        whole = Fraction(int(match["whole"] or 0))
    elif match["over"]:
        top, bottom = _decimal(match["over"]), _decimal(match["under"])
        whole = Fraction(int(match["mixed"] or 0))
    else:
        value = _decimal(match["plain"])
        exponent = match["exp"] or match["power"] or match["digit"]
        power = int(exponent.replace(" ", "")) if exponent else 0
        if abs(power) > _MAX_EXPONENT:
            return None
        return value * Fraction(10) ** power
    return whole + top / bottom if bottom else None


def _decimal(text: str) -> Fraction:
    return Fraction(re.sub(r"[,{}\s]", "", text).rstrip(".") or "0")


def _outer_braces(text: str) -> str:
    """Strips one \\text{19} or {19} around a number; other braces stay."""
    match = re.fullmatch(r"(?:\\text\s*)?\{([^{}]*)\}", text)
    return match[1].strip() if match else text


def agree(gold: Number, reply: Number) -> bool:
    """True if the reply's number is the gold one.

    Two values are compared exactly, but for a decimal against a value that no decimal
    can hold, which needs six significant digits. A percent sign on one side only is
    read either way (40% is 40 or 0.4). Bases must agree where both have one.
    """
    if gold.base or reply.base:
        return _agree_in_base(gold, reply)
    tolerance = _tolerance(gold, reply)
    candidates = [reply.value]
    if gold.percent != reply.percent:
        candidates = [
            reply.value,
            reply.value / 100 if reply.percent else reply.value * 100,
        ]
    return any(close(gold.value, value, tolerance) for value in candidates)


def close(a: Fraction, b: Fraction, tolerance: Fraction) -> bool:
    """Equality with a tolerance relative to the larger of the two."""
    return a == b or abs(a - b) <= tolerance * max(abs(a), abs(b))


def _tolerance(gold: Number, reply: Number) -> Fraction:
    for one, other in ((gold, reply), (reply, gold)):
        if one.decimal and not other.decimal and not terminates(other.value):
            return DECIMAL_TOLERANCE
    return Fraction(0)


def terminates(value: Fraction) -> bool:
    """True if a decimal of finite length equals the value."""
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _agree_in_base(gold: Number, reply: Number) -> bool:
    """Digits and base must both agree; digits alone will do where no base is given.

    A base of the reply that the gold does not mention is worked out: 1011_2 is 11.
    """
    if gold.base and reply.base not in (0, gold.base):
        return False
    if gold.base:
        return gold.value == reply.value
    if not 2 <= reply.base <= 10 or reply.value.denominator != 1:
        return False
    digits = str(abs(reply.value.numerator))
    if any(int(digit) >= reply.base for digit in digits):
        return False
    value = int(digits, reply.base)
    return gold.value == (-value if reply.value < 0 else value)
