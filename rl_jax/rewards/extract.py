r"""Where the answer stands in a reply: after the thinking, in the last box.

Every function is linear in the reply, which may be long and hostile.
"""

import dataclasses
import re
from collections.abc import Sequence

_END_OF_TURN = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end|>", "<|end_of_text|>"),
    *("<|endofturn|>", "<|return|>", "<|eom_id|>", "<|im_start|>", "<|user|>"),
    *("<|start_header_id|>", "<end_of_turn>", "<start_of_turn>", "</s>", "<eos>"),
    *("<｜end▁of▁sentence｜>", "<｜User｜>", "[INST]", "[/INST]"),
)
# A reply that goes on with a turn of the user, after it has answered.
_NEXT_TURN = re.compile(
    r"\n\s{0,4}(?:#{1,6}\s?|\*\*)?(?:human|user|question|problem|instruction)"
    r"\s?(?:\d{1,3}\s?)?:",
    re.IGNORECASE,
)
_ANSWERS = ("\\boxed", "\\fbox", "####", "nswer")
# Opening and closing marks of thinking, by the models that write them.
THINKING = (
    ("<think>", "</think>"),  # DeepSeek-R1, Qwen3 and most others
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<reason>", "</reason>"),
    ("<scratchpad>", "</scratchpad>"),
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("[THINK]", "[/THINK]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # Sky-T1, OpenThoughts
    ("<|channel|>analysis", "<|channel|>final"),  # gpt-oss
    ("<unused94>", "<unused95>"),  # MedGemma
)

_OPENINGS = tuple(opening for opening, _ in THINKING)
_CLOSINGS = tuple(closing for _, closing in THINKING)
_MARKS = _OPENINGS + _CLOSINGS + _END_OF_TURN
_FIRST_SIGNS = "".join(sorted({mark[0] for mark in _MARKS}))


def _marks(text: str) -> list[int]:
    """Where the marks of turns and thinking begin, in order.

    Looks for single signs first: a search for a character is a hundred times as fast
    as one for a pattern.
    """
    found = []
    for sign in _FIRST_SIGNS:
        at = text.find(sign)
        while at >= 0:
            if text.startswith(_MARKS, at):
                found.append(at)
            at = text.find(sign, at + 1)
    return sorted(found)


def final_text(completion: str, *, prompt: str = "") -> str | None:
    """The part of a completion that is addressed to the reader.

    The first turn only, and of it what follows the end of the last thinking. None if
    thinking is left open, by the completion or by a chat template that ends in its
    opening mark: an answer that was only thought about is not an answer.
    """
    start, end = 0, len(completion)
    is_open = bool(opening_at_end(prompt))
    for at in _marks(completion):
        if completion.startswith(_END_OF_TURN, at):
            if is_open and completion.startswith("<|end|>", at):
                continue  # of gpt-oss's thoughts, which are a message of their own
            end = at
            break
        closing = next((c for c in _CLOSINGS if completion.startswith(c, at)), None)
        is_open = closing is None
        start = at + len(closing) if closing else start
    return None if is_open else _one_turn(completion[start:end])


def _one_turn(text: str) -> str:
    """What comes before the next question, where that comes after an answer."""
    if not _NEXT_TURN.search(text):
        return text
    places = [at for mark in _ANSWERS if (at := text.find(mark)) >= 0]
    following = _NEXT_TURN.search(text, min(places)) if places else None
    return text[: following.start()] if following else text


def opening_at_end(prompt: str) -> str:
    """The opening mark of thinking that a rendered prompt ends in; "" if none."""
    tail = prompt[-40:].rstrip()
    return next((opening for opening in _OPENINGS if tail.endswith(opening)), "")


@dataclasses.dataclass(frozen=True)
class Box:
    """A closed box: `text[start:end]` is all of it, `content` what is inside."""

    start: int
    end: int
    content: str


_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)


def boxes(text: str) -> list[Box] | None:
    r"""The outermost \boxed{...} and \fbox{...} that are not empty, in order.

    None if the last box was opened and never closed: the reply broke off inside its
    answer. Braces are matched as TeX does, so \{ and \} do not count.
    """
    found: list[Box] = []
    first = _BOX.search(text)
    if not first:
        return found
    open_braces: list[tuple[int, int]] = []  # start and content start; -1: no box
    for match in _BRACES.finditer(text, first.start()):
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
    return anchored_answer(text)


@dataclasses.dataclass(frozen=True)
class Joined:
    """Several boxes as one list."""

    count: int
    joined: str


def all_boxes(text: str) -> Joined | None:
    """All boxes of a final text as one list, if each may be a part of the answer.

    For a question with several answers that were boxed one by one, with words between.
    None if there is but one, or if the reply takes one of them back.
    """
    found = boxes(text) or []
    if not 2 <= len(found) <= _MAX_PARTS:
        return None
    between = (text[a.end : b.start] for a, b in zip(found, found[1:], strict=False))
    if any(_RETRACTION.search(gap) for gap in between):
        return None
    return Joined(len(found), ", ".join(box.content for box in found))


# More boxes than that in one final text are a list of guesses, whatever is between.
_MAX_PARTS = 8
# What may stand between two boxes that together are one answer: separators, marks of
# a list, and words that leave the choice open.
_SEPARATORS = re.compile(
    r"(?:<br\s*/?>|[\s$,;&*/|%#<>!.:()\[\]-]|\\[,;()\[\] \\%]|\\q?quad"
    r"|\\(?:text|phantom|h)?\{|\}|\\text\s*\{\s*(?:and|or)\s*\}|[、，；和或•·]"
    r"|[0-9=]|(?<![a-z])[a-z](?![a-z])"
    r"|\b(?:and|or|maybe|perhaps|possibly|probably|either|also|alternatively|could|can"
    r"|may|might|be|it|is|but|else|option|case|candidate|guess|answer|the|then|another"
    r"|if|not|as|well|choice|try)\b)*+",  # never back: nothing here can be read twice
    re.IGNORECASE,
)
_PURE = re.compile(
    r"(?:[\s$,;&*]|\\[,;()\[\] ]|\\q?quad|\\text\s*\{\s*(?:and|or)\s*\}"
    r"|\b(?:and|or)\b|[、，；和或])*+"
)
_RETRACTION = re.compile(
    r"\b(?:no|wait|but|actually|instead|wrong|incorrect|mistake|error|hmm|sorry|oops"
    r"|recount|correction|however|rather|not)\b|[应改]",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")


def _boxed_answer(text: str, found: list[Box]) -> str | None:
    """The content of the last box, with those before it if it is one of a list.

    Boxes belong together where nothing but separators, "and", "or" or words such as
    "maybe" is between them; so do three or more with the same words between, and all of
    them where there are too many. One that repeats its neighbour counts once.
    """
    if _taken_back(text[found[-1].end :]):
        return None
    gaps = [text[a.end : b.start] for a, b in zip(found, found[1:], strict=False)]
    first = len(found) - 1
    while first > 0 and _joins(gaps[first - 1]):
        first -= 1
    first = min(first, _same_words(gaps))
    if len({box.content for box in found}) > _MAX_PARTS:
        first = 0
    answers = [found[-1].content]
    for box in found[first:-1][::-1]:
        if box.content != answers[0]:
            answers.insert(0, box.content)
    return ", ".join(answers)


def _joins(gap: str) -> bool:
    if _PURE.fullmatch(gap):
        return True
    return len(gap) <= 80 and bool(_SEPARATORS.fullmatch(gap))


def _same_words(gaps: Sequence[str]) -> int:
    """Where a run of equal gaps (two or more, up to the last box) begins."""
    plain = [_DIGITS.sub("#", gap).strip().lower() for gap in gaps]
    at = len(plain)
    while at and plain[at - 1] == plain[-1]:
        at -= 1
    return at if len(plain) - at >= 2 else len(plain)


_WITHDRAWN = re.compile(
    r"\b(?:scratch\s+that|(?:ignore|disregard)\s+(?:that|this|the\s+above|my\s+answer)"
    r"|(?:that|this|which|the\s+(?:above|previous|boxed)\s+answer)(?:'s|\s+is|\s+was)"
    r"\s+(?:wrong|incorrect|not\s+(?:right|correct)|a\s+mistake)"
    r"|i\s+made\s+(?:a|an)\s+(?:mistake|error)|i\s+(?:don't|do\s+not)\s+know)\b",
    re.IGNORECASE,
)
_CONFIRMED = re.compile(
    r"\b(?:correct|confirm(?:s|ed)?|right|indeed|holds|stands|checks?\s+out|matches"
    r"|verified)\b",
    re.IGNORECASE,
)
_MAX_TAIL = 2_000


def _taken_back(tail: str) -> bool:
    """True if what follows the last box says that it is not the answer."""
    withdrawn = _WITHDRAWN.search(tail, 0, _MAX_TAIL)
    return bool(withdrawn) and not _CONFIRMED.search(tail, withdrawn.end(), _MAX_TAIL)


_ANCHOR = re.compile(
    r"####|\banswer(?:\s{1,9}(?:is|would\s+be|must\s+be|therefore\s+is|equals)\b"
    r"|\s{0,9}\*{0,3}\s{0,9}[:=：]|\s{0,3}\*{0,3}\s{0,3}\n)|<answer>|答案(?:是|为|：|:)",
    re.IGNORECASE,
)
_AFTER_ANCHOR = re.compile(r"(?:[\s*:=：]|\bis\b|\btherefore\b|\bthe\b){0,20}")
_LATEX = re.compile(
    r"\$\$?([^$\n]{1,500})\$|\\\(([^\n]{1,500}?)\\\)|\\\[(.{1,500}?)\\\]"
)
_NUMBER = (
    r"[-+−]?\s?(?:\\?[$€£]\s?)?[-+−]?"
    r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:\s?/\s?\d+)?(?:\s?\\?%)?"
)
# A list is taken whole, so that naming two numbers is not naming the first.
_NUMBERS = re.compile(rf"{_NUMBER}(?:\s*(?:[,;]|,?\s*\b(?:or|and|to)\b)\s*{_NUMBER})*")
_MORE = re.compile(r"\s*,?\s*(?:or|and|to|maybe|if)\b", re.IGNORECASE)
_LETTER = re.compile(r"\(?([A-J])\)?(?=\s*(?:$|[.\n<*):]))")
_WORD = re.compile(
    r"(?!(?:right|correct|wrong|incorrect|clear|obvious|unknown|as\s+follows)\b)"
    r"([A-Za-z][A-Za-z' -]{1,40}?)(?=\s*(?:$|[.\n<*]))"
)


def anchored_answer(text: str) -> str | None:
    """The answer after the last "####", "answer is", "Answer:" or <answer>.

    It must follow at once: inline LaTeX, plain numbers with their sign, currency,
    fraction or percent, a letter, or a few words that end the line or sentence.
    """
    for anchor in reversed(list(_ANCHOR.finditer(text))):
        skipped = _AFTER_ANCHOR.match(text, anchor.end())
        start = skipped.end() if skipped else anchor.end()
        latex = _LATEX.match(text, start)
        if latex:
            return next(filter(None, latex.groups()))
        numbers = _NUMBERS.match(text, start)
        # "3x", "2^5", "1-9": numbers that only begin an expression are no answer.
        if numbers and not re.match(r"[\w^(\\+/=?-]", text[numbers.end() :][:1]):
            more = _MORE.match(text, numbers.end())
            return None if more else numbers.group()
        word = (
            None
            if numbers
            else (_LETTER.match(text, start) or _WORD.match(text, start))
        )
        if word:
            return word.group(1)
    return None
