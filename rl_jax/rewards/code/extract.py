"""The program in a reply: after the thinking, in the last complete fenced block.

Model text is only searched here, line by line; nothing parses it as Python. Where a
reply may be read in several ways (a function's body, or the whole function), all are
handed on, and the sandbox takes the first that compiles. What is in the head of a
function that the prompt begins, see head.py.
"""

import dataclasses
import re
import textwrap
from collections.abc import Sequence

from rl_jax.rewards import extract
from rl_jax.rewards.code import head
from rl_jax.rewards.code.fences import Block, blocks


@dataclasses.dataclass(frozen=True)
class Program:
    """What a reply says is its program.

    Attributes:
        text: as it stands in the reply.
        variants: whole programs to try, of which the first that compiles is run.
        is_prose: it stood in no fenced block, and no line of it can only be code. So
            it may not have been meant as a program.
    """

    text: str
    variants: tuple[str, ...]
    is_prose: bool


def program(
    completion: str,
    *,
    prompt: str = "",
    stub: str = "",
    names: Sequence[str] = (),
    reads: bool = False,
) -> Program | None:
    """Finds the program of a reply.

    Args:
        completion: the reply, with its thinking.
        prompt: as rendered: it may end in an open <think> or an open fence, and may
            hold the head of a function that the reply goes on with.
        stub: holds that head, and is searched for it instead of the prompt.
        names: functions or classes that the tests use. A block that defines one of
            them comes before any other; the head in the prompt is that of the first.
        reads: the program is given standard input. A block that reads it comes before
            one that does not.

    Returns:
        None if there is none: the thinking was not finished, or nothing is left.
    """
    text = extract.final_text(completion, prompt=prompt)
    if text is None:
        return None
    opened = _OPEN_AT_END.search(prompt)
    if opened:
        text = f"{opened[1]}\n{text}"
    text = _inside_answer(text.replace("\r\n", "\n"))
    block = chosen(blocks(text), names, reads)
    found = _unfenced(text) if block is None else block.text
    if not found.strip():
        return None
    variants = head.variants(found, stub or prompt, names)
    if block is None:
        variants += _among_prose(found)
    if textwrap.dedent(found) != found:
        variants += (textwrap.dedent(found),)
    is_prose = block is None and head.first_code(found) < 0
    return Program(found, tuple(dict.fromkeys(variants)), is_prose)


_OPEN_AT_END = re.compile(r"(?:^|\n)[ \t]*(```[\w+-]+)[ \t]*\n?$")
# What base models are shown around programs, each on a line of its own: MBPP's
# examples, and Code Llama's.
_BEGIN = re.compile(r"^[ \t]*\[(?:BEGIN|PYTHON)\][ \t]*\n", re.MULTILINE)
_DONE = re.compile(r"^[ \t]*\[(?:DONE|/PYTHON)\][ \t]*$", re.MULTILINE)


def _inside_answer(text: str) -> str:
    """The last <answer>, unless the program stands in a block outside of it."""
    before, closed, _ = text.rpartition("</answer>")
    _, opened, answer = before.rpartition("<answer>")
    if closed and opened and (blocks(answer) or not blocks(text)):
        return answer
    return text


def _unfenced(text: str) -> str:
    text = _DONE.split(text, maxsplit=1)[0]
    return _BEGIN.split(text, maxsplit=1)[-1]


_MAX_PARAGRAPHS = 8  # of prose after unfenced code that are tried without


def _among_prose(text: str) -> tuple[str, ...]:
    """Unfenced code without the prose before it, after it, or both."""
    found = []
    for start in sorted({0, max(0, head.first_code(text))}):
        rest = text[start:].rstrip()
        if start:
            found.append(rest + "\n")
        for _ in range(_MAX_PARAGRAPHS):
            rest = rest.rpartition("\n\n")[0].rstrip()
            if not rest:
                break
            found.append(rest + "\n")
    return tuple(found)


def chosen(found: list[Block], names: Sequence[str], reads: bool) -> Block | None:
    """The block that is the program: the last of the most likely ones.

    A demonstration, an example of the output or a shell command may come after it.
    """
    if not found:
        return None

    def likelihood(block: Block) -> tuple[bool, int, bool]:
        python = block.tag.startswith("py") and block.tag != "pycon"
        return (
            head.defines(block.text, names),
            2 if python else int(not block.tag),
            reads and bool(_READS.search(block.text)),
        )

    best = max(map(likelihood, found))
    return [block for block in found if likelihood(block) == best][-1]


_READS = re.compile(r"\binput\s*\(|\bstdin\b|\bopen\s*\(\s*0\b|\bfileinput\b")
