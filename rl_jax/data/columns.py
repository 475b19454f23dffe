"""A value of a record by its column's name, and what to say where there is none."""

import difflib
import json
from collections.abc import Iterable
from typing import Any

from rl_jax.data.files import Record, json_type
from rl_jax.errors import ConfigError

# Names that public data sets give to a column, for the hint in an error only.
_OTHER_NAMES = {
    "prompt": ("messages", "question", "problem", "instruction", "input", "query"),
    "answer": ("solution", "final_answer", "target", "gold", "output"),
    "completion": ("answer", "response", "solution", "output", "reply"),
}
_MOST_SHOWN = 12  # columns named in a message


def lookup(record: Record, column: str) -> Any:
    """The value of a column, which may lie inside an object: `a.b`.

    Raises:
        KeyError: if there is none.
    """
    if column in record.values:
        return record.values[column]
    value: Any = record.values
    for name in column.split("."):
        value = maybe_json(value)
        if not isinstance(value, dict):
            raise KeyError(column)
        value = value[name]
    return value


def first_of(record: Record, columns: Iterable[str]) -> str:
    """The first of the columns that is there and not null; else one that is null.

    "" if there is none at all. Parquet and some writers of JSON fill the columns of
    another row's shape with nulls.
    """
    nulls = []
    for column in columns:
        try:
            if lookup(record, column) is not None:
                return column
            nulls.append(column)
        except KeyError:
            continue
    return nulls[0] if nulls else ""


def configured(record: Record, column: str, meaning: str) -> Any:
    """The value of a column that the run names for this meaning.

    Raises:
        ConfigError: if there is none.
    """
    try:
        return lookup(record, column)
    except KeyError:
        found = list(record.values)
        known = [name for name in _OTHER_NAMES.get(meaning, ()) if name in found]
        close = difflib.get_close_matches(column, found, n=1)
        name = [*close, *known, "NAME"][0]
        raise ConfigError(
            f"{record.where}: there is no column {column!r} for the {meaning}.\n"
            f"Columns found: {_shown(found)}.\n"
            f"Write --config.data.{meaning}_column={name}"
        ) from None


def unrecognised(record: Record, meaning: str, shapes: str) -> ConfigError:
    """The error of a row none of whose columns is known to have this meaning."""
    found = list(record.values)
    known = [name for name in _OTHER_NAMES.get(meaning, ()) if name in found]
    return ConfigError(
        f"{record.where}: cannot tell which column holds the {meaning}. Columns "
        f"found: {_shown(found)}.\nKnown are {shapes}.\n"
        f"Write --config.data.{meaning}_column={[*known, 'NAME'][0]}"
    )


def _shown(names: list[str]) -> str:
    more = len(names) - _MOST_SHOWN
    cut = [*names[:_MOST_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return ", ".join(cut) or "none"


def wrong_type(record: Record, column: str, value: Any, expected: str) -> ConfigError:
    """The error of a column that holds another kind of value than it should."""
    return ConfigError(
        f"{record.where}: column {column!r} holds {json_type(value)}.\n"
        f"Expected {expected}."
    )


def maybe_json(value: Any) -> Any:
    """A string that is written as a JSON list or object becomes it."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def without_padding(value: Any, record: Record) -> Any:
    """`value` without the nulls that parquet puts into objects, at any depth.

    All objects of a parquet column have the same fields: what one lacks is null there.
    In a .jsonl file, or in JSON inside a string, a null was written by someone.
    """
    if record.file.suffix != ".parquet" or isinstance(value, str):
        return value
    return _without_nulls(value)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value
