"""Functions that a prompt begins and a reply completes, as in HumanEval."""

import re
from collections.abc import Sequence


def variants(text: str, prompt: str, names: Sequence[str]) -> tuple[str, ...]:
    """Whole programs that a reply may stand for, the most likely first.

    The head of a function in the prompt, with its imports and helpers, goes before the
    reply, be that the function's body or the function itself.
    """
    found = head_of(prompt, names[0]) if names else None
    if found is None:
        return (text,)
    head, indent = found
    if defines(text, names):
        return (f"{head}{indent}pass\n\n{text}", text)
    lines = text.strip("\n").split("\n")
    whole = "\n".join(lines) + "\n"
    if whole[0] in " \t":
        return (head + whole, head + _until_margin(lines), text)
    indented = "\n".join(indent + line if line.strip() else "" for line in lines)
    # Only the first line may have lost its indentation, or all of them.
    return (
        head + indent + whole,
        head + indented + "\n",
        head + indent + _until_margin(lines),
        text,
    )


def _until_margin(lines: Sequence[str]) -> str:
    """A body without what a base model writes after it: the next function, prose."""
    kept = [lines[0]]
    for line in lines[1:]:
        if line.strip() and line[0] not in " \t)]}":
            break
        kept.append(line)
    return "\n".join(kept) + "\n"


def defines(text: str, names: Sequence[str]) -> bool:
    """True if a line of the text, at the margin, defines one of the names."""
    if not names:
        return False
    either = "|".join(map(re.escape, names))
    return bool(
        re.search(
            rf"^(?:async[ \t]+def|def|class)[ \t]+(?:{either})\b"
            rf"|^(?:{either})[ \t]*(?::[^=\n]*)?=[^=]",
            text,
            re.MULTILINE,
        )
    )


_CODE = re.compile(
    r"^(?:from [\w.]+ import |import \w[\w., ]*$|import [\w.]+ as \w+$|def \w+\("
    r"|class \w+[:(]|@\w)",
    re.MULTILINE,
)


def first_code(text: str) -> int:
    """Where the first line begins that can only be code; -1 if there is none."""
    match = _CODE.search(text)
    return match.start() if match else -1


_MARKS = re.compile(r"<\|[^|\n]*\|>|<(?:start|end)_of_turn>|</?s>|\[/?INST\]|```\w*")


def head_of(prompt: str, name: str) -> tuple[str, str] | None:
    """The part of a prompt that begins a program and ends in function `name`.

    It may be the whole prompt, or stand between fences or the marks of a chat
    template, after some prose.

    Returns:
        The head, with a line break at its end, and the indentation of what is to
        follow. None if there is no such function.
    """
    definition = re.compile(rf"^(?:async )?def {re.escape(name)}\(", re.MULTILINE)
    for piece in reversed(_MARKS.split(prompt)):
        if not definition.search(piece):
            continue
        code = piece[first_code(piece) :]
        last = code.rstrip().rpartition("\n")[2]
        started = re.search(r"\n([ \t]+)$", code)
        indent = started[1] if started else last[: len(last) - len(last.lstrip())]
        return code.rstrip() + "\n", indent or "    "
    return None
