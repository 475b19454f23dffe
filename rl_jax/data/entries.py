"""A data set's rows as texts, for choosing among them without changing them."""

import dataclasses
from typing import Any

from rl_jax.data import fields, shapes
from rl_jax.data.columns import configured, first_of, without_padding, wrong_type
from rl_jax.data.files import Record
from rl_jax.data.messages import Messages, text_of, text_or_turns


@dataclasses.dataclass(frozen=True)
class Entry:
    """What a row says.

    Attributes:
        prompt: its turns up to the assistant's, without the system message.
        asked: the last of them.
        parts: the text of every turn and reply; the rejected one too.
        answers: reference answers; () if there are none.
    """

    record: Record
    prompt: str
    asked: str
    parts: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def whole(self) -> str:
        return "\n".join(self.parts)


def entry(
    record: Record,
    *,
    prompt_column: str = "",
    completion_column: str = "",
    answer_column: str = "",
) -> Entry:
    """A row of any shape that the trainer reads (data/shapes.py), or plain `text`.

    Raises:
        ConfigError: if its columns are of no known shape, or hold the wrong kind.
    """
    values = record.values
    if values.get("chosen") is not None and values.get("rejected") is not None:
        prompt, *replies, _ = shapes.pair(record, prompt_column)
        return _entry(record, prompt, [*prompt, *replies[0], *replies[1]], ())
    answers, _ = fields.answers(record, answer_column)
    known = prompt_column or first_of(record, shapes.PROMPTS)
    if not known and "text" in values:
        text = values["text"]
        if not isinstance(text, str):
            raise wrong_type(record, "text", text, "text")
        return Entry(record, text, text, (text,), answers)
    prompt, used = shapes.prompt(record, prompt_column)
    turns = prompt
    if used[0] != "instruction":  # which holds no turns, so that nothing was dropped
        value = configured(record, used[0], "prompt")
        turns = text_or_turns(value, record, used[0])
    reply = completion_column or first_of(record, ("completion", "output"))
    if reply and used[0] not in ("messages", "conversations"):
        value = configured(record, reply, "completion")
    else:
        value = None
    if value is not None:
        turns = turns + text_or_turns(value, record, reply, role="assistant")
    return _entry(record, prompt, turns, answers)


def _entry(
    record: Record, prompt: Messages, turns: Messages, answers: tuple[str, ...]
) -> Entry:
    def texts(messages: Messages) -> tuple[str, ...]:
        return tuple(text_of(m) for m in messages if m["role"] != "system")

    asked = texts(prompt)
    return Entry(
        record, "\n".join(asked), asked[-1] if asked else "", texts(turns), answers
    )


def written(record: Record) -> dict[str, Any]:
    """A row as a line of a .jsonl file that the trainer reads as it read the row.

    Parquet's padding is left out, and `data_source`, by which a reward is chosen, is
    written down where the file's name stood for it.
    """
    values = without_padding(record.values, record)
    if not fields.source(record):
        values = values | {"data_source": record.file.name.partition(".")[0]}
    return values
