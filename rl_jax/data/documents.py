"""Texts and conversations to be learnt whole: every token of theirs is a target.

A text ends with the end-of-sequence token, so that a model learns where texts end. What
is longer than a row is cut, and nothing of it is lost: each piece begins with the last
token of the one before, which is only read there.
"""

from collections.abc import Sequence

from rl_jax.data import chat
from rl_jax.data.rows import Row
from rl_jax.data.tokenizer import Tokenizer


def document_ids(tokenizer: Tokenizer, row: Row) -> list[int]:
    """Ids of a whole row, with its end.

    Plain text that spells a special token stays text. A conversation is as the chat
    template writes it when it is over: what the template drops of earlier turns, such
    as thoughts, is not in it (nor, with such a template, what follows the assistant's
    last turn). The `loss` flags of turns are not looked at.

    Raises:
        ConfigError: as chat.training_sequences.
    """
    if row.text is None:
        messages = [
            {name: value for name, value in turn.items() if name != "loss"}
            for turn in row.messages
        ]
        sequences = chat.training_sequences(
            tokenizer, messages, tools=row.tools, variables=row.variables
        )
        return sequences[-1][0]
    end = tokenizer.stop_ids[0] if tokenizer.eos_id is None else tokenizer.eos_id
    ids = [*tokenizer.encode(row.text), end]
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        return [tokenizer.bos_id, *ids]
    return ids


def cut(ids: Sequence[int], row_tokens: int) -> list[Sequence[int]]:
    """Pieces of at most row_tokens + 1 ids; each begins with the last id of another.

    As the first id of a piece is never predicted, every id but the very first is
    predicted exactly once. None for fewer than two ids: nothing is predicted there.
    """
    starts = range(0, len(ids) - 1, row_tokens)
    return [ids[start : start + row_tokens + 1] for start in starts]
