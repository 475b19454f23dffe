r"""Where the answer stands in a reply: after the thinking, in the last box.

Every function is linear in the reply, which may be long and hostile.
"""

import dataclasses
import re

_END_OF_TURN = re.compile(
    r"<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>|<end_of_turn>|</s>|<eos>"
)


def final_text(completion: str, *, prompt: str = "") -> str | None:
    """The part of a completion that is addressed to the reader.

    The first turn only, and of it what follows the last </think>. None if a <think>
    is left open, by the completion or by a chat template that ends in one: an answer
    that was only thought about is not an answer.
    """
    if prompt.rstrip().endswith("<think>"):
        completion = "<think>" + completion
    text = _END_OF_TURN.split(completion, maxsplit=1)[0]
    text = text.rpartition("</think>")[2]
    return None if "<think>" in text else text


@dataclasses.dataclass(frozen=True)
class Box:
    """A closed box: `text[start:end]` is all of it, `content` what is inside."""

    start: int
    end: int
    content: str


_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)


def boxes(text: str) -> list[Box] | None:
    r"""The outermost \boxed{...} and \fbox{...} that are not empty, in order.

    None if the last box was opened and never closed: the reply broke off inside its
    answer. Braces are matched as TeX does, so \{ and \} do not count.
    """
    found: list[Box] = []
    open_braces: list[tuple[int, int]] = []  # start and content start; -1: no box
    for match in _BRACES.finditer(text):
        token = match.group()
        if token == "{":
            open_braces.append((-1, -1))
        elif token[0] == "\\" and token[-1] == "{" and len(token) > 2:
            open_braces.append((match.start(), match.end()))
        elif token == "}" and open_braces:
            start, inside = open_braces.pop()
            content = text[inside : match.start()].strip() if start >= 0 else ""
            if content:
                while found and found[-1].start > start:
                    found.pop()  # it stood inside this one
                found.append(Box(start, match.end(), content))
    last_open = max((start for start, _ in open_braces), default=-1)
    return None if last_open > (found[-1].end if found else -1) else found


# What may stand between two boxes that together are one answer.
_BETWEEN = re.compile(
    r"(?:[\s$,;&*]|\\[,;()\[\] ]|\\q?quad"
    r"|\\text\{\s*(?:and|or)\s*\}|\b(?:and|or)\b|[、，；和或])*"
)


def answer(text: str, answer_format: str) -> str | None:
    """The answer of a reply's final text; None if it has none.

    answer_format: "boxed" takes a box only; "any" takes what follows an anchor where
    no box was opened at all.
    """
    found = boxes(text)
    if found:
        return _boxed_answer(text, found)
    if found is None or answer_format == "boxed":
        return None
    return _anchored_answer(text)


def _boxed_answer(text: str, found: list[Box]) -> str:
    """The content of the last box, with those right before it if it is one of a list.

    Boxes belong together only where nothing but separators, "and" or "or" is between
    them. A box that repeats its neighbour counts once.
    """
    answers = [found[-1].content]
    for box, following in zip(found[-2::-1], found[:0:-1], strict=False):
        if not _BETWEEN.fullmatch(text, box.end, following.start):
            break
        if box.content != answers[0]:
            answers.insert(0, box.content)
    return ", ".join(answers)


_ANCHOR = re.compile(
    r"####|\banswer(?:\s{1,9}is\b|\s{0,9}\*{0,3}\s{0,9}[:=])", re.IGNORECASE
)
_AFTER_ANCHOR = re.compile(r"(?:[\s*:=]|\bis\b){0,20}")
_LATEX = re.compile(r"\$\$?([^$\n]{1,500})\$|\\\(([^\n]{1,500}?)\\\)")
_NUMBER = (
    r"[-+−]?\s?(?:\\?[$€£]\s?)?[-+−]?"
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:\s?/\s?\d+)?(?:\s?\\?%)?"
)
# A list is taken whole, so that naming two numbers is not naming the first.
_NUMBERS = re.compile(rf"{_NUMBER}(?:\s*(?:[,;]|,?\s*\b(?:or|and|to)\b)\s*{_NUMBER})*")


def _anchored_answer(text: str) -> str | None:
    """The answer after the last "####", "answer is" or "Answer:" that has one.

    It must follow at once: inline LaTeX, or plain numbers with their sign, currency,
    fraction or percent.
    """
    for anchor in reversed(list(_ANCHOR.finditer(text))):
        skipped = _AFTER_ANCHOR.match(text, anchor.end())
        start = skipped.end() if skipped else anchor.end()
        latex = _LATEX.match(text, start)
        if latex:
            return latex.group(1) or latex.group(2)
        numbers = _NUMBERS.match(text, start)
        # "3x", "2^5", "1-9": numbers that only begin an expression are no answer.
        if numbers and not re.match(r"[\w^(\\+/=-]", text[numbers.end() :][:1]):
            return numbers.group()
    return None
