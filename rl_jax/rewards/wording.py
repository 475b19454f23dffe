"""Answers in words, and the letters of multiple-choice questions."""

import re
from collections.abc import Sequence

_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|['& .-])*")
_ARTICLE = re.compile(r"^(?:the|an?)\s+")
_CJK = re.compile("[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]")


def untexted(text: str) -> str:
    r"""The text without \text{...} around parts of it, and with single spaces."""
    return " ".join(_TEXT.sub(r" \1 ", text).split())


_NUMERALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen "
    "fourteen fifteen sixteen seventeen eighteen nineteen twenty"
).split()
_SAME = {
    spelling: first
    for first, *others in (
        (r"\emptyset", "no solution", "no solutions", "empty set", "empty", "null set"),
        (r"\mathbb{R}", "all real numbers", "all reals", "all real x", "real numbers"),
        (r"\infty", "infinity", "infinitely many", "infinite"),
        ("does not exist", "dne", "doesn't exist", "undefined"),
    )
    for spelling in (first, *others)
}


def words(text: str, *, short: bool = False) -> str | None:
    r"""The answer as lower-case words, or None if it is not made of words alone.

    Words are what stands in \text{...}, or plain text that has a space or four
    letters: a shorter run of letters may well be a product of variables, and counts
    only with `short`. Chinese, Japanese and Korean signs are words in any number.
    """
    plain, num_texts = _TEXT.subn(r" \1 ", text)
    plain = " ".join(plain.split()).rstrip(".")
    if not _WORDS.fullmatch(plain):
        return None
    if _CJK.search(plain):
        return plain.replace(" ", "")
    if len(plain) < 2:
        return None
    if not short and not num_texts and " " not in plain and len(plain) < 4:
        return None
    return _ARTICLE.sub("", plain.lower())


def concept(text: str) -> str:
    r"""What an answer in words means where mathematics has a sign for it.

    "no solution" is \emptyset, "seven" is 7; what has no such meaning stays.
    """
    plain = untexted(text).rstrip(".").lower()
    if plain in _NUMERALS:
        return str(_NUMERALS.index(plain))
    plain = plain.removeprefix("+")
    return _SAME.get(plain, _SAME.get(text.strip(), text))


_LEAD = r"(?i:(?:the\s+)?(?:correct\s+)?(?:option|choice|answer)(?:\s+is)?\s*:?)"
_CHOICE = re.compile(
    rf"(?:{_LEAD}|选)?\s*(?:[(\[]\s*([A-Ja-j])\s*[)\]]|([A-Ja-j]))\s*"
    r"(?P<mark>[).:](?!\d))?(?P<rest>.*)",
    re.DOTALL,
)
_SECOND_CHOICE = re.compile(
    r"(?<![A-Za-z\\])[A-J](?![A-Za-z])(?!')|\b(?:or|maybe|perhaps|possibly|not)\b"
)


def choice(text: str) -> tuple[str, str] | None:
    r"""The letter of a multiple-choice answer, and the text that stands beside it.

    B, (B), [B], \text{(B)}, "B. 42", "(B) 42", "the answer is B". None if it is no such
    thing, or if another letter follows: "A or B" picks nothing.
    """
    plain = " ".join(_TEXT.sub(r"\1", text).split())
    match = _CHOICE.fullmatch(plain)
    if not match:
        return None
    rest = match["rest"].strip()
    marked = bool(match[1] or match["mark"])
    if rest and (not marked or rest[0] in "+*/^_=!("):
        return None
    if rest and _SECOND_CHOICE.search(rest):
        return None
    return (match[1] or match[2]).upper(), rest


_LETTERS = re.compile(r"\(?([A-J])\)?")
_BETWEEN_LETTERS = re.compile(r"\s*(?:,|;|\band\b|&|\s)\s*")


def choice_letters(text: str) -> str | None:
    """The letters of an answer that picks several, in order: "C, A", "(A) and (C)".

    "AC" counts too if its letters are in order; None for anything else.
    """
    plain = " ".join(_TEXT.sub(r" \1 ", text).strip("\\{} ").split())
    if re.fullmatch("[A-J]{2,10}", plain):
        return plain if list(plain) == sorted(set(plain)) else None
    parts: Sequence[str] = [part for part in _BETWEEN_LETTERS.split(plain) if part]
    found = [match[1] for part in parts if (match := _LETTERS.fullmatch(part))]
    if len(parts) < 2 or len(found) < len(parts) or len(set(found)) < len(found):
        return None
    return "".join(sorted(found))
