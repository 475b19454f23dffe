"""A stage's rows as token ids: prompts to answer, conversations to learn."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np

from rl_jax import config as configs
from rl_jax.data import arithmetic, chat, rows
from rl_jax.data.packing import Piece
from rl_jax.data.rows import Row
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError

BUILT_IN = "arithmetic"


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A row and the ids of its rendered prompt."""

    row: Row
    ids: tuple[int, ...]


def train_prompts(
    stage: configs.StageConfig, text: Tokenizer, seed: int
) -> list[Prompt]:
    """Prompts of `data.train` that fit, for reinforcement learning."""
    data = stage.data
    if data.train == BUILT_IN:
        with _own_keys(stage):
            found = arithmetic.rows("rl", data.num_problems, seed)
    else:
        found = _read_prompts(data.train, stage)
    return _fitting(found, stage, text, "data.train")


def eval_prompts(stage: configs.StageConfig, text: Tokenizer) -> list[Prompt]:
    """The first `eval.num_prompts` prompts of `data.eval` that fit.

    Generated problems are the same whatever the seed, and are checked to be none of
    those that any stage trains on.
    """
    data = stage.data
    if data.eval == BUILT_IN:
        with _own_keys(stage):
            found = arithmetic.rows("eval", data.num_eval_problems, seed=0)
        held_out = {row.messages[-1]["content"] for row in found}
        assert all(arithmetic.split_of(p) == "eval" for p in held_out)
    else:
        found = _read_prompts(data.eval, stage)
    return _fitting(found, stage, text, "data.eval")[: stage.eval.num_prompts]


def assert_held_out(prompts: Sequence[Prompt], trained_on: Sequence[Row]) -> None:
    """Raises AssertionError if a generated problem is both learnt and evaluated.

    Files are the user's own: how many of their prompts are in both is printed.
    """
    learnt = {_question(row) for row in trained_on}
    in_both = [p.row for p in prompts if _question(p.row) in learnt]
    generated = sum(row.data_source == BUILT_IN for row in in_both)
    assert not generated, f"{generated} problems in two splits"
    if in_both:
        print(
            f"note: {len(in_both)} of {len(prompts)} prompts of data.eval are trained "
            "on too",
            flush=True,
        )


def _question(row: Row) -> str:
    """What the user said last."""
    turns = [m["content"] for m in row.messages if m["role"] == "user"]
    return turns[-1] if turns else ""


def check_data(run: configs.Run) -> None:
    """Reads every data file once, so that faults are found before anything starts.

    Raises:
        ConfigError: for a missing file or column, or a value of the wrong kind.
    """
    for stage in run.stages:
        files = {stage.data.eval} if stage.eval.every else set()
        if stage.kind == "rl":
            files.add(stage.data.train)
        elif stage.data.train != BUILT_IN:
            _read_conversations(stage)
        for path in files - {BUILT_IN}:
            _read_prompts(path, stage)


@contextlib.contextmanager
def _own_keys(stage: configs.StageConfig) -> Iterator[None]:
    """Makes errors about data name the keys of this stage of a chain."""
    try:
        yield
    except ConfigError as error:
        text = str(error).replace("--config.data.", f"--config.{stage.prefix}data.")
        raise ConfigError(text) from error


def _read_conversations(stage: configs.StageConfig) -> list[Row]:
    data = stage.data
    with _own_keys(stage):
        return rows.read_conversations(
            data.train,
            prompt_column=data.prompt_column,
            completion_column=data.completion_column,
            system=data.system,
            instruction=data.instruction,
        )


def _read_prompts(path: str, stage: configs.StageConfig) -> list[Row]:
    data = stage.data
    with _own_keys(stage):
        return rows.read_rows(
            path,
            prompt_column=data.prompt_column,
            answer_column=data.answer_column,
            answer_after=data.answer_after,
            system=data.system,
            instruction=data.instruction,
        )


def _fitting(
    found: Sequence[Row], stage: configs.StageConfig, text: Tokenizer, name: str
) -> list[Prompt]:
    limit = stage.rollout.max_prompt_tokens
    prompts = [Prompt(row, tuple(chat.prompt_ids(text, row.messages))) for row in found]
    fitting = [prompt for prompt in prompts if len(prompt.ids) <= limit]
    if not fitting:
        shortest = min(len(prompt.ids) for prompt in prompts)
        key = f"config.{stage.prefix}"
        raise ConfigError(
            f"{key}{name}: none of its {len(prompts)} prompts fits in "
            f"rollout.max_prompt_tokens={limit} tokens (the shortest has {shortest}).\n"
            f"Write --{key}rollout.max_prompt_tokens={shortest} or more."
        )
    if dropped := len(prompts) - len(fitting):
        print(
            f"{name}: {dropped} of {len(prompts)} prompts are longer than {limit} "
            "tokens and left out",
            flush=True,
        )
    return fitting


def conversations(
    stage: configs.StageConfig, text: Tokenizer, seed: int
) -> tuple[list[Row], list[Piece]]:
    """Rows of `data.train` and their ids with loss masks, those that fit a row."""
    data = stage.data
    if data.train == BUILT_IN:
        with _own_keys(stage):
            found = arithmetic.demonstrations(data.num_problems, seed)
    else:
        found = _read_conversations(stage)
    pieces = []
    for row in found:
        ids, mask = chat.conversation_ids(text, row.messages)
        pieces.append(Piece(np.array(ids, np.int32), np.array(mask, bool)))
    limit = stage.batch.row_tokens + 1
    fitting = [piece for piece in pieces if len(piece.tokens) <= limit]
    if not fitting:
        key = f"config.{stage.prefix}batch.row_tokens"
        raise ConfigError(
            f"None of the {len(pieces)} conversations of {data.train} fits in a row of "
            f"{key}={limit - 1} tokens.\nWrite --{key}="
            f"{min(len(piece.tokens) for piece in pieces)} or more."
        )
    if dropped := len(pieces) - len(fitting):
        print(
            f"data.train: {dropped} of {len(pieces)} conversations are longer than "
            f"{limit} tokens and left out",
            flush=True,
        )
    return list(found), fitting


def corpus(run: configs.Run) -> Iterator[str]:
    """Text for a new model's tokenizer: what the stages will train on."""
    for stage in run.stages:
        data = stage.data
        if data.train == BUILT_IN:
            # Any 2,000 have every word and digit of the task.
            count = min(data.num_problems, 2000)
            found = arithmetic.demonstrations(count, run.seed)
        elif stage.kind == "sft":
            found = _read_conversations(stage)
        else:
            found = _read_prompts(data.train, stage)
        for row in found:
            yield from (str(message["content"]) for message in row.messages)
            if row.answer:
                yield row.answer


def at(stream: grain.MapDataset, position: int) -> Any:
    """The item of an endless stream at a global index."""
    item = stream[position]
    assert item is not None  # such a stream is not filtered
    return item


def from_position(stream: grain.MapDataset, position: int) -> Iterator[Any]:
    """Items of an endless stream from a global index on."""
    return (at(stream, i) for i in itertools.count(position))
