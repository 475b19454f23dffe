"""What a row has beside its messages: reference answers, tools, template variables.

The answer stands in reward_model.ground_truth (verl), ground_truth (open-instruct),
answer, solution (TRL) or label (slime); the tools in tools; what the chat template is
given in chat_template_kwargs (TRL) and enable_thinking (verl); the name of the data set
in data_source (verl) or, where there is a ground_truth, dataset (open-instruct). Each
list or object may be written as JSON in a string.
"""

import decimal
import json
from typing import Any

from rl_jax.data.columns import (
    configured,
    first_of,
    maybe_json,
    unrecognised,
    without_padding,
    wrong_type,
)
from rl_jax.data.files import Record, json_type
from rl_jax.errors import ConfigError

_ANSWERS = (
    "reward_model.ground_truth",
    "ground_truth",
    "answer",
    "solution",
    "label",
)


def answers(
    record: Record, column: str = "", *, after: str = "", needed: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Every acceptable reference answer, trimmed, and the columns they came from.

    A list of strings and numbers holds several; so does a list of strings as JSON.
    Other lists and objects are one answer, as JSON.

    Args:
        column: "" takes the first of the usual columns; none need be there.
        after: an answer is what follows the last such mark. "" takes all of it.
        needed: a row without an answer is an error.

    Raises:
        ConfigError: for an answer missing where it is needed, or of the wrong kind.
    """
    name = column or first_of(record, _ANSWERS)
    if not name:
        if needed:
            raise unrecognised(record, "answer", ", ".join(_ANSWERS))
        return (), ()
    value = configured(record, name, "answer")
    if value is None or isinstance(value, bool) or value == []:
        if not (needed or column):
            return (), ()
        found = "an empty list" if value == [] else json_type(value)
        raise ConfigError(
            f"{record.where}: column {name!r} holds {found}.\n"
            "Expected the answer as a string or a number, or a list of these."
        )
    golds = [_trimmed(gold, record, name, after) for gold in _golds(value)]
    golds = [gold for gold in golds if gold] or golds[:1]
    # A list or an object stays among the other columns too, for reward functions.
    is_text = isinstance(value, str) or _is_number(value)
    return tuple(golds), (name,) if is_text else ()


def _golds(value: Any) -> list[str]:
    # Text such as [0, 1] is an interval: only quotes make it a list of answers.
    inner = maybe_json(value)
    if isinstance(inner, list) and inner and all(isinstance(x, str) for x in inner):
        return inner
    if isinstance(value, list):
        if all(isinstance(x, str) or _is_number(x) for x in value):
            return [str(gold) for gold in value]
    if isinstance(value, list | dict):
        return [json.dumps(value, ensure_ascii=False, default=str)]
    return [str(value)]


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float | decimal.Decimal)
    return number and not isinstance(value, bool)


def _trimmed(gold: str, record: Record, column: str, after: str) -> str:
    _, mark, answer = gold.rpartition(after) if after else ("", "", gold)
    if after and (not mark or not answer.strip()):
        raise ConfigError(
            f"{record.where}: column {column!r} has nothing after {after!r}: "
            f"...{gold[-60:]!r}\n"
            "Write --config.data.answer_after='' to take the whole column."
        )
    return answer.strip()


def tools(record: Record) -> list[dict[str, Any]] | None:
    """The tools that a template may show: JSON schemas; None if there are none.

    Raises:
        ConfigError: if the column `tools` holds no list of objects, nor one as JSON.
    """
    found = maybe_json(record.values.get("tools"))
    if found is None or found == "":
        return None
    if isinstance(found, list):
        schemas = [maybe_json(entry) for entry in without_padding(found, record)]
        if all(isinstance(schema, dict) for schema in schemas):
            return schemas or None
        found = (
            f"a list with {next(json_type(s) for s in schemas if type(s) is not dict)}"
        )
    else:
        found = json_type(found)
    raise ConfigError(
        f"{record.where}: column 'tools' holds {found}.\n"
        'Expected a list of JSON schemas, [{"type": "function", "function": {...}}].'
    )


def variables(record: Record) -> dict[str, Any]:
    """What the row gives its chat template beside the messages.

    Raises:
        ConfigError: if chat_template_kwargs is no object, or enable_thinking no
            boolean.
    """
    value = maybe_json(record.values.get("chat_template_kwargs"))
    if value is not None and not isinstance(value, dict):
        expected = 'an object, {"name": value}'
        raise wrong_type(record, "chat_template_kwargs", value, expected)
    found = dict(without_padding(value or {}, record))
    thinking = record.values.get("enable_thinking")
    if thinking is not None and not isinstance(thinking, bool):
        raise wrong_type(record, "enable_thinking", thinking, "true or false")
    return found if thinking is None else {**found, "enable_thinking": thinking}


def source(record: Record) -> str:
    """The data set that the row says it is of; "" if it says none.

    Raises:
        ConfigError: if it names several.
    """
    name = record.values.get("data_source")
    if name is None and "ground_truth" in record.values:
        name = record.values.get("dataset")
    name = maybe_json(name)
    if isinstance(name, list) and len(name) == 1:
        name = name[0]
    if isinstance(name, list | dict):
        raise ConfigError(
            f"{record.where}: the row names {json_type(name)} as its data set: "
            f"{str(name)[:60]}.\n"
            "Expected one name; a row that several verifiers judge is not supported."
        )
    return "" if name is None else str(name)
