r"""SmolLM2-135M-Instruct learns one-step word problems: GRPO, 25 steps of 36 samples.

The problems are generated; the reward is 1 for a finished reply whose last number is
the answer. The README says how to get the model's folder.

Run:      python -m rl_jax.train --config=configs/smollm2_arithmetic.py --workdir=$DIR \
              --config.model.path=$MODEL
Expect:   accuracy on 200 held-out problems, sampled at temperature 0.7 and greedy:
          0.21 to 0.86 and 0.46 to 0.90 for seed 0, 0.24 to 0.86 and 0.46 to 0.94 for
          seed 1; 14 and 23 minutes on 2 shared CPU cores, 6.7 GB, jax 0.10.2,
          2026-11-30
"""

from rl_jax import config as defaults


def get_config():
    config = defaults.stage("rl")
    config.model.path = "SmolLM2-135M-Instruct"
    config.data.train = "word_problems"
    config.data.eval = "word_problems"
    config.data.num_problems = 2048
    config.data.num_eval_problems = 200
    config.data.instruction = (
        "Give the calculation and the answer in one short sentence."
    )
    config.rollout.prompts_per_step = 6
    config.rollout.group_size = 6
    config.rollout.max_prompt_tokens = 96
    config.rollout.max_new_tokens = 40
    config.rollout.temperature = 0.7
    config.rollout.slots = 40
    config.rollout.prefill_rows = 8
    config.reward.functions = ("number",)
    config.optim.lr = 1.5e-5
    config.optim.warmup_steps = 2
    config.batch.row_tokens = 512  # six samples a row, where 136 would hold one
    config.batch.micro_rows = 1
    config.steps = 25
    config.eval.every = 25
    config.eval.num_prompts = 200
    config.eval.num_samples = 1
    config.log.samples_every = 5
    config.checkpoint.every = 10
    return config
