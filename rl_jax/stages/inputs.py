"""A stage's rows as token ids: prompts to answer, conversations to learn."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grain
import numpy as np

from rl_jax import config as configs
from rl_jax.data import chat, pipeline
from rl_jax.data.messages import text_of
from rl_jax.data.packing import Piece
from rl_jax.data.rows import Row
from rl_jax.data.sources import BUILT_IN, Mixture, Part
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError
from rl_jax.stages import reading


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A row and the ids of its rendered prompt."""

    row: Row
    ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Conversation:
    """A row, and its ids with what is learnt of them."""

    row: Row
    piece: Piece


Item = TypeVar("Item", Prompt, Conversation)


def train_prompts(
    stage: configs.StageConfig, text: Tokenizer, seed: int
) -> Mixture[Prompt]:
    """Prompts of `data.train` that fit, for reinforcement learning."""
    return _prompts(reading.read(stage, "rl", seed), stage, text, "train")


def eval_prompts(stage: configs.StageConfig, text: Tokenizer) -> list[Prompt]:
    """The first `eval.num_prompts` prompts of `data.eval` that fit.

    Of several sources each gives one in turn.
    """
    found = held_out_prompts(stage, text)
    turns = itertools.zip_longest(*(part.items for part in found.parts))
    in_turn = [p for turn in turns for p in turn if p is not None]
    return in_turn[: stage.eval.num_prompts]


def held_out_prompts(stage: configs.StageConfig, text: Tokenizer) -> Mixture[Prompt]:
    """All prompts of `data.eval` that fit."""
    return _prompts(reading.read(stage, "eval", seed=0), stage, text, "eval")


def conversations(
    stage: configs.StageConfig, text: Tokenizer, seed: int
) -> Mixture[Conversation]:
    """Conversations of `data.train` that fit a row and have something to learn.

    A row whose earlier turns the template rewrites gives one for each such turn.
    """

    def make(row: Row) -> list[Conversation]:
        sequences = chat.training_sequences(text, row.messages, **_template(row))
        return [
            Conversation(row, Piece(np.array(ids, np.int32), np.array(mask, bool)))
            for ids, mask in sequences
        ]

    limit = stage.batch.row_tokens + 1  # the last token is only ever a target

    def fault(conversation: Conversation) -> str:
        if len(conversation.piece.tokens) > limit:
            return f"longer than {limit} tokens"
        # The first token is never predicted.
        return "" if conversation.piece.mask[1:].any() else "nothing to learn in it"

    found = reading.read(stage, "sft", seed)
    return _fitting(
        found,
        make,
        lambda conversation: len(conversation.piece.tokens),
        fault,
        what="conversations",
        key=f"{stage.prefix}data.train",
        # One less: see `limit`.
        fix=lambda size: f"--config.{stage.prefix}batch.row_tokens={size - 1}",
    )


def _prompts(
    found: Mixture[Row], stage: configs.StageConfig, text: Tokenizer, name: str
) -> Mixture[Prompt]:
    limit = stage.rollout.max_prompt_tokens
    return _fitting(
        found,
        lambda row: [
            Prompt(row, tuple(chat.prompt_ids(text, row.messages, **_template(row))))
        ],
        lambda prompt: len(prompt.ids),
        lambda prompt: f"longer than {limit} tokens" if len(prompt.ids) > limit else "",
        what="prompts",
        key=f"{stage.prefix}data.{name}",
        fix=lambda size: f"--config.{stage.prefix}rollout.max_prompt_tokens={size}",
    )


def _template(row: Row) -> dict[str, Any]:
    return {"tools": row.tools, "variables": row.variables}


def _fitting(
    found: Mixture[Row],
    make: Callable[[Row], list[Item]],
    size: Callable[[Item], int],
    fault: Callable[[Item], str],
    *,
    what: str,
    key: str,
    fix: Callable[[int], str],
) -> Mixture[Item]:
    """Items made of rows, without those that have a fault; prints a line a source.

    Raises:
        ConfigError: if nothing is left of a source.
    """
    parts = []
    for part in found.parts:
        items = [
            item for row in part.items for item in _made(make, row, part.source.path)
        ]
        faults = [fault(item) for item in items]
        kept = [item for item, wrong in zip(items, faults, strict=True) if not wrong]
        left_out = {wrong: faults.count(wrong) for wrong in {*faults} - {""}}
        sizes = tuple(size(item) for item in items)
        parts.append(Part(part.source, kept, sizes, left_out))
        if not kept:
            reason = " or ".join(sorted(left_out))
            write = "Look at the loss flags of their turns."
            if "longer" in reason:
                write = (
                    f"The shortest has {min(sizes)}: write {fix(min(sizes))} or more."
                )
            raise ConfigError(
                f"config.{key}: all {len(items)} {what} of {part.source.path} are left "
                f"out: {reason}.\n{write}"
            )
    made = Mixture(tuple(parts))
    for line in summary(made, what):
        print(f"{key}: {line}", flush=True)
    return made


def _made(make: Callable[[Row], list[Item]], row: Row, path: str) -> list[Item]:
    try:
        return make(row)
    except ConfigError as error:
        raise ConfigError(f"Row {row.index + 1} of {path}: {error}") from error


def summary(made: Mixture[Any], what: str) -> list[str]:
    """A line a source: what was kept of it, its share, what was left out and why."""
    lines = []
    shares = made.weights or [None] * len(made.parts)
    for part, share in zip(made.parts, shares, strict=True):
        line = f"{len(part.items):,} {what} of {part.source.path}"
        if share is not None:
            line += f", {share:.1%} of what is drawn"
        for reason, count in sorted(part.left_out.items()):
            line += f"; {count:,} of {len(part.sizes):,} left out: {reason}"
        lines.append(line)
    return lines


def stream(made: Mixture[Any], seed: int) -> grain.MapDataset:
    """The endless order in which a stage takes its items; see data/pipeline.py."""
    if made.weights is None:
        return pipeline.stream(list(made), seed=seed)
    return pipeline.mixture([p.items for p in made.parts], made.weights, seed=seed)


def assert_held_out(prompts: Sequence[Prompt], trained_on: Sequence[Row]) -> None:
    """Raises AssertionError if a generated problem is both learnt and evaluated.

    Files are the user's own: how many of their prompts are in both is printed.
    """
    learnt = {_question(row) for row in trained_on}
    in_both = [p.row for p in prompts if _question(p.row) in learnt]
    generated = sum(row.data_source in BUILT_IN for row in in_both)
    assert not generated, f"{generated} problems in two splits"
    if in_both:
        print(
            f"note: {len(in_both)} of {len(prompts)} prompts of data.eval are trained "
            "on too",
            flush=True,
        )


def _question(row: Row) -> str:
    """What the user said last."""
    turns = [text_of(m) for m in row.messages if m["role"] == "user"]
    return turns[-1] if turns else ""
