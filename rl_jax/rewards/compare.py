r"""Equality of two answers by their shape: sets, points, regions, matrices, equations.

Members are paired off, points compared in order, names of variables matched. What two
single values have to do with one another is asked of the caller.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from rl_jax.rewards import regions, shape
from rl_jax.rewards.shape import Conditions, Equation, Interval, Matrix, Members, Value


class Values(NamedTuple):
    """What is known of single values, all given as text.

    Attributes:
        equal: (gold, reply) are the same value.
        number: the value as a float; None if it has none.
        equations: (gold sides, reply sides) are the same equation.
        inequalities: as equations, for sides of which the first is the smaller.
        last_of_chain: what a = b = c comes to; None if it is a false equation.
        expressions: (gold, reply) agree as the computer algebra reads them whole.
    """

    equal: Callable[[str, str], bool]
    number: Callable[[str], float | None]
    equations: Callable[[tuple[str, ...], tuple[str, ...]], bool]
    inequalities: Callable[[tuple[str, ...], tuple[str, ...]], bool]
    last_of_chain: Callable[[tuple[str, ...]], str | None]
    expressions: Callable[[str, str], bool]


_MAX_MEMBERS = 50


def same(gold: shape.Shape, reply: shape.Shape, values: Values) -> bool:
    """True if the reply is the gold answer. The order of the two matters."""
    golds, replies = assigned(gold), assigned(reply)
    if len(golds) > 1 and len(replies) > 1:
        return golds.keys() == replies.keys() and all(
            same(golds[name], replies[name], values) for name in golds
        )
    if isinstance(gold, Equation) or isinstance(reply, Equation):
        return _same_equations(gold, reply, values)
    gold, reply = _without_names(gold), _without_names(reply)
    if isinstance(gold, Value) and isinstance(reply, Value):
        return values.equal(gold.text, reply.text)
    if isinstance(gold, Matrix) or isinstance(reply, Matrix):
        return _same_matrices(gold, reply, values)
    if _may_be_region(gold) or _may_be_region(reply):
        return _same_regions(gold, reply, values)
    if isinstance(gold, Members) and isinstance(reply, Members):
        return _same_members(gold, reply, values)
    for many, single in ((gold, reply), (reply, gold)):
        if isinstance(many, Members) and isinstance(single, Value):
            if many.kind not in ("list", "set"):
                return False
            if many is reply:  # the same thing in several spellings
                return all(same(gold, item, values) for item in many.items)
            return len(many.items) == 1 and same(many.items[0], reply, values)
    return False


# Names of what an answer is the value of: x, x_1, \theta, AB, |AB|, f(x), P(A),
# \angle ABC, \text{Area}, (x, y).
_LETTER = r"(?:[A-Za-z]|\\(?!pi(?![a-z])|infty)[a-zA-Z]+)"
_INDEX = r"(?:_(?:\w|\{[^{}]*\}))?'*"
_LABEL = re.compile(
    rf"(?:{_LETTER}{_INDEX}"
    rf"|m?\s*\\(?:angle|triangle|det|min|max|overline|widehat|vec|hat|bar)\s*\{{?"
    rf"[A-Za-z() ]{{1,8}}\}}?"
    rf"|\\(?:sin|cos|tan|cot)\s*\(?\s*{_LETTER}{_INDEX}\s*\)?"
    r"|\\vec\s*\{?[a-z]\}?\s*\\cdot\s*\\vec\s*\{?[a-z]\}?"
    rf"|\|\s*(?:[A-Z]{{1,3}}|[a-z])\s*\||[A-Z]{{2,4}}|[A-Za-z]\s*{_INDEX}(?:\^\{{-1\}})?"
    rf"\s*\([^()=,]{{1,12}}(?:,[^()=]{{1,12}})?\)"
    rf"|\\text\s*\{{[^{{}}]*\}}(?:_\{{?\w+\}}?)?"
    rf"|\(\s*{_LETTER}{_INDEX}(?:\s*,\s*{_LETTER}{_INDEX})+\s*\))"
)
_CALL = re.compile(r"[A-Za-z]\w*(?:\^-1)?'*\(.*\)|y")
_ORNAMENTS = re.compile(r"\\(?:angle|overline|vec|mathbf|text|bar|hat)|[m\s{}|]")


def is_label(text: str) -> bool:
    """True if the side of an equation only names what the other side is."""
    return bool(_LABEL.fullmatch(text.strip()))


def _name(label: str) -> str:
    return _ORNAMENTS.sub("", label.replace("m\\angle", "\\angle")) or label.strip()


def assigned(found: shape.Shape) -> dict[str, shape.Shape]:
    """Values by name: of "x = 1, y = 2" and of "(x, y) = (1, 2)"; {} if not such."""
    if isinstance(found, Equation) and found.sides[0].startswith("("):
        names = shape.read(found.sides[0])
        point = shape.read(found.sides[-1])
        if isinstance(names, Members) and isinstance(point, Members):
            if len(names.items) == len(point.items) and is_label(names.text):
                keys = (_name(item.text) for item in names.items)
                return dict(zip(keys, point.items, strict=True))
        return {}
    if not isinstance(found, Members) or found.kind != "list" or found.joint == "or":
        return {}
    pairs: dict[str, shape.Shape] = {}
    for item in found.items:
        if not isinstance(item, Equation) or not is_label(item.sides[0]):
            return {}
        name = _name(item.sides[0])
        if name in pairs or name.startswith("("):
            return {}
        pairs[name] = shape.read(item.sides[-1])
    return pairs


def _without_names(found: shape.Shape) -> shape.Shape:
    """Of "x = 1, x = 2" the values, of "x = 1, y = 2" a point in order of the names."""
    if not isinstance(found, Members):
        return found
    labelled = [
        item
        for item in found.items
        if isinstance(item, Equation) and is_label(item.sides[0])
    ]
    if not labelled:
        return found
    pairs = assigned(found)
    stems = {re.sub(r"_.*", "", name) for name in pairs}
    if len(pairs) > 1 and len(stems) > 1:
        ordered = tuple(pairs[name] for name in sorted(pairs))
        return Members("tuple", ordered, found.text)
    items = tuple(
        shape.read(item.sides[-1])
        if isinstance(item, Equation) and item in labelled
        else item
        for item in found.items
    )
    return Members(found.kind, items, found.text, found.joint)


def _same_equations(gold: shape.Shape, reply: shape.Shape, values: Values) -> bool:
    if not isinstance(gold, Equation):
        assert isinstance(reply, Equation)
        last = values.last_of_chain(reply.sides)
        return last is not None and same(gold, shape.read(last), values)
    first, last = gold.sides[0], gold.sides[-1]
    if is_label(last) and not is_label(first):
        first, last = last, first
    if not isinstance(reply, Equation):
        return is_label(first) and same(shape.read(last), reply, values)
    if is_label(first) and is_label(reply.sides[0]):
        one, other = _name(first), _name(reply.sides[0])
        if one == other or (_CALL.fullmatch(one) and _CALL.fullmatch(other)):
            reached = values.last_of_chain(reply.sides)
            return reached is not None and same(
                shape.read(last), shape.read(reached), values
            )
    return values.equations(gold.sides, reply.sides)


def _may_be_region(found: shape.Shape) -> bool:
    if isinstance(found, Members) and found.joint == "or":
        return any(_may_be_region(item) for item in found.items) or all(
            isinstance(item, Members) and item.kind in ("tuple", "square")
            for item in found.items
        )
    return isinstance(found, Conditions | Interval) or (
        isinstance(found, Value) and found.text.startswith(r"\mathbb")
    )


def _same_regions(gold: shape.Shape, reply: shape.Shape, values: Values) -> bool:
    one = regions.of_shape(gold, values.number)
    other = regions.of_shape(reply, values.number)
    if one and other:
        return regions.same(one, other, values.equal, values.number)
    sides = [regions.two_sides(found.text) for found in (gold, reply)]
    if sides[0] and sides[1]:
        (sign, *a), (other_sign, *b) = sides[0], sides[1]
        same_sides = values.equations if sign == r"\ne" else values.inequalities
        return sign == other_sign and same_sides(tuple(a), tuple(b))
    if one or other or not {type(gold), type(reply)} <= {Conditions, Value}:
        return False
    return values.expressions(gold.text, reply.text)


def _same_matrices(gold: shape.Shape, reply: shape.Shape, values: Values) -> bool:
    gold, reply = _rows_as_matrix(gold), _rows_as_matrix(reply)
    if isinstance(gold, Matrix) and isinstance(reply, Matrix):
        if len(gold.rows) != len(reply.rows):
            return False
        return all(
            len(a) == len(b) and all(map(values.equal, a, b))
            for a, b in zip(gold.rows, reply.rows, strict=True)
        )
    one, other = _vector(gold), _vector(reply)
    if one is not None and other is not None:
        return len(one) == len(other) and all(map(values.equal, one, other))
    if isinstance(gold, Value) or isinstance(reply, Value):
        return values.expressions(gold.text, reply.text)
    return False


def _rows_as_matrix(found: shape.Shape) -> shape.Shape:
    """[[1, 2], [3, 4]] as a matrix; anything else as it is."""
    if not isinstance(found, Members) or found.kind != "square":
        return found
    rows = [row for row in found.items if isinstance(row, Members)]
    if len(rows) < len(found.items) or any(row.kind != "square" for row in rows):
        return found
    cells = tuple(tuple(item.text for item in row.items) for row in rows)
    return Matrix(cells, found.text)


def _vector(found: shape.Shape) -> list[str] | None:
    """The entries of a row or column, or of a point."""
    if isinstance(found, Members) and found.kind in ("tuple", "square"):
        return [item.text for item in found.items]
    if isinstance(found, Matrix) and (len(found.rows) == 1 or len(found.rows[0]) == 1):
        return [cell for row in found.rows for cell in row]
    return None


def _same_members(gold: Members, reply: Members, values: Values) -> bool:
    golds, replies = list(gold.items), list(reply.items)
    if len(golds) != len(replies) or len(golds) > _MAX_MEMBERS:
        return False
    kinds = {gold.kind, reply.kind}
    if kinds <= {"list", "set"}:
        return _paired(golds, replies, values)
    # Of two in square brackets nobody knows whether they are an interval.
    if kinds == {"tuple", "square"} and len(golds) < 3 or "set" in kinds:
        return False
    if kinds == {"list", "square"} and len(golds) < 3:
        return False
    return all(same(a, b, values) for a, b in zip(golds, replies, strict=True))


def _paired(
    golds: list[shape.Shape], replies: list[shape.Shape], values: Values
) -> bool:
    """True if each gold has a reply of its own."""
    for gold in golds:
        partner = next((r for r in replies if same(gold, r, values)), None)
        if partner is None:
            return False
        replies.remove(partner)
    return True
