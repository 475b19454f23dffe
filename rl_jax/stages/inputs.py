"""A stage's rows as token ids: prompts to answer, conversations and texts to learn."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import grain
import numpy as np

from rl_jax import config as configs
from rl_jax import processes
from rl_jax.data import chat, documents, pipeline
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
    """A row or a part of one, and its ids with what is learnt of them.

    Attributes:
        weight: of each of its tokens in the loss.
    """

    row: Row
    piece: Piece
    weight: float = 1.0


Item = TypeVar("Item")


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

    A row whose earlier turns the template rewrites gives one for each such turn, unless
    everything is learnt. One of weight 0 is left out.
    """
    return _conversations(reading.read(stage, "sft", seed), stage, text, "train")


def texts(
    stage: configs.StageConfig, text: Tokenizer, seed: int
) -> Mixture[Conversation]:
    """All of `data.train`, every token of it to be learnt, cut to fit rows.

    One of weight 0 is left out. Each piece of a cut row is an item of its own.
    """
    return _texts(reading.read(stage, "pretrain", seed), stage, text, "train")


def held_out(stage: configs.StageConfig, text: Tokenizer) -> Mixture[Conversation]:
    """`data.held_out`, as `data.train` is learnt by the stage; none has a weight."""
    found = reading.read(stage, "held_out", seed=0)
    make = _texts if stage.kind == "pretrain" else _conversations
    return make(found, stage, text, "held_out")


def _conversations(
    found: Mixture[Row], stage: configs.StageConfig, text: Tokenizer, name: str
) -> Mixture[Conversation]:
    limit = stage.batch.row_tokens + 1  # the last token is only ever a target

    def make(row: Row) -> list[Conversation]:
        if stage.supervised.learn == "everything":
            return [_whole(row, documents.document_ids(text, row))]
        sequences = chat.training_sequences(text, row.messages, **_template(row))
        return [
            Conversation(
                row, Piece(np.array(ids, np.int32), np.array(mask, bool)), row.weight
            )
            for ids, mask in sequences
        ]

    def fault(conversation: Conversation) -> str:
        if len(conversation.piece.tokens) > limit:
            return f"longer than {limit} tokens"
        return _nothing_in(conversation)

    return fitting(
        found,
        make,
        lambda conversation: len(conversation.piece.tokens),
        fault,
        what="conversations",
        key=f"{stage.prefix}data.{name}",
        # One less: see `limit`.
        fix=lambda size: f"--config.{stage.prefix}batch.row_tokens={size - 1}",
    )


def _texts(
    found: Mixture[Row], stage: configs.StageConfig, text: Tokenizer, name: str
) -> Mixture[Conversation]:
    def make(row: Row) -> list[Conversation]:
        ids = documents.document_ids(text, row)
        # One that is too short for a piece is kept to be counted among the left out.
        pieces = documents.cut(ids, stage.batch.row_tokens) or [ids]
        return [_whole(row, piece) for piece in pieces]

    return fitting(
        found,
        make,
        lambda conversation: len(conversation.piece.tokens),
        _nothing_in,
        what="pieces",
        key=f"{stage.prefix}data.{name}",
        fix=lambda size: "",
    )


def _whole(row: Row, ids: Sequence[int]) -> Conversation:
    """All of these ids to be learnt."""
    piece = Piece(np.array(ids, np.int32), np.ones(len(ids), bool))
    return Conversation(row, piece, row.weight)


def _nothing_in(conversation: Conversation) -> str:
    if not conversation.weight:
        return "weight 0"
    # The first token is never predicted.
    return "" if conversation.piece.mask[1:].any() else "nothing to learn in it"


def numbered(made: Mixture[Conversation]) -> Mixture[Conversation]:
    """Each item's place among all of them, as the `sample` of its piece."""
    count = itertools.count()

    def with_place(talk: Conversation) -> Conversation:
        piece = dataclasses.replace(talk.piece, sample=next(count))
        return dataclasses.replace(talk, piece=piece)

    parts = [
        dataclasses.replace(part, items=[with_place(talk) for talk in part.items])
        for part in made.parts
    ]
    return Mixture(tuple(parts))


def _prompts(
    found: Mixture[Row], stage: configs.StageConfig, text: Tokenizer, name: str
) -> Mixture[Prompt]:
    limit = stage.rollout.max_prompt_tokens
    return fitting(
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


def fitting(
    found: Mixture[Any],
    make: Callable[[Any], list[Item]],
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
            if "weight" in reason:
                write = "Look at the column that data.weight_column names."
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
        processes.say(f"{key}: {line}")
    return made


def _made(make: Callable[[Any], list[Item]], row: Any, path: str) -> list[Item]:
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


def assert_held_out(
    prompts: Sequence[Prompt | Conversation],
    trained_on: Sequence[Row],
    what: str = "prompts of data.eval",
) -> None:
    """Raises AssertionError if a generated problem is both learnt and evaluated.

    Files are the user's own: how many of their prompts are in both is printed.
    """
    if not prompts:
        return
    learnt = {_question(row) for row in trained_on} - {""}
    in_both = [p.row for p in prompts if _question(p.row) in learnt]
    generated = sum(row.data_source in BUILT_IN for row in in_both)
    assert not generated, f"{generated} problems in two splits"
    if in_both:
        processes.say(
            f"note: {len(in_both)} of {len(prompts)} {what} are trained on too"
        )


def _question(row: Row) -> str:
    """What the user said last; the whole of a plain text."""
    if row.text is not None:
        return row.text
    turns = [text_of(m) for m in row.messages if m["role"] == "user"]
    return turns[-1] if turns else ""
