"""The quickstart as it is shipped: it learns with every seed, and not from noise.

Each run takes a few minutes, so all of this is slow.
"""

import shutil

import pytest

import tiny_run as tiny

SEEDS = (0, 1, 2)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


CONFIG = "configs/quickstart.py"


@pytest.fixture(scope="module")
def workdir_of(tmp_path_factory):
    """seed -> workdir of its finished run; each seed is run once."""
    found = {}

    def make(seed):
        if seed not in found:
            workdir = tmp_path_factory.mktemp(f"seed{seed}")
            tiny.train_shipped(CONFIG, workdir, f"--config.seed={seed}")
            found[seed] = workdir
        return found[seed]

    return make


@pytest.mark.parametrize("seed", SEEDS)
def test_the_quickstart_learns_to_reason(workdir_of, seed):
    first, last = tiny.first_and_last(workdir_of(seed))
    assert first["eval/accuracy"] <= 0.5
    assert last["eval/accuracy"] >= 0.9
    gain = last["eval/accuracy_greedy"] - first["eval/accuracy_greedy"]
    assert gain >= 0.2, gain


def test_rewards_permuted_within_each_batch_teach_nothing(workdir_of, tmp_path):
    workdir = tmp_path / "shuffled"
    shutil.copytree(workdir_of(0), workdir)
    shutil.rmtree(workdir / "rl")
    tiny.train_shipped(CONFIG, workdir, "--config.rl.reward.shuffle=true")
    first, last = tiny.first_and_last(workdir)
    unshuffled, _ = tiny.first_and_last(workdir_of(0))
    assert first["eval/accuracy"] == unshuffled["eval/accuracy"]
    assert last["eval/accuracy"] - first["eval/accuracy"] <= 0.1
