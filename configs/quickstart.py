r"""Quickstart: a new small model learns arithmetic, first from answers, then by RL.

Run:      python -m rl_jax.train --config=configs/quickstart.py --workdir=$DIR
Expect:   not yet run
"""

from rl_jax import config as defaults


def get_config():
    config = defaults.chain({"sft": "sft", "rl": "rl"})
    config.model.num_layers = 2
    config.model.width = 128
    config.model.num_heads = 4
    config.model.num_kv_heads = 2
    config.model.ffn_width = 384
    config.model.vocab_size = 128
    for stage in (config.sft, config.rl):
        stage.data.train = "arithmetic"
        stage.data.eval = "arithmetic"
        stage.rollout.max_prompt_tokens = 64
        stage.rollout.max_new_tokens = 64
        stage.rollout.slots = 64
        stage.eval.every = 50
        stage.checkpoint.every = 50

    config.sft.steps = 150
    config.sft.optim.lr = 1e-3
    config.sft.optim.schedule = "cosine"
    config.sft.optim.warmup_steps = 10
    config.sft.batch.rows_per_step = 16

    config.rl.steps = 100
    config.rl.rollout.prompts_per_step = 16
    config.rl.rollout.group_size = 8
    config.rl.optim.lr = 3e-4
    return config
