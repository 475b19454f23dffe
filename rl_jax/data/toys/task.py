"""What a toy task is made of: problems, and grades of replies."""

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

# A longer reply is not read. The longest right one has 40 characters.
MAX_REPLY_CHARS = 2_000
OPENING, CLOSING = "<think>", "</think>"


class Problem(NamedTuple):
    """One problem, with a reply to learn from.

    Attributes:
        text: what the user says. Its first word names the task.
        answer: all that `judge` must know, as text: the row's reference answer.
        right: a reply that is fully right.
        wrong: one that might pass for it and is not.
    """

    text: str
    answer: str
    right: str
    wrong: str


class Reply(NamedTuple):
    """A model's text: what it thought, and what it says."""

    thinking: str
    final: str


class Grade(NamedTuple):
    """What a judge says of a reply.

    Attributes:
        value: from 0 to 1, in between only where a task says what earns a part.
        correct: the reply is fully right.
        answer: what the judge took from the reply.
        parts: the components of `value`, by name.
    """

    value: float
    correct: bool
    answer: str = ""
    parts: Mapping[str, float] = {}


class Toy(NamedTuple):
    """A task.

    Attributes:
        problem: draws a problem; all that it is made of comes from its argument.
        judge: grades a reply by `Problem.answer`; None if it holds no answer at all.
            Raises ValueError for an answer that is none of this task, and nothing for
            any reply. Its time is bounded whatever the reply.
    """

    problem: Callable[[random.Random], Problem]
    judge: Callable[[Reply, str], Grade | None]


def exactly(is_right: bool, answer: str) -> Grade:
    """The grade of a task without parts."""
    return Grade(float(is_right), is_right, answer)


def read(text: str) -> Reply | None:
    """A reply in its parts; None if it is too long or its thinking is malformed.

    Thinking is one stretch in tags at the beginning, or there is none.
    """
    if len(text) > MAX_REPLY_CHARS:
        return None
    text = text.strip()
    tags = text.count(OPENING), text.count(CLOSING)
    if tags == (0, 0):
        return Reply("", text)
    if tags != (1, 1) or not text.startswith(OPENING):
        return None
    thinking, _, final = text.removeprefix(OPENING).partition(CLOSING)
    return Reply(thinking.strip(), final.strip())


def whole(text: str, most_digits: int = 6) -> int | None:
    """The number that a text is; None for any other text, or a longer number.

    Only what 0-9 and a minus sign make: Python's own reading takes digits of every
    script, underscores and spaces.
    """
    digits = text.removeprefix("-")
    if not 1 <= len(digits) <= most_digits:
        return None
    return int(text) if digits.isascii() and digits.isdecimal() else None
