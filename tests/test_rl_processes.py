"""Reinforcement learning on one, two and four real processes: the same course.

Every reply is drawn, graded and trained on as by one process: replies of unequal
lengths, groups that are replaced, grades that hang. Over loopback, by gloo.
"""

import json
import re
import signal
import time
import zlib

import pytest
from launched import Run, assert_same_metrics, lines

from rl_jax import checkpoint

pytestmark = pytest.mark.timeout(1200)
slow = pytest.mark.slow

STEPS = 8
RECIPE = f'''"""A tiny RL stage with all that several processes have to agree on."""

from rl_jax import config as defaults


def get_config():
    config = defaults.stage("rl")
    config.model.num_layers = 1
    config.model.width = 32
    config.model.num_heads = 2
    config.model.num_kv_heads = 2
    config.model.ffn_width = 48
    config.model.vocab_size = 64
    config.steps = {STEPS}
    config.data.train = "arithmetic"
    config.data.eval = "arithmetic"
    config.data.num_problems = 24
    config.data.num_eval_problems = 5
    config.reward.functions = ("{__file__}:even",)
    config.reward.hidden = ("{__file__}:odd",)
    config.reward.timeout_secs = 3.0
    config.reward.workers = 1
    config.rollout.prompts_per_step = 4
    config.rollout.group_size = 3
    config.rollout.max_prompt_tokens = 64
    config.rollout.max_new_tokens = 16
    config.rollout.slots = 8
    config.rollout.prefill_rows = 4
    config.rollout.decode_steps = 4
    config.objective.name = "dapo"
    config.objective.kl_coef = 0.01
    config.objective.reference_every = 3
    config.curriculum.draw = "uncertain"
    config.batch.micro_rows = 4
    config.batch.row_tokens = 96
    config.optim.lr = 1e-3
    config.optim.warmup_steps = 0
    config.checkpoint.every = 0
    config.eval.every = 3
    config.eval.num_prompts = 5
    config.eval.num_samples = 2
    config.log.samples_every = 1
    return config
'''


def even(completion: str, **_) -> float:
    """1 for an even checksum; one reply in about thirty hangs its grader."""
    told = zlib.crc32(completion.encode())
    if told % 31 == 7:
        time.sleep(60)
    return float(told % 2 == 0)


def odd(completion: str, **_) -> float:
    """What nobody trains on."""
    return float(zlib.crc32(completion.encode()) % 2)


def drawn(workdir):
    """step -> what was written of each of its replies, but for times."""
    found = {}
    for path in sorted((workdir / "samples").glob("*.jsonl")):
        found[path.stem] = [json.loads(line) for line in path.read_text().splitlines()]
    return found


def steps_of(workdir):
    """The lines of metrics that a step has written."""
    return [line for line in lines(workdir) if "train/refills" in line]


def assert_same_course(workdir, whole):
    """The same replies and scores, and the same metrics."""
    assert drawn(workdir) == drawn(whole)
    assert_same_metrics(workdir, whole)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One process with four devices, never interrupted."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    codes, _ = Run(RECIPE, workdir, devices=4).end()
    assert codes == [0]
    return workdir


def test_two_processes_give_the_samples_and_updates_of_one(tmp_path):
    """The quick form of what follows: two steps, without evaluations."""
    words = ("--config.steps=2", "--config.eval.every=0")
    runs = []
    for count, devices in ((1, 2), (2, 1)):
        runs.append(tmp_path / str(count) / "run")
        runs[-1].parent.mkdir()
        codes, _ = Run(RECIPE, runs[-1], *words, count=count, devices=devices).end()
        assert codes == [0] * count
    assert_same_course(runs[1], runs[0])
    assert len(steps_of(runs[0])) == 2


@slow
def test_the_run_has_what_the_others_are_to_repeat(whole):
    replies = [reply for step in drawn(whole).values() for reply in step]
    assert len({reply["num_tokens"] for reply in replies}) > 4
    assert {"timeout"} < {reply["verdict"] for reply in replies}
    steps = steps_of(whole)
    assert len(steps) == STEPS
    assert sum(numbers["train/refills"] for numbers in steps) > 0
    assert sum(numbers["train/groups_dropped"] for numbers in steps) > 0
    assert all(numbers["train/grad_norm"] > 0 for numbers in steps)


@slow
@pytest.mark.parametrize(("count", "devices"), [(2, 2), (4, 1)])
def test_several_processes_give_the_samples_and_updates_of_one(
    whole, tmp_path, count, devices
):
    workdir = tmp_path / "run"
    codes, outs = Run(RECIPE, workdir, count=count, devices=devices).end(400)
    assert codes == [0] * count
    assert_same_course(workdir, whole)
    assert f"4 cpu devices in {count} processes; " in outs[0]
    for out in outs[1:]:  # once they have met process 0 alone prints and writes
        _, after = re.split("(?m)^processes: .*$", out)
        said = [line for line in after.splitlines() if "[Gloo]" not in line]
        assert not list(filter(None, said))


@slow
@pytest.mark.parametrize(("count", "devices"), [(1, 4), (4, 1)])
def test_a_sampler_on_another_mesh_is_given_the_weights(
    whole, tmp_path, count, devices
):
    """Whole weights on each device to sample, a quarter on each to train."""
    workdir = tmp_path / "run"
    words = ("--config.rollout.replica=4",)
    codes, _ = Run(RECIPE, workdir, *words, count=count, devices=devices).end(400)
    assert codes == [0] * count
    steps = [line for line in lines(workdir) if "time/handover" in line]
    assert len(steps) == STEPS
    for line in steps:
        rounds = 1 + line["train/refills"]
        assert line["perf/handover_bytes"] % rounds == 0
        assert line["perf/handover_bytes"] / rounds > 3 * 4 * 9_000  # weights
    assert_same_course(workdir, whole)


@slow
def test_a_stopped_run_goes_on_with_other_numbers_of_processes(whole, tmp_path):
    """4 -> 2 -> 1 -> 4 processes on the same devices."""
    workdir, saved = tmp_path / "run", 0
    for count, devices in ((4, 1), (2, 2), (1, 4)):
        run = Run(RECIPE, workdir, count=count, devices=devices)
        run.until(saved + 1, 400)
        run.processes[-1].send_signal(signal.SIGTERM)
        codes, outs = run.end()
        assert codes == [143] * count
        assert len(re.findall("stopped by SIGTERM; saved", "".join(outs))) == 1
        if saved:
            assert f"rl: resuming from step {saved}" in outs[0]
        before, saved = saved, checkpoint.latest_step(workdir / "checkpoints")
        assert saved is not None and before < saved < STEPS
    codes, (out, *_) = Run(RECIPE, workdir, count=4).end(400)
    assert codes == [0] * 4 and f"rl: resuming from step {saved}" in out
    assert_same_course(workdir, whole)


@slow
def test_after_one_is_killed_the_others_say_so_and_all_go_on(whole, tmp_path):
    workdir = tmp_path / "run"
    words = ("--config.checkpoint.every=1",)
    run = Run(RECIPE, workdir, *words, count=4)
    run.until(3, 400)
    run.processes[2].kill()
    began = time.monotonic()
    codes, outs = run.end()
    assert time.monotonic() - began < 60
    assert codes[2] == -signal.SIGKILL
    for i in (0, 1, 3):
        assert codes[i] == 1
        assert re.search(r"error: process 2 \(.*\) ended without a word", outs[i])
    codes, outs = Run(RECIPE, workdir, *words, count=4).end(400)
    assert codes == [0] * 4 and "rl: resuming from step" in outs[0]
    assert_same_course(workdir, whole)
