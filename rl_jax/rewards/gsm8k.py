"""The reward for grade-school problems: one number after "####", as GSM8K has it."""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rl_jax.rewards import exact, extract, golds, notation, units
from rl_jax.rewards.score import Score

_MARK = "####"
_LINE = re.compile(r"[^\n]*")


def gsm8k(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    r"""1.0 if the number that a reply marks as its answer is the gold one, else 0.0.

    The gold is a number, or a worked solution that ends in "#### 72". The answer is
    what follows the last "####" on its line, else the last \boxed{}, else, with
    options["answer_format"] "any", what follows "the answer is". A currency, a unit
    and a full stop around the number do not matter, thousands separators neither; two
    numbers are no answer.
    """
    answer_format = options.get("answer_format", "boxed")
    return golds.graded(
        job,
        _values(job),
        lambda text: _marked(text, answer_format),
        lambda gold, found: _value(found) == gold,
        useless="the reference answer is no number",
    )


def gold_fault(job: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Why no reference answer of a row can be used; "" if one can."""
    if _values(job):
        return ""
    return f"the reference answer {golds.of_job(job)[0][-60:]!r} is no number"


def _values(job: Mapping[str, Any]) -> list[Fraction]:
    marked = (answer.rpartition(_MARK)[2] for answer in golds.of_job(job))
    return [value for value in map(_value, marked) if value is not None]


def _marked(text: str, answer_format: str) -> str | None:
    at = text.rfind(_MARK)
    if at >= 0:
        line = _LINE.match(text, at + len(_MARK))
        found = line.group().strip() if line else ""
        boxed = extract.answer(found, "boxed")
        return boxed or found or None
    return extract.answer(text, answer_format)


def _value(text: str) -> Fraction | None:
    if len(text) > golds.MAX_ANSWER_CHARS:
        return None
    amount = units.split(notation.normalise(text.strip().strip("*")))
    found = exact.read(amount.body, amount.scale)
    return found.value if found else None
