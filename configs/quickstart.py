r"""Quickstart: a new small model learns to reason, first by example, then by RL.

Run:      python -m rl_jax.train --config=configs/quickstart.py --workdir=$DIR
Expect:   held-out accuracy, sampled, 0.40 to 0.98 (seed 0), 0.43 to 0.98 (1), 0.40 to
          0.98 (2), about 2 minutes on 2 CPU cores, jax 0.10.2, 2026-11-30
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
        stage.data.num_problems = 4096
        stage.data.num_eval_problems = 256
        stage.rollout.max_prompt_tokens = 32
        stage.rollout.max_new_tokens = 48
        stage.rollout.slots = 128
        stage.rollout.prefill_rows = 32
        stage.eval.num_prompts = 256
        stage.eval.num_samples = 1
        stage.batch.row_tokens = 128
        stage.batch.micro_rows = 16
        stage.checkpoint.every = 50

    # The demonstrations are of two kinds, worked out and bare answers, and the model
    # learns to write both.
    config.sft.steps = 360
    config.sft.optim.lr = 3e-3
    config.sft.optim.schedule = "cosine"
    config.sft.optim.warmup_steps = 10
    config.sft.batch.rows_per_step = 16
    config.sft.eval.every = 360

    config.rl.steps = 80
    config.rl.rollout.prompts_per_step = 32
    config.rl.rollout.group_size = 8
    config.rl.optim.lr = 3e-4
    config.rl.optim.warmup_steps = 5
    config.rl.eval.every = 20
    config.rl.log.samples_every = 20
    return config
