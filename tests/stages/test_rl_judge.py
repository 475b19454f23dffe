"""A stage that is paid by a reward model that another stage has trained."""

import json
from unittest import mock

import jax
import numpy as np
import pytest
import tiny_rewards

import tiny_stage as tiny
from rl_jax import config as configs
from rl_jax.metric_names import metric
from rl_jax.stages import context as contexts
from rl_jax.stages import rl
from rl_jax.stages.context import StopFlag

# What the reward model is to have learnt to like.
HIDDEN = """
def utility(completion, **_):
    return (completion.count("a") - completion.count("b")) / 16
"""


def run(folder, *, rm_steps, rl_steps):
    """Metrics of the steps of RL on what a reward model of so many steps says."""
    pairs = tiny_rewards.write(folder / "pairs.jsonl", tiny_rewards.toy_pairs(256, 0))
    questions = [{"prompt": f"{i}?", "answer": str(i)} for i in range(1, 10)]
    questions_file = tiny_rewards.write(folder / "questions.jsonl", questions)
    (folder / "hidden.py").write_text(HIDDEN)
    config = configs.chain({"rm": "reward_model", "rl": "rl"})
    sizes = {"num_layers": 1, "width": 32, "num_heads": 2, "num_kv_heads": 1}
    values = {f"model.{k}": v for k, v in sizes.items()} | {
        "model.ffn_width": 48,
        "model.vocab_size": 64,
        "rm.steps": rm_steps,
        "rm.data.train": pairs,
        "rm.ranking.prompts_per_step": 16,
        "rm.batch.row_tokens": 64,
        "rm.batch.micro_rows": 4,
        "rm.optim.lr": 5e-3,
        "rm.checkpoint.every": 0,
        "rl.init": "base",
        "rl.steps": rl_steps,
        "rl.data.train": questions_file,
        "rl.rollout.prompts_per_step": 4,
        "rl.rollout.max_prompt_tokens": 32,
        "rl.rollout.max_new_tokens": 16,
        "rl.rollout.slots": 32,
        "rl.rollout.prefill_rows": 4,
        "rl.rollout.decode_steps": 4,
        "rl.batch.micro_rows": 8,
        "rl.optim.lr": 0.01,
        "rl.checkpoint.every": 0,
        "rl.reward.functions": ("exact",),
        "rl.reward.weights": (0.0,),
        "rl.reward.model": "rm",
        "rl.reward.model_weight": 0.5,
        "rl.reward.hidden": (f"{folder}/hidden.py:utility",),
        "rl.reward.workers": 1,
    }
    config.update_from_flattened_dict(values)
    resolved = configs.resolve(config)
    with mock.patch.object(contexts, "make_mesh", tiny.one_device):
        context = contexts.build(resolved, folder / "run", StopFlag())
    with jax.set_mesh(context.mesh):
        tiny_rewards.train(context)
        stage = context.run.stages[1]
        rl.run(context, stage, lambda: contexts.first_params(context))
    lines = (folder / "run" / "rl" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_where_no_function_counts_the_reward_is_that_of_the_model(tmp_path):
    found = run(tmp_path, rm_steps=2, rl_steps=1)
    (line,) = found
    model = line["train/rewards/model/mean"]
    assert line["train/reward"] == pytest.approx(0.5 * model, abs=1e-5)
    assert line["health/reward_none"] == 0 and line["train/reward_std"] > 0
    # In units of the one thing that counts, whose weight is a half.
    gap = model - line["reward/hidden/utility"]
    assert line["health/reward_gap"] == pytest.approx(gap, abs=1e-5)
    for name in set(line) - {"step"}:
        metric(name)


@pytest.mark.slow
def test_what_people_like_is_learnt_from_the_model_that_learnt_it(tmp_path):
    found = run(tmp_path, rm_steps=tiny_rewards.STEPS, rl_steps=30)
    for name in ("train/rewards/model/mean", "reward/hidden/utility"):
        values = [line[name] for line in found]
        print(name, np.round(values, 2))
    model = [line["train/rewards/model/mean"] for line in found]
    utility = [line["reward/hidden/utility"] for line in found]
    assert np.mean(model[-5:]) > np.mean(model[:2]) + 1
    assert np.mean(utility[-5:]) > np.mean(utility[:2]) + 0.1
