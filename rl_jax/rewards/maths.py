r"""The maths reward: does the answer of a reply equal the reference answer?

extract.py finds the answer, notation.py gives both one spelling, exact.py settles
plain numbers, guard.py refuses what would cost the computer algebra its time limit,
compare.py settles the rest. The rules here come in between: they decide what would
talk it into a false yes.
"""

import itertools
import re
import time
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rl_jax.rewards import compare, exact, extract, guard, notation, units
from rl_jax.rewards.score import Score, Verdict


def maths(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    """The reward function "maths": 1.0 if the answer is right, else 0.0.

    options: "answer_format" as in `grade`; "guard" False lets everything through to
    the computer algebra (a switch for tests of the time limit).
    """
    return grade(
        job["completion"],
        job["answer"],
        answer_format=options.get("answer_format", "boxed"),
        prompt=job.get("prompt", ""),
        guarded=options.get("guard", True),
    )


def warm_up() -> None:
    """Imports the computer algebra and fills its parser's caches.

    The first answer of each shape takes up to 0.2 s to parse, later ones 5 ms.
    """
    judge(r"\sqrt{8}+x^2-2x", r"x(x-2)+2\sqrt{2}")
    judge(r"(1,2]", r"\left[-1,\infty\right)")
    judge(r"\{1,\frac{\pi}{2}\}", "(a,b,c)")
    judge("2x=7", "y=3x")


def grade(
    completion: str,
    answer: str,
    *,
    answer_format: str = "boxed",
    prompt: str = "",
    guarded: bool = True,
) -> Score:
    r"""Grades a reply against a reference answer.

    The answer is what the last \boxed{} after the thinking holds; with answer_format
    "any" and no box at all, what follows the last "####", "answer is" or "Answer:".

    Has no time limit of its own and may take for ever: call it in a worker.

    Returns:
        Value 1.0 (correct), 0.0 (wrong, unparsable_reply, crash) or None
        (unparsable_gold), with the extracted answer.
    """
    start = time.perf_counter()
    verdict, found, detail = _grade(completion, answer, answer_format, prompt, guarded)
    values = {Verdict.CORRECT: 1.0, Verdict.UNPARSABLE_GOLD: None}
    return Score(
        value=values.get(verdict, 0.0),
        verdict=verdict,
        answer=found[: guard.MAX_CHARS],
        seconds=time.perf_counter() - start,
        detail=detail,
    )


def _grade(
    completion: str, answer: str, answer_format: str, prompt: str, guarded: bool
) -> tuple[Verdict, str, str]:
    gold = notation.normalise(answer)
    if not gold:
        return Verdict.UNPARSABLE_GOLD, "", "the reference answer is empty"
    text = extract.final_text(completion, prompt=prompt)
    if text is None:
        return Verdict.UNPARSABLE_REPLY, "", "the thinking was not finished"
    found = extract.answer(text, answer_format)
    if found is None:
        return Verdict.UNPARSABLE_REPLY, "", "no answer found"
    if len(found) > guard.MAX_CHARS:
        return Verdict.UNPARSABLE_REPLY, found, "refused: the answer is too long"
    reply = notation.normalise(found)
    try:
        verdict, detail = judge(gold, reply, guarded=guarded)
    except (RecursionError, MemoryError) as error:
        return Verdict.CRASH, found, type(error).__name__
    return verdict, found, detail


def judge(gold: str, reply: str, *, guarded: bool = True) -> tuple[Verdict, str]:
    """Verdict and detail for two normalised answers."""
    if notation.squeezed(gold) == notation.squeezed(reply):
        return Verdict.CORRECT, ""
    gold, gold_unit, gold_factor = units.split(gold)
    reply, reply_unit, reply_factor = units.split(reply)
    if gold_unit and reply_unit and gold_unit != reply_unit:
        return Verdict.WRONG, f"{reply_unit} instead of {gold_unit}"
    gold_number = exact.read(gold, gold_factor)
    reply_number = exact.read(reply, reply_factor)
    if gold_number and reply_number:
        return _verdict(exact.agree(gold_number, reply_number))
    if gold_factor != reply_factor:
        return Verdict.WRONG, "another order of magnitude"
    decided = _by_spelling(gold, reply)
    if decided is not None:
        return _verdict(decided)
    if guarded:
        for text, verdict in (
            (gold, Verdict.UNPARSABLE_GOLD),
            (reply, Verdict.UNPARSABLE_REPLY),
        ):
            danger = guard.danger(text)
            if danger:
                return verdict, f"refused: {danger}"
    gold_value, reply_value = _after_name(gold, reply), _last_of_chain(gold, reply)
    if reply_value is None:
        return Verdict.WRONG, "the answer is a false equation"
    if (gold_value, reply_value) != (gold, reply):
        return judge(gold_value, reply_value, guarded=guarded)
    gold_object, reply_object = compare.parse(gold), compare.parse(reply)
    if gold_object is None:
        return Verdict.UNPARSABLE_GOLD, "the reference answer cannot be read"
    if reply_object is None:
        return Verdict.UNPARSABLE_REPLY, "the answer cannot be read"
    return _verdict(compare.equal(gold_object, reply_object))


def _verdict(correct: bool) -> tuple[Verdict, str]:
    return (Verdict.CORRECT if correct else Verdict.WRONG), ""


_HEDGE = re.compile(
    r"\b(?:if|otherwise|unless|either|depending|except|not|factorial|squared|cubed)\b"
    r"|\\begin\{cases"
)
_ELLIPSIS = re.compile(r"\\[lcdv]?dots|\.\.\.|…")
_RATIO = re.compile(r"\s*(\d{1,9})\s*:\s*(\d{1,9})\s*")


def _by_spelling(gold: str, reply: str) -> bool | None:
    """Answers that algebra would misread: letters, words, times, hedges, ellipses."""
    gold_letter = notation.choice_letter(gold)
    if gold_letter and gold_letter in gold:  # upper case: a choice, not a variable
        return notation.choice_letter(reply) == gold_letter
    gold_words, reply_words = notation.words(gold), notation.words(reply)
    if gold_words or reply_words:
        gold_words = notation.words(gold, short=True)
        reply_words = notation.words(reply, short=True)
        if gold_words and reply_words:
            return gold_words == reply_words
    if _HEDGE.search(reply) and not _HEDGE.search(gold):
        return False
    if _ELLIPSIS.search(gold) or _ELLIPSIS.search(reply):
        return False  # equal spelling was accepted before; the rest is a guess
    if ":" in gold + reply:
        # Times are not ratios: 12:00 is not 1:00, nor 12/0.
        gold_ratio, reply_ratio = _ratio(gold), _ratio(reply)
        return gold_ratio is not None and gold_ratio == reply_ratio
    return None


def _ratio(text: str) -> Fraction | None:
    """3:2 or 3/2 as a fraction; None for a time of day and anything else."""
    match = _RATIO.fullmatch(text)
    if match and int(match[2]) and not any(part[0] == "0" for part in match.groups()):
        return Fraction(int(match[1]), int(match[2]))
    number = exact.read(text)
    return number.value if number else None


_EQUALS = re.compile(r"(?<![<>!\\:])=|\\.|[(){}\[\]]")
_NAME = re.compile(r"[A-Za-z](?:_\{?\w{1,9}\}?)?|\\(?!pi\b|infty\b)[a-z]+")
# Commands that name no variable; any other letter in a term does.
_OPERATOR = re.compile(
    r"\\(?:frac|sqrt|times|cdot|div|pm|pi|infty|binom|log|ln|sin|cos|tan|text\s*\{\s*\})"
    r"(?![A-Za-z])"
)


def _after_name(gold: str, reply: str) -> str:
    """Of a gold "x = 5" the 5, where the reply does not name the variable."""
    parts = _sides(gold)
    if len(parts) != 2 or "=" in reply or not _NAME.fullmatch(parts[0]):
        return gold
    return parts[1] or gold


def _sides(text: str) -> list[str]:
    """Splits at the equals signs that stand in no bracket (not that of a sum)."""
    sides, depth, start = [], 0, 0
    for match in _EQUALS.finditer(text):
        token = match.group()
        depth += (token in "([{") - (token in ")]}")
        if token == "=" and depth == 0:
            sides.append(text[start : match.start()].strip())
            start = match.end()
    return [*sides, text[start:].strip()]


def _last_of_chain(gold: str, reply: str) -> str | None:
    """The value that a reply "x = 2 + 3 = 5" ends in; None if the chain is false.

    Only where the gold is no equation and the reply no list. Terms without a variable
    must be equal all along: "14 = 15" is not 15. "5 = x" is read from the right.
    """
    parts = _sides(reply)
    if len(parts) < 2 or "=" in gold or re.search(r"[,;]|\\begin", reply):
        return reply
    constants = [p for p in parts if p and not re.search("[A-Za-z]", _bare(p))]
    values = [compare.parse(p) for p in constants]
    for first, second in itertools.pairwise(values):
        if first is None or second is None or not compare.equal(first, second):
            return None
    if _NAME.fullmatch(parts[-1]) and constants:
        return constants[-1]
    return parts[-1] or None


def _bare(term: str) -> str:
    return _OPERATOR.sub("", term)
