"""The reward for answers in words, which must be those of the reference."""

import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from rl_jax.rewards import extract, golds
from rl_jax.rewards.score import Score

_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf)\s*\{([^{}]*)\}")
_AROUND = " \t\r\n.,;:!*_`\"'“”‘’$"
_QUOTES = str.maketrans("“”‘’", "\"\"''")


def exact(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    r"""1.0 if the answer is the gold text, both normalised, else 0.0.

    The answer is what the last \boxed{} holds; with options["answer_format"] "any" and
    no box, what follows the last <answer>, "answer is" or "####" up to the end of its
    line, else the whole final text. See `normalised` for what does not matter.
    """
    answer_format = options.get("answer_format", "boxed")
    return golds.graded(
        job,
        [gold for gold in map(normalised, golds.of_job(job)) if gold],
        lambda text: _found(text, answer_format),
        lambda gold, found: normalised(found) == gold,
        useless="the reference answer is empty",
    )


def gold_fault(job: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Why no reference answer of a row can be used; "" if one can."""
    if any(map(normalised, golds.of_job(job))):
        return ""
    return "the reference answer is empty"


def normalised(text: str) -> str:
    r"""What is compared.

    Unicode NFKC, straight quotes, lower case, runs of white space as one space; without
    \text{...} and the like around words, and without quotes, stars, dollar signs and
    .,;:! at either end. Accents, hyphens and everything within stay.
    """
    text = unicodedata.normalize("NFKC", text).translate(_QUOTES)
    text = _WRAPPED.sub(r"\1", text)
    return " ".join(text.casefold().split()).strip(_AROUND)


_ANCHOR = re.compile(r"<answer>|####|\banswer(?:\s+is\b|\s*\*{0,2}\s*:)", re.IGNORECASE)
_END = re.compile(r"</answer>|\n")


def _found(text: str, answer_format: str) -> str | None:
    boxed = extract.answer(text, "boxed")
    if boxed is not None or answer_format == "boxed" or extract.boxes(text) is None:
        return boxed
    anchors = list(_ANCHOR.finditer(text))
    if not anchors:
        return text if text.strip() else None
    after = text[anchors[-1].end() :].lstrip(" *:\n")
    return _END.split(after, maxsplit=1)[0] or None
