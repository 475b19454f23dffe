"""The points of a scaling curve, read from work folders."""

import json

import numpy as np
import pytest

from rl_jax.errors import ConfigError
from rl_jax.scaling_runs import AXES, read_points

SPEC = {
    "num_layers": 1,
    "width": 8,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 4,
    "ffn_width": 5,
    "vocab_size": 17,
    "attention": [{"window": 0, "rope_theta": 10000.0, "rope_scaling": None}],
}
# q and k of 2 and 1 heads, v, o; gate, up, down; two norms; the last norm.
LAYERS = 8 * 4 * (2 + 1 + 1 + 2) + 3 * 8 * 5 + 2 * 8 + 8


def write(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)


def rl_lines(steps=4, tokens=100):
    yield {"step": 0, "eval/accuracy": 0.1}
    for step in range(1, steps + 1):
        yield {
            "step": step,
            "train/reward": step / 10,
            "train/num_tokens": tokens * step,
            "time/step": 36.0 * step,
        }
        if step % 2 == 0:
            yield {"step": step, "eval/accuracy": 0.1 + step / 10}


@pytest.fixture
def run(tmp_path):
    write(tmp_path / "run", rl_lines())
    return tmp_path / "run"


def test_an_evaluation_is_that_of_the_weights_after_its_step(run):
    points = read_points(str(run), "eval/accuracy", "tokens", None)
    np.testing.assert_array_equal(points.compute_N, [0, 200, 400])
    np.testing.assert_allclose(points.score_N, [0.1, 0.3, 0.5])
    assert points.last_compute == 400 and points.name == str(run)


def test_a_training_reward_is_that_of_the_weights_before_its_step(run):
    points = read_points(str(run), "train/reward", "tokens", None)
    np.testing.assert_array_equal(points.compute_N, [0, 100, 200, 300])
    np.testing.assert_allclose(points.score_N, [0.1, 0.2, 0.3, 0.4])


def test_hours_add_up_the_steps_of_all_chips(run):
    points = read_points(str(run), "eval/accuracy", "chip_hours", 8)
    # 36 s and 72 s; then 108 s and 144 s.
    np.testing.assert_allclose(points.compute_N, [0, 8 * 0.03, 8 * 0.1])


def test_the_chips_are_those_of_the_mesh_or_must_be_told(run):
    mesh = {"replica": 2, "fsdp": 3, "tensor": 1}
    (run / "config.json").write_text(json.dumps({"kind": "rl", "mesh": mesh}))
    points = read_points(str(run), "eval/accuracy", "chip_hours", None)
    np.testing.assert_allclose(points.compute_N, [0, 6 * 0.03, 6 * 0.1])
    mesh["fsdp"] = -1
    (run / "config.json").write_text(json.dumps({"kind": "rl", "mesh": mesh}))
    with pytest.raises(ConfigError, match="--chips=8"):
        read_points(str(run), "eval/accuracy", "chip_hours", None)


@pytest.mark.parametrize(
    ("kind", "tie", "each"),
    [
        ("rl", True, 8 * (LAYERS + 17 * 8)),
        ("rl", False, 8 * (LAYERS + 17 * 8)),  # the embedding is a look-up
        ("sft", True, 6 * (LAYERS + 17 * 8)),
    ],
)
def test_flops_are_tokens_times_weights_that_multiply(run, kind, tie, each):
    spec = SPEC | {"tie_embeddings": tie}
    (run / "model.json").write_text(json.dumps(spec))
    (run / "config.json").write_text(json.dumps({"kind": kind}))
    points = read_points(str(run), "eval/accuracy", "flops", None)
    np.testing.assert_allclose(points.compute_N, [0, 200 * each, 400 * each])


def test_a_chain_gives_its_last_stage_with_the_metric(tmp_path):
    write(tmp_path / "sft", [{"step": 1, "train/loss": 2.0, "train/num_tokens": 5}])
    write(tmp_path / "rl", rl_lines())
    (tmp_path / "model.json").write_text(json.dumps(SPEC))
    config = {"stages": ["sft", "rl"], "sft": {"kind": "sft"}, "rl": {"kind": "rl"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    points = read_points(str(tmp_path), "eval/accuracy", "tokens", None)
    np.testing.assert_array_equal(points.compute_N, [0, 200, 400])
    assert len(read_points(str(tmp_path), "train/loss", "tokens", None).score_N) == 1
    whole, stage = (
        read_points(str(folder), "eval/accuracy", "flops", None)
        for folder in (tmp_path, tmp_path / "rl")
    )
    np.testing.assert_array_equal(whole.compute_N, stage.compute_N)
    assert whole.compute_N[1] == 200 * 8 * (LAYERS + 17 * 8)


def test_runs_with_commas_between_them_are_pooled_in_order_of_compute(run, tmp_path):
    write(tmp_path / "other", rl_lines(tokens=70))
    points = read_points(f"{run},{tmp_path / 'other'}", "eval/accuracy", "tokens", None)
    np.testing.assert_array_equal(points.compute_N, [0, 0, 140, 200, 280, 400])
    np.testing.assert_allclose(points.score_N, [0.1, 0.1, 0.3, 0.3, 0.5, 0.5])


def test_a_part_of_the_points_is_taken_by_compute(run):
    points = read_points(str(run), "train/reward", "tokens", None)
    np.testing.assert_array_equal(points.until(200).compute_N, [0, 100, 200])
    np.testing.assert_array_equal(points.since(200).score_N, points.score_N[2:])


# Faults.


def fault(word, metric, axis, match):
    with pytest.raises(ConfigError, match=match) as caught:
        read_points(str(word), metric, axis, None)
    assert len(str(caught.value).splitlines()) <= 3


def test_a_folder_without_metrics_is_refused(tmp_path):
    fault(tmp_path, "eval/accuracy", "tokens", "no metrics.jsonl")
    fault(tmp_path / "absent", "eval/accuracy", "tokens", "Expected a work folder")


def test_a_metric_that_is_absent_is_refused_with_those_that_are_there(run):
    fault(run, "eval/acuracy", "tokens", "Write e.g. --metric=eval/accuracy")
    fault(run, "nonsense", "tokens", r"eval/accuracy, train/reward")


def test_compute_that_was_not_written_is_refused(run):
    write(run, [{"step": 1, "eval/accuracy": 0.5}])
    for axis, missing in (("tokens", "train/num_tokens"), ("flops", "model.json")):
        fault(run, "eval/accuracy", axis, missing)
    fault(run, "eval/accuracy", "chip_hours", "--chips")
    (run / "model.json").write_text('{"width": 8}')
    fault(run, "eval/accuracy", "flops", "of this version")
    assert set(AXES) == {"tokens", "flops", "chip_hours"}
