r"""Units and counting words at the end of an answer: 5 cm, 7\text{ kg}, 3 million."""

import re

# Canonical name first, then other spellings. A plural s is taken off before.
_UNITS = {
    spelling: names.split()[0]
    for names in (
        "mm millimeter millimetre",
        "cm centimeter centimetre",
        "m meter metre",
        "km kilometer kilometre",
        "in inch inches",
        "ft foot feet",
        "yd yard",
        "mi mile",
        "mg milligram",
        "g gram gm",
        "kg kilogram",
        "lb pound lbs",
        "oz ounce",
        "s second sec",
        "min minute",
        "h hour hr",
        "day",
        "week",
        "month",
        "year yr",
        "ml milliliter millilitre",
        "l liter litre",
        "mph",
        "dollar usd",
        "cent",
        "euro",
        "degree deg",
    )
    for spelling in names.split()
}
MULTIPLIERS = {
    "dozen": 12,
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
# Words that change the value, offer another one or are mathematics: never a unit.
_NOT_UNITS = re.compile(
    r"\b(?:or|and|to|if|otherwise|unless|either|not|between|through|with|remainder"
    r"|half|halves|thirds?|quarters?|per\s*cent|percent|percentage|factorial|squared"
    r"|cubed|times|over|plus|minus|mod|choose|negative|power|root|less|more|pi|sqrt"
    r"|sin|cos|tan|log|ln|exp|infinity|inf|base)\b"
)
_POWER = r"(?:\s*\^\s*\{?\s*([23])\s*\}?)?"
_IN_TEXT = re.compile(rf"\s*\\text\s*\{{([^{{}}]*)\}}\s*{_POWER}\s*")
_BARE = re.compile(rf"(\s+[A-Za-z]+(?:[ -][A-Za-z]+){{0,3}}\.?|[a-z]{{2,}}){_POWER}\s*")
_TAIL = re.compile(rf"{_IN_TEXT.pattern}$|(?:(?<=[\d}})])|(?=\s)){_BARE.pattern}$")


def split(text: str) -> tuple[str, str, int]:
    r"""Takes a unit or a counting word off the end of a normalised answer.

    Returns:
        What stands before it, the unit's canonical name ("cm^2"; "" if there is none
        or it is not in the table), and the factor of "million" and its like, else 1.
        Text that is no unit stays where it is. A bare word (outside of \text) that is
        not in the table counts only right after a number.
    """
    match = _TAIL.search(text)
    if not match or not text[: match.start()].strip():
        return text, "", 1
    in_text, text_power, bare, bare_power = match.groups()
    name = (in_text if in_text is not None else bare).strip(" .").lower()
    body = text[: match.start()].strip()
    if _NOT_UNITS.search(name):
        return text, "", 1
    after_number = body[-1].isdigit() and not re.search(r"[A-Za-z^_]", body)
    first, _, rest = name.partition(" ")
    first = first.removesuffix("s")
    if first in MULTIPLIERS and (after_number or in_text is not None):
        return body, _canonical(rest, ""), MULTIPLIERS[first]
    unit = _canonical(name, text_power or bare_power or "")
    if in_text is None and not after_number and (not unit or len(name) < 2):
        return text, "", 1
    if in_text is None and not unit and (bare[0] != " " or len(name) < 4):
        return text, "", 1  # 5xyz and 2 abc are products
    return body, unit, 1


def _canonical(name: str, power: str) -> str:
    """ "square metres" with power "" is "m^2"; an unknown unit is ""."""
    for word, implied in (("square", "2"), ("sq", "2"), ("cubic", "3"), ("cu", "3")):
        if re.match(rf"{word}\b", name):
            name, power = name[len(word) :].strip(" ."), implied
    name, _, inner = name.partition("^")
    power = power or inner.strip("{} ")
    known = _UNITS.get(name) or _UNITS.get(name.removesuffix("s"))
    return (f"{known}^{power}" if power else known) if known else ""
