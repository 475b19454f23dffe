"""A reward model's rows as token ids: of each prompt the replies to be compared."""

import dataclasses
from typing import Any

import numpy as np

from rl_jax import config as configs
from rl_jax.data import chat, reply_rows
from rl_jax.data.rankings import Judged
from rl_jax.data.sources import Mixture
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.stages import inputs, reading


@dataclasses.dataclass(frozen=True)
class Candidates:
    """What was said of the replies to a prompt, and the ids of each.

    Attributes:
        ids: int32, of prompt and reply, up to the token that ends it.
    """

    judged: Judged
    ids: tuple[np.ndarray, ...]


def candidates(
    stage: configs.StageConfig, text: Tokenizer, name: str
) -> Mixture[Candidates]:
    """Those of `data.train` or `data.held_out` that fit and can teach something.

    Args:
        name: "train" or "held_out".

    Raises:
        ConfigError: for a fault in a row, and if nothing is left of a source.
    """
    rows, limit = stage.batch.micro_rows, stage.batch.row_tokens

    def make(judged: Judged) -> list[Candidates]:
        ids = (_reply_ids(text, judged, reply) for reply in judged.replies)
        return [Candidates(judged, tuple(ids))]

    def size(item: Candidates) -> int:
        together = sum(map(len, item.ids))
        return max(*map(len, item.ids), -(-together // rows))

    def fault(item: Candidates) -> str:
        sizes = [len(ids) for ids in item.ids]
        if max(sizes) > limit:
            return f"longer than {limit} tokens"
        if not reply_rows.fits(sizes, rows, limit):
            return f"longer together than {rows} rows of {limit} tokens"
        said = item.judged
        is_tied = said.label is None and len(set(said.rank)) == 1
        return "all replies are as good" if is_tied else ""

    return inputs.fitting(
        reading.rankings(stage, name),
        make,
        size,
        fault,
        what="prompts",
        key=f"{stage.prefix}data.{name}",
        fix=lambda tokens: f"--config.{stage.prefix}batch.row_tokens={tokens}",
    )


def most_replies(*parts: Mixture[Candidates]) -> int:
    """K: the most replies that a prompt has."""
    return max(len(item.ids) for part in parts for item in part)


def _reply_ids(text: Tokenizer, judged: Judged, reply: Any) -> np.ndarray:
    """Ids of a prompt and its reply, up to the token that ends the last turn.

    A policy that samples ends there too, so that what is scored later looks as what
    was learnt. Turns before are read only: no template need keep them as they were.
    """
    turns = [dict(turn) for turn in (*judged.prompt, *reply)]
    for turn in turns:
        if turn["role"] == "assistant":
            turn["loss"] = turn is turns[-1]
    ids, mask = chat.conversation_ids(
        text, turns, tools=judged.tools, variables=judged.variables
    )
    end = max(i for i, is_reply in enumerate(mask) if is_reply)
    return np.array(ids[: end + 1], np.int32)
