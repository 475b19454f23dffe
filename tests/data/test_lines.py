"""Rows to lines: one line each whatever they say, and read back as they were."""

import datetime
import decimal
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.data.files import records
from rl_jax.data.lines import json_line, json_text, write_lines, write_text

HOSTILE = (
    "two\nlines\r\n",
    "\u2028 \u2029 \x85 \x0b \x1c",
    "half \ud83d of a pair",
    '"}\n{"score": 9}',
    "\x00\x1b[31m\ufeff",
    "é 漢 😀",
)


# Halves that would meet and become one letter are one when they are read.
texts = st.text(st.characters(exclude_categories=[])).filter(
    lambda text: json.loads(json.dumps(text)) == text
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(texts, texts | st.integers() | st.lists(texts)))
def test_a_line_is_one_line_of_utf_8_that_says_the_row(values):
    line = json_line(values)
    assert line.endswith("\n") and len(line.splitlines()) == 1
    assert json.loads(line.encode("utf-8")) == values


def test_text_stays_readable_where_it_can():
    assert json_line({"x": "é 漢 😀"}) == '{"x": "é 漢 😀"}\n'
    assert json_text({"x": "\ud83d é"}) == '{"x": "\\ud83d \\u00e9"}'
    assert json_text({"x": 1}, indent=1) == '{\n "x": 1\n}'


def test_what_json_has_not_becomes_text():
    values = {"day": datetime.date(2026, 1, 2), "cost": decimal.Decimal("1.50")}
    assert json_line(values) == '{"day": "2026-01-02", "cost": "1.50"}\n'


def test_hostile_text_survives_a_file(tmp_path):
    path = tmp_path / "x.jsonl"
    write_lines(path, [{"text": text} for text in HOSTILE])
    assert [record.values["text"] for record in records(path)] == list(HOSTILE)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "x.jsonl"
    write_lines(path, [{"a": 1}])

    def broken():
        yield "half of"
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_text(path, broken())
    assert path.read_text() == '{"a": 1}\n'
