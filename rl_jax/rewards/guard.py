"""A sieve for answers that computer algebra would never finish."""

import math
import re

# Longer than any answer in public sets; a longer one only costs parse time.
MAX_CHARS = 2_000
_MAX_DEPTH = 40  # brackets within brackets; the parser is recursive
_MAX_POWERS = 2  # exponents within exponents: e^{x^2} yes, 8^{8^{8^8}} no
_MAX_EXPONENT_DIGITS = 5
_MAX_FACTORIAL_DIGITS = 4

_NUMERIC_TOWER = re.compile(r"\^[\s{(]*(\d{1,9})\s*\^[\s{(]*(\d{1,9})")
_FACTORIAL = re.compile(r"(\d+|[A-Za-z]|\)|\})\s*(!+)")


def danger(text: str) -> str:
    """Why an answer is not handed to the computer algebra; "" if it is.

    A cheap sieve for what is known to take for ever. The time limit is what protects.
    """
    if len(text) > MAX_CHARS:
        return "too long"
    if "__" in text:
        return "not mathematics"
    if is_deep(text):
        return "nested too deep"
    if _power_depth(text) > _MAX_POWERS:
        return "a tower of powers"
    if re.search(rf"\^\s*\{{?\s*-?\s*\d{{{_MAX_EXPONENT_DIGITS + 1},}}", text):
        return "an exponent too large"
    for base, exponent in _NUMERIC_TOWER.findall(text):
        if int(exponent) * math.log10(int(base) or 1) > _MAX_EXPONENT_DIGITS:
            return "a tower of powers"
    if any(_is_large_factorial(text, match) for match in _FACTORIAL.finditer(text)):
        return "a factorial too large"
    return ""


def _is_large_factorial(text: str, match: re.Match[str]) -> bool:
    """Of a power or another factorial, or of more than four digits."""
    operand, marks = match.groups()
    start, end = match.start(), match.end(1)
    if operand in ")}":
        depth = 0
        while start >= 0:  # back to the bracket that it closes
            depth += (text[start] in ")}]") - (text[start] in "({[")
            if depth == 0:
                break
            start -= 1
    operand = text[max(start, 0) : end]
    return bool(
        len(marks) > 2
        or re.search(rf"[!^]|\d{{{_MAX_FACTORIAL_DIGITS + 1}}}", operand)
        or text[: max(start, 0)].rstrip().endswith("^")
    )


def is_deep(text: str) -> bool:
    """True if brackets stand in one another beyond what a recursive reader can take."""
    if text.count("{") + text.count("(") + text.count("[") <= _MAX_DEPTH:
        return False
    deepest = depth = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    return deepest > _MAX_DEPTH


def _power_depth(text: str) -> int:
    """How many exponents stand in one another, at most; a^b^c counts 2."""
    deepest = level = base = 0  # exponents around this token, and around its bracket
    outer: list[int] = []
    raised = False  # the next token is an exponent
    for token in re.findall(r"\\[A-Za-z]+|\S", text):
        if token == "^":
            raised, level = True, level + 1
            deepest = max(deepest, level)
        elif token in "([{":
            outer.append(base)
            base, raised = level, False
        elif token in ")]}":
            base = outer.pop() if outer else 0
            level = base
        elif raised:
            raised = token in "+-"
        else:
            level = base
    return deepest
