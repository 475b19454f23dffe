"""Data files to raw records: .jsonl, .jsonl.gz and .parquet.

A record remembers where it stood, so that what is wrong with it can be said in terms
of the file. What the columns mean is in rows.py.
"""

import dataclasses
import difflib
import glob
import gzip
import json
import pathlib
import zlib
from collections.abc import Iterator
from typing import Any

import pyarrow
import pyarrow.parquet

from rl_jax.errors import ConfigError

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


@dataclasses.dataclass(frozen=True)
class Record:
    """One object of a data file.

    Attributes:
        values: its columns.
        file: where it stood.
        number: its line in a .jsonl file, its row in a .parquet file, from 1.
    """

    values: dict[str, Any]
    file: pathlib.Path
    number: int

    @property
    def where(self) -> str:
        """For messages: the file and the row."""
        return f"{self.file}, row {self.number}"


def records(path: str | pathlib.Path) -> Iterator[Record]:
    """Every record of a file, a glob, or the files that lie directly in a folder.

    Files come in the order of their names, records in the order of the file. Blank
    lines are skipped.

    Raises:
        ConfigError: if nothing is there, a file holds no record or is of another
            kind, or a line is not a JSON object.
    """
    for file in data_files(path):
        count = 0
        for record in _parquet(file) if file.suffix == ".parquet" else _jsonl(file):
            count += 1
            yield record
        if count == 0:
            raise ConfigError(
                f"The data file {file} holds no rows.\nTake it away or fill it."
            )


def data_files(path: str | pathlib.Path) -> list[pathlib.Path]:
    """The files that `path` (file, glob or folder) stands for, sorted by name."""
    expanded = pathlib.Path(path).expanduser()
    if expanded.is_dir():
        inside = sorted(expanded.iterdir())
        files = [file for file in inside if file.name.endswith(SUFFIXES)]
        if not files:
            names = ", ".join(file.name for file in inside[:8]) or "nothing"
            raise ConfigError(
                f"The data folder {expanded} has no {' or '.join(SUFFIXES)} file.\n"
                f"It holds: {names}."
            )
        return files
    if expanded.is_file():
        files = [expanded]
    else:
        files = sorted(map(pathlib.Path, glob.glob(str(expanded), recursive=True)))
        files = [file for file in files if file.is_file()]
    if not files:
        raise ConfigError(f"No data at {expanded}.\n{_nearest(expanded)}")
    for file in files:
        if not file.name.endswith(SUFFIXES):
            raise ConfigError(
                f"Cannot tell what {file} is by its name.\n"
                f"Expected a file that ends in {', '.join(SUFFIXES)}."
            )
    return files


def _nearest(path: pathlib.Path) -> str:
    folder = path.parent
    while not folder.is_dir():
        folder = folder.parent
    if folder != path.parent:
        return f"The folder {path.parent} does not exist; {folder} does."
    names = [file.name for file in folder.iterdir()]
    close = difflib.get_close_matches(path.name, names, n=1)
    if close:
        return f"Did you mean {folder / close[0]}?"
    return f"No file in {folder} has such a name."


def _jsonl(file: pathlib.Path) -> Iterator[Record]:
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        # utf-8-sig: some editors put a byte order mark at the start.
        with opened(file, "rt", encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield Record(_json_object(line, file, number), file, number)
    except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        raise ConfigError(f"Cannot read {file}: {error}") from error


def _json_object(line: str, file: pathlib.Path, number: int) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file}, line {number} is not JSON: {error}\n"
            f"It begins with {line.strip()[:60]!r}; a .jsonl file has one JSON object "
            "a line."
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"{file}, line {number} holds {json_type(value)}, not an object.\n"
            'Expected a line such as {"prompt": "...", "answer": "..."}.'
        )
    return value


def _parquet(file: pathlib.Path) -> Iterator[Record]:
    try:
        table = pyarrow.parquet.ParquetFile(file)
        number = 0
        for batch in table.iter_batches(batch_size=1024):
            for values in batch.to_pylist():
                number += 1
                yield Record(values, file, number)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"Cannot read {file}: {error}") from error


def json_type(value: Any) -> str:
    """What a person who knows JSON calls the type of `value`."""
    names = {
        type(None): "null",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), f"a {type(value).__name__}")
