"""Samples of unequal length into rows of fixed length, without padding between.

Position t of a row holds an input token; every other array at t speaks of the token
that it predicts, the next one of the same sample. A sample of n tokens takes n - 1
positions.

Legend: B rows, T positions of a row.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Piece:
    """One sample to be packed, arrays of [n].

    Attributes:
        tokens: int32 ids.
        mask: bool, tokens that count in the loss (the first never does).
        sampler_logp: float32, see `rollout.sample.Sample`; None for supervised data.
        sample, group: global ids of the sample and of its group in this batch.
    """

    tokens: np.ndarray
    mask: np.ndarray
    sampler_logp: np.ndarray | None = None
    sample: int = 0
    group: int = 0


@dataclasses.dataclass(frozen=True)
class Packed:
    """Packed rows; see the module's docstring for what an array at t speaks of.

    Attributes:
        token_BT, target_BT, position_BT: int32; position within the sample.
        segment_BT: int32, 1, 2, ... along a row; 0 is padding.
        mask_BT: bool, targets that count.
        sampler_logp_BT: float32.
        sample_BT, group_BT: int32 global ids, 0 in padding (where mask is False).
    """

    token_BT: np.ndarray
    target_BT: np.ndarray
    position_BT: np.ndarray
    segment_BT: np.ndarray
    mask_BT: np.ndarray
    sampler_logp_BT: np.ndarray
    sample_BT: np.ndarray
    group_BT: np.ndarray

    def rows(self, start: int, stop: int) -> "Packed":
        """Rows `start` to `stop` of every array."""
        fields = dataclasses.fields(self)
        return Packed(*(getattr(self, f.name)[start:stop] for f in fields))


def pack(pieces: Sequence[Piece], row_tokens: int, rows_multiple: int) -> Packed:
    """All pieces in as few rows as first-fit decreasing finds.

    Args:
        row_tokens: T.
        rows_multiple: B is rounded up to a multiple of it with empty rows.

    Raises:
        ValueError: if a piece is longer than a row.
    """
    order = sorted(range(len(pieces)), key=lambda i: -len(pieces[i].tokens))
    rows: list[list[Piece]] = []
    room: list[int] = []
    for i in order:
        need = _positions(pieces[i], row_tokens)
        for row, left in enumerate(room):
            if need <= left:
                rows[row].append(pieces[i])
                room[row] -= need
                break
        else:
            rows.append([pieces[i]])
            room.append(row_tokens - need)
    num_rows = max(1, -(-len(rows) // rows_multiple)) * rows_multiple
    return _lay_out(rows, num_rows, row_tokens)


def fill(pieces: Iterable[Piece], num_rows: int, row_tokens: int) -> tuple[Packed, int]:
    """Exactly `num_rows` rows from a stream, in its order.

    Takes pieces until the next one fits no row, so that what a batch holds depends
    on where in the stream it begins and on nothing else.

    Returns:
        (rows, number of pieces taken)
    """
    rows: list[list[Piece]] = [[] for _ in range(num_rows)]
    room = [row_tokens] * num_rows
    taken = 0
    for piece in pieces:
        need = _positions(piece, row_tokens)
        fits = [row for row, left in enumerate(room) if need <= left]
        if not fits:
            break
        rows[fits[0]].append(piece)
        room[fits[0]] -= need
        taken += 1
    return _lay_out(rows, num_rows, row_tokens), taken


def _positions(piece: Piece, row_tokens: int) -> int:
    need = len(piece.tokens) - 1
    if need > row_tokens:
        raise ValueError(
            f"a sample of {need + 1} tokens does not fit a row of {row_tokens}: raise "
            "config.batch.row_tokens or drop long samples"
        )
    return need


def _lay_out(rows: list[list[Piece]], num_rows: int, row_tokens: int) -> Packed:
    B, T = num_rows, row_tokens
    ints = {
        name: np.zeros((B, T), np.int32)
        for name in ("token", "target", "position", "segment", "sample", "group")
    }
    mask_BT = np.zeros((B, T), bool)
    sampler_logp_BT = np.zeros((B, T), np.float32)
    for b, row in enumerate(rows):
        start = 0
        for segment, piece in enumerate(row, 1):
            n = len(piece.tokens) - 1
            at = (b, slice(start, start + n))
            ints["token"][at] = piece.tokens[:-1]
            ints["target"][at] = piece.tokens[1:]
            ints["position"][at] = np.arange(n)
            ints["segment"][at] = segment
            ints["sample"][at] = piece.sample
            ints["group"][at] = piece.group
            mask_BT[at] = piece.mask[1:]
            if piece.sampler_logp is not None:
                sampler_logp_BT[at] = piece.sampler_logp[1:]
            start += n
    return Packed(
        token_BT=ints["token"],
        target_BT=ints["target"],
        position_BT=ints["position"],
        segment_BT=ints["segment"],
        mask_BT=mask_BT,
        sampler_logp_BT=sampler_logp_BT,
        sample_BT=ints["sample"],
        group_BT=ints["group"],
    )
