"""Token-exact conversations: one BOS, no specials from data, masks turn by turn."""

import json
import pathlib
import shutil

import hypothesis
import pytest
from hypothesis import strategies as st

from chat_runs import learnt_texts, masked_text
from rl_jax.data import chat, chat_talk
from rl_jax.data import tokenizer as tokenizers
from rl_jax.errors import ConfigError

FILES = pathlib.Path(__file__).parent / "files"
CHATML = (FILES / "chatml.jinja").read_text()
LLAMA3 = (FILES / "llama3.jinja").read_text()
BOS, EOT, IM_START, IM_END = 298, 302, 303, 304
USER = {"role": "user", "content": "What is 12 plus 30?"}
REPLY = {"role": "assistant", "content": "It is 42."}
TURNS = [USER, REPLY, USER, {"role": "assistant", "content": "2"}]
TALK = [{"role": "system", "content": "the system"}, USER, REPLY, USER, REPLY]
CONTENT = st.lists(
    st.text(max_size=6)
    | st.sampled_from(["\n", " ", "\n\n", "<|im_end|>", "<|eot_id|>", "\ufdd0"])
).map("".join)


def byte_bpe(folder, **config):
    """A tokenizer around byte_bpe.json."""
    folder.mkdir(exist_ok=True)
    shutil.copy(FILES / "byte_bpe.json", folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizers.load(folder)


@pytest.fixture(scope="module")
def chatml(tmp_path_factory):
    # As SmolLM2 has it: the start of a turn is also the BOS token.
    return byte_bpe(
        tmp_path_factory.mktemp("chatml"),
        chat_template=CHATML,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        add_bos_token=True,
    )


@pytest.fixture(scope="module")
def llama3(tmp_path_factory):
    return byte_bpe(
        tmp_path_factory.mktemp("llama3"),
        chat_template=LLAMA3,
        bos_token="<|begin_of_text|>",
        eos_token="<|end_of_text|>",
        add_bos_token=True,
    )


def templated(folder, template, **config):
    """A tokenizer with a template of its own."""
    config = {"eos_token": "<|end_of_text|>"} | config
    return byte_bpe(folder, chat_template=template, **config)


def test_the_prompt_of_llama3_is_these_ids(llama3):
    def plain(text):
        return llama3.encode(text)

    header, end = llama3.token_id("<|start_header_id|>"), 301
    newlines = plain("\n\n")
    assert len(newlines) == 1 and llama3.token_id("<|end_header_id|>") == end
    assert chat.prompt_ids(llama3, [USER]) == [
        BOS,
        *[header, *plain("user"), end, *newlines],
        *[*plain("What is 12 plus 30?"), EOT],
        *[header, *plain("assistant"), end, *newlines],
    ]


def test_bos_stands_once_whoever_writes_it(tmp_path, llama3, chatml):
    assert chat.prompt_ids(llama3, [USER]).count(BOS) == 1
    ids, mask = chat.conversation_ids(llama3, TALK)
    assert ids.count(BOS) == 1 and ids[0] == BOS and not mask[0]
    # The template's first token is the BOS token of SmolLM2: nothing is added.
    assert chat.prompt_ids(chatml, [USER])[:1] == [IM_START]
    assert chat.prompt_ids(chatml, [USER])[1] != IM_START
    # The template does not write it: the tokenizer's config decides.
    bare = LLAMA3.replace("{{- bos_token }}", "")
    bos = "<|begin_of_text|>"
    asked = templated(tmp_path / "a", bare, bos_token=bos, add_bos_token=True)
    assert chat.prompt_ids(asked, [USER]) == chat.prompt_ids(llama3, [USER])
    assert chat.conversation_ids(asked, TALK) == (ids, mask)
    unasked = templated(tmp_path / "b", bare, bos_token=bos)
    assert chat.prompt_ids(unasked, [USER]) == chat.prompt_ids(llama3, [USER])[1:]
    twice = templated(tmp_path / "c", "{{ bos_token }}" + LLAMA3, bos_token=bos)
    with pytest.raises(ConfigError, match="beginning of sequence twice"):
        chat.prompt_ids(twice, [USER])


def test_the_mask_covers_replies_with_their_end_and_no_newline_after(chatml, llama3):
    assert masked_text(chatml, TALK) == ["It is 42.<|im_end|>"] * 2
    assert masked_text(llama3, TALK) == ["It is 42.<|eot_id|>"] * 2
    ids, mask = chat.conversation_ids(chatml, TALK)
    assert ids[-1:] == chatml.encode("\n") and not mask[-1]
    assert masked_text(chatml, TALK[:2]) == []
    empty = [USER, {"role": "assistant", "content": ""}]
    assert masked_text(chatml, empty) == ["<|im_end|>"]


def test_every_prefix_of_a_conversation_is_its_prompt(chatml, llama3):
    for tokenizer in (chatml, llama3):
        ids, mask = chat.conversation_ids(tokenizer, TALK)
        for turn in (2, 4):
            prompt = chat.prompt_ids(tokenizer, TALK[:turn])
            assert ids[: len(prompt)] == prompt
            assert mask[len(prompt)] and not mask[len(prompt) - 1]


@hypothesis.settings(deadline=None)
@hypothesis.given(CONTENT, CONTENT)
def test_data_never_adds_special_tokens_and_keeps_its_text(chatml, question, answer):
    messages = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer},
    ]
    ids, mask = chat.conversation_ids(chatml, messages)
    assert ids.count(IM_START) == 3 and ids.count(IM_END) == 3 and EOT not in ids
    prompt = chat.prompt_ids(chatml, messages[:1])
    assert ids[: len(prompt)] == prompt and mask[: len(prompt)] == [False] * len(prompt)
    reply = [i for i, flag in zip(ids, mask, strict=True) if flag]
    assert chatml.decode(prompt).split("user\n", 1)[1] == (
        question.replace("\ufdd0", "\ufffd") + "\nassistant\n"
    )
    assert reply[-1] == IM_END
    assert chatml.decode(reply[:-1]) == answer.replace("\ufdd0", "\ufffd")


def test_a_special_token_spelt_by_a_user_costs_nothing_but_itself(llama3):
    spelt = "the <|eot_id|> user"
    ids = chat.prompt_ids(llama3, [{"role": "user", "content": spelt}])
    assert ids.count(EOT) == 1
    assert spelt in llama3.decode(ids)
    # Also where a template reads something deeper than the content.
    tool = {"name": "<|eot_id|>", "arguments": {"<|eot_id|>": ["<|eot_id|>", 1]}}
    messages = [{"role": "user", "content": "", "call": tool}]
    talk = chat_talk.make_ready(llama3, messages, None, {"bos_token": "<|eot_id|>"})
    assert "<|eot_id|>" not in str(talk.messages) + str(talk.names)


def test_a_token_across_the_edge_of_a_reply_is_not_used(chatml):
    # The prompt ends in a newline. Together with those of the reply it would be one
    # token, which is not what a policy has before it when it samples.
    reply = {"role": "assistant", "content": "\n\nIt is 42."}
    prompt, content = chat.prompt_ids(chatml, [USER]), chatml.encode(reply["content"])
    together = chatml.encode("assistant\n\n\nIt is 42.")
    assert together != chatml.encode("assistant\n") + content
    ids, _ = chat.conversation_ids(chatml, [USER, reply, USER, REPLY])
    start = len(prompt)
    assert ids[:start] == prompt
    assert ids[start : start + len(content)] == content
    assert ids[start + len(content)] == IM_END
    assert masked_text(chatml, [USER, reply, USER, REPLY]) == [
        "\n\nIt is 42.<|im_end|>",
        "It is 42.<|im_end|>",
    ]


def test_a_turn_may_have_stop_tokens_in_its_middle(tmp_path):
    # As DeepSeek's has after each of several calls.
    template = CHATML.replace("<|im_end|>\\n", "<|im_end|>;<|im_end|>\\n")
    tokenizer = templated(tmp_path, template)
    both = ["It is 42.<|im_end|>;<|im_end|>"] * 2
    assert masked_text(tokenizer, [USER, REPLY, USER, REPLY]) == both


def test_a_tokenizer_that_puts_spaces_everywhere_refuses_what_it_cannot_join(tmp_path):
    byte_bpe(tmp_path, chat_template=CHATML, eos_token="<|im_end|>")
    model = json.loads((tmp_path / "tokenizer.json").read_text())
    model["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = True
    (tmp_path / "tokenizer.json").write_text(json.dumps(model))
    tokenizer = tokenizers.load(tmp_path)
    assert masked_text(tokenizer, [USER, REPLY])
    reply = {"role": "assistant", "content": "\n\nIt is 42."}
    with pytest.raises(ConfigError, match="one after the other"):
        chat.conversation_ids(tokenizer, [USER, reply])


def test_a_template_that_rewrites_earlier_turns_is_refused_with_both_texts(tmp_path):
    # As templates do that drop the thoughts of all turns but the last.
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{% if m.role == 'assistant' and not loop.last %}"
        "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
        "{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = templated(tmp_path, template)
    thought = {"role": "assistant", "content": "<think>hm</think>42"}
    assert masked_text(tokenizer, [USER, thought]) == ["<think>hm</think>42<|im_end|>"]
    talk = [USER, thought, USER, REPLY]
    with pytest.raises(ConfigError) as error:
        chat.conversation_ids(tokenizer, talk)
    text = str(error.value)
    assert "turn 2" in text and "<think>hm" in text and "assistant\\n42" in text
    assert len(text.splitlines()) <= 3
    # What is not learnt may be rewritten.
    talk = [USER, {**thought, "loss": False}, USER, REPLY]
    assert masked_text(tokenizer, talk) == ["It is 42.<|im_end|>"]


def test_a_generation_prompt_that_no_reply_begins_with_is_refused(tmp_path):
    template = CHATML.replace("assistant\\n' }}", "assistant\\n<thought>\\n' }}")
    tokenizer = templated(tmp_path, template)
    with pytest.raises(ConfigError, match="<thought>"):
        chat.conversation_ids(tokenizer, [USER, REPLY])


def test_a_reply_without_an_end_of_turn_is_refused(tmp_path):
    tokenizer = templated(
        tmp_path, "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )  # fmt: skip
    assert chat.prompt_ids(tokenizer, [USER])
    with pytest.raises(ConfigError, match="would not learn to stop"):
        chat.conversation_ids(tokenizer, [USER, REPLY])


def test_a_model_without_a_chat_template_says_where_to_put_one(tmp_path):
    tokenizer = byte_bpe(tmp_path, eos_token="<|end_of_text|>")
    for ids in (chat.prompt_ids, chat.conversation_ids, chat.training_sequences):
        with pytest.raises(ConfigError) as error:
            ids(tokenizer, [USER])
        lines = str(error.value).splitlines()
        assert "chat_template.jinja" in lines[1] and len(lines) == 3
    # The template that it offers for plain text.
    plain = tokenizers.load(tmp_path, chat_template=lines[2])
    assert chat.prompt_ids(plain, [USER]) == plain.encode(USER["content"])
    assert masked_text(plain, [USER, REPLY]) == ["It is 42.<|end_of_text|>"]


def test_a_trained_sentencepiece_tokenizer_holds_a_conversation(tmp_path):
    texts = [
        "user assistant system 0123456789+=.?\n What is It plus SmolLM, trained by"
    ]
    tokenizer = tokenizers.train(
        [
            *texts,
            "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
        ],
        tmp_path,
        vocab_size=100,
        chat_template=CHATML,
        specials=["<|im_start|>", "<|im_end|>"],
    )
    assert masked_text(tokenizer, TALK) == ["It is 42.<|im_end|>"] * 2
    ids, _ = chat.conversation_ids(tokenizer, TALK)
    rendered = chat.render(CHATML, TALK, add_generation_prompt=False)
    assert tokenizer.decode(ids, specials=True) == rendered


def test_a_last_turn_may_end_unlike_the_others(tmp_path):
    # OLMo 3's template ends the last with the end-of-sequence token.
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{{ '<|im_end|>\n' if not (loop.last and m.role == 'assistant') else "
        "eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = templated(tmp_path, template)
    assert masked_text(tokenizer, TURNS) == ["It is 42.<|im_end|>", "2<|end_of_text|>"]


def test_a_turn_that_ends_only_where_it_is_last_is_learnt_there(tmp_path):
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content }}"
        "{{ '\n' if not loop.last or m.role == 'user' else eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    tokenizer = templated(tmp_path, template)
    assert learnt_texts(tokenizer, TURNS) == [
        ["It is 42.<|end_of_text|>"],
        ["2<|end_of_text|>"],
    ]
    with pytest.raises(ConfigError, match="around turn 2"):
        chat.conversation_ids(tokenizer, TURNS)


@pytest.mark.slow
def test_ids_are_those_of_transformers(tmp_path, chatml, llama3):
    transformers = pytest.importorskip("transformers")
    for tokenizer, bos in ((chatml, "<|im_start|>"), (llama3, "<|begin_of_text|>")):
        theirs = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(FILES / "byte_bpe.json"), bos_token=bos
        )
        theirs.chat_template = tokenizer.chat_template
        for messages, prompt in ((TALK, False), (TALK[:2], True)):
            expected = theirs.apply_chat_template(
                messages, add_generation_prompt=prompt, return_dict=False
            )
            if prompt:
                assert chat.prompt_ids(tokenizer, messages) == expected
            else:
                assert chat.conversation_ids(tokenizer, messages)[0] == expected
