r"""Are two answers, both in one spelling, the same?

exact.py settles plain numbers, shape.py and compare.py take apart what has several
parts, guard.py refuses what would cost the computer algebra its time limit, algebra.py
settles the rest. The rules here come first: they decide what would talk it into a
false yes.
"""

import itertools
import math
import re
from fractions import Fraction

from rl_jax.rewards import (
    algebra,
    compare,
    conventions,
    exact,
    guard,
    notation,
    shape,
    units,
    wording,
)
from rl_jax.rewards.score import Verdict

# Why something could not be read, the gold's faults before the reply's.
Faults = list[tuple[Verdict, str]]


def judge(gold: str, reply: str, *, guarded: bool = True) -> tuple[Verdict, str]:
    """Verdict and detail for two normalised answers."""
    gold, reply = conventions.with_one_parameter(gold, reply)
    decided = _by_spelling(gold, reply)
    if decided is None:
        faults: Faults = []
        decided = _by_shape(gold, reply, guarded, faults)
        if not decided and faults:
            return min(faults, key=lambda fault: fault[0] != Verdict.UNPARSABLE_GOLD)
    return (Verdict.CORRECT if decided else Verdict.WRONG), ""


_HEDGE = re.compile(
    r"(?<!\\)\b(?:if|otherwise|unless|either|depending|depends|except|not|factorial|squared"
    r"|cubed|maybe|perhaps|possibly|probably|about|around|approximately|approx|nearly"
    r"|almost|roughly|at\s+least|at\s+most|(?:less|more|greater|fewer)\s+than|between"
    r"|wrong|incorrect|impossible)\b|[?]|\\Rightarrow|\\to(?![a-z])"
    r"|\\(?:Leftrightarrow|iff|mapsto)(?![a-z])"
)
_ELLIPSIS = re.compile(r"\\ldots")


def _by_spelling(gold: str, reply: str) -> bool | None:
    """Answers that algebra would misread: letters, words, times, hedges, ellipses.

    None if they are of no such kind.
    """
    if notation.squeezed(gold) == notation.squeezed(reply):
        return True
    if gold.isdecimal() and reply.isdecimal():
        return None
    chosen = _by_choice(gold, reply)
    if chosen is not None:
        return chosen
    gold_words, reply_words = wording.words(gold), wording.words(reply)
    if gold_words or reply_words:
        gold_words = wording.words(gold, short=True)
        reply_words = wording.words(reply, short=True)
        if gold_words and reply_words and gold_words == reply_words:
            return True
        if gold_words and reply_words and wording.concept(gold) == gold:
            return wording.concept(gold) == wording.concept(reply)
    if _is_hedged(reply) and not _is_hedged(gold):
        return False
    if "'" in reply and "'" not in gold and "(" not in reply:
        return False  # feet, minutes, a derivative: not the bare number
    for text in (gold, reply):
        if _ELLIPSIS.search(text) and exact.read(text) is None:
            return False  # equal spelling was accepted before; the rest is a guess
    for rule in (conventions.same_ratio, conventions.same_remainder):
        if (same := rule(gold, reply)) is not None:
            return same
    return None


def _is_hedged(text: str) -> bool:
    """True if the text names conditions or doubts, or leads elsewhere."""
    return bool(_HEDGE.search(text)) or (r"\begin{cases" in text and "&" in text)


def _by_choice(gold: str, reply: str) -> bool | None:
    """For a gold that is a letter in upper case, with or without text, or several."""
    several = wording.choice_letters(gold)
    if several:
        picked = wording.choice_letters(reply)
        if picked:
            return picked == several
    one = wording.choice(gold)
    if not one or one[0] not in gold:  # a lower-case letter is a variable
        return None
    letter, text = one
    chosen = wording.choice(reply)
    if not text:
        return chosen is not None and chosen[0] == letter
    if chosen is None:
        return judge(text, reply)[0] == Verdict.CORRECT
    return chosen[0] == letter and (
        not chosen[1] or judge(text, chosen[1])[0] == Verdict.CORRECT
    )


def _by_shape(gold: str, reply: str, guarded: bool, faults: Faults) -> bool:
    for text, verdict in (
        (gold, Verdict.UNPARSABLE_GOLD),
        (reply, Verdict.UNPARSABLE_REPLY),
    ):
        if guard.is_deep(text):
            faults.append((verdict, "refused: nested too deep"))
            return False
    values = compare.Values(
        equal=lambda a, b: _same_value(a, b, guarded, faults),
        number=_number,
        equations=lambda a, b: _same_equation(a, b, guarded, faults),
        inequalities=lambda a, b: _same_equation(a, b, guarded, faults, positive=True),
        last_of_chain=lambda sides: _last_of_chain(sides, guarded, faults),
        expressions=lambda a, b: _same_expression(a, b, guarded, faults),
    )
    one, other = shape.read(wording.concept(gold)), shape.read(wording.concept(reply))
    if compare.same(one, other, values):
        return True
    if re.search(r"\d,\d", gold + " " + reply):
        # 100,200 is one number or two; 2,5 a list or a decimal.
        lists = [shape.read(text, thousands=False) for text in (gold, reply)]
        if compare.same(lists[0], lists[1], values):
            return True
        points = [_DECIMAL_COMMA.sub(r"\1.\2", text) for text in (gold, reply)]
        numbers = [exact.read(text) for text in points]
        if numbers[0] and numbers[1] and points != [gold, reply]:
            return exact.agree(numbers[0], numbers[1])
    return False


# 0,125 and 2,5, but not 1,234.
_DECIMAL_COMMA = re.compile(r"^(-?(?:0(?=,)|\d+(?!,\d{3}$)))(?<!\d{19}),(\d+)$")


def _same_value(gold: str, reply: str, guarded: bool, faults: Faults) -> bool:
    """Compares single values: as spelled, as exact numbers, by algebra at last."""
    if notation.squeezed(gold) == notation.squeezed(reply):
        return True
    if r"\approx" in gold + reply:
        return any(
            _same_value(a, b, guarded, faults)
            for a in _rounded(gold)
            for b in _rounded(reply)
        )
    gold, reply = wording.concept(gold), wording.concept(reply)
    one, other = units.split(gold), units.split(reply)
    factor_one, factor_other = Fraction(one.scale), Fraction(other.scale)
    angles = {u.dimensions for u in (one.unit, other.unit) if u}
    if one.unit and other.unit and angles != _ANGLES:
        if one.unit.dimensions != other.unit.dimensions:
            return False
        ratio = one.unit.factor / other.unit.factor
        factor_one *= ratio
    bodies = _turned(one, other), _turned(other, one)
    a, b = exact.read(bodies[0], factor_one), exact.read(bodies[1], factor_other)
    if a and b:
        return exact.agree(a, b)
    if bodies != (gold, reply):
        if notation.squeezed(bodies[0]) == notation.squeezed(bodies[1]):
            return factor_one == factor_other
    else:
        spelled = [wording.words(text, short=True) for text in (gold, reply)]
        if any(wording.words(text) for text in (gold, reply)) and all(spelled):
            return spelled[0] == spelled[1]
    return _same_expression(
        *bodies,
        guarded,
        faults,
        factors=(factor_one, factor_other),
    )


def same_number(gold: str, reply: str) -> bool:
    """True if both are plain numbers of the same value, with or without units."""
    one, other = units.split(gold), units.split(reply)
    a, b = exact.read(one.body, one.scale), exact.read(other.body, other.scale)
    return a is not None and b is not None and exact.agree(a, b)


def _rounded(text: str) -> list[str]:
    r"""Of a \approx b both, if b is a rounded; of x \approx b the b; else nothing."""
    parts = [part.strip() for part in text.split(r"\approx")]
    if len(parts) == 1:
        return parts
    exactly, *_, last = parts
    if not exactly or compare.is_label(exactly):
        return [last]
    shown = exact.read(units.split(last).body)
    value = _number(units.split(exactly).body)
    if not shown or value is None or not math.isfinite(value) or value == int(value):
        return []
    digits = units.split(last).body.partition(".")[2]
    step = 10.0 ** -len(digits)
    # To the nearest, or cut off.
    beyond = abs(value) - abs(float(shown.value))
    return [exactly, last] if -0.5 * step <= beyond < step else []


_ANGLES = {(("degree", 1),), (("radian", 1),)}


def _turned(amount: units.Amount, other: units.Amount) -> str:
    r"""An angle in degrees as one in radians, if the other one is in radians.

    It is if it says so, or is a multiple of pi without a unit.
    """
    if not amount.unit or amount.unit.dimensions != (("degree", 1),):
        return amount.body
    named = other.unit and other.unit.dimensions == (("radian", 1),)
    if not named and (other.unit or r"\pi" not in other.body):
        return amount.body
    return rf"\frac{{\pi}}{{180}}\cdot({amount.body})"


def _same_expression(
    gold: str,
    reply: str,
    guarded: bool,
    faults: Faults,
    *,
    factors: tuple[Fraction, Fraction] = (Fraction(1), Fraction(1)),
) -> bool:
    """Compares by computer algebra, each side times its factor."""
    found, numbers = [], []
    for text, factor, verdict, whose in (
        (gold, factors[0], Verdict.UNPARSABLE_GOLD, "the reference answer"),
        (reply, factors[1], Verdict.UNPARSABLE_REPLY, "the answer"),
    ):
        number = exact.read(text, factor)
        numbers.append(number)
        if re.search(r"\d\s*_", text):
            return False  # the algebra would drop the base
        if number:
            value = number.value / (100 if number.percent else 1)
            found.append(algebra.rational(value))
            continue
        danger = guard.danger(text) if guarded else ""
        if danger:
            faults.append((verdict, f"refused: {danger}"))
            return False
        read = algebra.parse(text)
        if read is None:
            faults.append((verdict, f"{whose} cannot be read"))
            return False
        found.append(read if factor == 1 else algebra.scaled(read, factor))
    if algebra.equal(found[0], found[1]):
        return True
    for number, other in ((numbers[0], found[1]), (numbers[1], found[0])):
        if number and number.places is not None:
            constant = algebra.constant(other)
            if constant is None or (constant[1] and exact.terminates(constant[0])):
                return False
            return exact.rounds_to(constant[0], number)
    return False


def _number(text: str) -> float | None:
    """The value of a bound, for putting bounds in order."""
    if text in (r"\infty", r"+\infty"):
        return math.inf
    if text == r"-\infty":
        return -math.inf
    number = exact.read(text)
    if number:
        return float(number.value)
    return None if guard.danger(text) else algebra.number(text)


def _same_equation(
    gold: tuple[str, ...],
    reply: tuple[str, ...],
    guarded: bool,
    faults: Faults,
    *,
    positive: bool = False,
) -> bool:
    for sides, verdict in (
        (gold, Verdict.UNPARSABLE_GOLD),
        (reply, Verdict.UNPARSABLE_REPLY),
    ):
        dangers = [guard.danger(side) for side in sides] if guarded else []
        if any(dangers):
            faults.append((verdict, f"refused: {next(filter(None, dangers))}"))
            return False
    same = algebra.same_equation(gold, reply, positive=positive)
    if same is None:
        faults.append((Verdict.UNPARSABLE_REPLY, "the equation cannot be read"))
    return bool(same)


# Commands that name no variable; any other letter in a term does.
_OPERATOR = re.compile(
    r"\\(?:frac|sqrt|times|cdot|div|pm|pi|infty|binom|log|ln|sin|cos|tan|text\s*\{\s*\})"
    r"(?![A-Za-z])"
)


def _last_of_chain(sides: tuple[str, ...], guarded: bool, faults: Faults) -> str | None:
    """The value that a reply "x = 2 + 3 = 5" ends in; None if the chain is false.

    Terms without a variable must be equal all along: "14 = 15" is not 15. "5 = x" is
    read from the right.
    """
    bodies = [units.split(side).body for side in sides]
    constants = [
        side
        for side, body in zip(sides, bodies, strict=True)
        if body and not re.search("[A-Za-z]", _OPERATOR.sub("", body))
    ]
    formulas = [s for s in sides if s not in constants and not compare.is_label(s)]
    if sides[-1] in formulas:  # 2x = x^2 is no way of writing x^2
        constants = []
        if not all(_same_value(s, sides[-1], guarded, faults) for s in formulas):
            return None
    elif formulas and re.search(r"\w\s*[-+]", "".join(formulas)):
        if sides[-1].strip() == "0":
            return None  # x + y - 3 = 0 is an equation, and not the answer 0
    for first, second in itertools.pairwise(constants):
        if shape.read(first) != shape.read(second) and not _same_value(
            first, second, guarded, faults
        ):
            return None
    if compare.is_label(sides[-1]) and constants:
        return constants[-1]
    return sides[-1] or None
