"""Plots: a PNG from any metrics.jsonl, and the moving average."""

import json

import numpy as np
import pytest

from rl_jax import plots

PNG = b"\x89PNG\r\n\x1a\n"


def write_run(folder, lines):
    folder.mkdir()
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)


def rl_lines(steps):
    for step in range(1, steps + 1):
        yield {
            "step": step,
            "train/reward": -1 + 3 * step / steps,
            "train/completions/mean_length": 20 + step,
        }
        if step % 10 == 0:
            yield {"step": step, "eval/accuracy": 0.5, "eval/accuracy_greedy": 0.6}


def test_a_run_is_drawn_to_its_folder(tmp_path):
    write_run(tmp_path / "rl", rl_lines(60))
    path = plots.plot_run(tmp_path / "rl")
    assert path == tmp_path / "rl" / "curves.png"
    assert path.read_bytes().startswith(PNG)


def test_a_chain_is_drawn_whatever_its_stages_wrote(tmp_path):
    write_run(tmp_path / "sft", [{"step": s, "train/loss": 1 / s} for s in (1, 2, 3)])
    write_run(tmp_path / "rl", rl_lines(20))
    write_run(tmp_path / "empty", [])
    (tmp_path / "rl" / "metrics.jsonl").open("a").write('{"step": 21, "tra')
    folders = [(name, tmp_path / name) for name in ("sft", "rl", "empty", "absent")]
    path = plots.plot_chain(folders, tmp_path / "chain.png")
    assert path.read_bytes().startswith(PNG)


def test_a_run_without_any_number_is_drawn_too(tmp_path):
    assert plots.plot_run(tmp_path).read_bytes().startswith(PNG)


def test_null_values_and_other_keys_leave_gaps(tmp_path):
    write_run(
        tmp_path / "run",
        [
            {"step": 1, "train/loss": 2.0},
            {"step": 2, "train/loss": None, "nonfinite": ["train/loss"]},
            {"step": 3, "train/loss": 1.0},
        ],
    )
    curves = plots.read_curves(tmp_path / "run" / "metrics.jsonl")
    assert set(curves) == {"train/loss"}
    np.testing.assert_array_equal(curves["train/loss"], [[1, 3], [2.0, 1.0]])


@pytest.mark.parametrize("window", [1, 3, 50])
def test_the_moving_average_matches_a_loop(window):
    y = np.random.default_rng(0).normal(size=11)
    slow = [np.mean(y[max(i - window + 1, 0) : i + 1]) for i in range(len(y))]
    np.testing.assert_allclose(
        plots.moving_average(y, window), slow, rtol=0, atol=1e-12
    )
