"""Whole replies into rows of fixed length, to be scored at their last token.

Unlike in packing.py every token is an input: a reply of n tokens takes n positions.
Replies that are compared go through the model together, so that those of one prompt
are never divided over two micro-batches.

Legend: B rows of a micro-batch, T positions of a row.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

# Micro-batches that are looked through for room: as groups come longest first, earlier
# ones are full.
_OPEN = 8


@dataclasses.dataclass(frozen=True)
class ReplyRows:
    """A micro-batch: packed rows, and where in them each reply ends.

    Attributes:
        token_BT, position_BT: int32; position within the reply's own sequence.
        segment_BT: int32, 1, 2, ... along a row; 0 is padding.
        groups: which groups of those packed are here.
        last: of each of these, (row, column) of the last token of each reply.
    """

    token_BT: np.ndarray
    position_BT: np.ndarray
    segment_BT: np.ndarray
    groups: tuple[int, ...]
    last: tuple[tuple[tuple[int, int], ...], ...]


def fits(sizes: Sequence[int], num_rows: int, row_tokens: int) -> bool:
    """True if replies of so many tokens can stand in one micro-batch together."""
    return _place(sizes, [row_tokens] * num_rows) is not None


def pack_groups(
    groups: Sequence[Sequence[np.ndarray]],
    num_rows: int,
    row_tokens: int,
    most_groups: int,
) -> Iterator[ReplyRows]:
    """All groups, longest first, in about as few micro-batches as would hold them.

    Rows are laid out one micro-batch at a time, as they are asked for.

    Args:
        groups: of each prompt its replies, each the int32 ids of prompt and reply.
        most_groups: that a micro-batch may hold.

    Raises:
        ValueError: if a group does not fit a micro-batch.
    """
    sizes = [[len(reply) for reply in group] for group in groups]
    for places in _batches(sizes, num_rows, row_tokens, most_groups):
        yield _lay_out(groups, places, num_rows, row_tokens)


# Group -> row of each of its replies.
_Places = dict[int, list[int]]


def _batches(
    sizes: Sequence[Sequence[int]], num_rows: int, row_tokens: int, most_groups: int
) -> list[_Places]:
    batches: list[_Places] = []
    rooms: list[list[int]] = []  # positions left in the rows of each
    for i in sorted(range(len(sizes)), key=lambda i: -sum(sizes[i])):
        for k in range(max(0, len(batches) - _OPEN), len(batches)):
            if len(batches[k]) < most_groups and (placed := _place(sizes[i], rooms[k])):
                break
        else:
            k, placed = len(batches), _place(sizes[i], [row_tokens] * num_rows)
            if placed is None:
                raise ValueError(
                    f"replies of {[*sizes[i]]} tokens do not fit {num_rows} rows of "
                    f"{row_tokens}: raise config.batch.row_tokens or leave them out"
                )
            batches.append({})
            rooms.append([])
        batches[k][i], rooms[k] = placed
    return batches


def _place(
    sizes: Sequence[int], room: Sequence[int]
) -> tuple[list[int], list[int]] | None:
    """(row of each size, room left), longest first into the first row with room."""
    left, rows = list(room), [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        row = next((b for b, free in enumerate(left) if sizes[i] <= free), None)
        if row is None:
            return None
        left[row] -= sizes[i]
        rows[i] = row
    return rows, left


def _lay_out(
    groups: Sequence[Sequence[np.ndarray]],
    places: _Places,
    num_rows: int,
    row_tokens: int,
) -> ReplyRows:
    token_BT, position_BT, segment_BT = (
        np.zeros((num_rows, row_tokens), np.int32) for _ in range(3)
    )
    start, count = [0] * num_rows, [0] * num_rows
    last = []
    for i, rows in places.items():
        ends = []
        for reply, b in zip(groups[i], rows, strict=True):
            n = len(reply)
            at = (b, slice(start[b], start[b] + n))
            count[b] += 1
            token_BT[at] = reply
            position_BT[at] = np.arange(n)
            segment_BT[at] = count[b]
            start[b] += n
            ends.append((b, start[b] - 1))
        last.append(tuple(ends))
    return ReplyRows(token_BT, position_BT, segment_BT, tuple(places), tuple(last))
