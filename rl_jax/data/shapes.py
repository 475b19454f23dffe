"""The shapes that data files have, each known by its columns.

    prompt                              TRL, verl, slime: text or messages
    messages                            TRL, verl, open-instruct, ms-swift
    conversations                       ShareGPT: turns with from and value
    instruction, input, output          Alpaca
    prompt, completion                  TRL
    chosen, rejected, perhaps prompt    TRL; also whole conversations

A column that the run names is taken instead. Each function gives the messages, and the
columns they came from. What rows have beside messages is in fields.py.
"""

from rl_jax.data.columns import (
    configured,
    first_of,
    maybe_json,
    unrecognised,
    wrong_type,
)
from rl_jax.data.files import Record
from rl_jax.data.messages import Messages, text_or_turns
from rl_jax.errors import ConfigError

PROMPTS = ("prompt", "messages", "conversations", "instruction")
_TALKS = ("messages", "conversations", "prompt", "instruction")
_REPLIES = ("completion", "output")
_PROMPT_SHAPES = "prompt; messages; conversations (from, value); instruction, input"
_TALK_SHAPES = (
    "messages; prompt, completion; conversations (from, value); instruction, input, "
    "output"
)


def prompt(record: Record, column: str = "") -> tuple[Messages, tuple[str, ...]]:
    """The turns before the assistant's answer; what it says at their end is dropped.

    Raises:
        ConfigError: if there are none, or only the assistant speaks.
    """
    if not (column or first_of(record, PROMPTS)):
        raise unrecognised(record, "prompt", _PROMPT_SHAPES)
    messages, used = _turns(record, column, PROMPTS)
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise ConfigError(
            f"{record.where}: column {used[0]!r} has only assistant turns.\n"
            "Expected a user turn for the assistant to answer."
        )
    return messages, used


def conversation(
    record: Record, prompt_column: str = "", completion_column: str = ""
) -> tuple[Messages, tuple[str, ...]]:
    """A whole conversation.

    Raises:
        ConfigError: if there is none, or the assistant says nothing in it.
    """
    names = ("prompt", "instruction") if completion_column else _TALKS
    if not (prompt_column or first_of(record, names)):
        raise unrecognised(record, "prompt", _TALK_SHAPES)
    messages, used = _turns(record, prompt_column, names)
    if used[0] not in ("messages", "conversations"):
        reply = completion_column or first_of(record, _REPLIES)
        if reply:
            value = configured(record, reply, "completion")
            messages += text_or_turns(value, record, reply, role="assistant")
            used = (*used, reply)
        elif messages[-1]["role"] != "assistant":
            raise unrecognised(record, "completion", _TALK_SHAPES)
    if all(message["role"] != "assistant" for message in messages):
        raise ConfigError(
            f"{record.where}: there is no assistant turn to learn from.\n"
            f"Roles found: {', '.join(message['role'] for message in messages)}."
        )
    return messages, used


def _turns(
    record: Record, column: str, names: tuple[str, ...]
) -> tuple[Messages, tuple[str, ...]]:
    """The turns of the named column, or of the first of `names` that is there."""
    if column:
        value = configured(record, column, "prompt")
        return text_or_turns(value, record, column), (column,)
    column = first_of(record, names)
    value, used = record.values[column], (column,)
    if column == "instruction":
        if not isinstance(value, str):
            raise wrong_type(record, column, value, "the instruction as text")
        more, used = _text(record, "input"), ("instruction", "input", "system")
        value = f"{value}\n\n{more}" if more else value
    elif column == "conversations":
        used = (column, "system")
    messages = text_or_turns(value, record, column)
    if "system" in used and (system := _text(record, "system")):
        messages.insert(0, {"role": "system", "content": system})
    return messages, used


def _text(record: Record, column: str) -> str:
    """A column that may be missing, null or empty, and is text otherwise."""
    value = record.values.get(column)
    if value is not None and not isinstance(value, str):
        raise wrong_type(record, column, value, "text")
    return value or ""


def pair(
    record: Record,
    prompt_column: str = "",
    chosen_column: str = "",
    rejected_column: str = "",
) -> tuple[Messages, Messages, Messages, tuple[str, ...]]:
    """A prompt, the better and the worse reply to it, and the columns they came from.

    Where both replies are whole conversations, the prompt is what they share, whether
    or not a column repeats it. Where both are text and there is no prompt, it is the
    words they share: TRL's "implicit prompt", docs/source/dataset_formats.md.

    Raises:
        ConfigError: if one of the three is missing, empty, or of the wrong kind.
    """
    names = (chosen_column or "chosen", rejected_column or "rejected")
    meanings = ("chosen", "rejected")
    values = [configured(record, n, m) for n, m in zip(names, meanings, strict=True)]
    asked = prompt_column or first_of(record, ("prompt", "instruction"))
    if not asked and all(isinstance(maybe_json(value), str) for value in values):
        return *_split_texts(record, names, *values), names
    chosen, rejected = (
        text_or_turns(value, record, name, role="assistant")
        for value, name in zip(values, names, strict=True)
    )
    if "assistant" not in (chosen[0]["role"], rejected[0]["role"]):
        at = _shared_turns(chosen, rejected)
        if not at:
            raise _no_prompt(record, names)
        used = (*names, asked) if asked else names
        return chosen[:at], chosen[at:], rejected[at:], used
    if not asked:
        raise _no_prompt(record, names)
    messages, used = _turns(record, prompt_column, ("prompt", "instruction"))
    for reply, name in ((chosen, names[0]), (rejected, names[1])):
        if reply[0]["role"] != "assistant":
            raise ConfigError(
                f"{record.where}: column {name!r} begins with a turn of "
                f"{reply[0]['role']!r}.\nExpected the assistant's reply in both, or "
                "whole conversations in both."
            )
    return messages, chosen, rejected, (*names, *used)


def _split_texts(
    record: Record, names: tuple[str, str], chosen: str, rejected: str
) -> tuple[Messages, Messages, Messages]:
    """Two texts as the words they begin with, up to a space, and the rest of each."""
    shortest = min(len(chosen), len(rejected))
    at = next((i for i in range(shortest) if chosen[i] != rejected[i]), shortest)
    if at and chosen[at - 1] == " ":
        at -= 1
    if not all(part.strip() for part in (chosen[:at], chosen[at:], rejected[at:])):
        raise _no_prompt(record, names)
    parts = ("user", chosen[:at]), ("assistant", chosen[at:])
    before, better = ([{"role": role, "content": text}] for role, text in parts)
    return before, better, [{"role": "assistant", "content": rejected[at:]}]


def _shared_turns(a: Messages, b: Messages) -> int:
    """How many turns both begin with, such that the assistant speaks next in both."""
    shortest = min(len(a), len(b))
    at = next((i for i in range(shortest) if a[i] != b[i]), shortest - 1)
    while at and not a[at]["role"] == b[at]["role"] == "assistant":
        at -= 1
    return at


def _no_prompt(record: Record, names: tuple[str, str]) -> ConfigError:
    return ConfigError(
        f"{record.where}: columns {names[0]!r} and {names[1]!r} share no prompt, and "
        "there is no other column for it.\n"
        "Write --config.data.prompt_column=NAME"
    )
