"""The numeric reward: the last number that a finished reply writes is the answer.

For tasks whose answer is one plain number and models that put it in no box. The rule
cannot be met by listing candidates, as only the last one counts.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rl_jax.rewards import exact, golds
from rl_jax.rewards.score import Score

# 1,234 is one number, the list 1,23 is two; a minus sign after a digit or a letter is
# a subtraction or a hyphen.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+"
)


def number(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    """1.0 if the last number of the reply equals an answer in value, else 0.0.

    Thinking does not count, and a reply that was cut off has no answer. 1,200 and
    1200.0 are the same number; fractions and powers are for `maths`.
    """
    return golds.graded(
        job,
        [value for value in map(value_of, golds.of_job(job)) if value is not None],
        last_number,
        lambda gold, found: value_of(found) == gold,
        useless="the reference answer is no number",
        must_end=True,
    )


def gold_fault(job: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Why no reference answer of a row can be used; "" if one can."""
    answers = golds.of_job(job)
    if any(value_of(answer) is not None for answer in answers):
        return ""
    return f"the reference answer {answers[0][:60]!r} is no number"


def value_of(text: str) -> Fraction | None:
    """The exact value of a plain number; None for anything else."""
    found = exact.read(text.strip())
    return found.value if found else None


def last_number(text: str) -> str | None:
    """The last number in a text, as written; None if it has none that is sane."""
    found = _NUMBER.findall(text)
    return found[-1] if found and value_of(found[-1]) is not None else None
