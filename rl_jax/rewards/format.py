"""The format reward: is the reply finished, and does it look as asked?"""

import re
import time
from collections.abc import Mapping
from typing import Any

from rl_jax.rewards import extract
from rl_jax.rewards.score import Score, Verdict

# A user's pattern is run on no more than this: a pattern that backtracks is ended by
# the time limit, one that is only linear should not cost seconds on a runaway reply.
MAX_PATTERN_CHARS = 100_000


def format_reward(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    """1.0 for a finished reply in the asked format, else 0.0; nothing in between.

    Finished: not cut off at the token limit. Format: exactly one boxed answer outside
    of the thinking, or, with options["format_pattern"], that pattern is found in the
    completion (which is then the only condition).
    """
    start = time.perf_counter()
    fault = _fault(job, options.get("format_pattern"))
    return Score(
        value=0.0 if fault else 1.0,
        verdict=Verdict.WRONG if fault else Verdict.CORRECT,
        seconds=time.perf_counter() - start,
        detail=fault,
    )


def _fault(job: Mapping[str, Any], pattern: str | None) -> str:
    completion = job["completion"]
    if job.get("truncated"):
        return "the reply was cut off"
    if pattern:
        if len(completion) > MAX_PATTERN_CHARS:
            return f"the reply is longer than {MAX_PATTERN_CHARS} characters"
        return "" if re.search(pattern, completion) else "the pattern is not found"
    text = extract.final_text(completion, prompt=job.get("prompt", ""))
    if text is None:
        return "the thinking was not finished"
    boxes = extract.boxes(text)
    if boxes is None:
        return "the last box is not closed"
    return "" if len(boxes) == 1 else f"{len(boxes)} boxed answers, expected 1"
