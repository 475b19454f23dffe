"""A toy that reward models learn in seconds, and the smallest run of one."""

import contextlib
import json
import pathlib
import random
from typing import Any
from unittest import mock

import jax

import tiny_stage as tiny
from rl_jax import config as configs
from rl_jax.stages import context as contexts
from rl_jax.stages import reward_model
from rl_jax.stages.context import StopFlag

STEPS = 60  # of a model that learns the toy
LETTERS = "abcdefgh"


def utility(reply: str) -> int:
    """What people like in the toy: a, and no b."""
    return reply.count("a") - reply.count("b")


def toy_reply(draw: random.Random) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(4, 7)))


def toy_pairs(count: int, seed: int) -> list[dict[str, Any]]:
    draw, rows = random.Random(seed), []
    while len(rows) < count:
        chosen, rejected = sorted((toy_reply(draw), toy_reply(draw)), key=utility)[::-1]
        if utility(chosen) > utility(rejected):
            margin = utility(chosen) - utility(rejected)
            prompt = f"{draw.randint(1, 9)}?"
            row = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
            rows.append(row | {"margin": margin})
    return rows


def toy_lists(count: int, seed: int) -> list[dict[str, Any]]:
    draw, rows = random.Random(seed), []
    for _ in range(count):
        replies = [toy_reply(draw) for _ in range(draw.randint(2, 4))]
        scores = [utility(reply) for reply in replies]
        rows.append({"prompt": "1?", "replies": replies, "scores": scores})
    return rows


def toy_labels(count: int, seed: int) -> list[dict[str, Any]]:
    draw, rows = random.Random(seed), []
    for _ in range(count):
        reply = toy_reply(draw)
        turns = [("user", "1?"), ("assistant", reply)]
        messages = [{"role": role, "content": text} for role, text in turns]
        rows.append({"messages": messages, "label": int("a" in reply)})
    return rows


def write(path: pathlib.Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run_config(folder, rows, held_out, **changes) -> configs.Run:
    config = configs.chain({"rm": "reward_model"})
    values = {
        "model.num_layers": 1,
        "model.width": 32,
        "model.num_heads": 2,
        "model.num_kv_heads": 1,
        "model.ffn_width": 48,
        "model.vocab_size": 64,
        "rm.steps": STEPS,
        "rm.data.train": write(folder / "train.jsonl", rows),
        "rm.data.held_out": write(folder / "held_out.jsonl", held_out),
        "rm.ranking.prompts_per_step": 32,
        "rm.batch.row_tokens": 64,
        "rm.batch.micro_rows": 8,
        "rm.optim.lr": 5e-3,
        "rm.eval.every": STEPS // 2,
        "rm.checkpoint.every": 0,
    } | {f"rm.{key.replace('__', '.')}": value for key, value in changes.items()}
    config.update_from_flattened_dict(values)
    return configs.resolve(config)


@contextlib.contextmanager
def built(folder, rows, held_out, *, workdir="run", **changes):
    """Context of a run of one reward model, its mesh set."""
    run = run_config(folder, rows, held_out, **changes)
    with mock.patch.object(contexts, "make_mesh", tiny.one_device):
        context = contexts.build(run, folder / workdir, StopFlag())
    with jax.set_mesh(context.mesh):
        yield context


def train(context, stage=None):
    return reward_model.run(
        context,
        stage or context.run.stages[0],
        lambda: contexts.first_params(context),
    )
