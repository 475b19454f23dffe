r"""The maths reward: does the answer of a reply equal the reference answer?

extract.py finds the answer, notation.py gives both one spelling, equivalence.py judges.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.rewards import extract, golds, guard, notation, shape
from rl_jax.rewards.equivalence import judge
from rl_jax.rewards.score import Score, Verdict


def maths(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    """The reward function "maths": 1.0 if the answer is right, else 0.0.

    options: "answer_format" as in `grade`; "guard" False lets everything through to
    the computer algebra (a switch for tests of the time limit).
    """
    return grade(
        job["completion"],
        *golds.of_job(job),
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
    *answers: str,
    answer_format: str = "boxed",
    prompt: str = "",
    guarded: bool = True,
) -> Score:
    r"""Grades a reply against a reference answer, or several equally good ones.

    The answer is what the last \boxed{} after the thinking holds; with answer_format
    "any" and no box at all, what follows the last "####", "answer is" or "Answer:".

    Has no time limit of its own and may take for ever: call it in a worker.

    Returns:
        Value 1.0 (correct), 0.0 (wrong, unparsable_reply, crash) or None
        (unparsable_gold: no reference answer can be used), with the extracted answer.
    """
    start = time.perf_counter()
    verdict, found, detail = _grade(completion, answers, answer_format, prompt, guarded)
    values = {Verdict.CORRECT: 1.0, Verdict.UNPARSABLE_GOLD: None}
    return Score(
        value=values.get(verdict, 0.0),
        verdict=verdict,
        answer=found[: guard.MAX_CHARS],
        seconds=time.perf_counter() - start,
        detail=detail,
    )


def _grade(
    completion: str,
    answers: Sequence[str],
    answer_format: str,
    prompt: str,
    guarded: bool,
) -> tuple[Verdict, str, str]:
    usable = [gold for gold in map(notation.normalise, answers) if gold]
    if not usable:
        return Verdict.UNPARSABLE_GOLD, "", "the reference answer is empty"
    text = extract.final_text(completion, prompt=prompt)
    if text is None:
        return Verdict.UNPARSABLE_REPLY, "", "the thinking was not finished"
    found = extract.answer(text, answer_format)
    if found is None:
        return Verdict.UNPARSABLE_REPLY, "", "no answer found"
    if len(found) > guard.MAX_CHARS:
        return Verdict.UNPARSABLE_REPLY, found, "refused: the answer is too long"
    try:
        verdict, detail = _judge_each(usable, notation.normalise(found), guarded)
        if verdict != Verdict.CORRECT and (boxes := extract.all_boxes(text)):
            many = [gold for gold in usable if _num_parts(gold) == boxes.count]
            joined = notation.normalise(boxes.joined)
            if many and _judge_each(many, joined, guarded)[0] == Verdict.CORRECT:
                return Verdict.CORRECT, boxes.joined, ""
    except (RecursionError, MemoryError) as error:
        return Verdict.CRASH, found, type(error).__name__
    return verdict, found, detail


def _judge_each(
    usable: Sequence[str], reply: str, guarded: bool
) -> tuple[Verdict, str]:
    """The best verdict over several golds; one that cannot be read decides nothing."""
    verdicts = []
    for gold in usable:
        verdicts.append(judge(gold, reply, guarded=guarded))
        if verdicts[-1][0] == Verdict.CORRECT:
            return verdicts[-1]
    return min(verdicts, key=lambda found: found[0] == Verdict.UNPARSABLE_GOLD)


def _num_parts(gold: str) -> int:
    """How many members the gold has; 1 if it is a single value."""
    found = shape.read(gold)
    if isinstance(found, shape.Equation):
        found = shape.read(found.sides[-1])
    return len(found.items) if isinstance(found, shape.Members) else 1


# An answer that is no gold's: it makes `judge` read the gold with all it has.
_NOBODYS = "0.1357924680"


def gold_fault(job: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Why no reference answer of a row can be used; "" if one can.

    One can be used if a reply in another spelling can be compared with it. May take as
    long as a grade: call it in a worker.
    """
    faults = []
    for answer in golds.of_job(job):
        gold = notation.normalise(answer)
        if not gold:
            faults.append("the reference answer is empty")
        elif not notation.balanced(gold):
            faults.append(f"the braces of {answer[:60]!r} do not match")
        elif len(gold) > guard.MAX_CHARS:
            faults.append(f"it has {len(gold)} characters, {guard.MAX_CHARS} at most")
        else:
            verdict, detail = judge(gold, _NOBODYS)
            if verdict != Verdict.UNPARSABLE_GOLD:
                return ""
            faults.append(f"{answer[:60]!r}: {detail}")
    return faults[0]
