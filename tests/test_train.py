"""The trainer as a process: it learns the same whatever interrupts it."""

import json
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import tiny_run as tiny
from rl_jax import checkpoint, train
from rl_jax import config as configs
from rl_jax import recipe as recipes
from rl_jax.mesh import make_mesh
from rl_jax.models.params import abstract_params
from rl_jax.stages import context


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """A run that nothing interrupted."""
    workdir = tmp_path_factory.mktemp("whole")
    process = tiny.start(workdir, cache)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return workdir, out


def test_a_run_leaves_what_the_design_promises(whole):
    workdir, out = whole
    for name in ("config.json", "model.json", "tokenizer", "curves.png"):
        assert (workdir / name).exists(), name
    for stage, steps in (("sft", 4), ("rl", 6)):
        folder = workdir / stage
        assert checkpoint.latest_step(folder / "checkpoints") == steps
        assert [line["step"] for line in tiny.metrics(workdir, stage)].count(steps) == 2
        assert list((folder / "tensorboard").iterdir())
    assert len(list((workdir / "rl" / "samples").iterdir())) == 6
    last = tiny.metrics(workdir, "rl")[-1]
    assert {"eval/accuracy", "eval/accuracy_greedy"} <= last.keys()
    assert "curves.png" in out and "rl 6/6" in out


def test_sampler_and_trainer_agree_at_every_step(whole):
    workdir, _ = whole
    steps = [m for m in tiny.metrics(workdir, "rl") if "train/loss" in m]
    assert len(steps) == 6
    assert all(m["health/logp_gap_max"] < 1e-4 for m in steps)
    assert any(m["health/logp_gap_max"] > 0 for m in steps)
    # One update a batch: the policy that is trained is the one that sampled.
    assert all(abs(m["train/importance_ratio/mean"] - 1) < 1e-5 for m in steps)


def test_nothing_is_compiled_after_the_first_steps(whole):
    lines = (whole[0] / "rl" / "metrics.jsonl").read_text().splitlines()
    counts = [json.loads(line)["perf/compiles"] for line in lines]
    # Step 0 evaluates, step 1 trains; from then on every program is there.
    assert counts[2:] == [counts[2]] * len(counts[2:])


def _params(workdir):
    model = context.read_model_file(workdir)
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    tree = checkpoint.load_params(
        workdir / "rl" / "checkpoints", abstract_params(model, mesh)
    )
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def _wait_for(condition, process, timeout_secs=240):
    end = time.monotonic() + timeout_secs
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.005)


def _lines(workdir, stage):
    path = workdir / stage / "metrics.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def _saving(workdir, stage, step):
    return list((workdir / stage / "checkpoints").glob(f"{step}.orbax*"))


def _same_as_whole(workdir, whole):
    for stage in ("sft", "rl"):
        assert tiny.metrics(workdir, stage) == tiny.metrics(whole, stage)
    for path in (whole / "rl" / "samples").iterdir():
        assert (workdir / "rl" / "samples" / path.name).read_text() == path.read_text()
    for ours, theirs in zip(_params(workdir), _params(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_killed_at_any_moment_and_resumed_equals_uninterrupted(whole, tmp_path, cache):
    moments = [
        lambda: _lines(tmp_path, "sft") >= 1,
        lambda: _saving(tmp_path, "sft", 2) or _lines(tmp_path, "sft") >= 3,
        lambda: _lines(tmp_path, "rl") >= 3,
        lambda: _saving(tmp_path, "rl", 4) or _lines(tmp_path, "rl") >= 7,
    ]
    for moment in moments:
        process = tiny.start(tmp_path, cache)
        _wait_for(moment, process)
        process.kill()
        process.communicate()
    process = tiny.start(tmp_path, cache)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    _same_as_whole(tmp_path, whole[0])


def test_sigterm_saves_and_exits_143(whole, tmp_path, cache):
    process = tiny.start(tmp_path, cache)
    _wait_for(lambda: _lines(tmp_path, "rl") >= 4, process)  # after step 3: not saved
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 143, out
    assert "the same command resumes" in out
    saved = checkpoint.latest_step(tmp_path / "rl" / "checkpoints")
    assert saved is not None and saved >= 3
    process = tiny.start(tmp_path, cache)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert f"rl: resuming from step {saved}" in out
    _same_as_whole(tmp_path, whole[0])


def test_a_broken_newest_checkpoint_is_reported_and_skipped(whole, tmp_path, cache):
    workdir = tmp_path / "run"
    shutil.copytree(whole[0], workdir)
    newest = workdir / "rl" / "checkpoints" / "6"
    victim = max(
        (p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size
    )
    victim.write_bytes(victim.read_bytes()[:-7])
    process = tiny.start(workdir, cache)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert "checkpoint 6" in out or "/6" in out
    assert "rl: resuming from step 4" in out
    _same_as_whole(workdir, whole[0])


def test_a_finished_run_is_not_repeated(whole, cache):
    before = (whole[0] / "rl" / "metrics.jsonl").read_text()
    process = tiny.start(whole[0], cache)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert (whole[0] / "rl" / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("--config.rl.optim.lrr=1", "config.rl.optim.lr"),
        ("--config.rl.steps=many", "--config.rl.steps="),
        ("config.rl.steps=10", "--config.rl.steps=10"),
        ("--config.rl.rollout.group_size=1", "--config.rl.rollout.group_size="),
        ("--config.rl.data.train=nowhere.jsonl", "nowhere.jsonl"),
        ("--config.rl.objective.tau=0.5", "tau of the objective is 0.5"),
    ],
)
def test_a_wrong_configuration_ends_at_once_with_code_2(tmp_path, argument, told):
    workdir = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "rl_jax.train", *tiny.arguments(workdir), argument],
        env=tiny.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3, done.stderr
    assert not workdir.exists()


@pytest.mark.parametrize(("recipe", "lines"), [("code_grpo", 1), ("quickstart", 0)])
def test_the_sandbox_is_tested_where_programs_are_run(recipe, lines, capsys):
    config = recipes.load(f"{tiny.ROOT}/configs/{recipe}.py")
    for stage in (config.sft, config.rl):  # whatever this machine has
        stage.reward.options = ("code.isolation=none",)
    train.check_sandbox(configs.resolve(config))
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in told] == ["isolation"] * lines
