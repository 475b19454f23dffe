"""Data files to what people said of replies: which is better, or how good each is.

    chosen, rejected, perhaps prompt    two replies, the better one first (shapes.pair)
    prompt, replies, scores             several; the higher the score, the better
    prompt, replies, ranks              several; the lower the rank, the better
    prompt or messages, label           one reply, 1 for yes and 0 for no

A file may hold pairs and longer lists. Two replies of one score or rank are not
compared. Tokens are made in chat.py.
"""

import dataclasses
import decimal
import math
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

from rl_jax.data import fields, rows, shapes
from rl_jax.data.columns import configured, wrong_type
from rl_jax.data.files import Record, json_type, records
from rl_jax.data.messages import Messages, text_or_turns
from rl_jax.data.rows import Framing, Row
from rl_jax.errors import ConfigError

# How much better a reply is, in Llama 2's words, the most first: the order of the
# numbers in objectives.reward_model.MARGINS. As a number it is 3 to 0.
RATINGS = ("significantly", "better", "slightly", "negligibly")


@dataclasses.dataclass(frozen=True)
class Judged:
    """The replies to one prompt, and what was said of them.

    Attributes:
        prompt: turns up to where the assistant is to speak.
        replies: each begins and ends with an assistant turn.
        rank: of each reply, the lower the better; () with a label.
        margin: [i][j] by how much reply i should be ahead of the worse reply j; () if
            that is not said.
        label: of the only reply, from 0 to 1; None where replies are ranked.
        data_source, index, tools, variables: as for `rows.Row`.
    """

    prompt: tuple[dict[str, Any], ...]
    replies: tuple[tuple[dict[str, Any], ...], ...]
    rank: tuple[int, ...]
    margin: tuple[tuple[float, ...], ...]
    label: float | None
    data_source: str
    index: int
    tools: list[dict[str, Any]] | None
    variables: dict[str, Any]


def read_rankings(
    path: str | pathlib.Path,
    *,
    form: Literal["ranking", "pointwise"] = "ranking",
    prompt_column: str = "",
    chosen_column: str = "",
    rejected_column: str = "",
    margin_column: str = "",
    ratings: Sequence[float] = (),
    framing: Framing = Framing(),
) -> list[Judged]:
    """Every row of a file, a glob or a folder.

    Args:
        form: "ranking" for pairs and lists, "pointwise" for labels.
        prompt_column, chosen_column, rejected_column: as for rows.read_preferences.
        margin_column: of a pair, by how much the chosen reply should be ahead, 0 or
            more; of a list, a number for each reply, whose differences are that.
            "": nothing is said of it.
        ratings: the margin of each of RATINGS; the column then has one of these.

    Raises:
        ConfigError: with file and row, for a column that is missing or of the wrong
            kind, for lists of other lengths, and for a reply without an assistant turn.
    """
    found = []
    for record in records(path):
        if form == "pointwise":
            prompt, replies = _labelled(record, prompt_column)
            said = {"rank": (), "margin": (), "label": _label(record)}
        elif record.values.get("replies") is not None:
            prompt, replies = _list(record, prompt_column)
            said = _said_of_list(record, len(replies), margin_column, ratings)
        else:
            prompt, chosen, rejected, _ = shapes.pair(
                record, prompt_column, chosen_column, rejected_column
            )
            replies = [chosen, rejected]
            ahead = _margin(record, margin_column, ratings) if margin_column else None
            margin = () if ahead is None else ((0.0, ahead), (0.0, 0.0))
            said = {"rank": (0, 1), "margin": margin, "label": None}
        for reply in replies:
            _check_reply(record, reply)
        row = _row(record, prompt, len(found), framing)
        found.append(
            Judged(
                prompt=row.messages,
                replies=tuple(tuple(reply) for reply in replies),
                data_source=row.data_source,
                index=row.index,
                tools=row.tools,
                variables=row.variables,
                **said,
            )
        )
    return found


def _row(record: Record, prompt: Messages, index: int, framing: Framing) -> Row:
    stem = record.file.name.partition(".")[0]
    source = framing.data_source or fields.source(record) or stem
    tools, variables = fields.tools(record), fields.variables(record)
    row = Row(tuple(prompt), "", source, index, {}, tools, variables)
    return rows.framed(row, framing)


def _check_reply(record: Record, reply: Messages) -> None:
    for which, turn in (("begins", reply[0]), ("ends", reply[-1])):
        if turn["role"] != "assistant":
            raise ConfigError(
                f"{record.where}: a reply {which} with a turn of {turn['role']!r}.\n"
                "Expected the assistant's, whose last token is where it is judged."
            )


# Lists.


def _list(record: Record, prompt_column: str) -> tuple[Messages, list[Messages]]:
    prompt, _ = shapes.prompt(record, prompt_column)
    value = record.values["replies"]
    if not isinstance(value, list):
        raise wrong_type(record, "replies", value, "a list of replies")
    if len(value) < 2:
        raise ConfigError(
            f"{record.where}: column 'replies' has {len(value)}.\n"
            "Expected two or more: replies are compared with one another."
        )
    replies = [text_or_turns(x, record, "replies", role="assistant") for x in value]
    return prompt, replies


def _said_of_list(
    record: Record, count: int, margin_column: str, ratings: Sequence[float]
) -> dict[str, Any]:
    named = [x for x in ("scores", "ranks") if record.values.get(x) is not None]
    if len(named) != 1:
        raise ConfigError(
            f"{record.where}: of the columns 'scores' and 'ranks' there "
            f"{'are both' if named else 'is neither'}.\n"
            "Expected one, with a number for each of the replies."
        )
    values = _numbers(record, named[0], record.values[named[0]], count)
    if named == ["scores"]:
        values = [-value for value in values]
    ordered = sorted(set(values))
    margin = ()
    if margin_column:
        if ratings:
            raise ConfigError(
                f"{record.where}: a rating says how much better one of two replies is, "
                "but there is a list of replies.\n"
                "Write --config.ranking.margin=none, or column with data.margin_column."
            )
        given = configured(record, margin_column, "margin")
        heights = _numbers(record, margin_column, given, count)
        margin = tuple(tuple(a - b for b in heights) for a in heights)
        for i, row in enumerate(margin):
            for j, ahead in enumerate(row):
                if values[i] < values[j] and ahead < 0:
                    raise ConfigError(
                        f"{record.where}: reply {i + 1} is better than reply {j + 1} "
                        f"by {named[0]!r}, but worse by {margin_column!r}.\n"
                        "Expected columns that agree."
                    )
    rank = tuple(ordered.index(value) for value in values)
    return {"rank": rank, "margin": margin, "label": None}


def _numbers(record: Record, column: str, value: Any, count: int) -> list[float]:
    if not isinstance(value, list) or len(value) != count:
        found = f"{len(value)}" if isinstance(value, list) else json_type(value)
        raise ConfigError(
            f"{record.where}: column {column!r} has {found} for {count} replies.\n"
            "Expected a list with one number for each."
        )
    numbers = [_number(x) for x in value]
    if (bad := next((i for i, x in enumerate(numbers) if x is None), None)) is not None:
        raise ConfigError(
            f"{record.where}: column {column!r} has {value[bad]!r} for reply {bad + 1}."
            "\nExpected a number; leave replies without one out."
        )
    return [x for x in numbers if x is not None]


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    is_number = isinstance(value, int | float | decimal.Decimal)
    if not is_number or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


# Pairs.


def _margin(record: Record, column: str, ratings: Sequence[float]) -> float:
    value = configured(record, column, "margin")
    if ratings:
        if isinstance(value, str):
            word = value.strip().lower().replace("_", " ").removesuffix(" better")
            if word in RATINGS:
                return ratings[RATINGS.index(word)]
        elif _number(value) in (0, 1, 2, 3):
            return ratings[3 - int(value)]
        raise ConfigError(
            f"{record.where}: column {column!r} holds {value!r} as its rating.\n"
            f"Expected {', '.join(RATINGS)} (better), or 3 to 0 in this order."
        )
    number = _number(value)
    if number is None or number < 0:
        raise ConfigError(
            f"{record.where}: column {column!r} holds {value!r} as its margin.\n"
            "Expected by how much the chosen reply is better, a number of 0 or more."
        )
    return number


# Labels.


def _labelled(record: Record, prompt_column: str) -> tuple[Messages, list[Messages]]:
    turns, _ = shapes.conversation(record, prompt_column)
    # What the assistant said last; all before is what it was asked.
    return turns[:-1], [turns[-1:]]


def _label(record: Record) -> float:
    if "label" not in record.values:
        raise ConfigError(
            f"{record.where}: there is no column 'label'.\nExpected 1 for yes or 0 for "
            "no in each row; for pairs and lists write --config.ranking.form=ranking"
        )
    value = record.values["label"]
    number = float(value) if isinstance(value, bool) else _number(value)
    if number is None or not 0 <= number <= 1:
        raise ConfigError(
            f"{record.where}: column 'label' holds {value!r}.\n"
            "Expected 1 for yes, 0 for no, or a probability between."
        )
    return number
