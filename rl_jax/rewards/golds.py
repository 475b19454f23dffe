"""What graders share: the reference answers of a job, and one score of several."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_jax.rewards import extract
from rl_jax.rewards.score import Score, Verdict

# Extracted answers are kept in logs; a runaway one is cut.
MAX_ANSWER_CHARS = 2_000


def of_job(job: Mapping[str, Any]) -> list[str]:
    """Every acceptable answer as text: job["answers"], or job["answer"] alone."""
    answers = job.get("answers")
    if answers is None or isinstance(answers, str):
        answers = [answers if answers is not None else job.get("answer", "")]
    return [str(answer) for answer in answers] or [str(job.get("answer", ""))]


def graded(
    job: Mapping[str, Any],
    golds: Sequence[Any],
    find: Callable[[str], str | None],
    same: Callable[[Any, str], bool],
    *,
    useless: str,
    must_end: bool = False,
) -> Score:
    """1.0 if what `find` takes from the final text is `same` as one of the golds.

    Args:
        golds: the references that can be used; with none the value is None.
        find: the answer in the final text of a reply; None if it has none.
        useless: why there is no gold, for the detail.
        must_end: a reply that was cut off has no answer, whatever it says.
    """
    start = time.perf_counter()
    value, verdict, found, detail = 0.0, Verdict.UNPARSABLE_REPLY, None, ""
    if not golds:
        value, verdict, detail = None, Verdict.UNPARSABLE_GOLD, useless
    elif must_end and job.get("truncated"):
        detail = "the reply was cut off"
    else:
        text = extract.final_text(job["completion"], prompt=job.get("prompt") or "")
        found = None if text is None else find(text)
        if found is None:
            unfinished = "the thinking was not finished"
            detail = unfinished if text is None else "no answer found"
        else:
            right = any(same(gold, found) for gold in golds)
            value = float(right)
            verdict = Verdict.CORRECT if right else Verdict.WRONG
    return Score(
        value=value,
        verdict=verdict,
        answer=(found or "")[:MAX_ANSWER_CHARS],
        seconds=time.perf_counter() - start,
        detail=detail,
    )
