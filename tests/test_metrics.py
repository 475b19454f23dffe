"""Metrics: strict JSON lines, resume, TensorBoard, samples, and counters."""

import io
import json
import math
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from rl_jax import metrics
from rl_jax.errors import ConfigError
from rl_jax.metrics import Writer


def new_writer(folder, *, enabled=True, stage="rl"):
    return Writer(folder, stage=stage, total_steps=40, enabled=enabled)


def read_lines(folder):
    def refuse(name):
        raise AssertionError(f"{name} is not strict JSON")

    text = (folder / "metrics.jsonl").read_text()
    assert text == "" or text.endswith("\n")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def read_events(folder):
    """Every event of every TensorBoard file, oldest file first."""
    events = []
    for path in sorted((folder / "tensorboard").iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            # A record: uint64 length, uint32 crc, the event, uint32 crc.
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event()  # pyright: ignore[reportAttributeAccessIssue]
            event.ParseFromString(data[at + 12 : at + 12 + length])
            events.append(event)
            at += 16 + length
    return events


def test_every_kind_of_scalar_becomes_a_json_number(tmp_path):
    writer = new_writer(tmp_path)
    writer.write(
        3,
        {
            "train/reward": 0.25,
            "train/loss": np.float32(0.1),
            "train/kl": jnp.bfloat16(0.5),
            "train/entropy": jnp.asarray([2.5]),
            "train/grad_norm": np.float64(1 / 3),
            "train/refills": np.int64(2),
            "train/num_tokens": 10**12,
            "perf/compiles": True,
        },
    )
    writer.close()
    assert read_lines(tmp_path) == [
        {
            "step": 3,
            "train/reward": 0.25,
            "train/loss": 0.1,
            "train/kl": 0.5,
            "train/entropy": 2.5,
            "train/grad_norm": 1 / 3,
            "train/refills": 2,
            "train/num_tokens": 10**12,
            "perf/compiles": 1,
        }
    ]


def test_numbers_that_are_not_finite_become_null_and_are_named(tmp_path):
    writer = new_writer(tmp_path)
    values = {"train/loss": math.nan, "train/kl": jnp.float32(jnp.inf)}
    writer.write(1, {"train/reward": 1.0} | values)
    writer.close()
    assert read_lines(tmp_path) == [
        {
            "step": 1,
            "train/reward": 1.0,
            "train/loss": None,
            "train/kl": None,
            "nonfinite": ["train/loss", "train/kl"],
        }
    ]


@pytest.mark.parametrize("value", [None, "1.0", [1.0, 2.0], np.zeros(0), 1j, {}])
def test_what_is_not_one_number_is_refused_by_name(tmp_path, value):
    with pytest.raises(TypeError, match="train/loss must be one number"):
        new_writer(tmp_path).write(1, {"train/loss": value})


def test_an_unknown_name_is_an_error_and_writes_nothing(tmp_path):
    with pytest.raises(ValueError, match="'train/los'.*'train/loss'"):
        new_writer(tmp_path).write(1, {"train/reward": 1.0, "train/los": 1.0})
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_line_is_on_disk_before_the_next_step(tmp_path):
    writer = new_writer(tmp_path)
    for step in (1, 2):
        writer.write(step, {"train/loss": step})
        assert len(read_lines(tmp_path)) == step
    writer.close()


def test_tensorboard_gets_the_same_numbers(tmp_path):
    writer = new_writer(tmp_path)
    writer.write(7, {"train/reward": jnp.bfloat16(0.5), "eval/accuracy": 0.25})
    writer.close()
    found = {
        value.tag: (event.step, value.simple_value)
        for event in read_events(tmp_path)
        for value in event.summary.value
    }
    assert found == {"train/reward": (7, 0.5), "eval/accuracy": (7, 0.25)}


def write_steps(writer, first, last):
    for step in range(first, last + 1):
        writer.write(step, {"train/loss": 1 / step})
        if step % 2 == 0:
            writer.write(step, {"eval/accuracy": step / 10})


def test_a_resumed_file_equals_that_of_an_uninterrupted_run(tmp_path, capsys):
    straight = new_writer(tmp_path / "straight")
    write_steps(straight, 1, 6)
    straight.close()

    torn = tmp_path / "torn"
    killed = new_writer(torn)
    write_steps(killed, 1, 5)
    killed.close()
    with open(torn / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "train/lo')
    resumed = new_writer(torn)
    assert [line["step"] for line in read_lines(torn)][-1] == 5
    resumed.resume(4)
    write_steps(resumed, 5, 6)
    resumed.close()
    expected = (tmp_path / "straight" / "metrics.jsonl").read_bytes()
    assert (torn / "metrics.jsonl").read_bytes() == expected
    assert "dropped what came after step 4 (1 lines)" in capsys.readouterr().out
    # TensorBoard is told to hide what the first run wrote from step 5 on.
    starts = [e.step for e in read_events(torn) if e.HasField("session_log")]
    assert starts[-1] == 5


def test_a_whole_line_without_its_newline_was_not_finished(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2}')
    writer = new_writer(tmp_path)
    writer.write(2, {"train/loss": 0})
    writer.close()
    assert read_lines(tmp_path) == [{"step": 1}, {"step": 2, "train/loss": 0}]


def test_resuming_before_step_0_starts_a_clean_file(tmp_path):
    writer = new_writer(tmp_path)
    writer.write(0, {"eval/accuracy": 0.5})
    writer.resume(-1)
    assert read_lines(tmp_path) == []
    writer.resume(3)  # nothing to drop, nothing to fail on
    writer.close()


def test_the_line_of_a_reinforcement_step(tmp_path, capsys, monkeypatch):
    clock = iter([100.0, 160.0, 220.0])
    monkeypatch.setattr(metrics.time, "monotonic", lambda: next(clock))
    writer = new_writer(tmp_path)
    known = {
        "train/reward": 0.5,
        "train/loss": -0.01,
        "train/accuracy": 0.25,
        "train/completions/mean_length": jnp.float32(213.4),
        "perf/tokens_per_sec_generate": 1234.5,
        "perf/tokens_per_sec_train": 99.0,
        "time/step": 10.0,
    }
    first = writer.line(10, known)
    expected = "rl 10/40  reward 0.500  accuracy 25.0%  length 213  1,234 tokens/s"
    assert first == f"{expected}  5m 00s left"
    # From the second line on the wall clock decides: 60 s a step, 28 steps to go.
    assert writer.line(11, known).endswith("29m 00s left")
    assert writer.line(12, known).endswith("28m 00s left")
    writer.close()
    out = capsys.readouterr().out
    assert out.splitlines()[0] == first
    assert (tmp_path / "log.txt").read_text() == out


def test_the_line_of_a_supervised_step(tmp_path):
    writer = new_writer(tmp_path, stage="sft")
    known = {"train/loss": 1.25, "perf/tokens_per_sec_train": 8900.0, "time/step": 2.0}
    expected = "sft 20/40  loss 1.2500  8,900 tokens/s  40s left"
    assert writer.line(20, known) == expected
    writer.close()


def test_the_line_of_an_evaluation(tmp_path):
    writer = new_writer(tmp_path)
    known = {"eval/accuracy": 0.61, "eval/accuracy_greedy": 0.65, "time/eval": 1.0}
    assert writer.line(20, known) == "rl 20/40  eval accuracy 61.0%  greedy 65.0%"
    writer.close()


def test_a_terminal_that_knows_ascii_only_does_not_stop_the_run(tmp_path, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    writer = new_writer(tmp_path)
    writer.log("π is \ud800")
    writer.close()
    assert raw.getvalue() == b"\\u03c0 is \\ud800\n"
    assert (tmp_path / "log.txt").read_text() == "π is \\ud800\n"


def test_samples_are_written_whole_and_printed_safely(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    evil = "first\nline \x1b[2J\u202e then " + "x" * 200 + " the answer is 7"
    records = [
        {"prompt": "3 + 4?", "completion": evil, "score": 1.0, "verdict": "correct"},
        {"prompt": "3 + 4?", "completion": "8", "score": 0.0, "verdict": "wrong"},
        {"prompt": "5 + 5?", "completion": "\ud800", "score": math.nan, "parts": {}},
        {"prompt": "6 + 6?", "completion": "12", "score": None, "parts": {"a": None}},
    ]
    writer = new_writer(tmp_path)
    writer.samples(10, records, show=2)
    writer.close()
    text = (tmp_path / "samples" / "step_000010.jsonl").read_text()
    written = [json.loads(line) for line in text.splitlines()]
    assert written == [records[0], records[1], records[2] | {"score": None}, records[3]]

    out = capsys.readouterr().out
    assert all(c.isprintable() for c in out.replace("\n", ""))
    header, *shown = out.splitlines()
    assert "step 10" in header and "step_000010.jsonl" in header
    assert all(len(line) <= 70 for line in shown)
    assert shown[0] == "  prompt     3 + 4?"
    assert shown[1].startswith(r"  completion first\nline \x1b[2J\u202e then")
    assert shown[1].endswith("the answer is 7")
    assert shown[2] == "  score      1.0 correct"
    # Another prompt comes second, and there is no third.
    assert shown[3] == "  prompt     5 + 5?" and len(shown) == 6


def test_status_is_replaced_as_a_whole(tmp_path):
    writer = new_writer(tmp_path)
    writer.status({"state": "running", "step": np.int32(1), "loss": math.inf})
    expected = {"state": "running", "step": 1, "loss": None}
    assert json.loads((tmp_path / "status.json").read_text()) == expected
    writer.status({"state": "done"})
    assert json.loads((tmp_path / "status.json").read_text()) == {"state": "done"}
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_writer_that_is_not_enabled_touches_nothing(tmp_path, capsys):
    folder = tmp_path / "run"
    writer = new_writer(folder, enabled=False)
    writer.resume(3)
    writer.write(4, {"train/loss": 1.0})
    assert writer.line(4, {"train/loss": 1.0}) == "rl 4/40  loss 1.0000"
    writer.samples(4, [{"prompt": "p"}])
    writer.status({"state": "running"})
    writer.log("hello")
    writer.close()
    assert not folder.exists()
    assert capsys.readouterr().out == ""


def test_a_bucket_cannot_be_a_folder_to_append_in():
    for workdir in ("gs://bucket/run", "gs:/bucket/run"):
        with pytest.raises(ConfigError, match="workdir") as caught:
            new_writer(workdir)
        assert len(str(caught.value).splitlines()) <= 3


def test_compiles_are_counted_once_each():
    counter = metrics.CompileCounter()

    def f(x):
        return jnp.sin(x) * 3 + 1

    fast = jax.jit(f)
    x_T, y_S = np.zeros(7, np.float32), np.zeros(11, np.float32)
    fast(x_T)
    assert counter.count == 1 and counter.secs > 0
    fast(x_T + 1)
    assert counter.count == 1
    fast(y_S)
    assert counter.count == 2
    counter.close()
    fast(np.zeros(13, np.float32))
    assert counter.count == 2


def test_memory_of_this_process_is_counted_in_bytes():
    before = metrics.memory_bytes()
    assert before > 10 * 2**20
    ballast = np.ones(64 * 2**20, np.uint8)
    assert metrics.memory_bytes() - before > 0.8 * ballast.nbytes


def test_a_cpu_does_not_say_how_much_memory_it_used():
    assert metrics.device_memory_bytes() is None
