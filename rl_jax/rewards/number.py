"""The numeric reward: the last number that a finished reply writes is the answer.

For tasks whose answer is one plain number and models that put it in no box. The rule
cannot be met by listing candidates, as only the last one counts.
"""

import re
import time
from collections.abc import Mapping
from typing import Any

from rl_jax.rewards import exact, extract
from rl_jax.rewards.score import Score, Verdict

# 1,234 is one number, the list 1,23 is two; a minus sign after a digit or a letter is
# a subtraction or a hyphen.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])-)?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\d)\.\d+"
)


def number(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    """1.0 if the last number of the reply equals the answer in value, else 0.0.

    Thinking does not count, and a reply that was cut off has no answer. 1,200 and
    1200.0 are the same number; fractions and powers are for `maths`.
    """
    start = time.perf_counter()
    verdict, found, detail = _grade(job)
    values = {Verdict.CORRECT: 1.0, Verdict.UNPARSABLE_GOLD: None}
    return Score(
        value=values.get(verdict, 0.0),
        verdict=verdict,
        answer=found,
        seconds=time.perf_counter() - start,
        detail=detail,
    )


def _grade(job: Mapping[str, Any]) -> tuple[Verdict, str, str]:
    gold = exact.read(str(job["answer"]).strip())
    if gold is None:
        return Verdict.UNPARSABLE_GOLD, "", "the reference answer is no number"
    if job.get("truncated"):
        return Verdict.UNPARSABLE_REPLY, "", "the reply was cut off"
    text = extract.final_text(job["completion"], prompt=job.get("prompt", ""))
    if text is None:
        return Verdict.UNPARSABLE_REPLY, "", "the thinking was not finished"
    found = _NUMBER.findall(text)
    reply = exact.read(found[-1]) if found else None
    if reply is None:
        return Verdict.UNPARSABLE_REPLY, "", "no number found"
    equal = reply.value == gold.value
    return (Verdict.CORRECT if equal else Verdict.WRONG), found[-1], ""
