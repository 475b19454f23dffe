r"""One spelling for an answer: Unicode, LaTeX spacing and decoration taken out.

Nothing here knows what an answer is worth; it only makes equal things look equal more
often, and must never make different things look equal.
"""

import re
import unicodedata

_SUPERSCRIPTS = {c: str(d) for d, c in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")} | {"⁻": "-", "⁺": "+"}
_SUPERSCRIPT = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT = re.compile("[₀-₉]+")
_ROOT = re.compile(r"([√∛])\s*(?:(\d+|[A-Za-z])|\(([^()]*)\)|\{([^{}]*)\})")
_VULGAR_FRACTION = re.compile("[¼½¾⅐-⅞]")
_GREEK = dict(
    zip(
        "αβγδεζηθκλμνξπρστφχψωΓΔΘΛΣΦΨΩ",
        "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho "
        "sigma tau phi chi psi omega Gamma Delta Theta Lambda Sigma Phi Psi "
        "Omega".split(),
        strict=True,
    )
)
_SYMBOLS = str.maketrans(
    {
        **dict.fromkeys("−‐‑–﹣－", "-"),
        **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u200e\u200f", ""),
        **dict.fromkeys("·⋅∙•", r"\cdot "),
        **dict.fromkeys("≤⩽≦", r"\le "),
        **dict.fromkeys("≥⩾≧", r"\ge "),
        **dict.fromkeys("°º˚℃", r"^\circ "),
        **dict.fromkeys("⁄∕", "/"),
        **dict.fromkeys("∅⌀", r"\emptyset "),
        **dict.fromkeys("→⟶", r"\to "),
        **dict.fromkeys("⇒⟹", r"\Rightarrow "),
        **{letter: rf"\{name} " for letter, name in _GREEK.items()},
        **{letter: rf"\mathbb{{{plain}}}" for letter, plain in zip("ℝℤℕℚℂ", "RZNQC")},
        "×": r"\times ",
        "÷": "/",
        "√": r"\sqrt ",
        "∞": r"\infty ",
        "≠": r"\ne ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "∖": r"\setminus ",
        "∨": r"\lor ",
        "∧": r"\land ",
        "±": r"\pm ",
        "∓": r"\mp ",
        "≈": r"\approx ",
        "≡": r"\equiv ",
        "∠": r"\angle ",
        "€": r"\euro ",
        "£": r"\pound ",
        "¥": r"\yen ",
        "₹": r"\rupee ",
        "、": ",",
        "。": ".",
        "′": "'",
        "’": "'",
        "…": r"\ldots ",
    }
)
_END = r"(?![a-zA-Z])"
_REPLACEMENTS = [
    # What is invisible, or only about looks.
    (re.compile(r"\\[hv]?phantom\s*\{[^{}]*\}|\\[hv]space\*?\s*\{[^{}]*\}"), ""),
    (re.compile(r"\\(?:text)?color\s*\{[^{}]*\}"), ""),
    (re.compile(rf"\\(?:left|right)\s*\.(?!\d)|\\(?:left|right){_END}"), ""),
    (
        re.compile(
            rf"\\(?:[bB]igg?[lr]?|(?:display|text|script)style|(?:no)?limits|tiny|small"
            rf"|large|Large|LARGE|huge|Huge|bf|rm|it|sf|em|strut){_END}"
        ),
        "",
    ),
    (re.compile(rf"\\[!:]|\\(?:thin|neg)[a-z]*space{_END}"), ""),
    # Spaces, and the comma as it is typeset: a thousands separator before three
    # digits, a decimal one before any other number of them.
    (re.compile(rf"\\[,; >]|\\q?quad{_END}|~|\\text\s*\{{\s*\}}"), " "),
    (re.compile(r"\{\s*,\s*\}|\\text\s*\{\s*,\s*\}"), "{,}"),
    (re.compile(r"\d+(?:\{,\}\d+)+"), lambda match: _commas(match.group())),
    (re.compile(r"\{,\}"), ","),
    (
        re.compile(r"(?<![\d.,^_])\d{1,3}(?: \d{3})+(?![\d/]| /)"),
        lambda match: match.group().replace(" ", ""),
    ),
    # One command for each thing.
    (re.compile(rf"\\[dtc]frac{_END}"), r"\\frac"),
    (re.compile(rf"\\[dt]binom{_END}"), r"\\binom"),
    (re.compile(r"\\binom\s*(\d)\s*(\d)"), r"\\binom{\1}{\2}"),
    (re.compile(r"\{\s*(\w+)\s*\\choose\s*(\w+)\s*\}"), r"\\binom{\1}{\2}"),
    (
        re.compile(r"\\text\s*\{([^{}]*)\}\s*/\s*\\text\s*\{([^{}]*)\}"),
        r"\\text{\1/\2}",
    ),
    (re.compile(r"\\(?:math|text)(?:rm|normal|up)\b|\\mbox\b"), r"\\text"),
    (re.compile(r"\\text\s*\{\s*([ei])\s*\}"), r"\1"),
    (re.compile(r"_\{?\s*\\text\s*\{\s*two\s*\}\s*\}?"), "_2"),
    (
        re.compile(rf"\^\s*(?:\\circ{_END}|\{{\s*\\circ\s*\}})|\\degree{_END}"),
        r"^\\circ ",
    ),
    (re.compile(rf"\\(le|ge)(?:q(?:slant|q)?|slant){_END}"), r"\\\1"),
    (re.compile(rf"\\neq{_END}|!="), r"\\ne "),
    (re.compile(rf"\\(?:simeq|approxeq|doteq|thickapprox){_END}"), r"\\approx "),
    (re.compile(rf"\\lt{_END}"), "<"),
    (re.compile(rf"\\gt{_END}"), ">"),
    (re.compile(r"<="), r"\\le "),
    (re.compile(r">="), r"\\ge "),
    (re.compile(rf"\\bigcup{_END}(?!\s*_)"), r"\\cup "),
    (re.compile(rf"\\vee{_END}"), r"\\lor "),
    (re.compile(rf"\\wedge{_END}"), r"\\land "),
    (re.compile(rf"\\backslash{_END}"), r"\\setminus "),
    (re.compile(rf"\\lbrace{_END}\s*"), r"\\{"),
    (re.compile(rf"\s*\\rbrace{_END}"), r"\\}"),
    (re.compile(rf"\\(?:lbrack){_END}"), "["),
    (re.compile(rf"\\(?:rbrack){_END}"), "]"),
    (re.compile(rf"\\[lr]?vert{_END}"), "|"),
    (re.compile(rf"\\varnothing{_END}|\\\{{\s*\\\}}"), r"\\emptyset "),
    (re.compile(rf"\\[cdlv]dots{_END}|\\dots[cb]?{_END}|\.\.\."), r"\\ldots "),
    (re.compile(rf"\\lg{_END}"), r"\\log_{10}"),
    (re.compile(r"\\log\s*_\s*(?:e|\{\s*e\s*\})"), r"\\ln "),
    (re.compile(rf"\\(?:implies|Longrightarrow|therefore){_END}"), r"\\Rightarrow "),
    (re.compile(rf"\\(?:long)?rightarrow{_END}"), r"\\to "),
    # Currency, and the dollar signs that only bracket the formula.
    (re.compile(r"\\\$"), r"\\dollar "),
    (re.compile(r"^([^$]*)\$(\s*\d[^$]*)$"), r"\1\\dollar \2"),
    (re.compile(r"\\\(|\\\)|\\\[|\\\]|[$`]"), ""),
    (re.compile(r"^\s*\*\*|\*\*\s*$"), ""),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\s+"), " "),
]
_FACE = re.compile(
    r"(?P<raised>[\^_]\s*)?\\(?:(?:math|text)(?:bf|it|sf|tt)|boldsymbol|bm|pmb|underline"
    r"|emph)\s*\{(?P<inner>(?:[^{}]|\{[^{}]*\})*)\}"
)
_SET_FACE = re.compile(r"\\in\s*\\mathbf\s*\{\s*([RZNQC])\s*\}")
_TEXT_OF_NUMBER = re.compile(r"^\s*\\text\s*\{([^{}]*\d[^{}]*)\}\s*$")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_ROW_BREAK = "\0"
_LOOSE_SPACE = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")
_PLAIN = re.compile(r"-?[0-9]{1,18}|[A-Z]")


def normalise(text: str) -> str:
    r"""The answer in one spelling: NFKC, plain minus and operators, no decoration.

    Takes out dollar signs around a formula, \left and \right, spacing commands, colour,
    bold, boxes around a part of the answer, and a full stop at the end. A dollar sign
    that is money becomes \dollar, a degree sign ^\circ.
    """
    if _PLAIN.fullmatch(text):
        return text
    text = _SUPERSCRIPT.sub(_exponent, text)
    text = _SUBSCRIPT.sub(_index, text)
    text = _VULGAR_FRACTION.sub(_latex_fraction, text)
    text = _ROOT.sub(_latex_root, text)
    text = unicodedata.normalize("NFKC", text.translate(_SYMBOLS))
    text = text.translate(_SYMBOLS)  # full-width signs only now have their plain form
    # A row break of a matrix is no escape: it must not meet the patterns below.
    text = unboxed(text).replace(_ROW_BREAK, "").replace("\\\\", _ROW_BREAK)
    text = _SET_FACE.sub(r"\\in \\mathbb{\1}", text)
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = _TEXT_OF_NUMBER.sub(r"\1", text)
    if _CALCULATED.search(text):
        text = _in_latex(text)
    for _ in range(2):  # \mathbf{\text{...}} and the like
        text = _FACE.sub(_plain_face, text)
    text = text.replace(_ROW_BREAK, "\\\\").strip().removesuffix("\\\\")
    return text.strip().rstrip(".,;").strip()


# How formulas are typed where nothing is typeset: 3*sqrt(2)/2, 5pi/6, exp(2).
_CALCULATED = re.compile(r"[\d(){}^*/+=<>]|^pi$")
_TYPED = re.compile(
    r"\\text\s*\{[^{}]*\}"
    r"|(?<![A-Za-z\\])(sqrt|pi|sin|cos|tan|ln|log|exp|theta|infinity|inf)(?![A-Za-z])"
)
_ROOT_OF = re.compile(r"\\sqrt\s*\(([^()]*)\)")


def _in_latex(text: str) -> str:
    def command(match: re.Match[str]) -> str:
        name = match[1]
        names = {"inf": r"\infty ", "infinity": r"\infty ", "exp": "e^"}
        return match.group() if not name else names.get(name, rf"\{name} ")

    text = _TYPED.sub(command, text)
    text = re.sub(r"e\^\s*\(([^()]*)\)", r"e^{\1}", text)
    for _ in range(3):  # roots of roots
        text = _ROOT_OF.sub(r"\\sqrt{\1}", text)
    return text


def _commas(number: str) -> str:
    """Of 2{,}048 the comma, of 2{,}5 the decimal point."""
    first, *rest = number.split("{,}")
    grouped = first != "0" and len(first) <= 3 and all(len(part) == 3 for part in rest)
    return ("." if len(rest) == 1 and not grouped else ",").join([first, *rest])


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


def _exponent(match: re.Match[str]) -> str:
    digits = "".join(_SUPERSCRIPTS[c] for c in match.group())
    return f"^{digits}" if len(digits) == 1 else f"^{{{digits}}}"


def _index(match: re.Match[str]) -> str:
    digits = unicodedata.normalize("NFKC", match.group())
    return f"_{digits}" if len(digits) == 1 else f"_{{{digits}}}"


def _latex_root(match: re.Match[str]) -> str:
    sign, plain, round_, curly = match.groups()
    inner = next(part for part in (plain, round_, curly) if part is not None)
    return rf"\sqrt{'[3]' if sign == '∛' else ''}{{{inner}}}"


def _latex_fraction(match: re.Match[str]) -> str:
    top, _, bottom = unicodedata.normalize("NFKC", match.group()).partition("⁄")
    return rf"\frac{{{top}}}{{{bottom}}}"


def _plain_face(match: re.Match[str]) -> str:
    raised, inner = match["raised"], match["inner"]
    return f"{raised}{{{inner}}}" if raised else inner
