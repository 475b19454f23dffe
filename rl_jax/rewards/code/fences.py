"""Fenced blocks of Markdown, as models write them."""

import dataclasses
import re
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: the first word after its fence, in lower case, and its text."""

    tag: str
    text: str


# A bullet or a number may stand before a fence.
_FENCE = re.compile(
    r"^([ \t]*(?:(?:[-*+]|\d+[.)])[ \t]+)?)(`{3,}|~{3,})[ \t]*([^`\n]*)$"
)
# Not at the start of its line, as in "Answer: ```python": only with a tag of Python.
_LATE_FENCE = re.compile(r"()(`{3,})[ \t]*(py\w*)[ \t]*$", re.IGNORECASE)
# A fence further into a line is none; it bounds what a hostile line may cost.
_MAX_LATE = 500


def blocks(text: str) -> list[Block]:
    """The fenced blocks, in order, without the indentation of their fence.

    A block that is never closed counts only if there is no other. A bare fence with
    nothing after it, at the end of a reply that has no other, closes a block which
    began before the reply.
    """
    found: list[Block] = []
    lines = text.split("\n")
    opening = margin = tag = ""
    start = 0
    for number, line in enumerate(lines):
        end = _closes(line, opening) if opening else None
        fence = _FENCE.match(line) or _LATE_FENCE.search(line[:_MAX_LATE])
        if end is not None:
            rest = [line[:end]] if line[:end].strip() else []
            found.append(_block(tag, [*lines[start:number], *rest], margin))
            opening = ""
        # A fence with a tag cannot close: the block before it was left unfinished.
        elif fence and (not opening or fence[2].startswith(opening)):
            margin, opening, tag = fence[1], fence[2], fence[3]
            start = number + 1
    if opening and not found:
        inside = lines[start:]
        if not "".join(inside).strip() and not tag:
            inside, margin = lines[: start - 1], ""
        if "".join(inside).strip():
            found.append(_block(tag, inside, margin))
    return found


def _closes(line: str, opening: str) -> int | None:
    """Where in a line the closing fence begins; None if the line closes nothing.

    Code may stand before it, as in "print(1)```".
    """
    bare = line.rstrip()
    code = bare.rstrip(opening[0])
    if len(bare) - len(code) < len(opening) or opening[0] * 3 in code:
        return None
    return len(code)


def _block(tag: str, lines: Sequence[str], margin: str) -> Block:
    words = re.findall(r"[\w+#-]+", tag.lower())
    width = len(margin)
    inside = (line[min(width, len(line) - len(line.lstrip())) :] for line in lines)
    return Block(words[0] if words else "", "\n".join(inside) + "\n")
