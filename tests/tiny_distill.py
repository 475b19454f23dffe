"""A chain with a distillation at its smallest, for tests of what belongs to it."""

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax

import tiny_stage as tiny
from rl_jax import config as configs
from rl_jax import config_keys
from rl_jax.models.params import Params
from rl_jax.stages import context as contexts
from rl_jax.stages import distill, run_state, weights
from rl_jax.stages.context import Context, StopFlag

SIZES = {
    "num_layers": 1,
    "width": 32,
    "num_heads": 2,
    "num_kv_heads": 1,
    "ffn_width": 48,
    "vocab_size": 64,
}
OF_STAGE = {
    "steps": 4,
    "data.train": "arithmetic",
    "data.num_problems": 48,
    "data.num_eval_problems": 8,
    "rollout.max_prompt_tokens": 64,
    "rollout.max_new_tokens": 12,
    "rollout.slots": 8,
    "rollout.prefill_rows": 4,
    "rollout.decode_steps": 4,
    "batch.row_tokens": 96,
    "batch.micro_rows": 2,
    "batch.rows_per_step": 4,
    "reward.workers": 1,
    "optim.lr": 0.01,
    "checkpoint.every": 0,
}
OF_DISTILL = {
    "init": "new",
    "distill.teacher": "sft",
    "rollout.prompts_per_step": 4,
    "log.samples_every": 0,
}


def resolved(**changes: Any) -> configs.Run:
    """sft, then distill; changes are keys of the latter with __ for each dot."""
    tree = configs.chain({"sft": "sft", "distill": "distill"})
    for name, size in SIZES.items():
        tree.model[name] = size
    given = OF_DISTILL | {k.replace("__", "."): v for k, v in changes.items()}
    for stage, values in ((tree.sft, OF_STAGE), (tree.distill, OF_STAGE | given)):
        for path, value in values.items():
            *groups, key = path.split(".")
            holder = stage
            for group in groups:
                holder = holder[group]
            holder[key] = value
    return configs.resolve(tree)


def stage_of(**changes: Any) -> config_keys.StageConfig:
    """The resolved distillation alone."""
    return resolved(**changes).stages[1]


@contextlib.contextmanager
def built(folder: pathlib.Path, **changes: Any) -> Iterator[Context]:
    """Model and tokenizer of the chain on one device, its mesh set."""
    with mock.patch.object(contexts, "make_mesh", tiny.one_device):
        context = contexts.build(resolved(**changes), folder, StopFlag())
    with jax.set_mesh(context.mesh):
        yield context


def teach(context: Context, seed: int = 1) -> Params:
    """Saves a teacher as the weights of the stage `sft`, untrained; returns them."""
    stage = context.run.stages[0]
    tx, _ = run_state.optimiser_of(stage, context.model)
    read = weights.policy(context, "new", "distill.teacher", salt=f"teacher {seed}")
    with run_state.open_stage(context, stage, read, tx) as session:
        session.save(stage.steps, session.state, {})
        return session.state.params


def student(context: Context) -> Params:
    """The weights that the distillation begins with."""
    return weights.policy(context, "new", "distill.init", salt="student")()


def run(context: Context) -> Params:
    """The distillation, from its own new weights."""
    return distill.run(context, context.run.stages[1], lambda: student(context))


def lines(folder: pathlib.Path) -> list[dict]:
    """The stage's metrics without what depends on the clock or the process."""
    text = (folder / "distill" / "metrics.jsonl").read_text()
    return [
        {k: v for k, v in json.loads(x).items() if not k.startswith(("time/", "perf/"))}
        for x in text.splitlines()
    ]
