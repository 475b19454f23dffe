r"""What kind of thing an answer is: one value, a list, a point, an interval, a matrix.

The reader looks at brackets and separators only. It decides nothing about values: these
stay text, for exact.py and compare.py.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator


@dataclasses.dataclass(frozen=True)
class Value:
    """One value, or what only the computer algebra can take apart."""

    text: str


@dataclasses.dataclass(frozen=True)
class Members:
    """Several things.

    `kind` is "list" (a, b), "set" {a, b}, "tuple" (a, b), or "square" [a, b]; the order
    counts in the last two. `joint` is what stood between: "or", "and" or ",".
    """

    kind: str
    items: tuple["Shape", ...]
    text: str
    joint: str = ","


@dataclasses.dataclass(frozen=True)
class Interval:
    """An interval with one bracket of each kind, or French brackets."""

    low: str
    high: str
    low_open: bool
    high_open: bool
    text: str


@dataclasses.dataclass(frozen=True)
class Matrix:
    """Rows of entries. A vector may be one row or one column."""

    rows: tuple[tuple[str, ...], ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Equation:
    """Sides between equals signs, in order: x = 2 + 3 = 5."""

    sides: tuple[str, ...]
    text: str


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Made of inequalities, unions and the like: for regions.py."""

    text: str


Shape = Value | Members | Interval | Matrix | Equation | Conditions

_OPEN = {"(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil"}
_CLOSE = {")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil"}
_TOKEN = re.compile(
    r"\\begin\s*\{[a-zA-Z*]+\}|\\end\s*\{[a-zA-Z*]+\}|\\text\s*\{[^{}]*\}|\\[a-zA-Z]+"
    r"|\\.|\d{1,3}(?:,\d{3})+(?![\d,]*\d)|[(){}\[\],;:|<>=&]|\b(?:and|or)\b|[和与及或]",
    re.DOTALL,
)
_JOINTS = {",": ",", ";": ",", "and": "and", "or": "or"}
_JOINTS |= {r"\land": "and", r"\lor": "or", "和": "and", "与": "and", "及": "and"}
_JOINTS |= {"或": "or"}
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    r"""The signs of a text that stand in no bracket: (sign, start, end).

    Only signs that may part something: commands, commas, relations, brackets. "and" and
    "or" within \text{...} are signs too, if nothing else is in there.
    """
    depth = 0
    for match in _TOKEN.finditer(text):
        sign = match.group()
        if sign in _OPEN or sign.startswith(r"\begin"):
            depth += 1
        elif sign in _CLOSE or sign.startswith(r"\end"):
            depth -= 1
        elif depth <= 0:
            if inside := _TEXT.fullmatch(sign):
                sign = inside[1].strip(" ,").lower()
            yield sign, match.start(), match.end()


def _split(text: str) -> tuple[list[str], str]:
    """The parts between commas, semicolons, "and" and "or"; and the last such joint."""
    parts, start, joint = [], 0, ""
    for sign, begin, end in tokens(text):
        if sign in _JOINTS:
            parts.append(text[start:begin].strip())
            start, found = end, _JOINTS[sign]
            joint = found if joint in ("", ",") else joint
    parts.append(text[start:].strip())
    # "a, b, and c" has nothing between the comma and the word.
    return [part for part in parts if part], joint


_RELATIONS = {"<", ">", r"\le", r"\ge", r"\ne"}
_SET_SIGNS = {r"\cup", r"\cap", r"\setminus"}
_ENVIRONMENT = re.compile(
    r"(?:\(|\[|\\\{)?\s*\\begin\s*\{(?P<name>[a-zA-Z]+)\*?\}\s*(?P<columns>\{[^{}]*\})?"
    r"(?P<body>.*)\\end\s*\{(?P=name)\*?\}\s*(?:\)|\]|\\\})?",
    re.DOTALL,
)
_MATRICES = {"pmatrix", "bmatrix", "Bmatrix", "matrix", "smallmatrix", "array"}
_SYSTEMS = {"cases", "aligned", "align", "array", "gathered", "split"}
_ROW_BREAK = re.compile(r"\\\\\s*(?:\[[^\[\]]*\])?")
_TRANSPOSED = re.compile(
    r"(.*[)\]}])\s*\^\s*\{?\s*(?:T|\\top|\\text\s*\{\s*T\s*\})\s*\}?", re.DOTALL
)
_FRENCH = re.compile(r"\](?P<left>[^\[\]]*)[\[\]]|\[(?P<right>[^\[\]]*)\[")


def read(text: str, *, thousands: bool = True) -> Shape:
    """The shape of a normalised answer.

    thousands: 1,234 is one number; else two, as in a list without spaces.
    """
    text = text.strip()
    if not thousands:
        text = re.sub(r"(?<=\d),(?=\d)", ", ", text)
    environment = _ENVIRONMENT.fullmatch(text)
    if environment and text.count(r"\begin") == 1:
        return _from_environment(environment, text)
    if turned := _TRANSPOSED.fullmatch(text):
        upright = read(turned[1])
        if isinstance(upright, Matrix):
            return Matrix(tuple(zip(*upright.rows, strict=True)), text)
        if isinstance(upright, Members) and upright.kind in ("tuple", "square"):
            return upright
    inner = _within(text, "{", "}")
    if inner is not None:
        within = read(inner)
        if isinstance(within, Members) and within.kind == "list":
            return dataclasses.replace(within, kind="set")
        return within
    interval = _french(text)
    if interval:
        return interval
    parts, joint = _split(text)
    signs = {sign for sign, _, _ in tokens(text)}
    if signs & _RELATIONS or signs & _SET_SIGNS:
        return Conditions(text)
    if len(parts) > 1:
        return Members("list", _items(parts), text, joint)
    if sides := _sides(text, signs):
        return Equation(tuple(sides), text)
    return _bracketed(text) or _plus_minus(text) or Value(text)


def _from_environment(match: re.Match[str], text: str) -> Shape:
    rows = [row.strip() for row in _ROW_BREAK.split(match["body"])]
    rows = [row for row in rows if row]
    name = match["name"]
    if name in _SYSTEMS and rows and all("=" in row for row in rows):
        equations = [row.replace("&", "").rstrip(" ,;") for row in rows]
        return Members("list", tuple(read(e) for e in equations), text)
    if name not in _MATRICES or not rows:
        return Value(text)
    cells = tuple(tuple(cell.strip() for cell in row.split("&")) for row in rows)
    if len({len(row) for row in cells}) != 1:
        return Value(text)
    return Matrix(cells, text)


def _items(parts: list[str]) -> tuple[Shape, ...]:
    """Members, with those of a plus-minus among the others."""
    found: list[Shape] = []
    for part in parts:
        item = read(part)
        if isinstance(item, Members) and item.kind == "list":
            found.extend(item.items)
        else:
            found.append(item)
    return tuple(found)


def _within(text: str, left: str, right: str) -> str | None:
    """What stands between two brackets that are each other's, at both ends."""
    if not (text.startswith(left) and text.endswith(right)):
        return None
    depth = 0
    for match in _TOKEN.finditer(text):
        sign = match.group()
        depth += (sign in _OPEN) - (sign in _CLOSE)
        if depth == 0 and match.end() < len(text):
            return None
    return text[len(left) : len(text) - len(right)].strip() if depth == 0 else None


def _french(text: str) -> Interval | None:
    """]a,b], [a,b[ and ]a,b[."""
    match = _FRENCH.fullmatch(text)
    if not match:
        return None
    ends, _ = _split(match["left"] or match["right"] or "")
    if len(ends) != 2:
        return None
    return Interval(ends[0], ends[1], text[0] == "]", text[-1] == "[", text)


_BRACKETS = (
    ("(", ")", "tuple"),
    (r"\langle", r"\rangle", "tuple"),
    ("[", "]", "square"),
    (r"\{", r"\}", "set"),
)


def _bracketed(text: str) -> Shape | None:
    for left, right, kind in _BRACKETS:
        inner = _within(text, left, right)
        if inner is None:
            continue
        parts, _ = _split(inner)
        if kind == "set":
            builder = re.split(r"\\mid(?![a-zA-Z])|[|:]", inner, maxsplit=1)
            if len(builder) == 2:
                return Conditions(builder[1].strip())
            return Members("set", _items(parts), text)
        if len(parts) > 1:
            if _PLUS_MINUS.search(inner):
                return _plus_minus(text)
            return Members(kind, tuple(map(read, parts)), text)
        return None
    for left, right in (("(", "]"), ("[", ")")):
        inner = _within(text, left, right)
        parts, _ = _split(inner) if inner else ([], "")
        if len(parts) == 2:
            return Interval(parts[0], parts[1], left == "(", right == ")", text)
    return None


_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![a-zA-Z])")
_MAX_SIGNS = 3


def _plus_minus(text: str) -> Shape | None:
    r"""Both values of a \pm, or all four of two; with a \mp the signs go together."""
    signs = _PLUS_MINUS.findall(text)
    if not signs or len(signs) > _MAX_SIGNS:
        return None
    together = "mp" in signs or len(signs) == 1
    choices = (
        [(1,) * len(signs), (-1,) * len(signs)]
        if together
        else list(itertools.product((1, -1), repeat=len(signs)))
    )
    values = []
    for choice in choices:
        each = iter(choice)
        values.append(_PLUS_MINUS.sub(lambda m, each=each: _sign(m[1], each), text))
    return Members("list", tuple(map(read, values)), text)


def _sign(name: str, signs: Iterator[int]) -> str:
    return "+" if (name == "pm") == (next(signs) > 0) else "-"


_EQUALS = {"=", r"\equiv", r"\coloneqq", r"\in"}


def _sides(text: str, signs: set[str]) -> list[str]:
    r"""The sides of an equation; [] if it is none. x \in A is one, with the set."""
    if not signs & _EQUALS or r"\pmod" in text:
        return []
    sides, start = [], 0
    for sign, begin, end in tokens(text):
        if sign in _EQUALS:
            sides.append(text[start:begin].strip().rstrip(":").strip())
            start = end
    return [*sides, text[start:].strip()]
