r"""GSM8K RL on SmolLM2-135M-Instruct: 20 steps, 4 prompts of 8 samples each.

The model is a local Hugging Face folder, the data the `train.jsonl` and `test.jsonl`
of openai/grade-school-math (columns question and answer).

Run:      python -m rl_jax.train --config=configs/smollm2_gsm8k.py --workdir=$DIR \
              --config.model.path=$MODEL --config.data.train=$GSM8K/train.jsonl
Expect:   not yet run
"""

from rl_jax import config as defaults


def get_config():
    config = defaults.stage("rl")
    config.model.path = "SmolLM2-135M-Instruct"
    config.data.train = "gsm8k/train.jsonl"
    config.data.prompt_column = "question"
    config.data.answer_column = "answer"
    config.data.answer_after = "####"
    config.rollout.prompts_per_step = 4
    config.rollout.group_size = 8
    config.rollout.max_new_tokens = 64
    config.rollout.slots = 32
    config.reward.answer_format = "any"
    config.optim.lr = 1e-6
    config.batch.micro_rows = 4
    config.steps = 20
    config.log.samples_every = 5
    return config
