r"""Llama 3: rounds of a reward model, rejection sampling, SFT, DPO, and averaging.

Run:      python -m rl_jax.train --config=configs/recipes/llama3.py --workdir=$DIR
Expect:   replies that people would call good, for seeds 0, 1, 2: 0.23, 0.22, 0.23 of
          the base, 0.66, 0.62, 0.71 after round 1, 0.78, 0.68, 0.79 after round 2;
          every gate passed; 2 to 3.5 minutes of CPU time (2026-12-01, jax 0.10.2)
Paper:    --config=configs/recipes/llama3.py:paper has the published numbers
          (arXiv:2407.21783, section 4), with what is not published told at the start.
"""

from rl_jax import config as configs
from rl_jax import tiny

ROUND = {
    "duels": "select",  # pairs of the newest policy, as people would rank them
    "rm": "reward_model",  # on all pairs so far
    "pick": "select",  # of eight replies the one that the reward model likes best
    "sft_a": "sft",  # two runs of different rates ...
    "sft_b": "sft",
    "sft": "merge",  # ... averaged
    "dpo_a": "dpo",  # on the newest pairs
    "dpo_b": "dpo",
    "dpo": "merge",
}
ROUNDS = (1, 2)
TASKS = "helpful"


def get_config(scale="tiny"):
    return {"tiny": small, "paper": paper}[scale]()


def small():
    stages = {"pretrained": "pretrain"} | configs.repeat(ROUND, over=ROUNDS)
    config = tiny.chain(stages, TASKS)

    base = config.pretrained
    base.data.held_out, base.data.wrong_share = TASKS, 0.7
    base.data.num_eval_problems = 256
    base.steps, base.eval.every = 300, 300
    tiny.gate(base, "eval/loss", fall=1.0)

    policy = "pretrained"
    # The share of replies that people would call good, after SFT and after DPO.
    for n, after_sft, after_dpo in ((1, 0.42, 0.54), (2, 0.6, 0.62)):
        stage = {name: config[f"{name}_{n}"] for name in ROUND}
        every = ",".join(f"duels_{i}" for i in ROUNDS if i <= n)

        duels = stage["duels"]
        duels.init = policy
        duels.data.num_problems = 256
        duels.select.keep, duels.select.min_gap = "pairs", 0.05
        duels.select.held_out = 0.2
        if n > 1:  # by what the base model gives, 0.57
            tiny.gate(duels, "select/mean_score", at_least=0.65)

        rm = stage["rm"]
        rm.init = policy
        rm.data.train = rm.data.held_out = every
        rm.steps, rm.eval.every = 30, 30
        tiny.gate(rm, "eval/accuracy_pairs", at_least=0.8)

        pick = stage["pick"]
        pick.init = policy
        pick.data.num_problems = 256
        pick.reward.weights = (0.0,)  # the judge is only looked at
        pick.reward.model = f"rm_{n}"
        pick.select.held_out = 0.2

        for name, lr in (("sft_a", 2e-4), ("sft_b", 1e-4)):
            sft = stage[name]
            sft.init = policy
            sft.data.train = sft.data.held_out = f"pick_{n}"
            sft.data.eval = ""  # only their average is asked
            sft.batch.micro_rows = sft.batch.rows_per_step = 8
            sft.optim.lr = lr
            sft.optim.warmup_steps = 2
            sft.steps, sft.eval.every = 10, 10
            # The replies are the policy's own: the better it is, the less is to learn.
            tiny.gate(sft, "eval/loss", fall=0.005)
        stage["sft"].merge.models = (f"sft_a_{n}", f"sft_b_{n}")

        for name, lr in (("dpo_a", 1e-4), ("dpo_b", 5e-5)):
            dpo = stage[name]
            dpo.init = f"sft_{n}"
            dpo.preference.name = "llama3"
            dpo.data.train = dpo.data.held_out = f"duels_{n}"
            dpo.data.eval = ""
            dpo.optim.lr = lr
            dpo.steps, dpo.eval.every = 20, 20
            tiny.gate(dpo, "eval/accuracy_pairs", at_least=0.6)
        policy = f"dpo_{n}"
        stage["dpo"].merge.models = (f"dpo_a_{n}", f"dpo_b_{n}")

        for name, share in (("sft", after_sft), ("dpo", after_dpo)):
            stage[name].data.num_eval_problems = 256
            tiny.gate(stage[name], "eval/accuracy", at_least=share)
    return config


def paper():
    """Six rounds of the published values, for the 8B model."""
    rounds = range(1, 7)
    config = configs.chain(
        {"pretrained": "pretrain"} | configs.repeat(ROUND, over=rounds)
    )
    config.model.path = "MODEL"  # Llama-3.1-8B
    config.model.dtype, config.model.remat = "bfloat16", "layer"
    config.notes = (
        "not published: batches, rates and steps of the reward models and of DPO, what"
        " the averaged runs differ in (here their rates), the sampling temperature",
        "pairs are of two replies: the edited ones of the paper are written by people",
        "pretrained is not run: give the base as config.model.path and start with"
        " --from=duels_1",
    )
    config.pretrained.data.train, config.pretrained.steps = "data/text.jsonl", 0
    policy = "base"
    for n in rounds:
        stage = {name: config[f"{name}_{n}"] for name in ROUND}
        stage["duels"].init = policy
        stage["duels"].data.train = f"data/prompts_{n}.jsonl"
        stage["duels"].select.keep = "pairs"
        stage["rm"].init = policy
        stage["rm"].data.train = ",".join(f"duels_{i}" for i in range(1, n + 1))
        pick = stage["pick"]
        pick.init, pick.data.train = policy, "data/prompts.jsonl"
        pick.rollout.group_size = 20  # 10 to 30
        pick.reward.weights, pick.reward.model = (0.0,), f"rm_{n}"
        pick.select.also = "data/human.jsonl"
        for name, lr in (("sft_a", 1e-5), ("sft_b", 5e-6)):
            sft = stage[name]
            sft.init, sft.data.train = policy, f"pick_{n}"
            sft.optim.lr, sft.steps = lr, 9000
        stage["sft"].merge.models = (f"sft_a_{n}", f"sft_b_{n}")
        for name, lr in (("dpo_a", 1e-5), ("dpo_b", 5e-6)):
            dpo = stage[name]
            dpo.init, dpo.data.train = f"sft_{n}", f"duels_{n}"
            dpo.preference.name, dpo.optim.lr = "llama3", lr
        stage["dpo"].merge.models = (f"dpo_a_{n}", f"dpo_b_{n}")
        policy = f"dpo_{n}"
    return config
