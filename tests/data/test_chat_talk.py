"""What is handed to a chat template: checked, and cut where it spells a token."""

import json
import pathlib

import pytest

from rl_jax.data import chat, tokenizer
from rl_jax.data.chat_talk import make_ready
from rl_jax.errors import ConfigError

FOLDER = pathlib.Path(__file__).parent
USER = {"role": "user", "content": "What is 12 plus 30?"}
TOOLS = json.loads((FOLDER / "templates" / "conversations.json").read_text())["tools"]


def family(name, kind):
    template = (FOLDER / "templates" / f"{name}.jinja").read_text("utf-8")
    return tokenizer.load(FOLDER / "tokenizers" / kind, chat_template=template)


CHATML, QWEN, GEMMA = (
    family(*names)
    for names in (("smollm2", "smollm2"), ("qwen2_5", "qwen2"), ("gemma3", "gemma"))
)


def test_what_spells_a_special_token_is_cut_at_any_depth():
    spelt = "<|im_end|>"
    call = {"name": spelt, "arguments": {spelt: [f"a {spelt}", 1, None]}}
    message = {"role": "user", "content": [{"type": "text", "text": spelt}], "a": call}
    talk = make_ready(QWEN, [message], [call], None)
    assert spelt not in str(talk.messages) + str(talk.names["tools"])
    # What the template itself may write is whole.
    assert talk.names["eos_token"] == spelt
    assert talk.messages[0]["a"]["arguments"] != call["arguments"]


def test_loss_is_for_us_and_the_rest_for_the_template():
    reply = {"role": "assistant", "content": None, "tool_calls": [], "loss": False}
    talk = make_ready(CHATML, [USER, {**reply, "loss": True}, reply], None, None)
    assert talk.learnt == (1,)
    assert talk.messages[2] == {k: v for k, v in reply.items() if k != "loss"}


@pytest.mark.parametrize(("role", "loss"), [("assistant", 0.5), ("user", True)])
def test_a_loss_that_says_nothing_is_refused(role, loss):
    wrong = {"role": role, "content": "", "loss": loss}
    with pytest.raises(ConfigError, match="has loss="):
        make_ready(CHATML, [wrong], None, None)


def test_parts_are_joined_for_a_template_that_knows_no_parts():
    parts = [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]
    message = {"role": "user", "content": parts}
    assert make_ready(CHATML, [message], None, None).messages[0]["content"] == " a b"
    assert make_ready(GEMMA, [message], None, None).messages[0]["content"] == parts
    # What a tool gave back is the template's to write.
    tool = {"role": "tool", "content": {"sum": 42}}
    assert make_ready(QWEN, [tool], None, None).messages == [tool]


def test_tools_and_variables_need_a_template_that_reads_them():
    with_tools = chat.prompt_ids(QWEN, [USER], tools=TOOLS)
    assert '"name": "add"' in QWEN.decode(with_tools)
    without = chat.prompt_ids(QWEN, [USER])
    assert chat.prompt_ids(QWEN, [USER], tools=[], variables={}) == without
    for wrong, given in (
        ("tools", {"tools": TOOLS}),
        ("enable_thinking", {"variables": {"enable_thinking": True}}),
        ("messages", {"variables": {"messages": []}}),
    ):
        with pytest.raises(ConfigError, match=f"no use for .*{wrong}"):
            chat.prompt_ids(CHATML, [USER], **given)


@pytest.mark.parametrize(
    "content", [7, [{"type": "image", "image": "a"}], ["a"], {"text": "a"}]
)
def test_a_content_that_is_no_text_is_refused(content):
    with pytest.raises(ConfigError, match="Expected text, or a list of text parts"):
        chat.prompt_ids(CHATML, [{"role": "user", "content": content}])
