"""Conversations as data files write them, to messages in one form.

A message has `role` and `content`: text, a list of text parts, or None where there are
`tool_calls`. An assistant's message may have `loss`, False where its tokens are not to
be learnt. What else it has is left as it is, for the chat template.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.data.columns import maybe_json, without_padding
from rl_jax.data.files import Record, json_type
from rl_jax.errors import ConfigError

Messages = list[dict[str, Any]]

_EXPECTED = 'Expected a list such as [{"role": "user", "content": "..."}].'
# Roles of ShareGPT's `from`, as LLaMA-Factory, axolotl and FastChat write them.
_SHAREGPT_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
# What says whether a turn is learnt: ms-swift, slime, axolotl, OpenAI.
_LOSS_FLAGS = ("loss", "step_loss_mask", "train", "weight")


def text_or_turns(
    value: Any, record: Record, column: str, *, role: str = "user"
) -> Messages:
    """Messages from a column that holds one turn's text or a list of turns.

    Args:
        role: of the one turn.

    Raises:
        ConfigError: if it holds neither, or is empty.
    """
    # Columns of these names hold turns: a string in one that is no list is a fault.
    if isinstance(value, str) and column not in ("messages", "conversations"):
        if not _are_turns(maybe_json(value)):
            if not value.strip():
                raise ConfigError(f"{record.where}: column {column!r} is empty.")
            return [{"role": role, "content": value}]
    return turns(value, record, column)


def _are_turns(value: Any) -> bool:
    """True for a list that no one would write as the text of a prompt."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(turn, dict) and {"role", "content"} <= {*turn} for turn in value
        )
    )


def turns(value: Any, record: Record, column: str) -> Messages:
    """Messages from a column that holds a list of turns, or that list as JSON.

    Raises:
        ConfigError: if it is no such list, or a turn is not as it should be.
    """
    found = maybe_json(value)
    if not isinstance(found, list):
        raise ConfigError(
            f"{record.where}: column {column!r} holds {json_type(found)}.\n{_EXPECTED}"
        )
    if not found:
        raise ConfigError(f"{record.where}: column {column!r} is empty.\n{_EXPECTED}")
    messages = []
    for number, turn in enumerate(found, start=1):
        where = f"{record.where}: turn {number} of {column!r}"
        turn = maybe_json(turn)
        if not isinstance(turn, dict):
            raise ConfigError(f"{where} is {json_type(turn)}.\n{_EXPECTED}")
        dense = without_padding(turn, record) if found is value else turn
        messages.append(_message(dense, where))
    return messages


def _message(turn: Mapping[str, Any], where: str) -> dict[str, Any]:
    if "role" not in turn and "from" in turn:
        turn = _from_sharegpt(turn, where)
    if not isinstance(turn.get("role"), str):
        raise _wrong(where, turn.get("role"), "role")
    # Some writers give every turn every field, null where it means nothing.
    message = {name: value for name, value in turn.items() if value is not None}
    calls = _tool_calls(message.pop("tool_calls", None), where)
    if calls:
        message["tool_calls"] = calls
    message["content"] = _content(turn.get("content"), where, bool(calls))
    flags = {name: message.pop(name) for name in _LOSS_FLAGS if name in message}
    if flags and turn["role"] == "assistant":
        message["loss"] = _is_learnt(flags, where)
    return message


def _wrong(where: str, value: Any, name: str) -> ConfigError:
    return ConfigError(f"{where} has {json_type(value)} as its {name}.\n{_EXPECTED}")


def _content(content: Any, where: str, has_calls: bool) -> Any:
    if isinstance(content, str) or (content is None and has_calls):
        return content
    if not isinstance(content, list) or not content:
        raise _wrong(where, content, "content")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else json_type(part)
        if kind != "text" or not isinstance(part.get("text"), str):
            raise ConfigError(
                f"{where} has a part of type {kind!r} in its content.\n"
                'Expected text, or parts such as {"type": "text", "text": "..."}.'
            )
    # One part is what a string is; how several are joined is the template's to say.
    return content[0]["text"] if len(content) == 1 else content


def _from_sharegpt(turn: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = _SHAREGPT_ROLES.get(str(turn["from"]))
    if role is None:
        raise ConfigError(
            f"{where} is from {turn['from']!r}.\n"
            f"Expected one of {', '.join(_SHAREGPT_ROLES)}."
        )
    others = {k: v for k, v in turn.items() if k not in ("from", "value")}
    return {"role": role, "content": turn.get("value"), **others}


def _tool_calls(value: Any, where: str) -> list[dict[str, Any]]:
    """Calls with their arguments as objects, which is what templates expect."""
    calls = maybe_json(value) if value else []
    calls = [maybe_json(call) for call in calls] if isinstance(calls, list) else calls
    expected = (
        'Expected a list such as [{"type": "function", "function": {"name": "...", '
        '"arguments": {}}}].'
    )
    if not isinstance(calls, list):
        raise ConfigError(f"{where} has {json_type(calls)} as tool_calls.\n{expected}")
    return [_tool_call(call, f"{where} has tool_calls", expected) for call in calls]


def _tool_call(call: Any, where: str, expected: str) -> dict[str, Any]:
    inner = call.get("function", call) if isinstance(call, dict) else call
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise ConfigError(f"{where} that name no function.\n{expected}")
    if "arguments" in inner:
        arguments = maybe_json(inner["arguments"] or {})
        if not isinstance(arguments, dict):
            raise ConfigError(
                f"{where} with {json_type(arguments)} as arguments.\n{expected}"
            )
        inner = {**inner, "arguments": arguments}
    return {**call, "function": inner} if "function" in call else inner


def _is_learnt(flags: Mapping[str, Any], where: str) -> bool:
    for name, flag in flags.items():
        if flag not in (0, 1):  # False and True too
            raise ConfigError(f"{where} has {name}={flag!r}.\nExpected 0 or 1.")
    return all(flags.values())


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message's content, "" if it has none."""
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""
