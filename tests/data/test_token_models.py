"""Both backends: text goes in and comes back, specials only when they are asked for."""

import io
import json
import pathlib

import hypothesis
import pytest
import sentencepiece
from hypothesis import strategies as st

from rl_jax.data.token_models import JsonModel, PieceModel
from rl_jax.errors import ConfigError

BYTE_BPE = pathlib.Path(__file__).parent / "files" / "byte_bpe.json"
JSON_MODEL = JsonModel(BYTE_BPE)
# Any text, often with the name of a special token in it.
SPELLED = st.lists(
    st.text(max_size=8) | st.sampled_from(sorted(JSON_MODEL.special_ids))
).map("".join)


def piece_file(tmp_path, **options):
    """A small tokenizer.model, like Gemma's or Llama 2's by its options."""
    texts = ["hello world it is fine", "hello you turn", "good day  to you"] * 3
    proto = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(texts),
        model_writer=proto,
        model_type="bpe",
        vocab_size=360,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    file = tmp_path / "tokenizer.model"
    file.write_bytes(proto.getvalue())
    return file


@hypothesis.settings(deadline=None)
@hypothesis.given(SPELLED)
def test_text_through_a_tokenizer_json_comes_back(text):
    assert JSON_MODEL.decode(JSON_MODEL.encode(text)) == text
    parsed = JSON_MODEL.encode(text, specials=True)
    assert JSON_MODEL.decode(parsed, specials=True) == text


@hypothesis.settings(deadline=None)
@hypothesis.given(SPELLED)
def test_plain_text_never_becomes_a_special_token(text):
    specials = set(JSON_MODEL.special_ids.values())
    assert not specials.intersection(JSON_MODEL.encode(text))


def test_a_special_token_is_read_only_when_asked_and_bos_is_never_added():
    eot = JSON_MODEL.special_ids["<|eot_id|>"]
    assert JSON_MODEL.encode("<|eot_id|>", specials=True) == [eot]
    plain = JSON_MODEL.encode("<|eot_id|>")
    assert len(plain) > 1 and eot not in plain
    assert JSON_MODEL.decode([*plain, eot]) == "<|eot_id|>"
    assert JSON_MODEL.decode([*plain, eot], specials=True) == "<|eot_id|>" * 2


def test_an_added_token_that_is_not_special_is_always_read():
    think = JSON_MODEL.token_id("<think>")
    assert think is not None
    assert JSON_MODEL.encode("<think>") == [think]
    assert JSON_MODEL.decode([think]) == "<think>"


def test_lengths_saved_in_the_file_are_ignored():
    # byte_bpe.json asks for truncation and padding to 8 tokens.
    assert len(JSON_MODEL.encode("the")) == 1
    assert JSON_MODEL.decode(JSON_MODEL.encode("z" * 50)) == "z" * 50


def test_token_texts_and_ids_of_a_tokenizer_json():
    assert JSON_MODEL.token_text(298) == "<|begin_of_text|>"
    assert JSON_MODEL.token_id("<|begin_of_text|>") == 298
    assert JSON_MODEL.token_id("no such token") is None
    assert JSON_MODEL.vocab_size == 306
    assert JSON_MODEL.token_text(306) is None
    # A row of the embedding that is no token.
    assert JSON_MODEL.decode([400]) == ""


def test_a_word_level_tokenizer_refuses_the_name_of_a_special_token(tmp_path):
    import tokenizers

    model = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>")
    )
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    model.add_special_tokens(["</s>"])
    (tmp_path / "tokenizer.json").write_text(model.to_str())
    loaded = JsonModel(tmp_path / "tokenizer.json")
    assert loaded.encode("a a") == [2, 2]
    with pytest.raises(ConfigError, match="name of a special token as plain text"):
        loaded.encode("a </s>")


@pytest.mark.parametrize("prefix", [False, True])
def test_sentencepiece_user_symbols_are_special_only_when_asked(tmp_path, prefix):
    file = piece_file(
        tmp_path, user_defined_symbols=["<turn>"], add_dummy_prefix=prefix
    )
    turn = sentencepiece.SentencePieceProcessor(model_file=str(file)).PieceToId(
        "<turn>"
    )
    model = PieceModel(file, specials=["<turn>"])
    text = "hello<turn> you</s>\n<turn>"
    plain, parsed = model.encode(text), model.encode(text, specials=True)
    assert turn not in plain and model.own_ids["eos"] not in plain
    assert parsed.count(turn) == 2 and parsed.count(model.own_ids["eos"]) == 1
    assert model.decode(plain) == text
    assert model.decode(parsed, specials=True) == text
    assert model.decode(parsed) == "hello you\n"


def test_a_dummy_prefix_goes_before_the_first_text_or_before_each(tmp_path):
    file = piece_file(tmp_path)
    first = PieceModel(file)
    each = PieceModel(file, prefix_each=True)

    def texts(model, text):
        return [model.token_text(i) for i in model.encode(text, specials=True)]

    assert texts(first, "hello") == texts(each, "hello") == ["▁hello"]
    # The two lists are what Hugging Face's LlamaTokenizer gives with legacy=false and
    # legacy=true.
    assert texts(first, "<s>hello") == ["<s>", "h", "ello"]
    assert texts(each, "<s>hello") == ["<s>", "▁hello"]
    for model in (first, each):
        ids = model.encode("<s>hello</s> you", specials=True)
        assert model.decode(ids, specials=True) == "<s>hello</s> you"


def test_the_dummy_prefix_is_left_out_where_a_text_goes_on(tmp_path):
    file = piece_file(tmp_path)
    for model in (PieceModel(file), PieceModel(file, prefix_each=True)):
        ids = model.encode("hello", continues=True)
        assert [model.token_text(i) for i in ids] == ["h", "ello"]
        # Also where a special token is spelt and cut.
        assert model.decode(model.encode("hello</s>hello")) == "hello</s>hello"
    # Only before the first text is a space in front of it the prefix.
    first, each = PieceModel(file), PieceModel(file, prefix_each=True)
    assert first.encode(" hello") == first.encode("hello")
    assert each.decode(each.encode(" hello")) == " hello"


def test_a_space_in_front_is_left_out_of_a_json_where_a_text_goes_on(tmp_path):
    source = json.loads(BYTE_BPE.read_text())
    with_space, without = tmp_path / "with.json", tmp_path / "without.json"
    for file in (with_space, without):
        source["pre_tokenizer"] = {
            "type": "ByteLevel",
            "add_prefix_space": file == with_space,
            "trim_offsets": True,
            "use_regex": True,
        }
        file.write_text(json.dumps(source))
    model, bare = JsonModel(with_space), JsonModel(without)
    assert model.decode(model.encode("the")) == " the"
    for text in ("the", "\nthe", "\n\n", "12", ".", "<|eot_id|>", " a", ""):
        for specials in (False, True):
            ids = model.encode(text, specials, continues=True)
            assert ids == bare.encode(text, specials)


def test_tokens_outside_the_sentencepiece_model_have_their_ids(tmp_path):
    file = piece_file(tmp_path)
    added = {"<extra>": 1000, "<think>": 1001}
    model = PieceModel(file, added=added, specials=["<extra>"])
    assert model.encode("<extra>", specials=True) == [1000]
    assert 1000 not in model.encode("<extra>")
    assert model.token_text(1000) == "<extra>" and model.token_id("<extra>") == 1000
    # Added, but not special: always read as that token, and text when decoded.
    assert model.encode("<think>") == model.encode("<think>", specials=True) == [1001]
    assert model.decode([1001, 1000]) == "<think>"
    assert model.vocab_size == 1002
    assert model.token_text(5000) is None and model.token_id("no such piece") is None
    assert model.decode([5000, *model.encode("you")]) == "you"
    assert model.own_ids == {"bos": 1, "eos": 2}


def test_tokens_that_other_files_name_are_added_to_a_tokenizer_json():
    added = {"<a>": 306, "<b>": 307}
    model = JsonModel(BYTE_BPE, added=added, specials=["<a>", "What", "nothing"])
    assert model.special_ids["<a>"] == 306 and model.special_ids["What"] == 294
    assert "nothing" not in model.special_ids
    with pytest.raises(ConfigError, match="cannot write the name"):
        model.encode("What")
    assert "<b>" not in model.special_ids
    assert model.encode("<a><b>", specials=True) == [306, 307]
    assert model.encode("<b>") == [307] and 306 not in model.encode("<a>")
    assert model.vocab_size == 308
    with pytest.raises(ConfigError, match="disagree on the id of '<a>': 306 and 400"):
        JsonModel(BYTE_BPE, added={"<a>": 400})


@pytest.mark.parametrize("content", [b"", b"{}", b"\x00garbage", b"\xff\xfe"])
def test_a_broken_file_is_named(tmp_path, content):
    file = tmp_path / "broken"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="Cannot read .*broken"):
        JsonModel(file)
    with pytest.raises(ConfigError, match="Cannot read .*broken"):
        PieceModel(file)
