"""What a reward says about one sample, and how several rewards become one number."""

import dataclasses
import enum
import math
from collections.abc import Collection, Mapping
from typing import Any


class Verdict(enum.StrEnum):
    """Why a sample has the value it has."""

    CORRECT = "correct"
    WRONG = "wrong"
    UNPARSABLE_REPLY = "unparsable_reply"  # no answer found, or none that can be read
    UNPARSABLE_GOLD = "unparsable_gold"  # nothing to judge the reply by: value None
    TIMEOUT = "timeout"  # the grade was killed at its time limit: value 0
    CRASH = "crash"  # grading this text takes the grader down: value 0
    BLOCKED = "blocked"  # the text asked for something that is not allowed
    INFRASTRUCTURE = "infrastructure"  # our fault or a user's bug: value None


@dataclasses.dataclass(frozen=True)
class Score:
    """One sample's reward.

    `value` None means "cannot be judged": the sample counts neither in the mean nor
    in the advantage, which is not the same as 0. `parts` holds each function's own,
    unweighted value; in the score of one function, its named components. `seconds` is
    time spent grading, without the queue.
    """

    value: float | None
    verdict: Verdict
    answer: str = ""
    seconds: float = 0.0
    detail: str = ""
    parts: dict[str, float | None] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The score as plain types, for a JSON line."""
        return dataclasses.asdict(self) | {"verdict": str(self.verdict)}


def from_json(fields: Mapping[str, Any]) -> Score:
    """Reads what `Score.to_json` wrote, or the dict that a user's function returned.

    Only `value` is required. Without a verdict, a value above 0 is `correct`, any
    other number `wrong`, and None (does not apply) `unparsable_gold`.

    Raises:
        ValueError: an unknown key or verdict, or a value that is not finite.
    """
    known = {field.name for field in dataclasses.fields(Score)}
    if "value" not in fields or not known.issuperset(fields):
        raise ValueError(
            f"a score has the keys {sorted(known)} and needs value, "
            f"got {sorted(map(str, fields))}"
        )
    plain = from_value(fields["value"])
    verdict = fields.get("verdict")
    return Score(
        value=plain.value,
        verdict=plain.verdict if verdict is None else Verdict(str(verdict)),
        answer=str(fields.get("answer", "")),
        seconds=float(fields.get("seconds", 0.0)),
        detail=str(fields.get("detail", plain.detail)),
        parts=dict(fields.get("parts", {})),
    )


def from_value(value: Any) -> Score:
    """The score of a function that returns a bare number or None.

    A reward need not be a matter of right and wrong, so the verdict is only a sign:
    above 0 is `correct`, 0 and below `wrong`.
    """
    if value is None:
        return Score(None, Verdict.UNPARSABLE_GOLD, detail="does not apply")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a reward must be a finite number or None, got {number}")
    return Score(number, Verdict.CORRECT if number > 0 else Verdict.WRONG)


def combine(
    scores: Mapping[str, Score],
    weights: Mapping[str, float],
    *,
    shaping: Collection[str] = (),
    idle: Collection[str] = (),
) -> Score:
    """One score from those of every function, in configured order.

    value = sum of weight * value over the functions that gave a value. A function
    of weight 0 is a metric: it is in `parts` and touches nothing else. If no weighted
    function gave a value but those in `shaping`, or one of them failed
    (`infrastructure`), the value is None: a sum that lacks a part would be compared
    with sums that have it.

    The verdict and the answer are those of the first function with a weight and a
    value, else with a weight, else of the first; one in `shaping` has no say in it
    where there is another. A function in `idle` keeps its say in these, and counts in
    the value as if its weight were 0: what is right does not change by the step.
    `parts` also has what a function gave by name: "<function>/<component>".
    """
    parts: dict[str, float | None] = {}
    for name, score in scores.items():
        parts[name] = score.value
        parts |= {f"{name}/{key}": value for key, value in score.parts.items()}
    seconds = sum(score.seconds for score in scores.values())
    failed = [
        f"{name}: {score.detail}"
        for name, score in scores.items()
        if score.verdict == Verdict.INFRASTRUCTURE
    ]
    counting = {k: v for k, v in scores.items() if weights[k] != 0 and k not in idle}
    fatal = any(s.verdict == Verdict.INFRASTRUCTURE for s in counting.values())
    judging = {k: v for k, v in scores.items() if k not in shaping}
    weighted = [score for name, score in judging.items() if weights[name] != 0]
    asked = weighted or list(judging.values()) or list(scores.values())
    valued = [score for score in asked if score.value is not None]
    main = (valued or asked)[0]
    total = [
        weights[name] * score.value
        for name, score in counting.items()
        if score.value is not None
    ]
    # Form is no substitute for an answer that cannot be judged.
    telling = [score for name, score in counting.items() if name not in shaping]
    judged = not telling or any(score.value is not None for score in telling)
    return Score(
        value=sum(total) if total and judged and not fatal else None,
        verdict=Verdict.INFRASTRUCTURE if fatal else main.verdict,
        answer=main.answer,
        seconds=seconds,
        detail="; ".join(failed) or main.detail,
        parts=parts,
    )
