"""The benchmark: its answers are what they claim to be, its table tells the truth."""

import json

import pytest

from rl_jax import bench, bench_rewards, command_line
from rl_jax.bench_figures import Figure, table
from rl_jax.rewards import maths


def test_the_answers_are_right_or_wrong_as_they_are_made():
    asked = bench_rewards.pairs(84, seed=5)
    for i, ((gold, _), text) in enumerate(
        zip(asked, bench_rewards.replies(asked), strict=True)
    ):
        assert maths.grade(text, gold).value == float(i % 3 != 2), (gold, text)


def test_rounds_have_no_answer_in_common():
    pairs = bench_rewards.pairs
    one, other = (set(pairs(200, seed)) for seed in (0, 1))
    assert len(one & other) <= 2 and pairs(9, 4) == pairs(9, 4)


@pytest.mark.parametrize("length", [0, 16_000])
def test_long_replies_end_in_the_same_box(length):
    (text,) = bench_rewards.replies([("5", "7")], length)
    assert text.endswith(r"So the answer is $\boxed{7}$.")
    assert length <= len(text) <= length + 40


@pytest.mark.parametrize(
    ("figure", "reached"),
    [
        (Figure("a", 2.0, "x", 1.7), True),
        (Figure("a", 1.6, "x", 1.7), False),
        (Figure("a", 50.0, "ms", 60.0, at_most=True), True),
        (Figure("a", 70.0, "ms", 60.0, at_most=True), False),
        (Figure("a", 70.0, "1/s"), True),
    ],
)
def test_the_table_says_whether_a_target_is_reached(figure, reached):
    assert figure.reached == reached
    text = table([figure])
    assert ("MISSED" in text) == (not reached)


def test_what_cannot_be_measured_is_refused(capsys):
    argv = ["rewards", "--rounds=0"]
    assert command_line.exit_on_config_error(bench.main, argv) == 2
    assert "--rounds is 0" in capsys.readouterr().err


@pytest.mark.slow
def test_the_benchmark_runs_and_writes_its_figures(tmp_path, capsys):
    file = tmp_path / "figures.json"
    argv = ["rewards", "--rounds=1", "--answers=28", "--programs=2", f"--json={file}"]
    assert bench.main(argv) == 0
    figures = {f["name"].strip(): f["value"] for f in json.loads(file.read_text())}
    assert figures["answers judged otherwise than they were made"] == 0
    assert figures["1 worker / the library alone"] > 0
    assert "2 workers / 1 worker" in capsys.readouterr().out
