"""The code recipe as it is shipped: programs that pass are learnt, whatever the loss.

Each run takes a minute or two, so all of this is slow.
"""

import shutil

import pytest

import tiny_run as tiny

CONFIG = "configs/code_grpo.py"
SEEDS = (0, 1, 2)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cold_start(tmp_path_factory):
    """seed -> workdir whose supervised stage is done; each seed is run once."""
    found = {}

    def make(seed):
        if seed not in found:
            found[seed] = tmp_path_factory.mktemp(f"cold{seed}")
            words = (f"--config.seed={seed}", "--config.stages=sft")
            tiny.train_shipped(CONFIG, found[seed], *words)
        return found[seed]

    return make


def trained(cold_start, tmp_path, seed, *words):
    workdir = tmp_path / f"seed{seed}"
    shutil.copytree(cold_start(seed), workdir)
    tiny.train_shipped(CONFIG, workdir, f"--config.seed={seed}", *words)
    return tiny.first_and_last(workdir)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", ["grpo", "dapo", "cispo"])
def test_the_model_learns_to_write_programs_that_pass(cold_start, tmp_path, seed, loss):
    words = f"--config.rl.objective.name={loss}"
    first, last = trained(cold_start, tmp_path, seed, words)
    assert first["eval/accuracy"] <= 0.4
    assert last["eval/accuracy"] >= 0.8


def test_rewards_permuted_within_each_batch_teach_nothing(cold_start, tmp_path):
    words = "--config.rl.reward.shuffle=true"
    first, last = trained(cold_start, tmp_path, 0, words)
    assert last["eval/accuracy"] - first["eval/accuracy"] <= 0.1
