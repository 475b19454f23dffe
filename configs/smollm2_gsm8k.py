r"""GSM8K RL on SmolLM2-135M-Instruct: 20 steps of 4 prompts with 8 samples each.

The model is a local Hugging Face folder and the data are the files of
openai/grade-school-math as published; the README says how to get both. The reward is
shaped: 1 for the right answer, 1 for a reply that ends with "#### number", and up to -1
for using the last half of the 64 tokens. A model this small learns the last two first.

Run:      python -m rl_jax.train --config=configs/smollm2_gsm8k.py --workdir=$DIR \
              --config.model.path=$MODEL --config.data.train=$GSM8K/train.jsonl
Expect:   mean reward -0.09 over steps 1 to 5, 1.05 over 16 to 20: it learns to answer
          at once and in form; accuracy stays low (0.05). 38 s a step on 2 shared CPU
          cores, 5.4 GB, jax 0.10.2, 2026-11-30
"""

from rl_jax import config as defaults


def get_config():
    config = defaults.stage("rl")
    config.model.path = "SmolLM2-135M-Instruct"
    config.data.train = "gsm8k/train.jsonl"
    config.data.prompt_column = "question"
    config.data.answer_column = "answer"
    config.data.answer_after = "####"
    config.data.instruction = (
        "Answer with one short calculation and end with the final number after ####."
    )
    config.rollout.prompts_per_step = 4
    config.rollout.group_size = 8
    config.rollout.max_prompt_tokens = 192
    config.rollout.max_new_tokens = 64
    config.rollout.temperature = 0.8
    config.rollout.slots = 32
    config.rollout.prefill_rows = 4
    config.reward.functions = ("maths", "format")
    config.reward.weights = (1.0, 1.0)
    config.reward.answer_format = "any"
    config.reward.format_pattern = r"####\s*-?[\d,.]+\s*$"
    config.objective.overlong_buffer = 0.5
    config.optim.lr = 1e-5
    config.rollout.decode_steps = 16
    config.batch.row_tokens = 512  # three samples a row, where 256 would hold one
    config.batch.micro_rows = 1
    config.steps = 20
    config.log.samples_every = 5
    return config
