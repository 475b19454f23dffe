"""The format reward: is the reply finished, and does it look as asked?"""

import re
import time
from collections.abc import Mapping
from typing import Any

from rl_jax.rewards import extract, registry
from rl_jax.rewards.score import Score, Verdict

# A user's pattern is run on no more than this: a pattern that backtracks is ended by
# the time limit, one that is only linear should not cost seconds on a runaway reply.
MAX_PATTERN_CHARS = 100_000


def format_reward(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    r"""1.0 for a finished reply in the asked format, else 0.0; nothing in between.

    Finished: not cut off at the token limit. Format, with options["format"]["style"]:

        boxed         exactly one \boxed{} outside of the thinking
        think         thinking, in tags of any of the kinds in extract.THINKING, then
                      text; the tags stand at the beginning and nowhere else
        think_boxed   both of these
        answer        exactly one <answer>...</answer> outside of the thinking
        think_answer  thinking, then <answer>...</answer>, and no word beside

    Or, with options["format_pattern"], that pattern is found in the completion, which
    is then the only condition. A template that ends in an opening tag counts as one.
    """
    start = time.perf_counter()
    pattern = options.get("format_pattern")
    if job.get("truncated"):
        fault = "the reply was cut off"
    elif pattern:
        fault = _pattern_fault(job["completion"], pattern)
    else:
        style = registry.option_of(options, "format", "style")
        fault = _style_fault(job["completion"], job.get("prompt") or "", style)
    return Score(
        value=0.0 if fault else 1.0,
        verdict=Verdict.WRONG if fault else Verdict.CORRECT,
        seconds=time.perf_counter() - start,
        detail=fault,
    )


def _pattern_fault(completion: str, pattern: str) -> str:
    if len(completion) > MAX_PATTERN_CHARS:
        return f"the reply is longer than {MAX_PATTERN_CHARS} characters"
    return "" if re.search(pattern, completion) else "the pattern is not found"


def _style_fault(completion: str, prompt: str, style: str) -> str:
    text = extract.final_text(completion, prompt=prompt)
    if text is None:
        return "the thinking was not finished"
    if style.startswith("think") and (fault := _thinking_fault(completion, prompt)):
        return fault
    if style.endswith("boxed"):
        boxes = extract.boxes(text)
        if boxes is None:
            return "the last box is not closed"
        return "" if len(boxes) == 1 else f"{len(boxes)} boxed answers, expected 1"
    if style.endswith("answer"):
        return _answer_fault(text, alone=style == "think_answer")
    return "" if text.strip() else "nothing follows the thinking"


def _thinking_fault(completion: str, prompt: str) -> str:
    """Why it is not one stretch of thinking at the beginning, with something in it."""
    opened = extract.opening_at_end(prompt)
    text = (opened or "") + completion.lstrip()
    for opening, closing in extract.THINKING:
        if not text.startswith(opening):
            continue
        found = text.count(opening), text.count(closing)
        if found != (1, 1):
            return f"{found[0]} {opening} and {found[1]} {closing}, expected 1 of each"
        inside = text[len(opening) : text.index(closing)]
        return "" if inside.strip() else "the thinking is empty"
    return "it does not begin with thinking"


_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def _answer_fault(text: str, *, alone: bool) -> str:
    found = text.count("<answer>"), text.count("</answer>")
    if found != (1, 1):
        return f"{found[0]} <answer> and {found[1]} </answer>, expected 1 of each"
    match = _ANSWER.search(text)
    if match is None or not match[1].strip():
        return "the answer is empty"
    if alone and text.replace(match.group(), "").strip():
        return "there is text beside the answer"
    return ""
