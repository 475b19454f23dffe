"""A chain with a stage of every kind, on one and on two real processes: the same."""

import pytest
from launched import Run, assert_same_metrics, lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STAGES = {
    "plain": "pretrain",
    "sft": "sft",
    "duels": "select",
    "rm": "reward_model",
    "dpo": "dpo",
    "rl": "rl",
    "soft": "distill",
    "opd": "distill",
    "mean": "merge",
    "kept": "curate",
}
RECIPE = f'''"""Every kind of stage, a few steps each, each from an earlier one."""

from rl_jax import tiny


SIZES = (
    ("data.num_problems", 64),
    ("data.num_eval_problems", 16),
    ("rollout.slots", 16),
    ("rollout.prefill_rows", 8),
    ("rollout.prompts_per_step", 4),
    ("batch.micro_rows", 8),
    ("batch.rows_per_step", 8),
    ("optim.lr", 1e-3),
    ("optim.warmup_steps", 0),
    ("eval.num_prompts", 16),
    ("eval.every", 4),
    ("checkpoint.every", 2),
    ("log.samples_every", 1),
)


def get_config():
    config = tiny.chain({STAGES}, "helpful")
    for name in {list(STAGES)}:
        stage = config[name]
        for path, value in SIZES:
            group, key = path.split(".")
            if group in stage and key in stage[group]:
                stage[group][key] = value
        if "steps" in stage:
            stage.steps = 4
    config.plain.steps = config.sft.steps = 40
    config.sft.init = "plain"
    config.duels.init = config.rm.init = config.dpo.init = "sft"
    config.duels.select.keep, config.duels.select.min_gap = "pairs", 0.01
    config.duels.select.held_out = 0.2
    config.rm.data.train = config.rm.data.held_out = "duels"
    config.dpo.data.train = config.dpo.data.held_out = "duels"
    config.rl.init = "dpo"
    config.rl.reward.model = "rm"
    config.rl.objective.kl_coef = 0.01
    config.rl.batch.updates_per_step = 2
    config.soft.init = config.opd.init = "plain"
    config.soft.distill.teacher = config.opd.distill.teacher = "rl"
    config.soft.distill.form, config.opd.distill.form = "soft", "opd"
    config.opd.rollout.group_size = 2
    config.mean.merge.models = ("soft", "opd")
    config.kept.data.train = "duels"
    return config
'''


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One process with two devices."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    codes, _ = Run(RECIPE, workdir, devices=2).end(600)
    assert codes == [0]
    return workdir


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Two processes with one device each."""
    workdir = tmp_path_factory.mktemp("halves") / "run"
    codes, outs = Run(RECIPE, workdir, count=2).end(900)
    assert codes == [0, 0]
    return workdir


@pytest.mark.parametrize("name", [name for name in STAGES if name != "kept"])
def test_each_stage_gives_the_numbers_of_one_process(whole, halves, name):
    assert lines(whole / name)
    assert_same_metrics(halves / name, whole / name)


@pytest.mark.parametrize("name", ["duels", "kept"])
def test_the_data_that_a_stage_writes_are_those_of_one_process(whole, halves, name):
    rows = [(run / name / "data.jsonl").read_text() for run in (whole, halves)]
    assert rows[0] == rows[1] and rows[0].count("\n") > 8
