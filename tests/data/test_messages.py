"""Turns as files write them, to messages in one form; and every complaint."""

import json
import pathlib

import pyarrow
import pyarrow.parquet
import pytest

from rl_jax.data.files import Record, records
from rl_jax.data.messages import text_of, text_or_turns, turns
from rl_jax.errors import ConfigError

USER = {"role": "user", "content": "1+1?"}
CALL = {
    "type": "function",
    "function": {"name": "add", "arguments": {"a": 1, "b": None}},
}
RECORD = Record({}, pathlib.Path("talk.jsonl"), 3)


def read(value):
    return turns(value, RECORD, "messages")


def complaint(value, **options):
    with pytest.raises(ConfigError) as error:
        text_or_turns(value, RECORD, "chat", **options)
    assert len(str(error.value).splitlines()) <= 3
    assert str(error.value).startswith("talk.jsonl, row 3: ")
    return str(error.value)


def test_what_a_message_has_beside_its_text_is_kept():
    message = {"role": "tool", "content": "2", "name": "add", "tool_call_id": "c1"}
    thought = {"role": "assistant", "content": "2", "reasoning_content": "1+1"}
    assert read([USER, message, thought]) == [USER, message, thought]


def test_a_null_is_a_field_that_is_not_there():
    assert read([{**USER, "name": None, "tool_calls": None}]) == [USER]


def test_a_message_that_calls_tools_need_not_say_anything():
    for content in ({}, {"content": None}, {"content": ""}):
        (message,) = read([{"role": "assistant", "tool_calls": [CALL], **content}])
        assert message == {
            "role": "assistant",
            "content": content.get("content"),
            "tool_calls": [CALL],
        }


def test_arguments_written_as_json_become_objects():
    """OpenAI and verl write them as a string, templates expect an object."""
    inner = {"name": "add", "arguments": '{"a": 1, "b": null}'}
    for call in ({"type": "function", "function": inner}, json.dumps({**inner})):
        for calls in ([call], json.dumps([call])):
            (message,) = read([{"role": "assistant", "tool_calls": calls}])
            (found,) = message["tool_calls"]
            function = found.get("function", found)
            assert function == {"name": "add", "arguments": {"a": 1, "b": None}}


def test_one_part_of_text_is_text_and_several_stay_parts():
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]
    assert read([{"role": "user", "content": parts[:1]}])[0]["content"] == "1+"
    (message,) = read([{"role": "user", "content": parts}])
    assert message["content"] == parts
    assert text_of(message) == "1+1?"
    assert (text_of(USER), text_of({"content": None})) == ("1+1?", "")


def test_sharegpt_turns_become_messages():
    froms = ("system", "human", "gpt", "observation", "tool", "chatgpt")
    roles = ("system", "user", "assistant", "tool", "tool", "assistant")
    found = read([{"from": name, "value": "x"} for name in froms])
    assert found == [{"role": role, "content": "x"} for role in roles]


@pytest.mark.parametrize("name", ["loss", "step_loss_mask", "train", "weight"])
def test_flags_of_every_kind_say_what_is_learnt(name):
    reply = {"role": "assistant", "content": "2"}
    found = read([{**reply, name: flag} for flag in (0, 1, False, True, 0.0)])
    assert [message["loss"] for message in found] == [False, True, False, True, False]
    assert all({*message} == {"role", "content", "loss"} for message in found)
    # Not given, or on what is never learnt: no flag.
    assert read([{**reply, name: None}, {**USER, name: True}]) == [reply, USER]


def test_parquet_fills_in_nulls_which_are_taken_out_again(tmp_path):
    calls = [
        {"name": "add", "arguments": {"a": 1, "b": 2}},
        {"name": "negate", "arguments": {"x": 3}},
    ]
    talk = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    file = tmp_path / "talk.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"talk": talk}]), file)
    (record,) = records(file)
    assert record.values["talk"][1]["tool_calls"][1]["arguments"]["a"] is None
    assert turns(record.values["talk"], record, "talk") == talk
    # In a .jsonl file someone wrote them.
    (_, message) = read(record.values["talk"])
    assert message["tool_calls"][1]["arguments"] == {"a": None, "b": None, "x": 3}


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({"role": "user", "content": ["a"]}, "a part of type 'a string'"),
        ({"role": "user", "content": []}, "has a list as its content"),
        ({"role": "user", "content": [{"type": "image"}]}, "a part of type 'image'"),
        ({"role": "user", "content": [{"type": "text"}]}, "a part of type 'text'"),
        ({"role": "assistant", "content": None}, "has null as its content"),
        ({"role": 3, "content": "a"}, "has a number as its role"),
        ({"from": "alien", "value": "a"}, "is from 'alien'"),
        ({"from": "human"}, "has null as its content"),
        ({"role": "assistant", "tool_calls": 3}, "a number as tool_calls"),
        ({"role": "assistant", "tool_calls": [3]}, "name no function"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "name no function"),
        (
            {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "a"}]},
            "a string as arguments",
        ),
        ({"role": "assistant", "content": "a", "loss": 2}, "loss=2"),
        ({"role": "assistant", "content": "a", "train": "no"}, "train='no'"),
    ],
)
def test_a_wrong_turn_is_named(turn, words):
    text = complaint([USER, turn])
    assert "turn 2 of 'chat'" in text and words in text and "Expected" in text
