"""Answers that are plain numbers, compared with exact rational arithmetic.

Most answers are: this path needs no computer algebra, cannot hang, and is a thousand
times quicker. What it cannot read it leaves alone (None).
"""

import dataclasses
import math
import re
from fractions import Fraction

# A decimal that has been rounded to this many significant digits or more is the value
# it was rounded from, as the libraries in use have it.
MIN_DIGITS = 6
# Beyond these a number is left to the guarded path; a float's range is 10^308.
_MAX_DIGITS = 1_000
_MAX_EXPONENT = 400


@dataclasses.dataclass(frozen=True)
class Number:
    """An exact value, and how it was written.

    `places` is the place of the last digit after the point, None if the number was not
    written as a decimal; `base` is 0 if none was given.
    """

    value: Fraction
    places: int | None = None
    percent: bool = False
    base: int = 0


_DECIMAL = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
_BRACED = rf"(?:\{{\s*-?\s*{_DECIMAL}\s*\}}|\d)"


def _power(name: str) -> str:
    braced = rf"\{{\s*(?P<{name}>[-+]?\s*\d{{1,4}})\s*\}}"
    return rf"\^\s*(?:{braced}|(?P<{name}_digit>\d))"


_NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?P<open>\()?\s*"
    rf"(?:(?P<whole>\d+)?\s*\\frac\s*(?P<top>{_BRACED})\s*(?P<bottom>{_BRACED})"
    rf"|(?:(?P<mixed>\d+)\s+)?(?P<over>{_DECIMAL})\s*/\s*(?P<under>{_DECIMAL})"
    r"|(?P<head>\d*\.\d*)(?:\\(?:overline|bar|dot)\s*\{?\s*(?P<cycle>\d+)\s*\}?"
    r"(?:(?P<mid>\d*)\\dot\s*\{?\s*(?P<last>\d)\s*\}?)?)"
    rf"|(?P<plain>{_DECIMAL})"
    r"(?:[eE](?P<exp>[-+]?\d{1,4})"
    rf"|\s*(?:\\times|\\cdot|\\ast|\*)\s*\{{?10\}}?\s*{_power('of_ten')}"
    rf"|{_power('power')}"
    r"|(?P<dots>\s*\\ldots))?)"
    r"(?P<close>\s*\))?"
    r"(?:_\{?(?P<base>\d{1,2})\}?)?"
    r"(?:\s*(?P<percent>%|percent|\\text\s*\{\s*percent\s*\}))?\s*"
)
_INTEGER = re.compile(r"-?[0-9]{1,300}")
_REPEATS = re.compile(r"\.\d*?(\d{1,6}?)\1{2,}\d{0,5}$")


def read(text: str, factor: Fraction | int = 1) -> Number | None:
    r"""Reads a number from a normalised answer without unit, times `factor`.

    Knows 1,234, .5, -3/4, 2\frac{1}{2}, 2 1/2, 1.5e-3, 2\times 10^{5}, 2^{10}, 5%,
    1011_2, 0.1\overline{6}, 0.333\ldots. None if it is anything else, or too long to
    be sane.
    """
    if _INTEGER.fullmatch(text):
        return Number(Fraction(int(text)) * factor)
    if len(text) > _MAX_DIGITS:
        return None
    match = _NUMBER.fullmatch(_outer_braces(text))
    if not match or bool(match["open"]) != bool(match["close"]):
        return None
    value, places = _value(match)
    if value is None or match["base"] and int(match["base"]) < 2:
        return None
    if match["sign"] == "-":
        value = -value
    return Number(
        value=value * factor,
        places=places if factor == 1 else None,
        percent=bool(match["percent"]),
        base=int(match["base"] or 0),
    )


def _value(match: re.Match[str]) -> tuple[Fraction | None, int | None]:
    """The value without its sign, and `Number.places`."""
    if match["top"] or match["over"]:
        divisor = _decimal(match["bottom"] or match["under"])
        if not divisor:
            return None, None
        whole = int(match["whole"] or match["mixed"] or 0)
        return whole + _decimal(match["top"] or match["over"]) / divisor, None
    if match["cycle"]:
        cycle = match["cycle"] + (match["mid"] or "") + (match["last"] or "")
        return _repeating(match["head"], cycle), None
    text = match["plain"]
    value, places = _decimal(text), len(text.partition(".")[2])
    if match["dots"]:
        repeats = _REPEATS.search(text)
        if repeats:
            return _repeating(text[: repeats.start(1)], repeats[1]), None
        return (value, places) if places else (None, None)
    raised = match["power"] or match["power_digit"]
    exponent = match["exp"] or match["of_ten"] or match["of_ten_digit"] or raised
    power = int(exponent.replace(" ", "")) if exponent else 0
    if abs(power) > _MAX_EXPONENT:
        return None, None
    if not raised:
        return value * Fraction(10) ** power, places - power if places else None
    digits = abs(power) * math.log10(max(value.numerator, value.denominator))
    if digits > _MAX_DIGITS or (power <= 0 and not value):
        return None, None
    return value**power, None


def _repeating(head: str, cycle: str) -> Fraction:
    """0.1 and then 6666..."""
    before, _, after = head.partition(".")
    shift = 10 ** len(after)
    start = Fraction(int(before + after or 0), shift)
    return start + Fraction(int(cycle), (10 ** len(cycle) - 1) * shift)


def _decimal(text: str) -> Fraction:
    return Fraction(re.sub(r"[,{}\s]", "", text).rstrip(".") or "0")


def _outer_braces(text: str) -> str:
    """Strips one \\text{19} or {19} around a number; other braces stay."""
    match = re.fullmatch(r"(?:\\text\s*)?\{([^{}]*)\}", text)
    return match[1].strip() if match else text


def agree(gold: Number, reply: Number) -> bool:
    """True if the reply's number is the gold one.

    Two values are compared exactly, but for a decimal against a value that no decimal
    can hold; see `rounds_to`. A percent sign on one side only is read either way (40%
    is 40 or 0.4). Bases must agree where both have one.
    """
    if gold.base or reply.base:
        return _agree_in_base(gold, reply)
    candidates = [reply]
    if gold.percent != reply.percent:
        candidates.append(_hundredth(reply) if reply.percent else _hundredfold(reply))
    return any(_same(gold, candidate) for candidate in candidates)


def _hundredth(number: Number) -> Number:
    places = None if number.places is None else number.places + 2
    return Number(number.value / 100, places)


def _hundredfold(number: Number) -> Number:
    places = None if number.places is None else number.places - 2
    return Number(number.value * 100, places)


def _same(a: Number, b: Number) -> bool:
    if a.value == b.value:
        return True
    if a.places is None:
        a, b = b, a
    return b.places is None and not terminates(b.value) and rounds_to(b.value, a)


def rounds_to(value: Fraction, number: Number) -> bool:
    """True if a decimal of `MIN_DIGITS` or more is the value, rounded or cut off."""
    if number.places is None or number.value * value <= 0:
        return False
    shift = Fraction(10) ** number.places
    if abs(number.value) * shift < 10 ** (MIN_DIGITS - 1):
        return False
    beyond = (abs(value) - abs(number.value)) * shift
    return Fraction(-1, 2) <= beyond < 1


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
