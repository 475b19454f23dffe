"""Data files to rows: the problems of reinforcement learning, the talks of fine-tuning.

A row is a conversation in messages, the reference answer, and whatever else the file
has, kept for reward functions. `read_rows` gives conversations that end where the
assistant is to speak; `read_conversations` gives whole ones. Files are opened in
files.py, tokens are made in chat.py.
"""

import dataclasses
import decimal
import difflib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

from rl_jax.data.files import Record, json_type, records
from rl_jax.errors import ConfigError

Messages = list[dict[str, Any]]

# Names that public data sets give to a column, for the hint in an error only.
_OTHER_NAMES = {
    "prompt": ("messages", "question", "problem", "instruction", "input", "query"),
    "answer": ("solution", "ground_truth", "label", "target", "final_answer", "output"),
    "completion": ("answer", "response", "solution", "output", "reply"),
    "messages": ("conversations", "conversation", "chat", "prompt"),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One problem, or one conversation to learn from.

    Attributes:
        messages: turns, each with `role` and `content`.
        answer: the reference answer, as the file has it but trimmed; "" if not asked.
        data_source: the name by which a reward can tell one data set from another.
        index: position among all rows that were read, from 0.
        extra: the other columns.
    """

    messages: tuple[dict[str, Any], ...]
    answer: str
    data_source: str
    index: int
    extra: dict[str, Any]


def read_rows(
    path: str | pathlib.Path,
    *,
    prompt_column: str,
    answer_column: str,
    answer_after: str = "",
    system: str = "",
    instruction: str = "",
    data_source: str = "",
) -> list[Row]:
    """Problems: conversations that end where the assistant is to answer.

    Args:
        path: a .jsonl, .jsonl.gz or .parquet file, a glob, or a folder of such files.
        prompt_column: holds a string (one user turn), or a list of {role, content},
            which may itself be written as a JSON string. Assistant turns at its end
            are dropped.
        answer_column: holds a string or a number; "" if no answer is needed. A name
            with dots, here and in `prompt_column`, looks inside an object:
            `reward_model.ground_truth`.
        answer_after: the answer is what follows the last such mark, as with "####" in
            GSM8K. "" takes the whole column.
        system: a system message for every row; it replaces a row's own.
        instruction: put after the last user message, with an empty line between.
        data_source: name of the data; "" takes the row's column `data_source`, or
            else the file's name without its ending.

    Raises:
        ConfigError: with file and row, for a missing file or column, and for a value
            of the wrong kind.
    """
    rows = []
    for record in records(path):
        value = _column(record, prompt_column, "prompt")
        messages = _prompt(value, record, prompt_column)
        while messages and messages[-1]["role"] == "assistant":
            messages.pop()
        if not messages:
            raise ConfigError(
                f"{record.where}: column {prompt_column!r} has only assistant turns.\n"
                "Expected a user turn for the assistant to answer."
            )
        answer = ""
        if answer_column:
            answer = _answer(record, answer_column, answer_after)
        used = (prompt_column, answer_column)
        messages = _framed(messages, record, system, instruction)
        rows.append(_row(record, messages, answer, data_source, len(rows), used))
    return rows


def read_conversations(
    path: str | pathlib.Path,
    *,
    messages_column: str = "messages",
    prompt_column: str = "prompt",
    completion_column: str = "completion",
    system: str = "",
    instruction: str = "",
    data_source: str = "",
) -> list[Row]:
    """Whole conversations, to fine-tune on the assistant's turns.

    Args:
        messages_column: holds a list of {role, content}, or that list as a JSON
            string. Where a row has this column, the other two are not read.
        prompt_column: holds a string (one user turn), or messages.
        completion_column: holds a string (one assistant turn), or messages.
        path, system, instruction, data_source: as for read_rows.

    Raises:
        ConfigError: as read_rows; and for a row without an assistant turn.
    """
    rows = []
    for record in records(path):
        if messages_column and messages_column in record.values:
            used = (messages_column,)
            value = record.values[messages_column]
            messages = _messages(value, record, messages_column)
        else:
            used = (prompt_column, completion_column)
            value = _column(record, prompt_column, "prompt")
            reply = _column(record, completion_column, "completion")
            messages = _prompt(value, record, prompt_column)
            messages += _prompt(reply, record, completion_column, role="assistant")
        if all(message["role"] != "assistant" for message in messages):
            raise ConfigError(
                f"{record.where}: there is no assistant turn to learn from.\n"
                f"Roles found: {', '.join(message['role'] for message in messages)}."
            )
        messages = _framed(messages, record, system, instruction)
        rows.append(_row(record, messages, "", data_source, len(rows), used))
    return rows


def _row(
    record: Record,
    messages: Messages,
    answer: str,
    data_source: str,
    index: int,
    used: Sequence[str],
) -> Row:
    stem = record.file.name.partition(".")[0]
    source = data_source or str(record.values.get("data_source") or stem)
    extra = {name: value for name, value in record.values.items() if name not in used}
    return Row(tuple(messages), answer, source, index, extra)


def _column(record: Record, column: str, meaning: str) -> Any:
    """The value of a column, which may lie inside an object: `a.b`."""
    if column in record.values:
        return record.values[column]
    value: Any = record.values
    for name in column.split("."):
        value = _maybe_json(value)
        if not isinstance(value, dict) or name not in value:
            raise _missing_column(record, column, meaning)
        value = value[name]
    return value


def _missing_column(record: Record, column: str, meaning: str) -> ConfigError:
    found = list(record.values)
    known = [name for name in _OTHER_NAMES[meaning] if name in found]
    close = difflib.get_close_matches(column, found, n=1)
    name = [*close, *known, "NAME"][0]
    return ConfigError(
        f"{record.where}: there is no column {column!r} for the {meaning}.\n"
        f"Columns found: {', '.join(found) or 'none'}.\n"
        f"Write --config.data.{meaning}_column={name}"
    )


def _prompt(value: Any, record: Record, column: str, *, role: str = "user") -> Messages:
    """Messages from a column that holds one turn's text or a list of turns."""
    # A column of this name holds turns: a string in it that is not a list is a fault.
    if isinstance(value, str) and column != "messages":
        inner = _maybe_json(value)
        is_messages = isinstance(inner, list) and all(
            isinstance(turn, dict) and "role" in turn and "content" in turn
            for turn in inner
        )
        if not (inner and is_messages):
            if not value.strip():
                raise ConfigError(f"{record.where}: column {column!r} is empty.")
            return [{"role": role, "content": value}]
    return _messages(value, record, column)


def _messages(value: Any, record: Record, column: str) -> Messages:
    turns = _maybe_json(value)
    expected = 'Expected a list such as [{"role": "user", "content": "..."}].'
    if not isinstance(turns, list):
        raise ConfigError(
            f"{record.where}: column {column!r} holds {json_type(turns)}.\n{expected}"
        )
    if not turns:
        raise ConfigError(f"{record.where}: column {column!r} is empty.\n{expected}")
    messages = []
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            raise ConfigError(
                f"{record.where}: turn {number} of {column!r} is {json_type(turn)}.\n"
                f"{expected}"
            )
        for name in ("role", "content"):
            if not isinstance(turn.get(name), str):
                raise ConfigError(
                    f"{record.where}: turn {number} of {column!r} has "
                    f"{json_type(turn.get(name))} as its {name}.\n{expected}"
                )
        # Parquet fills in null where some other turn has one more field.
        messages.append({name: v for name, v in turn.items() if v is not None})
    return messages


def _maybe_json(value: Any) -> Any:
    """A string that is written as a JSON list or object becomes it."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _answer(record: Record, column: str, after: str) -> str:
    value = _column(record, column, "answer")
    number = isinstance(value, (int, float, decimal.Decimal))
    if isinstance(value, bool) or not (number or isinstance(value, str)):
        raise ConfigError(
            f"{record.where}: column {column!r} holds {json_type(value)}.\n"
            "Expected the answer as a string or a number."
        )
    _, mark, answer = str(value).rpartition(after) if after else ("", "", str(value))
    if after and (not mark or not answer.strip()):
        raise ConfigError(
            f"{record.where}: column {column!r} has nothing after {after!r}: "
            f"...{str(value)[-60:]!r}\n"
            "Write --config.data.answer_after='' to take the whole column."
        )
    return answer.strip()


def _framed(
    messages: Messages, record: Record, system: str, instruction: str
) -> Messages:
    """The conversation with the run's own system message and instruction."""
    if system:
        others = [turn for turn in messages if turn["role"] != "system"]
        messages = [{"role": "system", "content": system}, *others]
    if not instruction:
        return messages
    users = [i for i, turn in enumerate(messages) if turn["role"] == "user"]
    if not users:
        raise ConfigError(
            f"{record.where}: there is no user turn to put data.instruction after."
        )
    turn = messages[users[-1]]
    content = f"{turn['content']}\n\n{instruction}"
    messages[users[-1]] = {**turn, "content": content}
    return messages
