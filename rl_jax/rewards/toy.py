"""The reward of the toy tasks (data/toys): each reply by the rules of its own task."""

import time
from collections.abc import Mapping
from typing import Any

from rl_jax.data.toys import task as toys
from rl_jax.data.toys.table import TOYS
from rl_jax.rewards import extract, golds, registry
from rl_jax.rewards.score import Score, Verdict


def toy(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    """The value, from 0 to 1, that a task gives; the data source names the task.

    The verdict is `correct` only for what is fully right. Some tasks give parts of the
    value for less; with options["toy"]["credit"] "binary" it is 1.0 or 0.0. A reply
    that was cut off has no answer. Thinking may precede any answer, in <think> tags.
    """
    start = time.perf_counter()
    parts: dict[str, float | None] = {}
    if fault := gold_fault(job, options):
        return Score(None, Verdict.UNPARSABLE_GOLD, detail=fault)
    grade, detail = _grade(job)
    if grade is None:
        value, verdict, answer = 0.0, Verdict.UNPARSABLE_REPLY, ""
    else:
        value = grade.value
        if registry.option_of(options, "toy", "credit") == "binary":
            value = float(grade.correct)
        verdict = Verdict.CORRECT if grade.correct else Verdict.WRONG
        answer = grade.answer[: golds.MAX_ANSWER_CHARS]
        parts |= grade.parts
    seconds = time.perf_counter() - start
    return Score(value, verdict, answer, seconds, detail, parts)


def _grade(job: Mapping[str, Any]) -> tuple[toys.Grade | None, str]:
    """The best grade by any of the reference answers; or None and why there is none."""
    if job.get("truncated"):
        return None, "the reply was cut off"
    text = job["completion"]
    if extract.opening_at_end(job.get("prompt") or "") == toys.OPENING:
        text = toys.OPENING + text
    reply = toys.read(text)
    if reply is None:
        return None, "it is too long, or its thinking is not one stretch at the start"
    judge = TOYS[job["data_source"]].judge
    grades = [judge(reply, gold) for gold in golds.of_job(job)]
    best = max(filter(None, grades), key=lambda g: (g.correct, g.value), default=None)
    return best, "" if best else "no answer found"


def gold_fault(job: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Why a row is none of a toy task; "" if it is one."""
    name = job.get("data_source", "")
    if name not in TOYS:
        near = registry.nearest(str(name), list(TOYS))
        return f"the data source {name!r} is no toy task{near}"
    for gold in golds.of_job(job):
        try:
            TOYS[name].judge(toys.Reply("", ""), gold)
        except ValueError as error:
            return str(error)
    return ""
