"""The command that grades a file: what it writes, what it prints, what it refuses."""

import json

import pytest

from rl_jax import command_line, grade
from rl_jax.rewards import Score, Verdict

ROWS = [
    {"id": "a", "prompt": "1/2?", "completion": r"\boxed{0.5}", "answer": r"\frac12",
     "data_source": "math", "expected": True},
    {"id": "b", "completion": r"\boxed{7}", "answer": ["8", "7"],
     "expected": "correct"},
    {"id": "c", "completion": r"\boxed{8}", "answer": "9", "expected": True},
    {"id": "d", "completion": "#### 3", "answer": "x\n#### 3", "data_source": "gsm8k"},
    {"id": "e", "completion": r"\boxed{C}", "answer": 2, "choices": ["x", "y", "z"],
     "data_source": "multiple_choice", "expected": 1.0},
    {"id": "f", "completion": r"\boxed{Lyon}", "answer": "lyon", "data_source": "exact",
     "expected": ["wrong", "correct"]},
    {"id": "g", "completion": "no box", "answer": "1", "expected": "fail"},
]  # fmt: skip


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(folder, rows, *words):
    data, out = written(folder / "in.jsonl", rows), folder / "out.jsonl"
    argv = [f"--data={data}", f"--out={out}", "--workers=1", *words]
    code = command_line.exit_on_config_error(grade.main, argv)
    return code, out


def test_every_row_is_graded_by_its_data_source(tmp_path, capsys):
    code, out = run(tmp_path, ROWS)
    assert code == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in found] == list("abcdefg")
    keys = {"id", "score", "verdict", "extracted", "seconds", "detail"}
    assert all(set(row) == keys for row in found)
    assert [row["score"] for row in found] == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    assert found[2]["verdict"] == "wrong" and found[2]["extracted"] == "8"
    assert found[6]["verdict"] == "unparsable_reply"
    printed = capsys.readouterr().out
    assert "7 rows" in printed and "as expected  5 of 6" in printed
    assert "c: expected True, got wrong (0.0); answer '9', extracted '8'" in printed
    (line,) = (line for line in printed.splitlines() if line.startswith("correct "))
    assert line.split()[1:4] == ["5", "71.4%", "1.000"]


def test_a_function_and_its_options_may_be_named(tmp_path):
    rows = [{"completion": "so x", "answer": ""}, {"completion": r"\boxed{1}"}]
    words = ["--function=format+repetition@0.5", "--option=repetition.ngram=1"]
    code, out = run(tmp_path, rows, *words)
    assert code == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["id"] for row in found] == [1, 2]
    assert [row["score"] for row in found] == [0.0, 1.0]
    assert found[1]["parts"] == {"format": 1.0, "repetition": 0.0}


def test_a_hanging_grade_costs_its_limit_only(tmp_path):
    path = tmp_path / "hangs.py"
    path.write_text("def fn(completion):\n    while completion == 'hang': pass\n")
    rows = [{"completion": text} for text in ("hang", "x")]
    path.write_text(path.read_text() + "    return 1.0\n")
    code, out = run(tmp_path, rows, f"--function={path}:fn", "--timeout=0.3")
    assert code == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["verdict"] for row in found] == ["timeout", "correct"]
    assert 0.3 <= found[0]["seconds"] < 5.0


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ([{"reply": "x"}], [], "no column 'completion'"),
        ([{"completion": 5}], [], "'completion' is 5"),
        ([{"completion": "x", "data_source": "poems"}], [], "data source 'poems'"),
        ([{"completion": "x"}], ["--function=mathz"], "did you mean 'maths'"),
        (
            [{"completion": "x"}],
            ["--function=number", "--route=a=maths"],
            "--route has",
        ),
        ([{"completion": "x"}], ["--workers=0"], "1 or more workers"),
        ([{"completion": "x"}], ["--option=x=1"], "FUNCTION.OPTION=VALUE"),
        ([], [], "holds no rows"),
    ],
)
def test_what_cannot_be_graded_is_one_message_and_exit_code_2(
    tmp_path, capsys, rows, words, message
):
    code, _ = run(tmp_path, rows, *words)
    printed = capsys.readouterr().err
    assert code == 2 and message in printed
    assert len(printed.splitlines()) <= 3


def test_a_file_that_is_not_there_and_a_folder_that_is_not_there_are_told(
    tmp_path, capsys
):
    for argv in (
        [f"--data={tmp_path}/no.jsonl", f"--out={tmp_path}/out.jsonl"],
        [f"--data={tmp_path}/no.jsonl", f"--out={tmp_path}/no/out.jsonl"],
    ):
        assert command_line.exit_on_config_error(grade.main, argv) == 2
        assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "verdict", "expected", "agrees"),
    [
        (1.0, "correct", True, True),
        (0.0, "wrong", True, False),
        (None, "unparsable_gold", False, True),
        (0.5, "correct", 0.5, True),
        (0.5, "correct", 1, False),
        (None, "infrastructure", 0, False),
        (0.0, "timeout", "timeout", True),
        (0.0, "timeout", "fail", True),
        (0.0, "timeout", ["blocked", "timeout"], True),
        (1.0, "correct", "PASS", True),
        (0.0, "wrong", "true", False),
    ],
)
def test_what_was_expected_may_be_said_in_many_ways(value, verdict, expected, agrees):
    assert grade.agrees(Score(value, Verdict(verdict)), expected) == agrees
