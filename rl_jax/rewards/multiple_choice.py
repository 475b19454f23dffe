r"""The reward for multiple-choice questions: one letter, or several."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.rewards import equivalence, extract, golds, notation, wording
from rl_jax.rewards.score import Score

_LETTERS = "ABCDEFGHIJ"
_COLUMNS = ("choices", "options", "endings")
_LAST_LINE = re.compile(r"\(?([A-Ja-j])\)?[.)]?")


def multiple_choice(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    r"""1.0 if the reply picks the gold letter, or all gold letters, else 0.0.

    The gold is a letter, "(B)", "B. 42", several as in "A, C", or an index from 0 into
    the row's choices (a list in "choices" or "options", or {"label": [...],
    "text": [...]}). With choices in the row, writing out the right one counts as its
    letter. The answer stands in the last \boxed{}; with options["answer_format"] "any"
    also after "the answer is", or alone on the last line. Two letters for one gold, or
    letters with "or" between, are wrong.
    """
    choices = _choices(job.get("row") or {})
    answer_format = options.get("answer_format", "boxed")
    return golds.graded(
        job,
        [g for g in (_gold(a, choices) for a in golds.of_job(job)) if g],
        lambda text: _found(text, answer_format),
        lambda gold, found: _picks(found, choices) == gold,
        useless="the reference answer is no letter",
    )


def gold_fault(job: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Why no reference answer of a row can be used; "" if one can."""
    choices = _choices(job.get("row") or {})
    answers = golds.of_job(job)
    if any(_gold(answer, choices) for answer in answers):
        return ""
    return f"the reference answer {answers[0][:60]!r} is no letter and no choice"


def _choices(row: Mapping[str, Any]) -> dict[str, str]:
    """The text of each letter, if the row has it."""
    column: Any = next((row[name] for name in _COLUMNS if row.get(name)), None)
    if isinstance(column, Mapping):
        labels, texts = column.get("label", ()), column.get("text", ())
        if isinstance(labels, list) and isinstance(texts, list):
            return {str(k).upper(): str(v) for k, v in zip(labels, texts, strict=False)}
        return {str(k).upper(): str(v) for k, v in column.items()}
    if isinstance(column, Sequence) and not isinstance(column, str):
        return dict(zip(_LETTERS, map(str, column), strict=False))
    return {}


def _gold(answer: str, choices: Mapping[str, str]) -> str:
    """The letters of a gold in order; "" if it has none."""
    text = answer.strip()
    if text.isdecimal() and text.isascii():
        if text in choices:  # some sets number their choices
            return text
        letters = list(choices) or list(_LETTERS[:4])
        return letters[int(text)] if int(text) < len(letters) else ""
    return _picks(text, choices)


def _found(text: str, answer_format: str) -> str | None:
    found = extract.answer(text, answer_format)
    if found is None and answer_format == "any" and not extract.boxes(text):
        last = text.strip().rpartition("\n")[2].strip(" *")
        match = _LAST_LINE.fullmatch(last)
        return match[1] if match else None
    return found


def _picks(answer: str, choices: Mapping[str, str]) -> str:
    """The letters that an answer picks, in order; "" if it picks none."""
    if len(answer) > golds.MAX_ANSWER_CHARS:
        return ""
    text = notation.normalise(answer)
    picked = wording.choice(text)
    if picked:
        letter, beside = picked
        own = notation.normalise(choices.get(letter, ""))
        # "(B) 42" where 42 is the text of another letter picks nothing.
        if beside and own and not _same_text(own, beside):
            others = [c for key, c in choices.items() if key != letter]
            if any(_same_text(notation.normalise(c), beside) for c in others):
                return ""
        return letter
    if several := wording.choice_letters(text):
        return several
    if text.upper() in choices:
        return text.upper()
    same = [k for k, c in choices.items() if _same_text(notation.normalise(c), text)]
    return same[0] if len(same) == 1 else ""


def _same_text(choice: str, text: str) -> bool:
    plain = [wording.untexted(part).casefold() for part in (choice, text)]
    return plain[0] == plain[1] or equivalence.same_number(choice, text)
