r"""Parts of the real line: intervals, inequalities in one variable, their unions.

(2, 5], 2 < x \le 5, ]2, 5] and \{x : 2 < x \le 5\} are one region. Ends stay text; they
are compared by the caller and only put in order here, by the value it gives them.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Sequence

from rl_jax.rewards import shape

INFINITY = r"\infty"
# The value of an end as a float, for sorting; None if it has none.
ValueOf = Callable[[str], float | None]
Equal = Callable[[str, str], bool]


@dataclasses.dataclass(frozen=True)
class Piece:
    """One interval, or a point if both ends are the same and closed."""

    low: str
    high: str
    low_open: bool
    high_open: bool


@dataclasses.dataclass(frozen=True)
class Region:
    """Intervals in any order; `name` is the variable if one was given."""

    pieces: tuple[Piece, ...]
    name: str = ""


EVERYTHING = Piece("-" + INFINITY, INFINITY, True, True)
_REALS = {r"\mathbb{R}", r"\mathbb R", r"\R", r"\Re", r"\mathbb{R}^1"}
_NAME = re.compile(r"[A-Za-z](?:_\{?\w{1,4}\}?)?|\\(?!pi\b|infty\b|sqrt\b)[a-zA-Z]+")
_FUNCTION = re.compile(r"[a-zA-Z]\s*\(\s*[a-zA-Z]\s*\)")
_ABSOLUTE = re.compile(r"\|\s*([A-Za-z])\s*\|")
_IN = re.compile(r"\\in(?![a-z])")
_RELATION = re.compile(r"<|>|\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z])")


def of_shape(found: shape.Shape, value: ValueOf) -> Region | None:
    """The region that a shape is or may stand for; None if it is none.

    (a, b) and [a, b] may be intervals; a single value is not taken for a point.
    """
    if isinstance(found, shape.Interval):
        return Region((Piece(*_ends(found.low, found.high), found.low_open,
                             found.high_open),))  # fmt: skip
    if isinstance(found, shape.Members) and found.kind in ("tuple", "square"):
        if len(found.items) != 2 or "langle" in found.text:
            return None
        low, high = (item.text for item in found.items)
        is_open = found.kind == "tuple"
        return Region((Piece(*_ends(low, high), is_open, is_open),))
    if isinstance(found, shape.Members) and found.joint == "or":
        parts = [of_shape(item, value) for item in found.items]
        pieces = [piece for part in parts if part for piece in part.pieces]
        return Region(tuple(pieces)) if all(parts) else None
    if isinstance(found, shape.Conditions):
        return read(found.text, value)
    if isinstance(found, shape.Equation) and _IN.search(found.text):
        within = of_shape(shape.read(found.sides[-1]), value)
        name = found.sides[0].strip()
        return within and Region(within.pieces, name if _NAME.fullmatch(name) else "")
    if isinstance(found, shape.Value) and found.text in _REALS:
        return Region((EVERYTHING,))
    return None


def _ends(low: str, high: str) -> tuple[str, str]:
    return low.strip(), high.strip().removeprefix("+")


def read(text: str, value: ValueOf) -> Region | None:
    """The region that conditions describe; None if they are of another kind."""
    words = [(s, b, e) for s, b, e in shape.tokens(text) if s in ("or", r"\lor")]
    if words:
        parts = [_all_of(part, value) for part in _cut(text, words)]
        names = {part.name for part in parts if part and part.name}
        if not all(parts) or len(names) > 1:
            return None
        pieces = [piece for part in parts if part for piece in part.pieces]
        return Region(tuple(pieces), next(iter(names), ""))
    return _all_of(text, value)


def _cut(text: str, signs: Sequence[tuple[str, int, int]]) -> list[str]:
    ends = [0, *(end for _, _, end in signs)]
    starts = [*(begin for _, begin, _ in signs), len(text)]
    return [text[end:start].strip() for end, start in zip(ends, starts, strict=True)]


def _all_of(text: str, value: ValueOf) -> Region | None:
    """Conditions joined by commas or "and": what fulfils each of them."""
    joints = (",", ";", "and", r"\land")
    signs = [(s, b, e) for s, b, e in shape.tokens(text) if s in joints]
    parts = [part for part in _cut(text, signs) if part]
    found = [_one(part, value) for part in parts]
    names = {region.name for region in found if region and region.name}
    if not found or not all(found) or len(names) > 1:
        return None
    pieces = list(found[0].pieces) if found[0] else []
    for region in found[1:]:
        both = _intersection(pieces, region.pieces if region else (), value)
        if both is None:
            return None
        pieces = both
    return Region(tuple(pieces), next(iter(names), ""))


def _one(text: str, value: ValueOf) -> Region | None:
    signs = {sign for sign, _, _ in shape.tokens(text)}
    if signs & {r"\cup", r"\cap", r"\setminus"}:
        *name, sets = _IN.split(text)
        region = _of_sets(sets.strip(), value)
        return region and Region(region.pieces, name[0].strip() if name else "")
    if signs & {"<", ">", r"\le", r"\ge", r"\ne"}:
        return _inequality(text)
    return of_shape(shape.read(text), value)


def _of_sets(text: str, value: ValueOf) -> Region | None:
    r"""Sets joined by \cup, or one \setminus another, from left to right."""
    signs = [
        (s, b, e)
        for s, b, e in shape.tokens(text)
        if s in (r"\cup", r"\cap", r"\setminus")
    ]
    parts = [_operand(part, value) for part in _cut(text, signs)]
    if not all(parts) or parts[0] is None:
        return None
    pieces = list(parts[0].pieces)
    for (sign, _, _), part in zip(signs, parts[1:], strict=True):
        assert part is not None
        if sign == r"\cup":
            pieces += part.pieces
            continue
        other = part.pieces
        if sign == r"\setminus":
            outside = _complement(part.pieces, value)
            if outside is None:
                return None
            other = tuple(outside)
        both = _intersection(pieces, other, value)
        if both is None:
            return None
        pieces = both
    return Region(tuple(pieces))


def _operand(text: str, value: ValueOf) -> Region | None:
    found = shape.read(text)
    if isinstance(found, shape.Members) and found.kind == "set":
        points = (item.text for item in found.items)
        return Region(tuple(Piece(p, p, False, False) for p in points))
    if inner := re.fullmatch(r"\((.*)\)", text):
        if any(sign in inner[1] for sign in (r"\cup", r"\setminus")):
            return _of_sets(inner[1], value)
    return of_shape(found, value)


_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne"}


def _inequality(text: str) -> Region | None:
    r"""a < x \le b, x > a, |x| < a, x \ne a: one variable against constants."""
    sides = [side.strip() for side in _RELATION.split(text)]
    signs = [sign.strip() for sign in _RELATION.findall(text)]
    named = [i for i, side in enumerate(sides) if _is_name(side)]
    if len(sides) == 3 and 1 in named:
        named = [1]  # a < x < b, where the ends are letters too
    if len(named) != 1 or not 2 <= len(sides) <= 3 or not all(sides):
        return None
    at = named[0]
    name = sides[at]
    others = sides[:at] + sides[at + 1 :]
    if any(re.search(rf"(?<![a-zA-Z\\]){re.escape(name)}", side) for side in others):
        return None
    if len(sides) == 3:
        if at != 1:
            return None
        directions = {">" if s in (">", r"\ge") else "<" for s in signs}
        if len(directions) != 1 or r"\ne" in signs:
            return None
        low, high = others if directions == {"<"} else others[::-1]
        low_sign, high_sign = signs if directions == {"<"} else signs[::-1]
        piece = Piece(*_ends(low, high), low_sign in "<>", high_sign in "<>")
        return Region((piece,), name)
    sign = signs[0] if at == 0 else _FLIPPED[signs[0]]
    return _half(name, sign, others[0].removeprefix("+"))


def two_sides(text: str) -> tuple[str, str, str] | None:
    r"""An inequality as its sign (<, \le or \ne) and its sides, the smaller first."""
    sides, signs = _RELATION.split(text), _RELATION.findall(text)
    if len(signs) != 1 or not all(side.strip() for side in sides):
        return None
    sign = signs[0].strip()
    if sign in (">", r"\ge"):
        return _FLIPPED[sign], sides[1].strip(), sides[0].strip()
    return sign, sides[0].strip(), sides[1].strip()


def _is_name(text: str) -> bool:
    return any(p.fullmatch(text) for p in (_NAME, _FUNCTION, _ABSOLUTE))


def _half(name: str, sign: str, end: str) -> Region:
    """One side of a point, or both sides of it."""
    minus = "-" + INFINITY
    absolute = _ABSOLUTE.fullmatch(name)
    is_open = sign in ("<", ">", r"\ne")
    negative = f"-({end})" if re.search("[-+]", end) else f"-{end}"
    if absolute and sign in ("<", r"\le"):
        return Region((Piece(negative, end, is_open, is_open),), absolute[1])
    if absolute:
        outside = (
            Piece(minus, negative, True, is_open),
            Piece(end, INFINITY, is_open, True),
        )
        if sign == r"\ne":
            outside += (Piece(negative, end, True, True),)
        return Region(outside, absolute[1])
    below = Piece(minus, end, True, is_open)
    above = Piece(end, INFINITY, is_open, True)
    if sign == r"\ne":
        return Region((below, above), name)
    return Region((below if sign in ("<", r"\le") else above,), name)


# Numbers along the line: an end's value, and whether it lies just above or below it.
_Spot = tuple[float, int]


def _spots(piece: Piece, value: ValueOf) -> tuple[_Spot, _Spot] | None:
    low, high = value(piece.low), value(piece.high)
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return None
    return (low, int(piece.low_open)), (high, -int(piece.high_open))


def _intersection(
    one: Sequence[Piece], other: Sequence[Piece], value: ValueOf
) -> list[Piece] | None:
    """What lies in both; None if the ends cannot be put in order."""
    found = []
    for a in one:
        for b in other:
            spots_a, spots_b = _spots(a, value), _spots(b, value)
            if spots_a is None or spots_b is None:
                return None
            low = a if spots_a[0] >= spots_b[0] else b
            high = a if spots_a[1] <= spots_b[1] else b
            if max(spots_a[0], spots_b[0]) <= min(spots_a[1], spots_b[1]):
                found.append(Piece(low.low, high.high, low.low_open, high.high_open))
    return found


def _complement(pieces: Sequence[Piece], value: ValueOf) -> list[Piece] | None:
    rest: list[Piece] | None = [EVERYTHING]
    for piece in pieces:
        outside = [
            Piece("-" + INFINITY, piece.low, True, not piece.low_open),
            Piece(piece.high, INFINITY, not piece.high_open, True),
        ]
        rest = _intersection(rest, outside, value)
        if rest is None:
            return None
    return rest


def _ordered(pieces: Sequence[Piece], value: ValueOf) -> list[Piece]:
    """In order, touching ones joined; as they are if an end has no value.

    Also as they are if one has its ends the wrong way round: (5, 2) is a point, and no
    way of writing nothing.
    """
    found = [(_spots(piece, value), piece) for piece in pieces]
    if any(spots is None or spots[0] > spots[1] for spots, _ in found):
        return list(pieces)
    kept = sorted((spots, i) for i, (spots, _) in enumerate(found) if spots)
    joined: list[tuple[Piece, _Spot]] = []
    for spots, i in kept:
        piece = found[i][1]
        if joined:
            last, end = joined[-1]
            touching = spots[0] <= end or (
                spots[0][0] == end[0] and not (spots[0][1] == 1 and end[1] == -1)
            )
            if touching:
                if spots[1] > end:
                    joined[-1] = (
                        dataclasses.replace(
                            last, high=piece.high, high_open=piece.high_open
                        ),
                        spots[1],
                    )
                continue
        joined.append((piece, spots[1]))
    return [piece for piece, _ in joined]


def same(gold: Region, reply: Region, equal: Equal, value: ValueOf) -> bool:
    """True if both are the same part of the line, of variables that do not clash."""
    if gold.name and reply.name and gold.name != reply.name:
        return False
    golds, replies = _ordered(gold.pieces, value), _ordered(reply.pieces, value)
    return len(golds) == len(replies) and all(
        (a.low_open, a.high_open) == (b.low_open, b.high_open)
        and equal(a.low, b.low)
        and equal(a.high, b.high)
        for a, b in zip(golds, replies, strict=True)
    )
