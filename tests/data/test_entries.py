"""Rows of every shape as texts, and rows written back as they were read."""

import json
import pathlib

import pyarrow
import pyarrow.parquet
import pytest

from rl_jax.data.entries import entry, written
from rl_jax.data.files import Record, records
from rl_jax.data.rows import read_rows
from rl_jax.errors import ConfigError

SYSTEM = {"role": "system", "content": "be brief"}
ASK, SAY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
MORE, LAST = {"role": "user", "content": "r"}, {"role": "assistant", "content": "b"}


def record(values, name="data.jsonl"):
    return Record(values, pathlib.Path(name), 3)


@pytest.mark.parametrize(
    ("values", "prompt", "parts"),
    [
        ({"prompt": "q", "answer": "4"}, "q", ("q",)),
        ({"prompt": "q", "completion": "a"}, "q", ("q", "a")),
        ({"prompt": "q", "completion": None, "answer": "4"}, "q", ("q",)),
        ({"prompt": [SYSTEM, ASK]}, "q", ("q",)),
        ({"messages": [SYSTEM, ASK, SAY]}, "q", ("q", "a")),
        ({"messages": [ASK, SAY, MORE, LAST]}, "q\na\nr", ("q", "a", "r", "b")),
        ({"messages": json.dumps([ASK, SAY])}, "q", ("q", "a")),
        (
            {
                "conversations": [
                    {"from": "human", "value": "q"},
                    {"from": "gpt", "value": "a"},
                ]
            },
            "q",
            ("q", "a"),
        ),
        ({"instruction": "q", "input": "x", "output": "a"}, "q\n\nx", ("q\n\nx", "a")),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, "q", ("q", "a", "b")),
        ({"chosen": [ASK, SAY], "rejected": [ASK, LAST]}, "q", ("q", "a", "b")),
        ({"prompt": "q", "chosen": None, "rejected": None}, "q", ("q",)),
        ({"text": "plain"}, "plain", ("plain",)),
    ],
)
def test_every_shape_of_the_trainer_is_read(values, prompt, parts):
    found = entry(record(values))
    assert (found.prompt, found.parts) == (prompt, parts)
    assert found.whole == "\n".join(parts)
    if "messages" in values:
        assert found.asked == prompt.split("\n")[-1]


def test_named_columns_are_taken():
    values = {"question": "q", "reply": "a", "gold": "4", "prompt": "no"}
    found = entry(
        record(values),
        prompt_column="question",
        completion_column="reply",
        answer_column="gold",
    )
    assert found.parts == ("q", "a") and found.answers == ("4",)


def test_a_row_of_no_known_shape_is_refused_with_its_place():
    with pytest.raises(ConfigError, match="data.jsonl, row 3"):
        entry(record({"question": "q"}))
    with pytest.raises(ConfigError, match="'text' holds a number"):
        entry(record({"text": 3}))


def test_a_row_is_written_with_the_source_that_its_file_stood_for():
    assert written(record({"prompt": "q"}, "gsm8k.jsonl")) == {
        "prompt": "q",
        "data_source": "gsm8k",
    }
    own = {"prompt": "q", "data_source": "math"}
    assert written(record(own)) == own


def test_a_parquet_row_is_written_without_padding_and_read_again_alike(tmp_path):
    rows = [
        {"prompt": [ASK | {"extra": None}], "answer": "4", "note": None},
        {"prompt": [{**MORE, "extra": "x"}], "answer": "5", "note": "n"},
    ]
    file = tmp_path / "set.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    lines = [written(found) for found in records(file)]
    assert lines[0] == {"prompt": [ASK], "answer": "4", "data_source": "set"}
    copy = tmp_path / "other.jsonl"
    copy.write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, again = (read_rows(path) for path in (file, copy))
    for a, b in zip(first, again, strict=True):
        assert (a.id, a.data_source, a.answers) == (b.id, b.data_source, b.answers)
