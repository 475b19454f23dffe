"""The quickstart as it is shipped: it learns with every seed, and not from noise.

Each run takes a few minutes, so all of this is slow.
"""

import json
import shutil
import subprocess
import sys

import pytest

import tiny_run as tiny

SEEDS = (0, 1, 2)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def train(workdir, *words):
    """Trains as launch/quickstart.sh does, on one CPU device."""
    command = [
        sys.executable,
        "-m",
        "rl_jax.train",
        f"--config={tiny.ROOT}/configs/quickstart.py",
        f"--workdir={workdir}",
        *words,
    ]
    done = subprocess.run(
        command, env=tiny.environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.fixture(scope="module")
def workdir_of(tmp_path_factory):
    """seed -> workdir of its finished run; each seed is run once."""
    found = {}

    def make(seed):
        if seed not in found:
            workdir = tmp_path_factory.mktemp(f"seed{seed}")
            train(workdir, f"--config.seed={seed}")
            found[seed] = workdir
        return found[seed]

    return make


def evaluations(workdir):
    """(first, last) evaluation of the reinforcement learning stage."""
    lines = (workdir / "rl" / "metrics.jsonl").read_text().splitlines()
    found = [x for x in map(json.loads, lines) if "eval/accuracy" in x]
    assert found[0]["step"] == 0 and len(found) > 2
    print(f"{workdir.name}: {found[0]} to {found[-1]}")
    return found[0], found[-1]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_quickstart_learns_to_reason(workdir_of, seed):
    first, last = evaluations(workdir_of(seed))
    assert first["eval/accuracy"] <= 0.5
    assert last["eval/accuracy"] >= 0.9
    gain = last["eval/accuracy_greedy"] - first["eval/accuracy_greedy"]
    assert gain >= 0.2, gain


def test_rewards_permuted_within_each_batch_teach_nothing(workdir_of, tmp_path):
    workdir = tmp_path / "shuffled"
    shutil.copytree(workdir_of(0), workdir)
    shutil.rmtree(workdir / "rl")
    train(workdir, "--config.rl.reward.shuffle=true")
    first, last = evaluations(workdir)
    assert first["eval/accuracy"] == evaluations(workdir_of(0))[0]["eval/accuracy"]
    assert last["eval/accuracy"] - first["eval/accuracy"] <= 0.1
