r"""One spelling for an answer: Unicode, LaTeX spacing and decoration taken out.

Nothing here knows what an answer is worth; it only makes equal things look equal more
often, and must never make different things look equal.
"""

import re
import unicodedata

_SUPERSCRIPTS = {c: str(d) for d, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {"⁻": "-", "⁺": "+"}
_SUPERSCRIPT = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_ROOT = re.compile(r"√\s*(\d+|[A-Za-z])")
_VULGAR_FRACTION = re.compile("[¼½¾⅐-⅞]")
_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("−‐‑–﹣－", "-"),
        "×": r"\times ",
        "·": r"\cdot ",
        "÷": "/",
        "π": r"\pi ",
        "√": r"\sqrt ",
        "∞": r"\infty ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\neq ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "±": r"\pm ",
        "≈": r"\approx ",
        "°": r"^\circ ",
        "、": ",",
        "。": ".",
        "′": "'",
    }
)
_REPLACEMENTS = [
    (re.compile(r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|limits)(?![a-zA-Z])"), ""),
    (re.compile(r"\\[!:]|\\(?:thin|neg)[a-z]*space(?![a-zA-Z])"), ""),
    (re.compile(r"(?<=\d)\s*\\,\s*(?=\d{3}(?!\d))"), ""),  # 2\,048
    (re.compile(r"\\[,; ]|\\q?quad(?![a-zA-Z])|~"), " "),
    (re.compile(r"\{\s*,\s*\}"), ","),  # 2{,}048
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:math|text)(?:rm|normal|up)\b|\\mbox\b|\\textrm\b"), r"\\text"),
    (re.compile(r"\\text\s*\{\s*([ei])\s*\}"), r"\1"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![a-zA-Z])"), ""),
    (re.compile(r"\\(?:le|ge)(?:qslant|q)(?![a-zA-Z])"), lambda m: m.group()[:3]),
    (re.compile(r"\\\$|\\\(|\\\)|\\\[|\\\]|[$€£¥₹`]"), ""),
    (re.compile(r"^\s*\*\*|\*\*\s*$"), ""),
    (re.compile(r"\\varnothing(?![a-zA-Z])"), r"\\emptyset"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\s+"), " "),
]
_WHOLE = re.compile(
    r"\\(?:math|text)(?:bf|it|sf|tt)\s*\{([^{}]*)\}|\\(?:boldsymbol|bm)\s*\{([^{}]*)\}"
)
_TEXT_OF_NUMBER = re.compile(r"^\s*\\text\s*\{([^{}]*\d[^{}]*)\}\s*$")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_ROW_BREAK = "\0"
_LOOSE_SPACE = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")


def normalise(text: str) -> str:
    r"""The answer in one spelling: NFKC, plain minus and operators, no decoration.

    Takes out dollar signs, \left and \right, spacing commands, degree signs, bold,
    boxes around a part of the answer, and a full stop at the end.
    """
    text = _SUPERSCRIPT.sub(_braced_exponent, text)
    text = _VULGAR_FRACTION.sub(_latex_fraction, text)
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = unicodedata.normalize("NFKC", text.translate(_SYMBOLS))
    text = text.translate(_SYMBOLS)  # full-width signs only now have their plain form
    # A row break of a matrix is no escape: it must not meet the patterns below.
    text = unboxed(text).replace(_ROW_BREAK, "").replace("\\\\", _ROW_BREAK)
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = _TEXT_OF_NUMBER.sub(r"\1", text)
    text = _WHOLE.sub(lambda m: m.group(1) or m.group(2) or "", text)
    return text.replace(_ROW_BREAK, "\\\\").strip().rstrip(".,;").strip()


def unboxed(text: str) -> str:
    r"""The text with every balanced \boxed{x} in it replaced by {x}, else as it is.

    A lone box around everything leaves no braces.
    """
    whole = _BOXED.match(text)
    if whole and _closes_at(text, whole.end()) == len(text) - 1:
        return unboxed(text[whole.end() : -1].strip())
    return _BOXED.sub("{", text)


def squeezed(text: str) -> str:
    """The text without the spaces that do not part two letters or digits."""
    return _LOOSE_SPACE.sub("", text)


def balanced(text: str) -> bool:
    """True if every brace that TeX counts has its partner."""
    return _closes_at(text + "}", 0) == len(text)


def _closes_at(text: str, start: int) -> int:
    """Where the brace opened just before `start` closes; -1 if nowhere."""
    depth = 1
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return -1


def _braced_exponent(match: re.Match[str]) -> str:
    return "^{" + "".join(_SUPERSCRIPTS[c] for c in match.group()) + "}"


def _latex_fraction(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match.group()).partition("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}"


_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]*")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


def words(text: str, *, short: bool = False) -> str | None:
    """The answer as lower-case words, or None if it is not made of words alone.

    Words are what stands in \\text{...}, or plain text that has a space or four
    letters: a shorter run of letters may well be a product of variables, and counts
    only with `short`.
    """
    plain, num_texts = _TEXT.subn(r" \1 ", text)
    plain = " ".join(plain.split()).rstrip(".")
    if not _WORDS.fullmatch(plain) or len(plain) < 2:
        return None
    if not short and not num_texts and " " not in plain and len(plain) < 4:
        return None
    return plain.lower()


_CHOICE = re.compile(
    r"(?i:option|choice|answer)?\s*\(?\s*([A-Ja-j])\s*(?:[).:](?P<rest>.*))?", re.DOTALL
)
_SECOND_CHOICE = re.compile(r"(?<![A-Za-z\\])[A-J](?![A-Za-z])|\b(?:or|and)\b")


def choice_letter(text: str) -> str | None:
    r"""The letter of a multiple-choice answer: B, (B), \text{(B)}, "B. 42", "(B) 42".

    None if it is no such thing, or if another letter follows: "A or B" picks nothing.
    """
    match = _CHOICE.fullmatch(_TEXT.sub(r"\1", text).strip())
    if not match or _SECOND_CHOICE.search(match["rest"] or ""):
        return None
    return match[1].upper()
