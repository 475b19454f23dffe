"""Runs of one and two processes that are stopped, and go on elsewhere the same.

Every test starts the trainer as a launcher does; on this machine they meet over
loopback. All are slow.
"""

import re
import shutil
import signal

import numpy as np
import pytest
from launched import Run, lines

from rl_jax import checkpoint

pytestmark = pytest.mark.slow

STEPS = 40
RECIPE = f'''"""A tiny supervised stage whose sizes divide over four devices."""

from rl_jax import config as defaults


def get_config():
    config = defaults.stage("sft")
    config.model.num_layers = 1
    config.model.width = 32
    config.model.num_heads = 2
    config.model.num_kv_heads = 2
    config.model.ffn_width = 48
    config.model.vocab_size = 64
    config.steps = {STEPS}
    config.data.train = "arithmetic"
    config.data.num_problems = 64
    config.batch.rows_per_step = 4
    config.batch.micro_rows = 4
    config.batch.row_tokens = 96
    config.optim.lr = 1e-3
    config.optim.warmup_steps = 0
    config.checkpoint.every = 0
    config.eval.every = 0
    config.rollout.max_prompt_tokens = 64
    config.rollout.max_new_tokens = 16
    config.rollout.slots = 8
    config.rollout.prefill_rows = 4
    return config
'''


def told(workdir):
    """step -> loss, tokens counted and where in the data, of every step."""
    keys = ("train/loss", "train/num_tokens", "train/epoch")
    steps = [line["step"] for line in lines(workdir)]
    assert steps == sorted(set(steps)), steps
    return {line["step"]: [line[key] for key in keys] for line in lines(workdir)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One process, one device, never interrupted."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    codes, _ = Run(RECIPE, workdir).end()
    assert codes == [0]
    return workdir


def assert_same_course(workdir, whole):
    found, expected = told(workdir), told(whole)
    assert set(found) <= set(expected)
    worst = max(abs(found[step][0] / expected[step][0] - 1) for step in found)
    print(f"{len(found)} steps, losses within {worst:.1e}")
    for step, (loss, *data) in found.items():
        assert data == expected[step][1:], step  # the same rows
        np.testing.assert_allclose(loss, expected[step][0], rtol=1e-5)


def test_a_broken_newest_checkpoint_is_one_warning_and_the_same_numbers(
    whole, tmp_path
):
    # What a run looks like that was killed after step 20, its last checkpoint torn.
    workdir = tmp_path / "run"
    codes, _ = Run(
        RECIPE, workdir, "--config.checkpoint.every=10", "--config.steps=20"
    ).end()
    assert codes == [0]
    newest = workdir / "checkpoints" / "20"
    files = [path for path in (newest / "state").rglob("*") if path.is_file()]
    victim = max(files, key=lambda path: path.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-7])

    codes, (out,) = Run(RECIPE, workdir, "--config.checkpoint.every=10").end()
    assert codes == [0]
    warnings = [x for x in out.splitlines() if re.search("checkpoint (10|20)", x)]
    assert len([x for x in warnings if "skipped" in x]) == 1, warnings
    assert re.search(r"checkpoint 20 in \S+ skipped: state/\S+ has \d+ bytes", out)
    assert "sft: resuming from step 10" in out
    assert told(workdir) == told(whole)  # to the last digit
    assert checkpoint.latest_step(workdir / "checkpoints") == STEPS


def test_a_signal_to_one_of_two_processes_stops_both_at_the_same_step(whole, tmp_path):
    workdir, saved = tmp_path / "run", 0
    for victim in (1, 0):
        run = Run(RECIPE, workdir, count=2)
        run.until(saved + 4)
        run.processes[victim].send_signal(signal.SIGTERM)
        codes, outs = run.end()
        assert codes == [143, 143]
        (stopped,) = re.findall("stopped by SIGTERM; saved", "".join(outs))
        if saved:
            assert f"sft: resuming from step {saved}" in outs[0]
        before, saved = saved, checkpoint.latest_step(workdir / "checkpoints")
        assert saved is not None and before < saved < STEPS
        # Each process wrote its own part of the one step that there is.
        parts = (workdir / "checkpoints" / str(saved) / "state").glob("ocdbt.process_*")
        assert len(list(parts)) == 2
        assert max(told(workdir)) == saved
    assert_same_course(workdir, whole)


def test_a_run_goes_on_with_another_mesh_and_number_of_processes(whole, tmp_path):
    workdir = tmp_path / "run"
    run = Run(RECIPE, workdir, count=2)  # fsdp 2
    run.until(5)
    run.processes[1].send_signal(signal.SIGTERM)
    codes, _ = run.end()
    assert codes == [143, 143]
    codes, _ = Run(RECIPE, workdir, "--config.steps=25").end()
    assert codes == [0]
    kept = shutil.copytree(workdir, tmp_path / "kept")
    codes, (out, _) = Run(
        RECIPE, workdir, "--config.mesh.tensor=2", count=2, devices=2
    ).end()  # fsdp 2, tensor 2
    assert codes == [0, 0] and "sft: resuming from step 25" in out
    assert "{'replica': 1, 'fsdp': 2, 'tensor': 2}" in out
    assert max(told(workdir)) == STEPS
    assert_same_course(workdir, whole)
    codes, (out,) = Run(RECIPE, kept, devices=4).end()  # fsdp 4, one process
    assert codes == [0] and "sft: resuming from step 25" in out
    assert_same_course(kept, whole)
