"""Data files to rows: problems to answer, conversations or texts to learn, pairs.

A row is a conversation in messages, or plain text; its reference answers; and whatever
else the file has, kept for reward functions. Files are opened in files.py, columns are
recognised in shapes.py and fields.py, tokens are made in chat.py and documents.py.
"""

import dataclasses
import decimal
import functools
import hashlib
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.data import fields, shapes
from rl_jax.data.columns import configured, first_of, unrecognised, wrong_type
from rl_jax.data.files import Record, json_type, records
from rl_jax.data.messages import Messages
from rl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Row:
    """One problem, or one conversation or text to learn from.

    Attributes:
        messages: turns, each with `role` and `content`; see messages.py. () for text.
        answer: the reference answer, trimmed; "" if there is none.
        data_source: the name by which a reward can tell one data set from another.
        index: position among all rows that were read with it, from 0.
        extra: the other columns.
        tools: JSON schemas for the chat template; None if there are none.
        variables: what else the chat template is given, such as enable_thinking.
        other_answers: further answers that are as good as `answer`.
        text: plain text to learn as it stands; None for a conversation.
        weight: of each of its tokens in a supervised loss, 0 or more.
    """

    messages: tuple[dict[str, Any], ...]
    answer: str
    data_source: str
    index: int
    extra: dict[str, Any]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    other_answers: tuple[str, ...] = ()
    text: str | None = None
    weight: float = 1.0

    @property
    def answers(self) -> tuple[str, ...]:
        """Every acceptable answer; () if there is none."""
        return (self.answer, *self.other_answers) if self.answer else ()

    @functools.cached_property
    def id(self) -> str:
        """A name made of the content: the same wherever the row stands."""
        plain = () if self.text is None else (self.text,)
        return _hash(self.messages, self.answers, self.tools, self.variables, *plain)


@dataclasses.dataclass(frozen=True)
class Preference:
    """Two replies to one prompt, of which one is better.

    Attributes:
        prompt: turns up to where the assistant is to speak.
        chosen, rejected: the better and the worse reply; each begins with an
            assistant turn.
        data_source, index, extra, tools, variables: as for Row.
    """

    prompt: tuple[dict[str, Any], ...]
    chosen: tuple[dict[str, Any], ...]
    rejected: tuple[dict[str, Any], ...]
    data_source: str
    index: int
    extra: dict[str, Any]
    tools: list[dict[str, Any]] | None = None
    variables: dict[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def id(self) -> str:
        """A name made of the content: the same wherever the row stands."""
        parts = (self.prompt, self.chosen, self.rejected)
        return _hash(*parts, self.tools, self.variables)


def _hash(*content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Framing:
    """What a run puts around every conversation of its data.

    Attributes:
        system: a system message for every row; it replaces a row's own. "": none.
        instruction: put after the last user message, with an empty line between.
        variables: for the chat template, where the row does not say otherwise.
        data_source: name of the data; "" takes what the row says, or else the file's
            name without its ending.
    """

    system: str = ""
    instruction: str = ""
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    data_source: str = ""


def read_rows(
    path: str | pathlib.Path,
    *,
    prompt_column: str = "",
    answer_column: str = "",
    answer_after: str = "",
    needs_answer: bool = False,
    framing: Framing = Framing(),
) -> list[Row]:
    """Problems: conversations that end where the assistant is to answer.

    Args:
        path: a .jsonl, .jsonl.gz or .parquet file, a glob, or a folder of such files.
        prompt_column: holds a string (one user turn), or a list of messages, which may
            itself be written as a JSON string. Assistant turns at its end are dropped.
            "" recognises the row by its columns (shapes.py). A name with dots, here
            and in `answer_column`, looks inside an object: `reward_model.ground_truth`.
        answer_column: holds a string, a number, or a list of equally good ones. ""
            takes the first of the usual columns (fields.py).
        answer_after: the answer is what follows the last such mark, as with "####" in
            GSM8K. "" takes the whole column.
        needs_answer: a row without an answer is an error.

    Raises:
        ConfigError: with file and row, for a missing file or column, and for a value
            of the wrong kind.
    """
    rows = []
    for record in records(path):
        messages, used = shapes.prompt(record, prompt_column)
        answers, answer_used = fields.answers(
            record, answer_column, after=answer_after, needed=needs_answer
        )
        used = (*used, *answer_used)
        rows.append(_row(record, messages, answers, len(rows), used, framing))
    return rows


def read_conversations(
    path: str | pathlib.Path,
    *,
    prompt_column: str = "",
    completion_column: str = "",
    weight_column: str = "",
    framing: Framing = Framing(),
) -> list[Row]:
    """Whole conversations, to fine-tune on the assistant's turns.

    Args:
        path: as for read_rows.
        prompt_column: holds a string (one user turn), or messages; the whole
            conversation if the last of them is the assistant's and no completion
            follows. "" recognises the row by its columns (shapes.py).
        completion_column: holds a string (one assistant turn), or messages.
        weight_column: holds the row's weight in the loss, a number of 0 or more. ""
            gives every row the weight 1.

    Raises:
        ConfigError: as read_rows; for a row without an assistant turn; and for a
            weight that is none.
    """
    return [
        _talk(record, i, prompt_column, completion_column, weight_column, framing)
        for i, record in enumerate(records(path))
    ]


def read_texts(
    path: str | pathlib.Path,
    *,
    text_column: str = "",
    prompt_column: str = "",
    completion_column: str = "",
    weight_column: str = "",
    framing: Framing = Framing(),
) -> list[Row]:
    """Plain texts, or else whole conversations, to pretrain on.

    Args:
        path: as for read_rows.
        text_column: holds a string, the text as it is to be learnt. "" takes `text` or
            `content` where they hold a string; not where `prompt_column` is named or
            there are `messages` or `conversations`: those rows are conversations.
        prompt_column, completion_column, weight_column: as for read_conversations.
        framing: goes around conversations; a plain text stays as it is.

    Raises:
        ConfigError: as read_conversations; and for a row that is neither.
    """
    rows = []
    for i, record in enumerate(records(path)):
        column = text_column or ("" if prompt_column else _text_column(record))
        if not column:
            if not (prompt_column or first_of(record, shapes.PROMPTS)):
                raise unrecognised(record, "text", _TEXT_SHAPES)
            talk = _talk(
                record, i, prompt_column, completion_column, weight_column, framing
            )
            rows.append(talk)
            continue
        text = configured(record, column, "text")
        if not isinstance(text, str):
            raise wrong_type(record, column, text, "plain text, as a string")
        used = (column, weight_column)
        row = _row(record, [], (), i, used, Framing(data_source=framing.data_source))
        weight = _weight(record, weight_column)
        rows.append(dataclasses.replace(row, text=text, weight=weight))
    return rows


def _text_column(record: Record) -> str:
    """The column with plain text, "" if the row is something else."""
    turns = first_of(record, ("messages", "conversations"))
    if record.values.get(turns) is not None:
        return ""
    found = first_of(record, _TEXTS)
    return found if isinstance(record.values.get(found), str) else ""


_TEXTS = ("text", "content")
_TEXT_SHAPES = (
    "text; content; and of conversations messages; prompt, completion; conversations "
    "(from, value); instruction, input, output"
)


def _talk(
    record: Record,
    index: int,
    prompt_column: str,
    completion_column: str,
    weight_column: str,
    framing: Framing,
) -> Row:
    messages, used = shapes.conversation(record, prompt_column, completion_column)
    row = _row(record, messages, (), index, (*used, weight_column), framing)
    return dataclasses.replace(row, weight=_weight(record, weight_column))


def _weight(record: Record, column: str) -> float:
    """The weight of a row in the loss; 1 without a column."""
    if not column:
        return 1.0
    value = configured(record, column, "weight")
    is_number = isinstance(value, int | float | decimal.Decimal)
    if not is_number or isinstance(value, bool) or not 0 <= value < math.inf:
        shown = json_type(value) if isinstance(value, list | dict) else repr(value)
        raise ConfigError(
            f"{record.where}: column {column!r} holds {shown}.\n"
            "Expected the weight of the row in the loss, a number of 0 or more; 0 "
            "leaves it out."
        )
    return float(value)


def read_preferences(
    path: str | pathlib.Path,
    *,
    prompt_column: str = "",
    chosen_column: str = "",
    rejected_column: str = "",
    framing: Framing = Framing(),
) -> list[Preference]:
    """Pairs of replies, for a reward model or for learning from preferences.

    Args:
        path: as for read_rows.
        prompt_column: holds a string (one user turn), or messages. "" takes `prompt`,
            or else what the two replies share at their beginning.
        chosen_column, rejected_column: hold a string (one assistant turn), messages,
            or a whole conversation with its prompt. "" takes `chosen`, `rejected`.

    Raises:
        ConfigError: as read_rows; and for a pair without a prompt.
    """
    found = []
    for record in records(path):
        prompt, chosen, rejected, used = shapes.pair(
            record, prompt_column, chosen_column, rejected_column
        )
        row = _row(record, prompt, (), len(found), used, framing)
        found.append(
            Preference(
                row.messages,
                tuple(chosen),
                tuple(rejected),
                row.data_source,
                row.index,
                row.extra,
                row.tools,
                row.variables,
            )
        )
    return found


_TEMPLATE_COLUMNS = ("tools", "chat_template_kwargs", "enable_thinking")


def _row(
    record: Record,
    messages: Messages,
    answers: Sequence[str],
    index: int,
    used: Sequence[str],
    framing: Framing,
) -> Row:
    taken = {*used, *_TEMPLATE_COLUMNS}
    stem = record.file.name.partition(".")[0]
    return Row(
        messages=tuple(_framed_messages(messages, framing, record.where)),
        answer=answers[0] if answers else "",
        data_source=framing.data_source or fields.source(record) or stem,
        index=index,
        extra={k: v for k, v in record.values.items() if k not in taken},
        tools=fields.tools(record),
        variables={**framing.variables, **fields.variables(record)},
        other_answers=tuple(answers[1:]),
    )


def framed(row: Row, framing: Framing) -> Row:
    """A row that was made and not read, with what the run puts around it."""
    messages = _framed_messages(list(row.messages), framing, f"row {row.index + 1}")
    variables = {**framing.variables, **row.variables}
    return dataclasses.replace(row, messages=tuple(messages), variables=variables)


def _framed_messages(messages: Messages, framing: Framing, where: str) -> Messages:
    if framing.system:
        others = [turn for turn in messages if turn["role"] != "system"]
        messages = [{"role": "system", "content": framing.system}, *others]
    if not framing.instruction:
        return messages
    users = [i for i, turn in enumerate(messages) if turn["role"] == "user"]
    if not users:
        raise ConfigError(
            f"{where}: there is no user turn to put data.instruction after."
        )
    turn, added = messages[users[-1]], f"\n\n{framing.instruction}"
    content = turn["content"]
    if isinstance(content, list):
        content = [*content, {"type": "text", "text": added}]
    else:
        content = f"{content or ''}{added}"
    messages[users[-1]] = {**turn, "content": content}
    return messages
