r"""Units and counting words around an answer: 5 cm, \$5, 7\text{ kg}, 3 million."""

import dataclasses
import functools
import re
from fractions import Fraction

# A unit is a product of powers of these; two amounts are comparable only if the powers
# agree. Money and temperature have no fixed rates, so each is its own.
_BASE = {
    "length": "mm 1/1000 millimeter millimetre|cm 1/100 centimeter centimetre|dm 1/10"
    "|m 1 meter metre|km 1000 kilometer kilometre|in 127/5000 inch inches"
    "|ft 381/1250 foot feet|yd 1143/1250 yard|mi 201168/125 mile",
    "mass": "mg 1/1000000 milligram|g 1/1000 gram gm|kg 1 kilogram"
    "|lb 45359237/100000000 lbs|oz 45359237/1600000000 ounce",
    "time": "ms 1/1000 millisecond|s 1 second sec|min 60 minute|h 3600 hour hr"
    "|day 86400|week 604800",
    "month": "month 1|year 12 yr",
    "dollar": "dollar 1 usd buck|cent 1/100 penny pennies",
    "euro": "euro 1 eur",
    "pound": "pound 1",
    "yen": "yen 1",
    "rupee": "rupee 1",
    "yuan": "yuan 1 rmb",
    "degree": "degree 1 deg",
    "radian": "radian 1 rad",
    "celsius": "celsius 1",
    "fahrenheit": "fahrenheit 1",
    "kelvin": "kelvin 1",
    "current": "amp 1 ampere",
}
# Those made of others: name, factor, what of.
_DERIVED = """l 1/1000 m^3 liter litre|ml 1/1000000 m^3 milliliter millilitre
|mph 1 mi/h|kph 1 km/h kmh|newton 1 kg m/s^2|joule 1 kg m^2/s^2|watt 1 kg m^2/s^3
|hertz 1 s^-1 hz"""
_CJK = {
    **{"毫米": "mm", "厘米": "cm", "分米": "dm", "千米": "km", "公里": "km", "米": "m"},
    **{"克": "g", "千克": "kg", "公斤": "kg", "升": "l", "毫升": "ml"},
    **{"秒": "s", "分钟": "min", "小时": "h", "天": "day", "年": "year", "月": "month"},
    **{"元": "yuan", "美元": "dollar", "度": "degree"},
    **{"平方" + name: f"{unit}^2" for name, unit in (("米", "m"), ("厘米", "cm"))},
    **{"立方" + name: f"{unit}^3" for name, unit in (("米", "m"), ("厘米", "cm"))},
    **{"平方千米": "km^2", "平方公里": "km^2", "千米/时": "km/h", "米/秒": "m/s"},
}
MULTIPLIERS = {
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "百": 10**2,
    "千": 10**3,
    "万": 10**4,
    "百万": 10**6,
    "亿": 10**8,
}
# Words that change the value, offer another one or are mathematics: never a unit.
_NOT_UNITS = re.compile(
    r"\b(?:or|and|to|if|otherwise|unless|either|not|between|through|with|remainder"
    r"|half|halves|thirds?|quarters?|per\s*cent|percent|percentage|factorial|squared"
    r"|cubed|times|over|plus|minus|mod|choose|negative|power|root|less|more|pi|sqrt"
    r"|sin|cos|tan|log|ln|exp|infinity|inf|base|maybe|perhaps|possibly|probably|but"
    r"|about|around|approximately|nearly|almost|roughly|least|most|vs|is|are|was|when"
    r"|where|for|else|except|wrong|incorrect|false|nan)\b|[分半多或和与及到至约左右以]"
)

# Length, mass, ... with their powers, in order of name; and what one of it is.
Dimensions = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class Unit:
    """A known unit: 7 of them are 7 * factor of the dimension's own."""

    dimensions: Dimensions
    factor: Fraction


@dataclasses.dataclass(frozen=True)
class Amount:
    r"""An answer taken apart: 5\text{ thousand dollars} is 5, 1000 and the dollar.

    `unit` is None if there is none, or none that is known.
    """

    body: str
    scale: int = 1
    unit: Unit | None = None


@functools.cache
def _table() -> dict[str, Unit]:
    table: dict[str, Unit] = {}
    for dimension, entries in _BASE.items():
        for entry in entries.split("|"):
            name, factor, *others = entry.split()
            unit = Unit(((dimension, 1),), Fraction(factor))
            table.update(dict.fromkeys((name, *others), unit))
    for entry in _DERIVED.replace("\n", "").split("|"):
        name, factor, *rest = entry.split()
        split_at = 2 if rest[0] == "kg" else 1
        made = _product(" ".join(rest[:split_at]), table)
        assert made is not None
        unit = Unit(made.dimensions, made.factor * Fraction(factor))
        table.update(dict.fromkeys((name, *rest[split_at:]), unit))
    return table


_CURRENCY = r"\\(?P<sign>dollar|euro|pound|yen|rupee)\s*"
_PREFIX = re.compile(rf"(?P<minus>[-+]?)\s*(?:{_CURRENCY}|(?P<code>USD|EUR|US)\b\s*)")
_SUFFIX_SIGN = re.compile(
    rf"\s*(?:{_CURRENCY}|(?P<degree>\^\\circ)\s*(?P<scale>[CF])?\s*)$"
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_POWER = r"(?:\s*\^\s*(?:\{\s*(-?\d)\s*\}|(\d)))?"
_INSIDE = r"((?:[^{}]|\{[^{}]*\})*)"
_IN_TEXT = re.compile(rf"\s*\\text\s*\{{{_INSIDE}\}}\s*{_POWER}\s*$")
_FRACTION = re.compile(
    rf"\s*\\frac\s*\{{\s*\\text\s*\{{([^{{}}]*)\}}\s*\}}"
    rf"\s*\{{\s*\\text\s*\{{([^{{}}]*)\}}\s*{_POWER}\s*\}}\s*$"
)
_WORD = r"[A-Za-z]+"
_BARE = re.compile(
    rf"(?:(?<=[\d}})])|(?=\s))(\s+{_WORD}\.?(?:(?:[ -]|\s*/\s*){_WORD}){{0,3}}\.?"
    rf"|[a-z]{{2,}}(?:/[a-z]+)?){_POWER}\s*$"
)
_CJK_TAIL = re.compile(
    r"(?<=[\d})%])\s*(?:\\text\s*\{\s*)?([\u4e00-\u9fff][\u4e00-\u9fff/]{0,5})\s*\}?$"
)


def split(text: str) -> Amount:
    r"""Takes unit, currency and counting word off a normalised answer.

    Text that is no unit stays where it is. A bare word (outside of \text) that is not
    in the table counts only right after a number.
    """
    prefix = _PREFIX.match(text)
    if prefix and text[prefix.end() :]:
        inner = split(prefix["minus"] + text[prefix.end() :])
        sign = prefix["sign"] or {"EUR": "euro"}.get(prefix["code"], "dollar")
        unit = inner.unit or _table()[sign]
        return Amount(inner.body, inner.scale, unit)
    for take in (_sign_at_end, _fraction_at_end, _cjk_at_end, _text_at_end, _bare_word):
        amount = take(text)
        if amount is not None:
            return amount
    return Amount(text)


def _sign_at_end(text: str) -> Amount | None:
    match = _SUFFIX_SIGN.search(text)
    if not match or not (body := text[: match.start()].strip()):
        return None
    if match["degree"] and _TRIGONOMETRY.search(body):
        return None
    if match["scale"]:
        name = "celsius" if match["scale"] == "C" else "fahrenheit"
    else:
        name = match["sign"] or "degree"
    return Amount(body, 1, _table()[name])


def _fraction_at_end(text: str) -> Amount | None:
    match = _FRACTION.search(text)
    if not match or not (body := text[: match.start()].strip()):
        return None
    power = match[3] or match[4]
    unit = _product(f"{match[1]}/{match[2]}" + (f"^{power}" if power else ""))
    return Amount(body, 1, unit) if unit else None


def _cjk_at_end(text: str) -> Amount | None:
    match = _CJK_TAIL.search(text)
    if not match or not (body := text[: match.start()].strip()):
        return None
    name = match[1]
    if name in _CJK:
        return Amount(body, 1, _product(_CJK[name]))
    longest = max((m for m in MULTIPLIERS if name.startswith(m)), key=len, default="")
    rest = name[len(longest) :]
    if _NOT_UNITS.search(rest):
        return None
    unit = _product(_CJK[rest]) if rest in _CJK else None
    return Amount(body, MULTIPLIERS.get(longest, 1), unit)


def _text_at_end(text: str) -> Amount | None:
    match = _IN_TEXT.search(text)
    body = text[: match.start()].strip() if match else ""
    if not match or not body:
        return None
    name = match[1].strip(" .,").lower()
    if _NOT_UNITS.search(name):
        return None
    first, _, rest = name.partition(" ")
    power = match[2] or match[3]
    if (first := first.removesuffix("s")) in MULTIPLIERS:
        return Amount(body, MULTIPLIERS[first], _named(rest, power))
    unit = _named(match[1].strip(" .,"), power) or _named(name, power)
    if not unit and not re.fullmatch(r"[^\W\d_](?:[^\W\d_]|[-' ./])*(?:\^\d)?", name):
        return None  # signs of mathematics change the value
    return Amount(body, 1, unit)


def _bare_word(text: str) -> Amount | None:
    match = _BARE.search(text)
    body = text[: match.start()].strip() if match else ""
    if not match or not body or _NOT_UNITS.search(match[1].lower()):
        return None
    name, power = match[1].strip(" .").lower(), match[2] or match[3]
    after_number = body[-1].isdigit() and not re.search(r"[A-Za-z^_]", body)
    first, _, rest = name.partition(" ")
    if after_number and (first := first.removesuffix("s")) in MULTIPLIERS:
        return Amount(body, MULTIPLIERS[first], _named(rest, power))
    unit = _named(name, power)
    if not after_number and (not unit or len(name) < 2):
        return None
    if not unit and (match[1][0] != " " or len(name) < 4 or power):
        return None  # 5xyz, 2 abc and 5 abcd^2 are products
    return Amount(body, 1, unit)


def _named(name: str, power: str | None) -> Unit | None:
    """ "square metres", or "m" with power "2"; None for an unknown unit."""
    name = re.sub(r"\bper\b", "/", name).strip()
    for word, implied in (("square", "2"), ("sq", "2"), ("cubic", "3"), ("cu", "3")):
        if re.match(rf"{word}\b", name):
            name, power = name[len(word) :].strip(" ."), implied
    return _product(f"{name}^{power}" if power and name else name)


_FACTOR = re.compile(r"(/)?\s*([A-Za-z]+)\.?(?:\s*\^\s*\{?\s*(-?\d)\s*\}?)?")
# Single letters that would be something else in lower case.
_CAPITALS = {"N": "newton", "J": "joule", "W": "watt", "Hz": "hertz", "K": "kelvin"}


def _product(text: str, table: dict[str, Unit] | None = None) -> Unit | None:
    """ "km/h", "m s^{-2}" or "kg m/s^2" as one unit; None if a part is unknown."""
    table = _table() if table is None else table
    powers: dict[str, int] = {}
    factor, end = Fraction(1), 0
    text = re.sub(r"\\cdot|\*|-(?=[A-Za-z])", " ", text).strip()
    for match in _FACTOR.finditer(text):
        if text[end : match.start()].strip():
            return None
        end = match.end()
        name = _CAPITALS.get(match[2], match[2].lower())
        unit = table.get(name) or table.get(name.removesuffix("s"))
        if unit is None:
            return None
        power = int(match[3] or 1) * (-1 if match[1] else 1)
        factor *= unit.factor**power
        for dimension, own in unit.dimensions:
            powers[dimension] = powers.get(dimension, 0) + own * power
    if not end or text[end:].strip():
        return None
    return Unit(tuple(sorted((d, p) for d, p in powers.items() if p)), factor)
