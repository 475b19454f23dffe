"""The curate command: what it writes, says and refuses."""

import gzip
import json

import pytest

from rl_jax import command_line, curate
from rl_jax.data.rows import read_rows

LONG = "the river runs past the mill and the old bridge down to the sea where ships lie"
TEST = "how many ships lie in the harbour when the tide is out and the wind is low"


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def data(tmp_path):
    rows = [
        {"prompt": LONG, "answer": "1", "rate": 0.5},
        {"prompt": f"{LONG} too", "answer": "1", "rate": 0.5},
        {"prompt": "b", "answer": "2", "rate": 1.0},
        {"prompt": "b", "answer": "3", "rate": 1.0},
        {"prompt": f"Tell me {TEST}", "answer": "4", "rate": 0.5},
        {"prompt": "c", "answer": "5", "rate": [0, 0]},
        {"prompt": "d", "answer": "6", "rate": 0.25, "note": "kept as it is"},
    ]
    write(tmp_path / "test.jsonl", [{"question": TEST}])
    return write(tmp_path / "train.jsonl", rows)


def ran(tmp_path, *words, code=0):
    words = [f"--out={tmp_path / 'out.jsonl'}", *map(str, words)]
    assert command_line.exit_on_config_error(curate.main, words) == code


def test_all_filters_together_and_the_order_kept(data, tmp_path, capsys):
    removed = tmp_path / "removed.jsonl"
    ran(
        tmp_path,
        f"--data={data}",
        f"--against={tmp_path / 'test.jsonl'}",
        "--against_prompt_column=question",
        "--pass_rate=rate",
        "--min_pass_rate=0.1",
        "--max_pass_rate=0.9",
        f"--removed={removed}",
    )
    assert lines(tmp_path / "out.jsonl") == [
        {"prompt": LONG, "answer": "1", "rate": 0.5, "data_source": "train"},
        {
            "prompt": "d",
            "answer": "6",
            "rate": 0.25,
            "note": "kept as it is",
            "data_source": "train",
        },
    ]
    left_out = [(line["where"].split()[-1], line["reason"]) for line in lines(removed)]
    assert left_out == [
        ("2", "near duplicate"),
        ("3", "too easy"),
        ("4", "exact duplicate"),
        ("5", "contaminated"),
        ("6", "too hard"),
    ]
    statistics = json.loads((tmp_path / "out.stats.json").read_text())
    assert statistics["read"] == 7 and statistics["kept"] == 2
    assert list(statistics["removed"].values()) == [1] * 5
    assert statistics["conflicting_answers"] == 1
    test = str(tmp_path / "test.jsonl")
    assert statistics["held_out"] == {test: {"prompts": 1, "found": 1}}
    assert statistics["pass_rates"]["0.9 to 1.0"] == {"read": 2, "kept": 0}
    assert statistics["settings"]["near"] == 0.8
    assert [e["reason"] for e in statistics["examples"]] == list(statistics["removed"])
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["rows", "read", "7", "100.0%"]
    assert out[1].split()[:4] == ["exact", "duplicate", "1", "14.3%"]
    assert out[1].endswith("1 with another answer")
    assert "kept                       2   28.6%" in out
    assert f"held out  {test}: 1 of 1 prompts found" in out


def test_the_same_call_writes_the_same_bytes_and_the_trainer_reads_them(data, tmp_path):
    ran(tmp_path, f"--data={data}")
    first = (tmp_path / "out.jsonl").read_bytes()
    ran(tmp_path, f"--data={data}")
    assert (tmp_path / "out.jsonl").read_bytes() == first
    before = {row.id: row for row in read_rows(data)}
    for row in read_rows(tmp_path / "out.jsonl"):
        assert row.data_source == before[row.id].data_source == "train"
        assert row.answers == before[row.id].answers


def test_several_files_keep_their_sources(data, tmp_path, capsys):
    more = tmp_path / "more.jsonl.gz"
    with gzip.open(more, "wt") as file:
        file.write(json.dumps({"prompt": "new"}) + "\n")
        file.write(json.dumps({"prompt": "d", "data_source": "own"}) + "\n")
        file.write(json.dumps({"prompt": "e", "data_source": "own"}) + "\n")
    ran(tmp_path, f"--data={data},{more}")
    sources = [line["data_source"] for line in lines(tmp_path / "out.jsonl")]
    assert sources == ["train"] * 5 + ["more", "own"]
    assert f"  {more}: 2 of 3" in capsys.readouterr().out


def test_samples_give_pass_rates_that_are_written_down(data, tmp_path, capsys):
    samples = write(
        tmp_path / "samples.jsonl",
        [
            {"prompt": "c\n\nBox it.", "verdict": verdict}
            for verdict in ("correct", "wrong", "wrong", "wrong")
        ],
    )
    words = [f"--data={data}", f"--samples={samples}", "--instruction=Box it."]
    ran(tmp_path, *words, code=2)
    err = capsys.readouterr().err
    assert "4 of 5 rows have no pass rate" in err and "--unrated=keep" in err
    assert not (tmp_path / "out.jsonl").exists()
    ran(tmp_path, *words, "--unrated=keep")
    assert len(lines(tmp_path / "out.jsonl")) == 5
    ran(tmp_path, *words, "--unrated=drop")
    (line,) = lines(tmp_path / "out.jsonl")
    assert (line["prompt"], line["pass_rate"]) == ("c", 0.25)


def test_the_first_of_several_columns_that_a_row_has_is_taken(tmp_path):
    rows = [{"question": "x"}, {"problem": "y"}, {"problem": "x"}]
    data = write(tmp_path / "mixed.jsonl", rows)
    ran(tmp_path, f"--data={data}", "--prompt_column=question,problem")
    assert len(lines(tmp_path / "out.jsonl")) == 2


# Faults.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--near=1.5"], "a share from 0 to 1"),
        (["--ngram=0"], "1 token or more"),
        (["--min_pass_rate=0.5"], "--pass_rate=COLUMN"),
        (["--pass_rate=rate", "--samples=x"], "both given"),
        (
            ["--pass_rate=rate", "--min_pass_rate=0.9", "--max_pass_rate=0.1"],
            "at most --max_pass_rate=0.1",
        ),
        (["--pass_rate=answer"], "Expected a share from 0 to 1"),
        (["--pass_rate=rat"], "7 of 7 rows"),
        (["--prompt_column=promt"], "Write --prompt_column=prompt"),
        (["--against=nowhere.jsonl"], "No data at"),
        (["--stats=nowhere/x.json"], "a folder that exists"),
        (
            ["--pass_rate=rate", "--min_pass_rate=0.6", "--max_pass_rate=0.7"],
            "Nothing is left of 7 rows",
        ),
    ],
)
def test_a_fault_is_told_and_nothing_is_written(data, tmp_path, capsys, words, told):
    near = [] if "--near=1.5" in words else ["--near=0"]
    if "7 of 7" in told:
        data = write(data, [{"prompt": str(i)} for i in range(7)])
    ran(tmp_path, f"--data={data}", *near, *words, code=2)
    err = capsys.readouterr().err
    assert told in err and "config." not in err
    assert len(err.splitlines()) <= 3
    assert not (tmp_path / "out.jsonl").exists()


def test_the_data_are_never_overwritten(data, tmp_path, capsys):
    words = [f"--data={data}", f"--out={data}"]
    assert command_line.exit_on_config_error(curate.main, words) == 2
    assert "one of the files to be read" in capsys.readouterr().err
    words = [f"--data={data}", "--out=x.parquet"]
    assert command_line.exit_on_config_error(curate.main, words) == 2
    assert "ends in .jsonl" in capsys.readouterr().err


def test_shares_and_built_in_tasks_are_not_files(data, tmp_path, capsys):
    ran(tmp_path, f"--data={data}@0.5", code=2)
    assert "with a share" in capsys.readouterr().err
    ran(tmp_path, f"--data={data}@-1", code=2)
    assert "error: --data has the share '-1'" in capsys.readouterr().err
    ran(tmp_path, "--data=arithmetic", code=2)
    assert "built-in task" in capsys.readouterr().err


def test_what_no_utf_8_holds_is_written_so_that_it_is_read(tmp_path):
    rows = [{"prompt": "half \ud83d of a pair\u2028", "answer": "é"}]
    data = write(tmp_path / "train.jsonl", rows)
    ran(tmp_path, f"--data={data}")
    (row,) = read_rows(tmp_path / "out.jsonl")
    assert row.messages[0]["content"] == rows[0]["prompt"] and row.answer == "é"
