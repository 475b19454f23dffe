"""Ids equal those of transformers for each kind of tokenizer (tokenizers/*)."""

import json
import pathlib
import unicodedata

import pytest

from rl_jax.data import tokenizer as tokenizers

FOLDER = pathlib.Path(__file__).parent / "tokenizers"
STRINGS = json.loads((FOLDER / "hard_strings.json").read_text("utf-8"))
KINDS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
# Where transformers 5.24 is not followed, by what the string has in it.
NOT_FOLLOWED = {
    # It adds a token <|endoftext|>, for which the model has no embedding.
    "deepseek_qwen": ("<|endoftext|>",),
    # It reads the names of control and byte pieces as these, asked or not.
    "piece_unigram": ("<s>", "</s>", "<unk>", "[INST]", "<0x"),
}
# Kinds that keep a text as it is, byte for byte.
EXACT = "llama3 smollm2 smollm3 olmo2 mistral_nemo deepseek_llama glm4".split()
COMPOSED = ("qwen2", "deepseek_qwen")  # NFC
# A space in front of a text is the one that they put there themselves.
WITHOUT_FIRST_SPACE = ("mistral", "piece_bpe", "piece_bpe_added", "piece_unigram")


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    expected = json.loads((FOLDER / request.param / "expected.json").read_text())
    return request.param, tokenizers.load(FOLDER / request.param), expected


def cases(name, expected):
    """Each string with its ids, special tokens read and not."""
    for number, (text, parsed) in enumerate(zip(STRINGS, expected["parsed"])):
        if not any(part in text for part in NOT_FOLLOWED.get(name, ())):
            yield text, parsed, expected["plain"].get(str(number), parsed)


def test_ids_are_those_of_transformers(kind):
    name, tokenizer, expected = kind
    found = list(cases(name, expected))
    assert len(found) > 0.9 * len(STRINGS)
    for text, parsed, plain in found:
        assert (text, tokenizer.encode(text, specials=True)) == (text, parsed)
        assert (text, tokenizer.encode(text)) == (text, plain)


def test_text_that_spells_a_special_token_stays_text(kind):
    _, tokenizer, _ = kind
    for special, token_id in tokenizer.special_ids.items():
        text = f"a {special}b"
        plain = tokenizer.encode(text)
        # The unknown token stands for characters of the text, so it may be there.
        assert token_id not in plain or special == "<unk>"
        assert tokenizer.decode(plain) == text
        assert token_id in tokenizer.encode(text, specials=True)


def test_text_comes_back(kind):
    name, tokenizer, _ = kind
    for text in STRINGS:
        back = text if name in EXACT else text.replace("\u2581", " ")
        if name in COMPOSED:
            back = unicodedata.normalize("NFC", text)
        if name in WITHOUT_FIRST_SPACE:
            back = back.removeprefix(" ")
        assert tokenizer.decode(tokenizer.encode(text)) == back


def test_a_text_may_go_on_where_another_ended(kind):
    _, tokenizer, _ = kind
    for first, second in (("It", " is"), ("It", "self"), ("a\n", "\nb"), ("a", "")):
        ids = tokenizer.encode(first) + tokenizer.encode(second, continues=True)
        assert tokenizer.decode(ids) == first + second


def test_no_kind_was_left_out():
    assert len(KINDS) == 18 and {*NOT_FOLLOWED, *EXACT} <= {*KINDS}
