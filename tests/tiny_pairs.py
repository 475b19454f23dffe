"""A stage of pairs at its smallest: prefer the reply with a z in it."""

import contextlib
import json
import pathlib
import random
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jax

import tiny_stage as tiny
from rl_jax import config as configs
from rl_jax.stages import context as contexts
from rl_jax.stages.context import Context, StopFlag

KEYS = {
    "model.num_layers": 1,
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.ffn_width": 16,
    "model.vocab_size": 64,
    "steps": 4,
    "optim.lr": 0.03,
    "batch.row_tokens": 48,
    "batch.micro_rows": 2,
    "preference.pairs_per_step": 8,
    "checkpoint.every": 0,
    "export": False,
}
_LETTERS = "abcdefgh"


def write_pairs(path: pathlib.Path, count: int, seed: int) -> pathlib.Path:
    """Pairs of random words, the chosen one with a z; as a select stage writes them."""
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        word, plain, other = (
            "".join(rng.choices(_LETTERS, k=rng.randint(2, 6))) for _ in range(3)
        )
        at = rng.randint(0, len(plain))
        row = {
            "prompt": [{"role": "user", "content": f"say {word}"}],
            "chosen": [{"role": "assistant", "content": plain[:at] + "z" + plain[at:]}],
            "rejected": [{"role": "assistant", "content": other}],
            "margin": 1.0,
            "data_source": "letters",
        }
        lines.append(json.dumps(row) + "\n")
    path.write_text("".join(lines))
    return path


def config(train: pathlib.Path | str, **changes: Any) -> configs.Run:
    """A flat config of the kind dpo; changes are keys with __ for each dot."""
    tree = configs.stage("dpo")
    keys = KEYS | {"data.train": str(train)}
    keys |= {key.replace("__", "."): value for key, value in changes.items()}
    for key, value in keys.items():
        *groups, name = key.split(".")
        node = tree
        for group in groups:
            node = node[group]
        node[name] = value
    return configs.resolve(tree)


@contextlib.contextmanager
def built(
    folder: pathlib.Path, train: pathlib.Path, devices: int = 1, **changes: Any
) -> Iterator[Context]:
    """Model and tokenizer on one device or several, the mesh set."""
    run = config(train, **changes)

    def mesh(*sizes: int):
        return tiny.make_mesh(*sizes, devices=jax.devices()[:devices])

    with mock.patch.object(contexts, "make_mesh", mesh):
        context = contexts.build(run, folder, StopFlag())
    with jax.set_mesh(context.mesh):
        yield context


def lines(folder: pathlib.Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what depends on the clock or the process."""
    found = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(x).items() if not k.startswith(("time/", "perf/"))}
        for x in found
    ]
