"""Stages that write data or average weights, at their smallest, for their tests."""

import contextlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import jax

import tiny_run
import tiny_stage as tiny
from rl_jax import config as configs
from rl_jax.stages import context as contexts
from rl_jax.stages.context import Context, StopFlag

MODEL = {
    "model.num_layers": 1,
    "model.width": 32,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.ffn_width": 48,
    "model.vocab_size": 64,
}
SAMPLING = {
    "data.train": "arithmetic",
    "data.num_problems": 10,
    "rollout.prompts_per_step": 4,
    "rollout.group_size": 4,
    "rollout.max_prompt_tokens": 64,
    "rollout.max_new_tokens": 8,
    "rollout.slots": 8,
    "rollout.prefill_rows": 2,
    "rollout.decode_steps": 4,
    "reward.functions": (tiny_run.REWARD,),
    "reward.workers": 1,
}


def run_of(kinds: Mapping[str, str], **changes: Any) -> configs.Run:
    """A chain of name -> kind, resolved; changes are keys with __ for each dot."""
    config = configs.chain(kinds)
    values = MODEL | {k.replace("__", "."): v for k, v in changes.items()}
    for name, kind in kinds.items():
        for key, value in SAMPLING.items():
            if key in configs.kind_keys(kind):
                values.setdefault(f"{name}.{key}", value)
    for key, value in values.items():
        *path, last = key.split(".")
        node = config
        for part in path:
            node = node[part]
        with node.ignore_type():
            node[last] = value
    return configs.resolve(config)


@contextlib.contextmanager
def built(folder: pathlib.Path, run: configs.Run) -> Iterator[Context]:
    """Model and tokenizer of a run on one device, its mesh set."""
    with mock.patch.object(contexts, "make_mesh", tiny.one_device):
        context = contexts.build(run, folder, StopFlag())
    with jax.set_mesh(context.mesh):
        yield context


def lines(path: pathlib.Path) -> list[dict[str, Any]]:
    """The objects of a .jsonl file, which may hold any letter but a line end."""
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def write(path: pathlib.Path, rows: list[dict[str, Any]]) -> pathlib.Path:
    """A .jsonl file of these."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
