r"""DeepSeek-R1: RL from a base, cold start, RL, rejection-sampled SFT, RL, a student.

Run:      python -m rl_jax.train --config=configs/recipes/deepseek_r1.py --workdir=$DIR
Expect:   seeds 0, 1, 2, accuracy: zero 0.20, 0.27, 0.25 to 0.38, 0.40, 0.44; reason
          0.25, 0.30, 0.25 to 0.39, 0.41, 0.43; final 0.47, 0.41, 0.46 to 0.61, 0.59,
          0.59; student 0.31, 0.31, 0.29; pairs of rm 0.91, 0.95, 0.93; about 3.5 min of
          CPU user time (2026-12-01, jax 0.10.2)
Paper:    --config=configs/recipes/deepseek_r1.py:paper has the published numbers
          (arXiv:2501.12948), with what is not published told at the start.
"""

from rl_jax import config as configs
from rl_jax import tiny

STAGES = {
    "pretrained": "pretrain",  # a base that is right now and then
    "zero": "rl",  # R1-Zero: RL without any demonstration
    "cold": "sft",  # a few readable chains of thought
    "reason": "rl",  # reasoning RL, with a reward for the language of the thinking
    "pick": "select",  # its right answers
    "sft": "sft",  # from the base again, on these and on general replies
    "duels": "select",  # pairs of general replies, as people would rank them
    "rm": "reward_model",
    "final": "rl",  # all scenarios; the preference reward in the last steps only
    "student": "sft",  # another model, on the same replies alone
}
REASONING = "sums,alphabets"
GENERAL = "helpful"


def get_config(scale="tiny"):
    return {"tiny": small, "paper": paper}[scale]()


def small():
    config = tiny.chain(STAGES, REASONING)

    base = config.pretrained
    base.data.train = base.data.held_out = f"{REASONING},{GENERAL},safety"
    base.data.wrong_share = 0.5
    base.steps, base.eval.every = 320, 320
    tiny.gate(base, "eval/loss", fall=1.0)

    config.zero.steps, config.zero.eval.every = 40, 20
    config.zero.objective.kl_coef = 0.001
    config.zero.objective.reference_every = 20
    tiny.gate(config.zero, "eval/accuracy", rise=0.07)

    cold = config.cold
    cold.init = "pretrained"
    cold.data.num_problems, cold.data.wrong_share = 256, 0.4
    cold.data.held_out = REASONING
    cold.steps, cold.eval.every = 40, 40
    tiny.gate(cold, "eval/loss", fall=0.03)

    config.reason.steps, config.reason.eval.every = 30, 30
    config.reason.objective.clip_high = 10.0
    tiny.gate(config.reason, "eval/accuracy", rise=0.05)

    pick = config.pick
    pick.data.num_problems, pick.rollout.group_size = 192, 8
    pick.select.keep, pick.select.max_per_prompt = "correct", 2
    pick.select.also = GENERAL
    tiny.gate(pick, "select/pass_rate", at_least=0.3)

    sft = config.sft
    sft.init, sft.data.train = "pretrained", "pick"
    sft.data.held_out = f"{REASONING},{GENERAL}"
    sft.steps, sft.eval.every = 50, 50
    tiny.gate(sft, "eval/accuracy", at_least=0.33)

    duels = config.duels
    duels.data.train, duels.data.num_problems = GENERAL, 768
    duels.select.keep, duels.select.min_gap = "pairs", 0.25
    duels.select.held_out = 0.2

    rm = config.rm
    rm.init, rm.data.train, rm.data.held_out = "sft", "duels", "duels"
    rm.optim.lr = 1e-3
    rm.steps, rm.eval.every = 60, 60
    tiny.gate(rm, "eval/accuracy_pairs", at_least=0.8)

    final = config.final
    final.init, final.data.train = "sft", f"{REASONING},{GENERAL},safety"
    final.data.eval = f"{REASONING},{GENERAL},safety"
    final.rollout.temperature = 0.7
    final.reward.model, final.reward.steps = "rm", ("model=43",)
    final.reward.model_weight = 0.2
    final.rollout.prompts_per_step = 32
    final.steps, final.eval.every = 50, 50
    tiny.gate(final, "eval/accuracy", rise=0.07)

    student = config.student
    student.init, student.data.train = "new", "pick"
    student.data.held_out = REASONING
    student.batch.micro_rows = student.batch.rows_per_step = 8
    student.steps, student.eval.every = 240, 240
    tiny.gate(student, "eval/accuracy", at_least=0.2)
    return config


def paper():
    """What the report gives; steps are rollout batches of 16 optimiser steps in RL."""
    config = configs.chain(STAGES)
    config.model.path = "MODEL"  # DeepSeek-V3-Base
    config.model.dtype, config.model.param_dtype = "bfloat16", "bfloat16"
    config.model.remat = "layer"
    config.notes = (
        "not published: rates, batches and steps of the SFT stages, samples a prompt of"
        " the rejection sampling, the weight of the preference reward",
        "pretrained is not run in the paper: give the base as config.model.path and"
        " start with --from=zero",
    )
    config.pretrained.data.train, config.pretrained.steps = "data/text.jsonl", 0

    for rl in (config.zero, config.reason, config.final):
        rl.data.train = "data/reasoning.jsonl"
        rl.rollout.prompts_per_step, rl.rollout.group_size = 512, 16
        rl.rollout.max_prompt_tokens = 2048  # not published
        rl.rollout.max_new_tokens = 32_768
        rl.batch.updates_per_step = 16
        rl.objective.kl_coef, rl.objective.kl = 0.001, "k3"
        rl.objective.reference_every = 25  # 400 optimiser steps
        rl.optim.lr = 3e-6
    config.zero.init, config.zero.steps = "base", 650  # 10,400 optimiser steps
    config.zero.reward.functions, config.zero.reward.weights = (
        ("maths", "format"),
        (1, 1),
    )

    config.cold.init, config.cold.data.train = "base", "data/cold_start.jsonl"
    config.reason.objective.clip_high = 10.0
    config.reason.reward.functions = ("maths", "format", "language")
    config.reason.reward.weights = (1.0, 1.0, 1.0)  # not published

    config.pick.data.train = "data/reasoning.jsonl"
    config.pick.select.keep, config.pick.select.also = "correct", "data/general.jsonl"
    config.sft.init, config.sft.data.train = "base", "pick"  # 2 epochs of 800,000
    config.duels.data.train = "data/helpful_prompts.jsonl"
    config.duels.select.keep, config.duels.select.min_gap = "pairs", 1.0
    rm = config.rm
    rm.init, rm.data.train, rm.optim.lr = "sft", "duels", 6e-6
    rm.ranking.prompts_per_step, rm.batch.row_tokens, rm.steps = 256, 8192, 258

    final = config.final
    final.init, final.rollout.temperature = "sft", 0.7
    final.reward.model = "rm"
    final.steps = 106  # 1,700 optimiser steps, the last 400 with the preference reward
    final.reward.steps = ("model=82",)
    config.student.init, config.student.data.train = "STUDENT", "pick"
    return config
