"""A teacher, a student that is still poor, and the ways to bring it to the teacher.

The task is the built-in arithmetic, every reply worked out. The teacher learns it from
demonstrations, so does the student, but not for long; then it has the teacher. The last
two stages are those before them at a learning rate of 0.
"""

from rl_jax import config as defaults

STAGES = {
    "teacher": "sft",
    "weak": "sft",
    "opd": "distill",
    "soft": "distill",
    "still_opd": "distill",
    "still_soft": "distill",
}


def get_config(demonstrations):
    """Args: the file with problems that are worked out."""
    config = defaults.chain(STAGES)
    config.export = False
    config.model.num_layers = 2
    config.model.width = 64
    config.model.num_heads = 4
    config.model.num_kv_heads = 2
    config.model.ffn_width = 192
    config.model.vocab_size = 128
    for name in STAGES:
        stage = config[name]
        stage.data.train = demonstrations
        stage.data.eval = "arithmetic"
        stage.data.num_eval_problems = 256
        stage.rollout.max_prompt_tokens = 32
        stage.rollout.max_new_tokens = 48
        stage.rollout.slots = 128
        stage.rollout.prefill_rows = 32
        stage.eval.num_prompts = 256
        stage.eval.num_samples = 1
        stage.eval.greedy = False
        stage.batch.row_tokens = 128
        stage.batch.micro_rows = 16
        stage.batch.rows_per_step = 16
        stage.checkpoint.every = 0
        stage.reward.workers = 1
        stage.log.samples_every = 0
        stage.optim.lr = 5e-3
        stage.optim.schedule = "cosine"
        stage.optim.warmup_steps = 10
        stage.steps = 200
    config.teacher.steps = 260
    config.soft.steps = 260
    config.weak.init = "new"
    config.weak.steps = 120
    for name in ("opd", "soft", "still_opd", "still_soft"):
        config[name].init = "weak" if "opd" in name else "new"
        config[name].distill.teacher = "teacher"
        config[name].distill.form = "opd" if "opd" in name else "soft"
    for stage in (config.opd, config.still_opd):
        stage.data.train = "arithmetic"  # of which it reads the problems alone
        stage.rollout.prompts_per_step = 128
        # One draw of a token says little: at 2e-3 and more it learns less a step.
        stage.optim.lr = 1.5e-3
        stage.steps = 240
    for stage in (config.still_opd, config.still_soft):
        stage.optim.lr = 0.0
        stage.optim.warmup_steps = 0
        stage.steps = 2
    for name in STAGES:
        config[name].eval.every = config[name].steps
    return config
