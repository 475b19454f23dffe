"""Tokens as text for people: which are learnt, where each ends, which are special.

With colour what is learnt is green, what is only read is cyan, special tokens are
reversed, and every second token is underlined, so that one can see where each ends.
Without, learnt tokens stand in brackets and a bar stands between tokens:

    <|user|>│1│+│1│?│<|assistant|>⟦2│<|end|>⟧
"""

import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TextIO

from rl_jax.data.tokenizer import Tokenizer

_CUT = "\ufffd"  # what an unfinished character decodes to
_READ, _LEARNT, _SPECIAL, _UNDERLINED = "36", "32", "7", "4"
_MOST_TOKENS = 400  # of a row that are shown, three quarters of them at its start

LEGEND = {
    True: f"\x1b[{_LEARNT}mlearnt\x1b[0m, \x1b[{_READ}monly read\x1b[0m, "
    f"\x1b[{_SPECIAL}mspecial\x1b[0m; every second token is underlined",
    False: "⟦learnt⟧, the rest is only read; a bar between tokens",
}


def wants_colour(
    stream: TextIO | None = None, environment: Mapping[str, str] = os.environ
) -> bool:
    """Colour on a terminal; NO_COLOR and then FORCE_COLOR overrule, if not empty."""
    if environment.get("NO_COLOR"):
        return False
    if environment.get("FORCE_COLOR"):
        return True
    is_terminal = (stream or sys.stdout).isatty()
    return is_terminal and environment.get("TERM") != "dumb"


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text of all.

    Special tokens are as they are written. A token that ends within a character gives
    U+FFFD, and the character comes with the last token of it.
    """
    texts, done = [], ""
    for end, token_id in enumerate(ids, start=1):
        whole = tokenizer.decode(ids[:end], specials=True)
        if whole.endswith(_CUT) and end < len(ids):
            texts.append(_CUT)
        elif whole.startswith(done):
            texts.append(whole[len(done) :])
            done = whole
        else:  # a decoder that changes what came before
            texts.append(tokenizer.token_text(token_id) or "")
            done = whole
    return texts


def shown(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    learnt: Sequence[bool],
    *,
    colour: bool,
) -> str:
    """Tokens as one text; the middle of a long row is left out, which is said."""
    if len(ids) <= _MOST_TOKENS:
        return _joined(tokenizer, ids, learnt, colour)
    head = _MOST_TOKENS * 3 // 4
    tail = len(ids) - (_MOST_TOKENS - head)
    parts = (
        _joined(tokenizer, ids[:head], learnt[:head], colour),
        f"... {tail - head:,} tokens are not shown ...",
        _joined(tokenizer, ids[tail:], learnt[tail:], colour),
    )
    return "\n".join(parts)


def _joined(
    tokenizer: Tokenizer, ids: Sequence[int], learnt: Sequence[bool], colour: bool
) -> str:
    texts = [_visible(text) for text in token_texts(tokenizer, ids)]
    if not colour:
        pieces = [f"⟦{t}⟧" if m else t for t, m in zip(texts, learnt, strict=True)]
        # Brackets around a run of learnt tokens, not around each.
        return "│".join(pieces).replace("⟧│⟦", "│")
    specials = {*tokenizer.special_ids.values()}
    return "".join(
        _painted(text, learnt[i], ids[i] in specials, i % 2 == 1)
        for i, text in enumerate(texts)
    )


def _painted(text: str, learnt: bool, special: bool, odd: bool) -> str:
    codes = [_LEARNT if learnt else _READ]
    codes += [_SPECIAL] if special else []
    codes += [_UNDERLINED] if odd else []
    start, end = f"\x1b[{';'.join(codes)}m", "\x1b[0m"
    # A colour that runs on over the end of a line fills the rest of it.
    return start + text.replace("\n", f"{end}\n{start}") + end


def _visible(text: str) -> str:
    """Text with its control characters spelt out, and line ends marked."""
    return "".join(
        "⏎\n"
        if character == "\n"
        else repr(character)[1:-1]
        if unicodedata.category(character) in ("Cc", "Cf", "Cs")
        else character
        for character in text
    )
