"""What a model folder says, and the tokenizers that are trained here."""

import json
import pathlib
import shutil

import hypothesis
import pytest
from hypothesis import strategies as st

from rl_jax.data import tokenizer as tokenizers
from rl_jax.errors import ConfigError

FILES = pathlib.Path(__file__).parent / "files"
CHATML = (FILES / "chatml.jinja").read_text()
LLAMA3 = (FILES / "llama3.jinja").read_text()
TEXTS = [
    f"{a}+{b}=?\n<think>\n{a} plus  {b}\tis {a + b}\n</think>\n\\boxed{{{a + b}}} é"
    for a in range(0, 100, 7)
    for b in range(0, 100, 9)
]


def folder(tmp_path, **files):
    """A model folder around byte_bpe.json; `files` are its JSON files."""
    shutil.copy(FILES / "byte_bpe.json", tmp_path / "tokenizer.json")
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def trained(path, **options):
    options = {"vocab_size": 120, "chat_template": CHATML} | options
    specials = ["<|im_start|>", "<|im_end|>"]
    return tokenizers.train(TEXTS, path, specials=specials, **options)


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("arithmetic"))


def test_a_llama3_folder_is_read(tmp_path):
    tokenizer = tokenizers.load(
        folder(
            tmp_path,
            tokenizer_config={
                "bos_token": "<|begin_of_text|>",
                "eos_token": {"content": "<|end_of_text|>", "lstrip": False},
                "chat_template": LLAMA3,
            },
            generation_config={"eos_token_id": [299, 305]},
            config={"eos_token_id": 304, "pad_token_id": 17},
        )
    )
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (298, 299, 17)
    # generation_config, the tokenizer's eos, and <|eot_id|> from the template;
    # config.json has no say where generation_config.json speaks.
    assert tokenizer.stop_ids == (299, 302, 305)
    assert tokenizer.chat_template == LLAMA3
    assert not tokenizer.add_bos
    assert (tokenizer.bos_text, tokenizer.eos_text) == (
        "<|begin_of_text|>",
        "<|end_of_text|>",
    )
    assert tokenizer.vocab_size == 306
    assert tokenizer.token_id("<|eot_id|>") == 302
    assert tokenizer.decode(tokenizer.encode("the user")) == "the user"


@pytest.mark.parametrize(
    ("files", "stop_ids"),
    [
        ({"generation_config": {"eos_token_id": 299}}, (299,)),
        ({"config": {"eos_token_id": [299, 302]}}, (299, 302)),
        ({"tokenizer_config": {"eos_token": "<|im_end|>"}}, (304,)),
        ({"special_tokens_map": {"eos_token": {"content": "<|im_end|>"}}}, (304,)),
        ({"tokenizer_config": {"chat_template": CHATML}}, (304,)),
        # The template's own idea of the end comes on top.
        (
            {
                "tokenizer_config": {"chat_template": LLAMA3, "eos_token": None},
                "config": {"eos_token_id": 299},
            },
            (299, 302),
        ),
        # Whatever whitespace the template puts before the end of a turn.
        (
            {
                "tokenizer_config": {
                    "chat_template": "{% for m in messages %}{{ m.content }} \n"
                    "{{ eos_token }}{% endfor %}",
                    "eos_token": "<|end_of_text|>",
                }
            },
            (299,),
        ),
    ],
)
def test_where_a_model_stops(tmp_path, files, stop_ids):
    assert tokenizers.load(folder(tmp_path, **files)).stop_ids == stop_ids


def test_a_template_that_does_not_end_turns_gives_no_stop_token(tmp_path):
    config = {
        "chat_template": "<|im_start|>{% for m in messages %}{{ m.content }}\n"
        "{% endfor %}",
        "eos_token": "<|end_of_text|>",
    }
    tokenizer = tokenizers.load(folder(tmp_path, tokenizer_config=config))
    assert tokenizer.stop_ids == (299,)


def test_the_token_that_begins_the_next_turn_is_a_stop_token(tmp_path):
    config = {
        "chat_template": "{% for m in messages %}{{ '<|start_header_id|>' if m.role == "
        "'user' else '<|end_header_id|>' }}{{ m.content }}{% endfor %}",
        "eos_token": "<|end_of_text|>",
    }
    tokenizer = tokenizers.load(folder(tmp_path, tokenizer_config=config))
    assert tokenizer.stop_ids == (299, 300)
    assert tokenizers.describe_stops(tokenizer) == (
        "<|end_of_text|> (299), <|start_header_id|> (300)"
    )
    # A template that takes one question and its answer is asked no more.
    config["chat_template"] = (
        "{% if messages | length > 2 %}{{ raise_exception('no more') }}{% endif %}"
        "{{ messages[-1].content + '<|eot_id|>' }}"
    )
    tokenizer = tokenizers.load(folder(tmp_path, tokenizer_config=config))
    assert tokenizer.stop_ids == (299, 302)


def test_a_stop_token_outside_the_vocabulary_is_shown(tmp_path):
    path = folder(tmp_path, generation_config={"eos_token_id": [299, 9999]})
    tokenizer = tokenizers.load(path)
    assert tokenizers.describe_stops(tokenizer) == (
        "<|end_of_text|> (299), no token (9999)"
    )


def test_a_template_reads_the_tokens_that_the_folder_names(tmp_path):
    config = {
        "bos_token": {"content": "<|begin_of_text|>"},
        "eos_token": "<|im_end|>",
        "unk_token": "<|eot_id|>",
        "pad_token": None,
    }
    path = folder(tmp_path, tokenizer_config=config, config={"pad_token_id": 17})
    assert tokenizers.load(path).named_texts == {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|eot_id|>",
    }


def test_added_tokens_of_the_folder_are_read(tmp_path):
    added = {"306": {"content": "<a>", "special": True}, "307": {"content": "<b>"}}
    config = {
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": added,
        "additional_special_tokens": ["<c>"],
    }
    files = {"tokenizer_config": config, "added_tokens": {"<c>": 308}}
    tokenizer = tokenizers.load(folder(tmp_path, **files))
    assert tokenizer.encode("<a><b><c>", specials=True) == [306, 307, 308]
    assert [i for i in tokenizer.encode("<a><b><c>") if i > 305] == [307]
    added["306"]["content"] = "<other>"
    added["299"] = {"content": "<a>", "special": True}
    with pytest.raises(ConfigError, match="disagree on the id of '<a>'"):
        tokenizers.load(folder(tmp_path, **files))


@pytest.mark.parametrize(
    ("kind", "ids"),
    [
        ("piece_bpe", "▁hello</s>hello"),
        ("piece_bpe_legacy", "▁hello</s>▁hello"),
        ("piece_bpe_unsaid", "▁hello</s>▁hello"),  # of model_type mistral
        ("piece_bpe_bare", "hello</s>hello"),
    ],
)
def test_where_a_folder_puts_spaces(kind, ids):
    tokenizer = tokenizers.load(pathlib.Path(__file__).parent / "tokenizers" / kind)
    found = tokenizer.encode("hello</s>hello", specials=True)
    assert "".join(tokenizer.token_text(i) or "" for i in found) == ids


def test_an_explicit_null_means_that_there_is_no_such_token(tmp_path):
    tokenizer = tokenizers.load(
        folder(
            tmp_path,
            tokenizer_config={"bos_token": None, "eos_token": "<|im_end|>"},
            config={"bos_token_id": 298},
        )
    )
    assert tokenizer.bos_id is None and tokenizer.bos_text == ""


def test_the_template_comes_from_the_argument_the_file_or_the_config(tmp_path):
    config = {
        "chat_template": [
            {"name": "tool_use", "template": "tools"},
            {"name": "default", "template": LLAMA3},
        ],
        "eos_token": "<|end_of_text|>",
    }
    path = folder(tmp_path, tokenizer_config=config)
    assert tokenizers.load(path).chat_template == LLAMA3
    (path / "chat_template.jinja").write_text(CHATML)
    assert tokenizers.load(path).chat_template == CHATML
    assert tokenizers.load(path).stop_ids == (299, 304)
    given = tokenizers.load(path, chat_template=LLAMA3)
    assert given.chat_template == LLAMA3 and given.stop_ids == (299, 302)


def test_a_sentencepiece_folder_without_a_config_uses_the_ids_of_its_model(tmp_path):
    trained(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "generation_config.json").unlink()
    tokenizer = tokenizers.load(tmp_path)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 0)
    assert tokenizer.stop_ids == (2,) and tokenizer.chat_template == ""


def test_what_is_wrong_with_a_folder_is_said(tmp_path):
    def message(path):
        with pytest.raises(ConfigError) as error:
            tokenizers.load(path)
        assert len(str(error.value).splitlines()) <= 3
        return str(error.value)

    assert "does not exist" in message(tmp_path / "nowhere")
    (tmp_path / "model.safetensors").touch()
    text = message(tmp_path)
    assert "neither tokenizer.json nor tokenizer.model" in text
    assert "model.safetensors" in text
    path = folder(tmp_path)
    assert "which token ends a completion" in message(path)
    assert "generation_config.json" in message(path)
    (path / "config.json").write_text("{")
    assert "config.json is not JSON" in message(path)
    (path / "config.json").write_text("[]")
    assert "should hold a JSON object" in message(path)
    (path / "config.json").unlink()
    folder(tmp_path, tokenizer_config={"bos_token": "<s>"})
    assert "bos_token is '<s>', which is not in its vocabulary" in message(path)
    named = [{"name": "rag", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder(tmp_path, tokenizer_config={"chat_template": named})
    assert "['rag', 'tool_use'], but none named default" in message(path)
    (path / "chat_template.jinja").write_bytes(b"\xff")
    assert "chat_template.jinja is not UTF-8" in message(path)
    (path / "chat_template.jinja").write_text("{% if %}")
    assert "not valid Jinja: line 1" in message(path)


def test_training_twice_gives_the_same_bytes(tmp_path, arithmetic):
    one, two = trained(tmp_path / "one"), trained(tmp_path / "two")
    assert one.vocab_size == two.vocab_size == arithmetic.vocab_size
    names = ["generation_config.json", "tokenizer.model", "tokenizer_config.json"]
    assert sorted(file.name for file in (tmp_path / "one").iterdir()) == names
    for name in names:
        first, second = ((tmp_path / run / name).read_bytes() for run in ("one", "two"))
        assert first == second


def test_a_trained_tokenizer_has_its_specials_and_stops_at_the_turn_end(arithmetic):
    assert arithmetic.pad_id == 0 and arithmetic.bos_id == 1 and arithmetic.eos_id == 2
    assert arithmetic.token_id("<|im_start|>") == 4
    assert arithmetic.token_id("<|im_end|>") == 5
    assert arithmetic.stop_ids == (2, 5)
    assert arithmetic.special_ids == {
        "<pad>": 0,
        "<bos>": 1,
        "<eos>": 2,
        "<unk>": 3,
        "<|im_start|>": 4,
        "<|im_end|>": 5,
    }
    assert not arithmetic.add_bos
    assert arithmetic.vocab_size <= 120


def test_retraining_over_an_older_folder_forgets_its_stop_ids(tmp_path):
    trained(tmp_path)
    again = tokenizers.train(TEXTS, tmp_path, vocab_size=120, chat_template="")
    assert again.stop_ids == (2,)


def test_every_training_text_comes_back_and_digits_stand_alone(arithmetic):
    for text in TEXTS:
        ids = arithmetic.encode(text)
        assert arithmetic.decode(ids) == text
        assert arithmetic.model._model.unk_id() not in ids
    digits = [arithmetic.token_text(i) for i in arithmetic.encode("1079+28")]
    assert digits == list("1079+28")


@hypothesis.settings(deadline=None)
@hypothesis.given(st.text(alphabet=sorted(set("".join(TEXTS)))))
def test_any_text_of_known_characters_comes_back(arithmetic, text):
    assert arithmetic.decode(arithmetic.encode(text)) == text
    parsed = arithmetic.encode(text, specials=True)
    assert arithmetic.decode(parsed, specials=True) == text


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.lists(st.text(alphabet="12+ \n", max_size=4) | st.just("<|im_end|>"))
)
def test_specials_come_from_templates_only(arithmetic, parts):
    text = "".join(parts)
    parsed = arithmetic.encode(text, specials=True)
    assert parsed.count(5) == parts.count("<|im_end|>")
    assert arithmetic.decode(parsed, specials=True) == text
    assert arithmetic.decode(parsed) == text.replace("<|im_end|>", "")
    assert 5 not in arithmetic.encode(text)


def test_the_vocabulary_bound_holds(tmp_path):
    assert trained(tmp_path / "small", vocab_size=60).vocab_size == 60
    assert trained(tmp_path / "big", vocab_size=5000).vocab_size < 500


def test_training_says_what_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match="vocab_size=10"):
        trained(tmp_path / "a", vocab_size=10)
    with pytest.raises(ConfigError, match="Cannot train"):
        tokenizers.train([], tmp_path / "b", vocab_size=99, chat_template="")
    folder(tmp_path)
    with pytest.raises(ConfigError, match="already holds .* tokenizer.json"):
        trained(tmp_path)


def test_training_is_silent(tmp_path, capfd):
    trained(tmp_path)
    captured = capfd.readouterr()
    assert captured.out == "" and captured.err == ""
