r"""Notations with rules of their own: times, ratios, remainders, whole parameters.

Each function returns None for answers that are of no such kind.
"""

import re
from fractions import Fraction

from rl_jax.rewards import exact

_TEXT = re.compile(r"\\text\s*\{\s*([^{}]*)\}")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(?:([ap])\.?\s?m\.?)?", re.I)
_RATIO = re.compile(r"\d{1,9}(?:\s*:\s*\d{1,9})+")


def same_ratio(gold: str, reply: str) -> bool | None:
    """Compares times of day and ratios of whole numbers, one side at least being one.

    Times are not ratios: 12:00 is not 1:00, nor 12/0. One without a.m. or p.m. agrees
    with either.
    """
    if ":" not in gold + reply:
        return None
    gold, reply = (_TEXT.sub(r" \1", text).strip() for text in (gold, reply))
    clock, other_clock = _CLOCK.fullmatch(gold), _CLOCK.fullmatch(reply)
    if clock:
        if not other_clock:
            return False
        *time, half = (part and part.lower() for part in clock.groups())
        *other_time, other_half = (
            part and part.lower() for part in other_clock.groups()
        )
        numbers = [[int(p or 0) for p in parts] for parts in (time, other_time)]
        return numbers[0] == numbers[1] and (
            half == other_half or None in (half, other_half)
        )
    if not (_RATIO.fullmatch(gold) or _RATIO.fullmatch(reply)):
        return None
    one, other = _terms(gold), _terms(reply)
    if not one or not other or len(one) != len(other):
        return False
    return all(a * other[0] == b * one[0] for a, b in zip(one, other, strict=True))


def _terms(text: str) -> list[Fraction] | None:
    """3:2 or 3/2 as numbers; None for a time of day, a zero and anything else."""
    if _RATIO.fullmatch(text):
        parts = [part.strip() for part in text.split(":")]
        if any(part[0] == "0" for part in parts):
            return None
        return [Fraction(int(part)) for part in parts]
    number = exact.read(text)
    return [number.value, Fraction(1)] if number and number.value else None


_REMAINDER = re.compile(
    r"(?:[A-Za-z]\s*\\equiv\s*)?(?P<value>-?\s*\d{1,30})\s*\(?\s*"
    r"(?:\\pmod|\\p?mod|\\bmod|\\text\s*\{\s*\(?mod\s*\}|\bmod\b)\s*"
    r"\{?\s*(?P<modulus>\d{1,30})\s*\}?\s*\)?"
)


def same_remainder(gold: str, reply: str) -> bool | None:
    r"""Compares x \equiv 3 \pmod 7 with another such, or with the bare 3."""
    one = _REMAINDER.fullmatch(gold)
    if not one:
        return None
    value, modulus = (int(part.replace(" ", "")) for part in one.groups())
    other = _REMAINDER.fullmatch(reply)
    if not other:
        number = exact.read(reply)
        return number is not None and number.value == value
    other_value, other_modulus = (int(p.replace(" ", "")) for p in other.groups())
    if modulus != other_modulus or not modulus:
        return False
    return (value - other_value) % modulus == 0


_WHOLE = re.compile(
    r"[,;]?\s*\(?\s*(?:\\text\s*\{\s*(?:for|where|with)[a-z ]*\}\s*)?"
    r"(?P<letter>[a-zA-Z])\s*"
    r"(?:\\in\s*\\mathbb\s*\{?\s*[ZN]\s*\}?(?:\s*\^\s*\{?\+\}?)?"
    r"|\\text\s*\{\s*is an (?:arbitrary )?integer\s*\})\s*\)?\s*$"
)


def with_one_parameter(gold: str, reply: str) -> tuple[str, str]:
    r"""Both without "k \in \mathbb{Z}" at the end, and with one name for that number.

    \pi/4 + k \pi is the same answer with n for k.
    """
    one, other = _WHOLE.search(gold), _WHOLE.search(reply)
    if not one:
        return gold, reply
    name, rest = one["letter"], gold[: one.start()].rstrip(" ,;")
    if not _uses(rest, name):
        return gold, reply
    renamed = other["letter"] if other else ""
    reply = (reply[: other.start()] if other else reply).rstrip(" ,;")
    if not other and not _uses(reply, name):
        used = [letter for letter in "knm" if _uses(reply, letter)]
        renamed = used[0] if len(used) == 1 else ""
    if renamed and renamed != name and not _uses(reply, name):
        reply = re.sub(rf"(?<![A-Za-z\\]){renamed}(?![A-Za-z])", name, reply)
    return rest, reply


def _uses(text: str, letter: str) -> bool:
    return bool(re.search(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", text))
