"""Conversations with the families' own templates, and tiny tokenizers of each."""

import json
import pathlib

import pytest

from chat_runs import learnt_texts, masked_text
from rl_jax.data import chat
from rl_jax.data import tokenizer as tokenizers
from rl_jax.errors import ConfigError

TOKENIZERS = pathlib.Path(__file__).parent / "tokenizers"
REAL = pathlib.Path(__file__).parent / "templates"
SOURCES = json.loads((REAL / "sources.json").read_text())
CONVERSATIONS = json.loads((REAL / "conversations.json").read_text("utf-8"))
USER = {"role": "user", "content": "What is 12 plus 30?"}
REPLY = {"role": "assistant", "content": "It is 42."}
TURNS = [USER, REPLY, USER, {"role": "assistant", "content": "2"}]
ENDS = {
    "llama3_1": "<|eot_id|>",
    "llama3_2": "<|eot_id|>",
    "smollm2": "<|im_end|>",
    "smollm3_unsloth": "<|im_end|>",
    "mistral_7b_v0_2": "</s>",
    "mistral_nemo": "</s>",
    "qwen2_5": "<|im_end|>",
    "olmo2": "<|endoftext|>",
    "gemma2": "<end_of_turn>",
    "gemma3": "<end_of_turn>",
}


def family(name, tokenizer=None):
    """A real template with a tiny tokenizer of its family."""
    return tokenizers.load(
        TOKENIZERS / (tokenizer or SOURCES[name]["tokenizers"][0]),
        chat_template=(REAL / f"{name}.jinja").read_text("utf-8"),
    )


@pytest.mark.parametrize(
    ("name", "kind"), [(name, k) for name in ENDS for k in SOURCES[name]["tokenizers"]]
)
def test_masks_of_the_families(name, kind):
    tokenizer, end = family(name, kind), ENDS[name]
    assert masked_text(tokenizer, TURNS[:2]) == [f"It is 42.{end}"]
    assert masked_text(tokenizer, TURNS) == [f"It is 42.{end}", f"2{end}"]
    assert learnt_texts(tokenizer, TURNS) == [[f"It is 42.{end}", f"2{end}"]]
    ids, mask = chat.conversation_ids(tokenizer, TURNS)
    for turn in (1, 3):
        prompt = chat.prompt_ids(tokenizer, TURNS[:turn])
        assert ids[: len(prompt)] == prompt
        assert mask[len(prompt)] and not mask[len(prompt) - 1]
    # One beginning of sequence. OLMo 2 ends its turns with the same token.
    bos = tokenizer.bos_id
    if bos is not None and name != "smollm2":
        assert ids[0] == bos and bos not in chat.prompt_ids(tokenizer, [USER])[1:]
    parts = [{**USER, "content": [{"type": "text", "text": USER["content"]}]}, REPLY]
    assert chat.conversation_ids(tokenizer, parts) == (
        chat.conversation_ids(tokenizer, TURNS[:2])
    )


def test_qwen3_learns_each_turn_as_it_is_sampled():
    qwen3 = family("qwen3")
    none = "<think>\n\n</think>\n\n"
    expected = [[f"{none}It is 42.<|im_end|>"], [f"{none}2<|im_end|>"]]
    assert learnt_texts(qwen3, TURNS) == expected
    # The switch puts the empty thoughts into the prompt.
    off = {"enable_thinking": False}
    expected = [["It is 42.<|im_end|>"], ["2<|im_end|>"]]
    assert learnt_texts(qwen3, TURNS, variables=off) == expected
    thoughts = CONVERSATIONS["conversations"]["thoughts in the content"]["messages"]
    first = "<think>\n12 + 30 is 42.\n</think>\n\nIt is 42.<|im_end|>"
    second = "<think>\nEasy.\n</think>\n\n2<|im_end|>"
    assert learnt_texts(qwen3, thoughts) == [[first], [second]]
    sequences = chat.training_sequences(qwen3, thoughts)
    for turn, (ids, mask) in zip((1, 3), sequences, strict=True):
        prompt = chat.prompt_ids(qwen3, thoughts[:turn])
        assert ids[: len(prompt)] == prompt and mask[len(prompt)]
    # Where the second turn is learnt, the first is read without its thoughts.
    assert "12 + 30" not in qwen3.decode(sequences[1][0])
    # Thoughts apart from the content are the same thoughts.
    apart = [*thoughts[:3], {**thoughts[3], "content": "2", "reasoning": "Easy."}]
    assert chat.training_sequences(qwen3, apart) == sequences


def test_turns_that_stay_as_they_are_share_a_sequence():
    # Qwen3 keeps the thoughts of what follows the last question.
    talk = CONVERSATIONS["conversations"]["a tool is called"]["messages"]
    thinking = [talk[0], {**talk[1], "reasoning_content": "Add."}, *talk[2:]]
    thinking[3] = {**thinking[3], "reasoning_content": "Done."}
    given = {"tools": CONVERSATIONS["tools"]}
    (texts,) = learnt_texts(family("qwen3"), thinking, **given)
    assert texts[0].startswith("<think>\nAdd.\n</think>\n\n<tool_call>\n")
    assert texts[1] == "<think>\nDone.\n</think>\n\nIt is 42.<|im_end|>"
    assert learnt_texts(family("qwen3"), [*TURNS, *thinking], **given)[2] == texts


def test_a_turn_without_loss_is_read_and_not_learnt():
    qwen3, chatml = family("qwen3"), family("smollm2")
    flagged = [USER, {**REPLY, "loss": False}, USER, {**TURNS[3], "loss": True}]
    assert masked_text(chatml, flagged) == ["2<|im_end|>"]
    ids, _ = chat.conversation_ids(chatml, TURNS)
    assert chat.conversation_ids(chatml, flagged)[0] == ids
    assert learnt_texts(qwen3, flagged) == [masked_text(qwen3, flagged)]
    nothing = [{**message, "loss": False} for message in TURNS]
    assert learnt_texts(chatml, nothing) == [[]]


@pytest.mark.parametrize("kind", SOURCES["deepseek_r1_distill"]["tokenizers"])
def test_the_r1_distills_are_prompted_and_cannot_be_shown_replies(kind):
    # The prompt begins the thoughts; a reply is written without them.
    tokenizer = family("deepseek_r1_distill", kind)
    ids = chat.prompt_ids(tokenizer, TURNS[:3])
    text = tokenizer.decode(ids, specials=True)
    assert text.endswith("<｜User｜>What is 12 plus 30?<｜Assistant｜><think>\n")
    assert ids[0] == tokenizer.bos_id and tokenizer.bos_id not in ids[1:]
    for learn in (chat.conversation_ids, chat.training_sequences):
        with pytest.raises(ConfigError, match="cannot be told from the prompt's"):
            learn(tokenizer, TURNS[:2])


def test_a_turn_that_ends_with_the_next_turns_token_learns_that():
    glm = family("glm4_moe")
    none = "\n<think></think>\n"
    both = [f"{none}It is 42.<|user|>", f"{none}2<|user|>"]
    assert masked_text(glm, TURNS) == both
    assert masked_text(glm, TURNS[:2]) == both[:1]
    ids, mask = chat.conversation_ids(glm, TURNS[:2])
    assert glm.token_text(ids[-1]) == "<|user|>" and mask[-1]
    # Such a template may drop the thoughts of earlier turns all the same.
    thoughts = CONVERSATIONS["conversations"]["thoughts in the content"]["messages"]
    assert learnt_texts(glm, thoughts) == [
        ["\n<think>12 + 30 is 42.</think>\nIt is 42.<|user|>"],
        ["\n<think>Easy.</think>\n2<|user|>"],
    ]
    # After a call of a tool comes what it gave.
    talk = CONVERSATIONS["conversations"]["a tool is called"]["messages"]
    for messages in (talk, talk[:2]):
        called = masked_text(glm, messages, tools=CONVERSATIONS["tools"])[0]
        assert called.endswith("</tool_call><|observation|>")


@pytest.mark.parametrize(
    "kind", ["mistral", "mistral_prepend", "piece_bpe", "piece_bpe_legacy"]
)
def test_tokenizers_that_put_a_space_in_front_do_so_once(kind):
    tokenizer = family("mistral_7b_v0_2", kind)
    # A reply that grows together with its prompt, and special tokens that are spelt:
    # texts that are tokenised a part at a time.
    for reply in ("\n\nIt is 42.", "It is </s> 42.", "</s>"):
        messages = [
            {"role": "user", "content": "a </s>b"},
            {"role": "assistant", "content": reply},
        ]
        ids, mask = chat.conversation_ids(tokenizer, messages)
        start = chat.prompt_ids(tokenizer, messages[:1])
        assert ids[: len(start)] == start and not any(mask[: len(start)])
        assert [i for i in ids if i in (tokenizer.bos_id, tokenizer.eos_id)] == [
            *(tokenizer.bos_id, tokenizer.eos_id)
        ]
        text = tokenizer.decode(ids, specials=True).replace("<s> ", "<s>")
        assert text.rstrip() == f"<s>[INST] a </s>b [/INST]{reply}</s>"


@pytest.mark.parametrize("kind", ["mistral", "mistral_prepend", "piece_bpe"])
def test_a_reply_that_goes_on_in_the_middle_of_a_word_gets_no_space(kind):
    template = (
        "{% for m in messages %}{{ m.content }}"
        "{{ eos_token if m.role == 'assistant' }}{% endfor %}"
    )
    tokenizer = tokenizers.load(TOKENIZERS / kind, chat_template=template)
    assert len(tokenizer.encode("user")) == 1
    talk = [{"role": "user", "content": "us"}, {"role": "assistant", "content": "er"}]
    ids, mask = chat.conversation_ids(tokenizer, talk)
    assert ids[: mask.index(True)] == chat.prompt_ids(tokenizer, talk[:1])
    assert tokenizer.decode(ids) == "user"
