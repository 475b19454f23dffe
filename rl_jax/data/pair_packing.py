"""Pairs of replies into micro-batches of packed rows, both of a pair in the same one.

A loss on pairs compares two sums over tokens, so both replies go through the model
together. Every micro-batch has the same shape: rows, positions and a number of pairs
that is never reached in practice, the rest of which is padding.

Legend: B rows of a micro-batch, T positions of a row, N pairs that it can hold.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from rl_jax.data.packing import Packed, Piece, fill

# Positions that a pair takes at least, with hardly an exception: two prompts, two
# replies, two end tokens. Places for more pairs would stay empty.
_LEAST_POSITIONS = 8
# Pairs that are laid out together: enough to leave little empty, few enough to look for
# room in all of their micro-batches.
_TOGETHER = 512


@dataclasses.dataclass(frozen=True)
class PairRows:
    """A micro-batch: its packed rows, and which pair is where.

    Attributes:
        packed: of B rows. Of the pair in place n, the chosen reply is sample 2 n, the
            rejected one 2 n + 1.
        index: place -> position of the pair in the list it came from; as many as
            there are pairs, at most N.
    """

    packed: Packed
    index: np.ndarray


def num_places(num_rows: int, row_tokens: int) -> int:
    """N: the pairs that a micro-batch of this shape can hold."""
    return max(1, num_rows * row_tokens // _LEAST_POSITIONS)


def pack_pairs(
    pairs: Sequence[tuple[Piece, Piece]], num_rows: int, row_tokens: int
) -> Iterator[PairRows]:
    """All pairs in about as few micro-batches as would hold them.

    Of each 512 in turn, the longest come first and go where there is room. Rows are
    laid out one micro-batch at a time, as they are asked for.

    Args:
        pairs: the chosen and the rejected reply of each, after its prompt.

    Raises:
        ValueError: if a reply is longer than a row.
    """
    for start in range(0, len(pairs), _TOGETHER):
        together = range(start, min(start + _TOGETHER, len(pairs)))
        for index in _places(pairs, together, num_rows, row_tokens):
            yield _laid_out(pairs, index, num_rows, row_tokens)


def _laid_out(
    pairs: Sequence[tuple[Piece, Piece]],
    index: list[int],
    num_rows: int,
    row_tokens: int,
) -> PairRows:
    pieces = []
    for place, i in enumerate(index):
        both = (
            dataclasses.replace(piece, sample=2 * place + side)
            for side, piece in enumerate(pairs[i])
        )
        pieces += _longest_first(*both)
    packed, taken = fill(pieces, num_rows, row_tokens)
    assert taken == len(pieces), "a micro-batch was given more pairs than fit it"
    return PairRows(packed, np.array(index, np.int32))


def _places(
    pairs: Sequence[tuple[Piece, Piece]],
    together: Sequence[int],
    num_rows: int,
    row_tokens: int,
) -> list[list[int]]:
    """Which pairs each micro-batch gets, in the order in which `fill` takes them."""
    most = num_places(num_rows, row_tokens)
    order = sorted(together, key=lambda i: -sum(map(_size, pairs[i])))
    batches: list[list[int]] = []
    rooms: list[list[int]] = []  # positions left in the rows of each
    for i in order:
        sizes = [_size(piece) for piece in _longest_first(*pairs[i])]
        for k, batch in enumerate(batches):
            left = _left(rooms[k], sizes) if len(batch) < most else None
            if left is not None:
                batch.append(i)
                rooms[k] = left
                break
        else:
            left = _left([row_tokens] * num_rows, sizes)
            if left is None:
                raise ValueError(
                    f"a pair of {sizes} positions does not fit {num_rows} rows of "
                    f"{row_tokens}: raise config.batch.row_tokens or leave it out"
                )
            batches.append([i])
            rooms.append(left)
    return batches


def _longest_first(a: Piece, b: Piece) -> tuple[Piece, Piece]:
    return (a, b) if len(a.tokens) >= len(b.tokens) else (b, a)


def _size(piece: Piece) -> int:
    return len(piece.tokens) - 1


def _left(room: list[int], sizes: list[int]) -> list[int] | None:
    """Room left after each size went to the first row that has it; None if one has."""
    room = list(room)
    for size in sizes:
        row = next((b for b, left in enumerate(room) if size <= left), None)
        if row is None:
            return None
        room[row] -= size
    return room
