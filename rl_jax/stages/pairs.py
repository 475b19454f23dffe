"""A stage's pairs of replies as token ids."""

import dataclasses
import operator
import zlib
from collections.abc import Sequence

import numpy as np

from rl_jax import config as configs
from rl_jax import processes
from rl_jax.data import chat
from rl_jax.data.packing import Piece
from rl_jax.data.rows import Preference
from rl_jax.data.sources import Mixture, Part
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.preference_config import preference_loss_spec
from rl_jax.stages import inputs, reading


@dataclasses.dataclass(frozen=True)
class Pair:
    """A row with both replies, each after the same prompt.

    Attributes:
        chosen, rejected: the mask is on what the assistant says in the reply, with its
            end-of-turn token.
        num_special: how many tokens of that in each are special ones, not compared.
        index: position among all pairs of the stage that it was made with, from 0.
    """

    row: Preference
    chosen: Piece
    rejected: Piece
    num_special: tuple[int, int] = (0, 0)
    index: int = 0

    @property
    def pieces(self) -> tuple[Piece, Piece]:
        """Chosen, rejected."""
        return self.chosen, self.rejected

    @property
    def num_tokens(self) -> tuple[int, int]:
        """How many tokens of each are compared."""
        chosen, rejected = self.num_special
        return (
            int(self.chosen.mask.sum()) - chosen,
            int(self.rejected.mask.sum()) - rejected,
        )


def train_pairs(stage: configs.StageConfig, text: Tokenizer) -> Mixture[Pair]:
    """Pairs of `data.train` that fit a row and have something to compare."""
    return _pairs(stage, text, "train")


def held_out_pairs(stage: configs.StageConfig, text: Tokenizer) -> list[Pair]:
    """The same of `data.held_out`; [] if there is none."""
    return list(_pairs(stage, text, "held_out")) if stage.data.held_out else []


def special_ids(stage: configs.StageConfig, text: Tokenizer) -> tuple[int, ...]:
    """The tokens that a stage does not compare."""
    masked = preference_loss_spec(stage).mask_special
    return tuple(sorted(text.special_ids.values())) if masked else ()


def _pairs(stage: configs.StageConfig, text: Tokenizer, name: str) -> Mixture[Pair]:
    # The last token is only ever a target.
    limit = stage.batch.row_tokens + 1
    # Both replies of a pair are in one micro-batch, so in one row if that is all.
    shared = stage.batch.micro_rows == 1
    specials = special_ids(stage, text)

    def size(pair: Pair) -> int:
        lengths = [len(piece.tokens) for piece in pair.pieces]
        return sum(lengths) - 1 if shared else max(lengths)

    def fault(pair: Pair) -> str:
        if size(pair) > limit:
            return f"longer than {limit} tokens{', both together' if shared else ''}"
        if not all(pair.num_tokens):
            return "nothing to learn in it"
        alike = np.array_equal(pair.chosen.tokens, pair.rejected.tokens)
        return "both replies are the same" if alike else ""

    made = inputs.fitting(
        reading.preferences(stage, name),
        lambda row: [pair_of(row, text, specials)],
        size,
        fault,
        what="pairs",
        key=f"{stage.prefix}data.{name}",
        fix=lambda size: f"--config.{stage.prefix}batch.row_tokens={size - 1}",
    )
    return _numbered(made)


def pair_of(row: Preference, text: Tokenizer, special_ids: Sequence[int] = ()) -> Pair:
    """Both replies rendered by the chat template, as a policy would write them.

    Args:
        special_ids: tokens that are not compared.

    Raises:
        ConfigError: as `chat.conversation_ids`.
    """
    # What the assistant said earlier is read, and not compared.
    prompt = [
        {**turn, "loss": False} if turn["role"] == "assistant" else turn
        for turn in row.prompt
    ]

    def piece(reply: Sequence[dict]) -> Piece:
        ids, mask = chat.conversation_ids(
            text, [*prompt, *reply], tools=row.tools, variables=row.variables
        )
        mask_T = np.array(mask, bool)
        mask_T[:1] = False  # never predicted
        return Piece(np.array(ids, np.int32), mask_T)

    def count(one: Piece) -> int:
        return int(np.isin(one.tokens[one.mask], special_ids).sum())

    chosen, rejected = piece(row.chosen), piece(row.rejected)
    return Pair(row, chosen, rejected, (count(chosen), count(rejected)))


def _numbered(made: Mixture[Pair]) -> Mixture[Pair]:
    parts, count = [], 0
    for part in made.parts:
        numbers = range(count, count + len(part.items))
        items = [
            dataclasses.replace(pair, index=number)
            for number, pair in zip(numbers, part.items, strict=True)
        ]
        parts.append(Part(part.source, items, part.sizes, part.left_out))
        count += len(items)
    return Mixture(tuple(parts))


def checksum(pairs: Sequence[Pair]) -> str:
    """A sum of what the model reads of the pairs and what counts, in their order."""
    total = 0
    for pair in pairs:
        for piece in pair.pieces:
            for array in (np.int64(len(piece.tokens)), piece.tokens, piece.mask):
                total = zlib.crc32(array.tobytes(), total)
        total = zlib.crc32(np.array(pair.num_special).tobytes(), total)
    return f"{len(pairs)}:{total:08x}"


def note_shared(held_out: Sequence[Pair], trained_on: Sequence[Pair]) -> None:
    """Prints how many held-out pairs have a prompt that is trained on too, if any."""
    prompt = operator.attrgetter("row.prompt")
    learnt = {repr(prompt(pair)) for pair in trained_on}
    both = sum(repr(prompt(pair)) in learnt for pair in held_out)
    if both:
        processes.say(
            f"note: {both} of {len(held_out)} prompts of data.held_out are trained on "
            "too"
        )
