"""Rows to files: JSON lines that stay one line each, files that appear whole."""

import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any


def json_line(values: Mapping[str, Any]) -> str:
    r"""One line of a .jsonl file, with its line end.

    As `json_text` has it; and a row with a line end of Unicode's (U+2028), which some
    readers split at, is in ASCII too.
    """
    text = json_text(values)
    if len(text.splitlines()) > 1:
        text = json.dumps(values, default=str)
    return text + "\n"


def json_text(values: Any, *, indent: int | None = None) -> str:
    r"""JSON in letters that people can read; in ASCII where those cannot be written.

    That is with half of a surrogate pair, which no UTF-8 holds: it becomes \ud83d. What
    JSON has not, such as parquet's dates and decimals, becomes text.
    """
    text = json.dumps(values, ensure_ascii=False, default=str, indent=indent)
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        return json.dumps(values, default=str, indent=indent)
    return text


def write_lines(path: str | os.PathLike, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replaces a .jsonl file, which a reader sees whole or not at all."""
    write_text(path, map(json_line, rows))


def write_text(path: str | os.PathLike, parts: Iterable[str]) -> None:
    """Replaces a text file, which a reader sees whole or not at all."""
    target = pathlib.Path(path).expanduser()
    temporary = target.with_name(target.name + ".tmp")
    with open(temporary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, target)
