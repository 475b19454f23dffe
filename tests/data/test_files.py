"""Finding data files and reading records from them."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from rl_jax.data.files import data_files, records
from rl_jax.errors import ConfigError

VALUES = [{"a": 1, "b": "é\u2028x"}, {"a": 2, "b": None}]
LINES = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in VALUES)


def complaint(path):
    with pytest.raises(ConfigError) as error:
        list(records(path))
    assert len(str(error.value).splitlines()) <= 3
    return str(error.value)


def test_the_three_kinds_of_file_give_the_same_records(tmp_path):
    (tmp_path / "a.jsonl").write_text(LINES, "utf-8")
    with gzip.open(tmp_path / "b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(LINES)
    table = pyarrow.Table.from_pylist(VALUES)
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet"):
        found = list(records(tmp_path / name))
        assert [record.values for record in found] == VALUES
        assert [record.where for record in found] == [
            f"{tmp_path / name}, row {n}" for n in (1, 2)
        ]
    assert len(list(records(tmp_path))) == 6
    assert len(list(records(str(tmp_path / "[ab].*")))) == 4


def test_a_folder_and_a_glob_give_files_by_name_and_a_folder_nothing_else(tmp_path):
    for name in ("z.jsonl", "a.parquet", "m.jsonl.gz", "README.md", "x.json"):
        (tmp_path / name).touch()
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "d.jsonl").touch()
    names = [file.name for file in data_files(tmp_path)]
    assert names == ["a.parquet", "m.jsonl.gz", "z.jsonl"]
    assert [f.name for f in data_files(tmp_path / "*.jsonl")] == ["z.jsonl"]
    found = data_files(tmp_path / "**" / "*.jsonl")
    assert [file.name for file in found] == ["d.jsonl", "z.jsonl"]


def test_a_file_whose_name_looks_like_a_glob_is_read(tmp_path):
    (tmp_path / "data[1].jsonl").write_text(LINES, "utf-8")
    assert len(list(records(tmp_path / "data[1].jsonl"))) == 2


def test_blank_lines_count_as_lines_but_hold_no_record(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('\n{"a": 1}\r\n\n  \n{"a": 2}', "utf-8")
    assert [record.number for record in records(file)] == [2, 5]


def test_a_byte_order_mark_is_not_part_of_the_data(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(LINES, "utf-8-sig")
    assert [record.values for record in records(file)] == VALUES


def test_a_missing_file_is_named_with_its_nearest_neighbour(tmp_path):
    (tmp_path / "train.jsonl").touch()
    assert f"Did you mean {tmp_path / 'train.jsonl'}?" in complaint(
        tmp_path / "trian.jsonl"
    )
    assert "No file in" in complaint(tmp_path / "0")
    text = complaint(tmp_path / "none" / "there" / "x.jsonl")
    assert f"The folder {tmp_path / 'none' / 'there'} does not exist" in text
    assert f"{tmp_path} does" in text
    assert "No data at" in complaint(tmp_path / "*.parquet")


def test_empty_files_and_folders_are_errors(tmp_path):
    assert "holds: nothing" in complaint(tmp_path)
    (tmp_path / "notes.txt").touch()
    assert "notes.txt" in complaint(tmp_path)
    (tmp_path / "a.jsonl").write_text("\n\n")
    assert f"{tmp_path / 'a.jsonl'} holds no rows" in complaint(tmp_path)
    table = pyarrow.Table.from_pylist([], pyarrow.schema([("a", pyarrow.int64())]))
    pyarrow.parquet.write_table(table, tmp_path / "b.parquet")
    assert "holds no rows" in complaint(tmp_path / "b.parquet")


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n")
    assert ".jsonl, .jsonl.gz, .parquet" in complaint(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"a": ', "line 2 is not JSON"),
        ("[1, 2]", "line 2 holds a list, not an object"),
        ('"text"', "line 2 holds a string"),
        ("[" * 100_000, "line 2 is not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, words):
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n' + line + "\n")
    assert f"{file}, {words}" in complaint(file)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_bytes_of_no_such_format_are_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"\xff\xfe\x00garbage")
    assert f"Cannot read {tmp_path / name}" in complaint(tmp_path / name)


def test_a_cut_off_gzip_file_is_refused(tmp_path):
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(LINES.encode() * 100)[:-20])
    assert f"Cannot read {file}" in complaint(file)
