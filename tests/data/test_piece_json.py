"""A tokenizer that was trained here, in both forms."""

import json
import random

import pytest

from rl_jax.data import arithmetic, tokenizer
from rl_jax.data.piece_json import transformers_files

SPECIALS = arithmetic.CHAT_SYMBOLS


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The tokenizer as trained, and with what transformers is given."""
    folder = tmp_path_factory.mktemp("trained")
    rows = arithmetic.demonstrations(300, seed=0)
    texts = [m["content"] for row in rows for m in row.messages]
    # Runs of one character, whose merges have equal scores in many places.
    texts += ["a" * n + "  " * n + "ab" * n for n in range(1, 30)]
    tokenizer.train(
        texts,
        folder,
        vocab_size=160,
        chat_template=arithmetic.CHAT_TEMPLATE,
        specials=SPECIALS,
    )
    trained = tokenizer.load(folder)
    for name, text in transformers_files(folder).items():
        (folder / name).write_bytes(text)
    return trained, tokenizer.load(folder), folder


def drawn_texts(trained):
    """Strings of pieces, of runs, and of characters that were never seen."""
    rng = random.Random(0)
    pieces = [trained.token_text(i) or "" for i in range(8, trained.vocab_size)]
    pieces = [piece.replace("\u2581", " ") for piece in pieces]
    odd = ["日", "é", "e\u0301", "\x00", "\u2581", "🙂", "\r", "\ufeff", "\xa0", "zq"]
    for parts in (pieces, [*pieces, *odd], list("aaab  12\n")):
        for _ in range(400):
            yield "".join(rng.choice(parts) for _ in range(rng.randint(0, 40)))


def test_both_forms_give_the_same_ids(both):
    trained, given, _ = both
    unknown = 0
    for text in drawn_texts(trained):
        ids = trained.encode(text)
        assert given.encode(text) == ids, repr(text)
        unknown += 3 in ids
        if 3 not in ids:
            assert given.decode(ids) == trained.decode(ids)
    assert unknown > 100


def test_special_tokens_are_read_where_they_are_asked_for(both):
    trained, given, _ = both
    for text in ("<|user|>9, minus 4<|end|>", "<eos>", "a<bos> <|user|>", "<unk>"):
        assert given.encode(text, True) == trained.encode(text, True)
    assert given.encode("<|user|>", True) == [5] and 5 not in given.encode("<|user|>")
    ids = trained.encode("<|user|>9, minus<|end|>", True)
    for specials in (False, True):
        assert given.decode(ids, specials) == trained.decode(ids, specials)


def test_what_the_folder_says_of_its_tokens_stays(both):
    trained, given, folder = both
    for name in ("bos_id", "eos_id", "pad_id", "stop_ids", "vocab_size", "add_bos"):
        assert getattr(given, name) == getattr(trained, name), name
    assert given.chat_template == trained.chat_template == arithmetic.CHAT_TEMPLATE
    assert dict(given.special_ids) == dict(trained.special_ids)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", None])
def test_a_tokenizer_that_came_with_a_model_is_left_as_it_is(tmp_path, name):
    if name:
        (tmp_path / "tokenizer.model").write_bytes(b"")
        (tmp_path / name).write_text("{}")
    assert transformers_files(tmp_path) == {}
