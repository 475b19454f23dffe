"""What became of a stage, and what it must reach."""

import dataclasses
import json

import pytest

from rl_jax.config_keys import Gate, StageConfig
from rl_jax.stages import results
from rl_jax.stages.results import Result


def written(folder, **metrics):
    """A stage's metrics.jsonl with each metric's values at steps 0, 1, ..."""
    folder.mkdir(exist_ok=True)
    lines = {}
    for name, values in metrics.items():
        for step, value in enumerate(values):
            lines.setdefault(step, {"step": step})[name.replace("__", "/")] = value
    text = "".join(json.dumps(line) + "\n" for line in lines.values())
    (folder / "metrics.jsonl").write_text(text)
    return folder


def test_a_result_is_read_as_it_was_written(tmp_path):
    assert results.read(tmp_path) == Result()
    result = Result(True, 7, 1.5, 100.25, {"sft": 99.5})
    results.write(tmp_path, result)
    assert results.read(tmp_path) == result
    assert [path.name for path in tmp_path.iterdir()] == [results.RESULT]


@pytest.mark.parametrize(
    ("gate", "first", "last", "holds"),
    [
        (Gate("x", at_least=0.5), 0.9, 0.5, True),
        (Gate("x", at_least=0.5), 0.9, 0.49, False),
        (Gate("x", at_most=0.5), 0.1, 0.5, True),
        (Gate("x", at_most=0.5), 0.1, 0.51, False),
        (Gate("x", rise=0.25), 0.25, 0.5, True),
        (Gate("x", rise=0.25), 0.3, 0.5, False),
        (Gate("x", rise=-0.25), 0.5, 0.25, True),
        (Gate("x", fall=0.25), 0.5, 0.25, True),
        (Gate("x", fall=0.25), 0.5, 0.3, False),
        (Gate("x", at_least=0.5, rise=0.1), 0.5, 0.55, False),
        (Gate("x", at_least=0.5), 0.5, float("nan"), False),
    ],
)
def test_a_gate_holds_when_all_that_it_asks_for_is_reached(gate, first, last, holds):
    assert (results.verdict(gate, first, last) == "") == holds
    assert results.wanted(gate)


def test_the_first_and_last_value_of_a_metric_are_found(tmp_path):
    folder = written(tmp_path / "rl", eval__accuracy=(0.25, 0.5, 0.75))
    assert results.first_and_last(folder, "eval/accuracy") == (0.25, 0.75)
    assert results.first_and_last(folder, "eval/loss") is None
    assert results.first_and_last(tmp_path / "none", "eval/loss") is None


def test_the_summary_has_a_line_a_stage_with_what_it_brought(tmp_path):
    rl = StageConfig("rl", "rl.", "rl", gate=Gate("eval/accuracy", at_least=0.9))
    sft = StageConfig("sft", "sft.", "sft")
    folder = written(tmp_path / "rl", eval__accuracy=(0.25, 0.75), train__reward=(1,))
    results.write(folder, Result(True, 20, 83.4))
    lines = [
        results.line(sft, written(tmp_path / "sft", train__loss=(2.5, 0.125))),
        results.line(rl, folder),
        results.line(dataclasses.replace(sft, name="next"), tmp_path / "next"),
    ]
    table = [row.split() for row in results.table(lines).splitlines()]
    assert table[0][:4] == ["stage", "kind", "steps", "time"]
    assert table[1] == ["sft", "sft", "0:00", "train/loss", "2.5", "0.125"]
    assert table[2][:7] == ["rl", "rl", "20", "1:23", "eval/accuracy", "0.25", "0.75"]
    assert " ".join(table[2][7:]) == "at least 0.9: missed"
    assert table[3] == ["next", "sft", "0:00"]
    once = results.line(rl, written(tmp_path / "once", eval__accuracy=(0.95,)))
    assert (once.first, once.last) == (None, 0.95)
    assert "eval/accuracy 0.95 at least" in " ".join(results.table([once]).split())
