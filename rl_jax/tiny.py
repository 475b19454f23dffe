"""The small scale that the recipes in configs/recipes share: minutes on a laptop.

A model of 0.1 million weights, and the toy tasks of data/toys in place of real data.
"""

from collections.abc import Mapping

from rl_jax import config as configs
from rl_jax import schema
from rl_jax.kinds import KINDS


def chain(stages: Mapping[str, str], tasks: str) -> schema.Tree:
    """A chain of tiny stages, each trained and evaluated on the same tasks.

    Args:
        stages: name -> kind, as for `rl_jax.config.chain`.
        tasks: names of toy tasks, with commas between.
    """
    config = configs.chain(stages)
    config.model.num_layers = 2
    config.model.width = 64
    config.model.num_heads = 4
    config.model.num_kv_heads = 2
    config.model.ffn_width = 192
    for name, kind in stages.items():
        stage = config[name]
        _set(stage, "data.train", tasks)
        _set(stage, "data.eval", tasks)
        _set(stage, "data.num_eval_problems", 128)
        _set(stage, "reward.functions", ("toy",))
        _set(stage, "rollout.max_prompt_tokens", 32)
        _set(stage, "rollout.max_new_tokens", 32)
        _set(stage, "rollout.slots", 128)
        _set(stage, "rollout.prefill_rows", 32)
        _set(stage, "rollout.prompts_per_step", 16)
        _set(stage, "rollout.group_size", 1 if kind == "distill" else 8)
        _set(stage, "batch.row_tokens", 128)
        _set(stage, "batch.micro_rows", 16)
        _set(stage, "batch.rows_per_step", 16)
        _set(stage, "eval.num_prompts", 256)
        _set(stage, "eval.num_samples", 1)
        _set(stage, "eval.greedy", False)
        _set(stage, "checkpoint.every", 0)
        _set(stage, "log.samples_every", 0)
        if "optim.lr" in configs.kind_keys(kind):
            # Of billions of weights a step may move each by little; of these it must
            # move each by more.
            stage.optim.lr = {"rl": 3e-4, "distill": 3e-4, "dpo": 3e-4}.get(kind, 2e-3)
            stage.optim.warmup_steps = 5
            if kind not in ("rl", "distill"):
                stage.optim.schedule = "cosine"
    return config


def gate(stage: schema.Tree, metric: str, **bounds: float) -> None:
    """What a stage must reach: gate(stage, "eval/accuracy", rise=0.1)."""
    stage.gate.metric = metric
    for name, value in bounds.items():
        stage.gate[name] = value


def _set(stage: schema.Tree, path: str, value: object) -> None:
    """Sets a key that the stage's kind may not have."""
    if any(f"{path}.".startswith(f"{out}.") for out in KINDS[stage.kind].left_out):
        return
    node = stage
    *groups, name = path.split(".")
    for group in groups:
        node = node[group]
    node[name] = value
