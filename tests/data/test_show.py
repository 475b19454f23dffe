"""Tokens for people: nothing is lost, and what is learnt can be told, with or without
colour."""

import io
import json
import pathlib
import re
import shutil

import pytest

from rl_jax.data import show, tokenizer
from rl_jax.data.arithmetic import CHAT_SYMBOLS, CHAT_TEMPLATE

FILES = pathlib.Path(__file__).parent / "files"
TEXT = "<|user|>1 + 1 =\n?<|assistant|>2\t.<|end|>"


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A SentencePiece tokenizer."""
    return tokenizer.train(
        ["1 + 1 =\n? 2\t."],
        tmp_path_factory.mktemp("pieces"),
        vocab_size=40,
        chat_template=CHAT_TEMPLATE,
        specials=CHAT_SYMBOLS,
    )


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    """A tokenizer whose tokens may end within a character."""
    folder = tmp_path_factory.mktemp("bytes")
    shutil.copy(FILES / "byte_bpe.json", folder / "tokenizer.json")
    config = json.dumps({"eos_token": "<|im_end|>"})
    (folder / "tokenizer_config.json").write_text(config)
    return tokenizer.load(folder)


def without_colour(text):
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def learnt_in(text):
    """What stands in the colour of learnt tokens."""
    return "".join(re.findall(r"\x1b\[32[\d;]*m(.*?)\x1b\[0m", text, re.DOTALL))


def test_the_texts_of_tokens_are_the_text(pieces):
    ids = pieces.encode(TEXT, specials=True)
    texts = show.token_texts(pieces, ids)
    assert len(texts) == len(ids) and "".join(texts) == TEXT
    assert texts[0] == "<|user|>" and texts[-1] == "<|end|>"


@pytest.mark.parametrize("text", ["añb", "日本", "a\U0001f600b", "\U0001f600"])
def test_a_character_comes_with_the_last_of_its_tokens(byte_level, text):
    ids = byte_level.encode(text)
    assert len(ids) > len(text)
    texts = show.token_texts(byte_level, ids)
    assert "".join(t for t in texts if t != "\ufffd") == text
    assert texts.count("\ufffd") == len(ids) - len(text)


def test_what_ends_within_a_character_is_shown_as_such(byte_level):
    ids = byte_level.encode("a日")[:-1]
    assert show.token_texts(byte_level, ids)[0] == "a"
    assert "\ufffd" in show.token_texts(byte_level, ids)[-1]


def test_without_colour_learnt_tokens_stand_in_brackets(pieces):
    ids = pieces.encode(TEXT, specials=True)
    start = ids.index(pieces.special_ids["<|assistant|>"]) + 1
    mask = [i >= start for i in range(len(ids))]
    text = show.shown(pieces, ids, mask, colour=False)
    assert text.count("⟦") == text.count("⟧") == 1
    assert text.startswith("<|user|>│1│")
    learnt = text[text.index("⟦") + 1 : text.index("⟧")].split("│")
    assert learnt[0] == "2" and learnt[-1] == "<|end|>"
    assert len(re.split("[│]", text)) == len(ids)
    # The end of a line and a tabulator can be seen.
    assert "⏎\n" in text and r"\t" in text


def test_with_colour_the_mask_is_the_colour(pieces):
    ids = pieces.encode(TEXT, specials=True)
    for learnt in range(len(ids)):
        mask = [i == learnt for i in range(len(ids))]
        text = show.shown(pieces, ids, mask, colour=True)
        token = show.token_texts(pieces, ids)[learnt]
        # A line ends outside of the colour, or it would run on.
        assert learnt_in(text) == token.replace("\n", "⏎").replace("\t", r"\t")
        plain = without_colour(text)
        assert plain == TEXT.replace("\n", "⏎\n").replace("\t", r"\t")
    # Special tokens are reversed, and every second token is underlined.
    codes = re.findall(r"\x1b\[3[26]([\d;]*)m", text)
    assert codes[0] == ";7" and codes[1] == ";4"


def test_what_data_hold_cannot_control_the_terminal(byte_level):
    ids = byte_level.encode("\x1b[2J\u202egood")
    text = show.shown(byte_level, ids, [False] * len(ids), colour=False)
    shown = text.replace("│", "").replace("\ufffd", "")
    assert shown == r"\x1b[2J\u202egood"


def test_the_middle_of_a_long_row_is_left_out_and_said(pieces):
    ids = pieces.encode("1 + 1 = 2 " * 300)
    for colour in (True, False):
        text = show.shown(pieces, ids, [False] * len(ids), colour=colour)
        assert f"... {len(ids) - 400:,} tokens are not shown ..." in text
    head, _, tail = text.splitlines()
    assert (head.count("│") + 1, tail.count("│") + 1) == (300, 100)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "colour"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (io.StringIO(), {"FORCE_COLOR": ""}, False),
        (Terminal(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_when_there_is_colour(stream, environment, colour):
    assert show.wants_colour(stream, environment) is colour
