"""Nested frozen dataclasses seen as one flat table of dotted keys.

For each leaf: its type, the choices if it has any, whether None is allowed, the
default, and the comment written at the field. To a ConfigDict and back. Knows no key
by name.
"""

import dataclasses
import difflib
import functools
import inspect
import math
import re
import shlex
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from ml_collections import config_dict

from rl_jax.errors import ConfigError

# An ml_collections ConfigDict. Its attributes are whatever was put in, so that a type
# checker can only guess at them, and guesses wrong.
Tree: TypeAlias = Any

WORDS = {
    bool: "true or false",
    int: "a whole number (int)",
    float: "a number (float)",
    str: "text",
}


@dataclasses.dataclass(frozen=True)
class Key:
    """One leaf of the tree."""

    value_type: type  # bool, int, float, str or tuple
    item_type: type  # of a tuple's elements; value_type again for the others
    choices: tuple[str, ...]  # empty: any value of the type
    optional: bool  # None is a value
    default: Any
    comment: str

    @property
    def expected(self) -> str:
        """What a value must be, in words."""
        words = WORDS[self.item_type]
        if self.choices:
            names = [f"'{choice}'" for choice in self.choices]
            # A line that wraps three times is not read; --help lists them all.
            if (more := len(names) - _MANY) > 1:
                names[_MANY:] = [f"{more} more that --help lists"]
            words = "one of " + ", ".join(names)
        if self.value_type is tuple:
            words = f"a comma-separated list, each {words}"
        return words + (" (or none)" if self.optional else "")


_MANY = 8  # choices that a message names


@functools.cache
def keys(cls: type) -> Mapping[str, Key]:
    """Dotted path -> Key for every leaf of a dataclass, in the order written.

    Fields without a default are not keys: the code that builds them sets them.
    """
    table: dict[str, Key] = {}
    hints, comments = typing.get_type_hints(cls), field_comments(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            for path, key in keys(hint).items():
                table[f"{field.name}.{path}"] = key
        elif field.default is not dataclasses.MISSING:
            table[field.name] = make_key(hint, field.default, comments[field.name])
    return types.MappingProxyType(table)


def make_key(hint: Any, default: Any, comment: str) -> Key:
    """Key of one annotation: T, Literal[...] or tuple[T, ...], perhaps `| None`."""
    main, optional = hint, False
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (main,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
        optional = True
    origin, args = typing.get_origin(main), typing.get_args(main)
    if origin is typing.Literal:
        return Key(str, str, args, optional, default, comment)
    if origin is tuple:
        return Key(tuple, args[0], (), optional, default, comment)
    return Key(main, main, (), optional, default, comment)


def field_comments(cls: type) -> dict[str, str]:
    """The comment of each field: behind it, or on the lines directly above it."""
    names = {field.name for field in dataclasses.fields(cls)}
    comments, above = {}, []
    for line in map(str.strip, inspect.getsource(cls).splitlines()):
        match = re.match(r"(\w+): .*?(?:  # (.*))?$", line)
        if line.startswith("# "):
            above.append(line.removeprefix("# "))
            continue
        if match and match[1] in names:
            comments[match[1]] = " ".join([*above, match[2] or ""]).strip()
        above = []
    return comments


def build(cls: type, values: Mapping[str, Any]) -> Any:
    """Instance of a dataclass from dotted values; what is absent has its default."""
    arguments: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            arguments[name] = build(hint, below(values, f"{name}."))
        elif name in values:
            arguments[name] = values[name]
    return cls(**arguments)


def below(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The entries whose path starts with `prefix`, which is taken off."""
    return {k.removeprefix(prefix): values[k] for k in values if k.startswith(prefix)}


def tree(table: Mapping[str, Key]) -> Tree:
    """Nested, locked ConfigDict of the defaults; typed placeholders where None."""
    root: Tree = config_dict.ConfigDict()
    for path, key in table.items():
        *groups, name = path.split(".")
        node = root
        for group in groups:
            if group not in node:
                node[group] = config_dict.ConfigDict()
            node = node[group]
        empty = key.default is None
        node[name] = config_dict.placeholder(key.value_type) if empty else key.default
    return root.lock()


def leaves(node: Tree, prefix: str = "") -> dict[str, Any]:
    """Dotted path -> value of a nested ConfigDict."""
    found: dict[str, Any] = {}
    for name, value in node.items():
        if isinstance(value, config_dict.ConfigDict):
            found |= leaves(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def checked_values(config: Tree, table: Mapping[str, Key]) -> dict[str, Any]:
    """Dotted path -> value of the right type, for exactly the keys of the table.

    Raises:
        ConfigError: for a key too many, a key too few, or a wrong value.
    """
    values = leaves(config)
    check_names(values, table)
    return {path: checked(path, table[path], values[path]) for path in table}


def check_names(values: Mapping[str, Any], table: Mapping[str, Key]) -> None:
    """Raises ConfigError unless the paths are exactly those of the table."""
    for path in values:
        if path not in table:
            near = " or ".join(f"config.{key}" for key in nearest(path, table))
            raise ConfigError(
                f"The recipe sets config.{path}, which is not a key.\n"
                + (f"Did you mean {near}?" if near else "--help lists all keys.")
            )
    for path in table:
        if path not in values:
            raise ConfigError(
                f"The recipe's config lacks {path}.\nStart from the full tree of "
                "rl_jax.config.stage(kind) or chain({...}), and take no key away."
            )


def checked(path: str, key: Key, value: Any) -> Any:
    """`value` in the key's own type: an int may stand for a float.

    Raises:
        ConfigError: if it is of another type, not finite, or no valid choice.
    """
    if value is None and key.optional:
        return None
    elements = value if key.value_type is tuple else (value,)
    if isinstance(elements, tuple | list):
        elements = tuple(
            float(e) if key.item_type is float and type(e) is int else e
            for e in elements
        )
        if all(_fits(key, element) for element in elements):
            return elements if key.value_type is tuple else elements[0]
    example = key.default
    if key.choices:
        example = (nearest(str(value), key.choices) or key.choices)[0]
    raise ConfigError(
        f"config.{path} is {value!r}, expected {key.expected}.\n"
        f"Write e.g. {override(path, example)} ({key.comment})."
    )


def _fits(key: Key, element: Any) -> bool:
    """Whether one element is of the right type, finite, and a valid choice."""
    if type(element) is not key.item_type or (
        key.choices and element not in key.choices
    ):
        return False
    return key.item_type is not float or math.isfinite(element)


def as_text(value: Any, choices: tuple[str, ...] = ()) -> str:
    """A value as it is written on the command line.

    None is written none, but null where none is one of the key's choices.
    """
    if value is None and "none" in choices:
        return "null"
    if isinstance(value, tuple):
        return ",".join(map(as_text, value))
    return str(value).lower() if value is None or type(value) is bool else str(value)


def override(path: str, value: Any) -> str:
    """What to type to set a key, in backquotes."""
    return f"`--config.{path}={quoted(as_text(value))}`"


def quoted(text: str) -> str:
    """Text as a shell takes it, without quotes where none are needed."""
    return shlex.quote(text) if text else ""


def nearest(word: str, candidates: Iterable[str]) -> list[str]:
    """At most two candidates that may have been meant, the best first.

    Those that end in the whole word ("optim.lr" for "lr"), otherwise those whose last
    part is the same or spelt much alike, in whatever group.
    """
    candidates = list(candidates)
    if whole := [c for c in candidates if f".{c}".endswith(f".{word}")]:
        return whole[:2]

    def likeness(a: str, b: str) -> float:
        return difflib.SequenceMatcher(None, a, b).ratio()

    def last(path: str) -> str:
        return path.rsplit(".", 1)[-1]

    # 0.6 of the last part: "lrr" for "lr" passes, "b3" for "b1" only as a whole.
    scores = {
        c: likeness(word, c) + likeness(last(word), last(c))
        for c in candidates
        if likeness(last(word), last(c)) >= 0.6 or likeness(word, c) >= 0.85
    }
    best = sorted(scores, key=scores.__getitem__, reverse=True)[:2]
    return [c for c in best if scores[c] > scores[best[0]] - 0.1]
