"""The evaluation command: its numbers, its settings and its faults."""

import json

import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax import command_line, evaluate
from rl_jax.errors import ConfigError


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tiny.trained(tmp_path_factory.getbasetemp())[0]


def settings(*words, trained=None, num_devices=1):
    args = evaluate.arguments(["--model=m", *words])
    return evaluate.stage_settings(args, trained, num_devices=num_devices)


# Numbers.


def test_the_summary_equals_the_worked_numbers():
    # 8 samples, 2 right: 0.25 and 0.785714; 8 samples, none right: 0.
    found = evaluate.summary([2, 0], 8, [1, 4])
    assert found["pass@1"][0] == pytest.approx(0.25 / 2, abs=1e-6)
    assert found["pass@4"][0] == pytest.approx(0.785714 / 2, abs=1e-6)
    assert evaluate.summary([2], 8, [7])["pass@7"] == (1.0, 1.0, 1.0)


def test_the_interval_holds_the_mean_and_shrinks_with_more_prompts():
    counts = np.random.default_rng(0).integers(0, 9, 800).tolist()
    widths = []
    for number in (8, 80, 800):
        found = evaluate.summary(counts[:number], 8, [1, 8])
        assert found == evaluate.summary(counts[:number], 8, [1, 8])
        for mean, low, high in found.values():
            assert low <= mean <= high
        widths.append(found["pass@1"][2] - found["pass@1"][1])
    assert widths[0] > 2 * widths[1] > 4 * widths[2] > 0


def test_a_gain_is_paired_by_prompt():
    def records(*shares):
        return [
            {"prompt": f"p{i}", "answer": 1, "verdict": verdict}
            for i, right in enumerate(shares)
            for verdict in ["correct"] * right + ["wrong"] * (4 - right)
        ]

    before, after = (
        evaluate.shares(records(*right))
        for right in ([0, 1, 2, 3] * 50, [1, 2, 3, 4] * 50)
    )
    # Every prompt gained a quarter: no spread is left, though the prompts have much.
    assert evaluate.gain(before, after) == (0.25, 0.25, 0.25)
    other = evaluate.shares(records(*[2, 1] * 100))
    mean, low, high = evaluate.gain(before, other)
    assert mean == 0.0 and low < 0.0 < high


# The command.


def run(capsys, *words):
    assert evaluate.main(words) == 0
    out = capsys.readouterr().out
    return {line.split()[0]: line.split()[1:] for line in out.splitlines()}


def test_a_workdir_is_evaluated_on_other_devices_than_it_was_trained_on(
    workdir, tmp_path, capsys
):
    # Trained on one device with two prompts a dispatch; here there are eight.
    out = tmp_path / "samples.jsonl"
    words = ("--num_prompts=3", "--num_samples=4", "--k=4,1,2")
    printed = run(capsys, f"--model={workdir}", f"--out={out}", *words)
    assert printed["model"][0] == str(workdir / "rl")
    assert printed["data"] == ["arithmetic:", "3", "prompts", "x", "4", "samples"]
    *samples, result = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(s["request"], s["index"]) for s in samples] == [
        (request, index) for request in range(3) for index in range(4)
    ]
    right = [s["verdict"] == "correct" for s in samples]
    counts = [sum(right[i : i + 4]) for i in (0, 4, 8)]
    # The reward of the tiny run pays for digits: some samples have some.
    assert 0 < sum(counts) < 12
    want = evaluate.summary(counts, 4, [1, 2, 4])
    for name, (mean, low, high) in want.items():
        assert result[name] == [mean, low, high]
        shown = [float(printed[name][i]) for i in (0, 4, 6)]
        assert shown == pytest.approx([mean, low, high], abs=1e-4)
    assert printed["verdicts"][:2] == ["correct", f"{sum(counts)},"]
    # Against itself there is no gain.
    again = run(capsys, f"--model={workdir}", f"--against={out}", *words)
    assert again["gain"] == "+0.0000 95 % interval +0.0000 to +0.0000".split()
    with pytest.raises(
        ConfigError, match="3 prompts, of which 2 are among the 2 asked"
    ):
        run(capsys, f"--model={workdir}", f"--against={out}", "--num_prompts=2")


def test_a_hugging_face_folder_is_evaluated_on_a_file(workdir, tmp_path, capsys):
    folder = tiny.exported(workdir, tmp_path / "model")
    rows = [{"question": f"{n} plus 1?", "answer": f"so\n#### {n + 1}"} for n in (1, 2)]
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "samples.jsonl"
    words = [
        f"--data={data}",
        "--prompt_column=question",
        "--answer_after=####",
        "--num_samples=1",
        "--k=1",
        "--temperature=0",
        "--max_new_tokens=4",
        "--max_prompt_tokens=32",
        "--slots=8",
    ]
    printed = run(capsys, f"--model={folder}", f"--out={out}", *words)
    assert printed["model"] == [str(folder)] and printed["temperature"] == ["0"]
    samples = [json.loads(line) for line in out.read_text().splitlines()][:-1]
    assert [s["answer"] for s in samples] == ["2", "3"]
    assert [s["prompt"] for s in samples] == ["1 plus 1?", "2 plus 1?"]
    assert all(s["num_tokens"] <= 4 for s in samples)


# Faults: exit code 2, three lines at most, before jax is imported where possible.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--k=9"], "--k=9 with --num_samples=8"),
        (["--k=0,1"], "--k=0,1"),
        (["--k=one"], "--k=one"),
        (["--num_samples=0"], "--num_samples=0"),
        (["--num_prompts=0"], "--num_prompts=0"),
        (["--temperature=-1"], "--temperature=-1"),
        (["--max_new_tokens=0"], "--max_new_tokens=0"),
        (["--top_p=0"], "--top_p=0"),
    ],
)
def test_a_wrong_argument_exits_with_2_and_says_which(words, told, capsys):
    argv = ["--model=nowhere", *words]
    assert command_line.exit_on_config_error(evaluate.main, argv) == 2
    message = capsys.readouterr().err
    assert told in message and len(message.splitlines()) <= 3


def test_a_model_that_is_not_there_exits_with_2(tmp_path, capsys):
    argv = [f"--model={tmp_path / 'none'}"]
    assert command_line.exit_on_config_error(evaluate.main, argv) == 2
    message = capsys.readouterr().err
    assert "none holds no model" in message and len(message.splitlines()) <= 3


def test_a_model_without_data_of_its_own_needs_some():
    with pytest.raises(ConfigError, match="--data=FILE"):
        settings()


# Settings.


def test_settings_are_those_of_the_run_unless_given(workdir):
    config = json.loads((workdir / "config.json").read_text())
    trained = config["rl"]
    stage = settings(trained=trained)
    assert stage.data.eval == "arithmetic" and stage.rollout.max_new_tokens == 16
    assert stage.reward.functions == tuple(trained["reward"]["functions"])
    assert stage.eval.num_prompts == 200 <= stage.data.num_eval_problems
    stage = settings(
        "--data=rows.jsonl",
        "--system=Count.",
        "--temperature=0.5",
        "--top_k=7",
        "--max_new_tokens=9",
        "--answer_format=any",
        "--num_prompts=3",
        trained=trained,
    )
    assert (stage.data.eval, stage.data.system) == ("rows.jsonl", "Count.")
    assert (stage.rollout.temperature, stage.rollout.top_k) == (0.5, 7)
    assert (stage.rollout.max_new_tokens, stage.eval.num_prompts) == (9, 3)
    assert stage.reward.answer_format == "any"


@pytest.mark.parametrize(("num_devices", "slots", "rows"), [(1, 20, 2), (8, 24, 8)])
def test_what_lies_on_the_devices_is_a_multiple_of_them(num_devices, slots, rows):
    trained = {"data": {"eval": "arithmetic"}, "rollout": {"slots": 8}, "reward": {}}
    trained["rollout"]["prefill_rows"] = 2
    stage = settings("--num_samples=20", trained=trained, num_devices=num_devices)
    assert (stage.rollout.slots, stage.rollout.prefill_rows) == (slots, rows)
