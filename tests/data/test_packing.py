"""Packing: every token once, arrays that speak of the next token, and no surprises."""

import dataclasses
import itertools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from rl_jax.data.packing import Packed, Piece, fill, pack

ROW_TOKENS = 9


def make_pieces(lengths, seed=0):
    """Pieces whose tokens, log-probabilities and masks are all told apart."""
    rng = np.random.default_rng(seed)
    pieces = []
    for i, n in enumerate(lengths):
        pieces.append(
            Piece(
                tokens=(1000 * (i + 1) + np.arange(n)).astype(np.int32),
                mask=rng.random(n) < 0.5,
                sampler_logp=-rng.random(n).astype(np.float32),
                sample=i,
                group=i // 3,
            )
        )
    return pieces


def unpack(packed: Packed) -> list[dict[str, np.ndarray]]:
    """Each segment's columns, in order of rows and positions."""
    found = []
    for row in range(len(packed.token_BT)):
        segment_T = packed.segment_BT[row]
        for segment in sorted(set(segment_T.tolist()) - {0}):
            at = segment_T == segment
            found.append(
                {
                    f.name.removesuffix("_BT"): getattr(packed, f.name)[row][at]
                    for f in dataclasses.fields(packed)
                }
            )
    return found


def assert_holds(packed: Packed, pieces: list[Piece]) -> None:
    """Fails unless every piece stands once, whole, and predicts its next tokens."""
    by_sample = {int(found["sample"][0]): found for found in unpack(packed)}
    long_enough = [p for p in pieces if len(p.tokens) > 1]
    assert len(unpack(packed)) == len(by_sample) == len(long_enough)
    for piece in long_enough:
        found, n = by_sample[piece.sample], len(piece.tokens)
        assert piece.sampler_logp is not None
        np.testing.assert_array_equal(found["token"], piece.tokens[:-1])
        np.testing.assert_array_equal(found["target"], piece.tokens[1:])
        np.testing.assert_array_equal(found["position"], np.arange(n - 1))
        np.testing.assert_array_equal(found["mask"], piece.mask[1:])
        np.testing.assert_array_equal(found["sampler_logp"], piece.sampler_logp[1:])
        np.testing.assert_array_equal(found["sample"], [piece.sample] * (n - 1))
        np.testing.assert_array_equal(found["group"], [piece.group] * (n - 1))
    padding_BT = packed.segment_BT == 0
    for field in dataclasses.fields(packed):
        assert not getattr(packed, field.name)[padding_BT].any(), field.name


some_lengths = st.lists(st.integers(1, ROW_TOKENS + 1), max_size=12)


@hypothesis.given(some_lengths, st.integers(1, 4))
@hypothesis.settings(max_examples=60, deadline=None)
def test_pack_holds_every_token_once(lengths, rows_multiple):
    pieces = make_pieces(lengths)
    packed = pack(pieces, ROW_TOKENS, rows_multiple)
    assert_holds(packed, pieces)
    B, T = packed.token_BT.shape
    assert T == ROW_TOKENS
    assert B % rows_multiple == 0 and B > 0


@hypothesis.given(some_lengths)
@hypothesis.settings(max_examples=60, deadline=None)
def test_segments_count_up_along_a_row_and_do_not_leave_holes(lengths):
    packed = pack(make_pieces(lengths), ROW_TOKENS, 1)
    for segment_T in packed.segment_BT:
        used_T = segment_T[segment_T > 0]
        np.testing.assert_array_equal(segment_T[: len(used_T)], used_T)
        assert (np.diff(used_T) >= 0).all()


@hypothesis.given(some_lengths)
@hypothesis.settings(max_examples=60, deadline=None)
def test_no_two_rows_would_fit_into_one(lengths):
    used = (pack(make_pieces(lengths), ROW_TOKENS, 1).segment_BT > 0).sum(axis=1)
    assert all(a + b > ROW_TOKENS for a, b in itertools.combinations(used, 2))


def test_a_full_row_has_no_padding():
    packed = pack(make_pieces([5, 6]), ROW_TOKENS, 1)
    assert packed.token_BT.shape == (1, ROW_TOKENS)
    # The longest goes first.
    assert packed.segment_BT.tolist() == [[1] * 5 + [2] * 4]
    assert packed.sample_BT.tolist() == [[1] * 5 + [0] * 4]


def test_nothing_to_pack_gives_empty_rows():
    packed = pack([], ROW_TOKENS, 3)
    assert packed.token_BT.shape == (3, ROW_TOKENS)
    assert not packed.segment_BT.any() and not packed.mask_BT.any()


def test_dtypes_are_those_of_the_device():
    packed = pack(make_pieces([4]), ROW_TOKENS, 1)
    for field in dataclasses.fields(packed):
        wanted = {"mask_BT": np.bool_, "sampler_logp_BT": np.float32}
        got = getattr(packed, field.name).dtype
        assert got == wanted.get(field.name, np.int32), field.name


def test_supervised_pieces_have_zero_sampler_logprobs():
    piece = Piece(tokens=np.arange(3, dtype=np.int32), mask=np.ones(3, bool))
    assert not pack([piece], ROW_TOKENS, 1).sampler_logp_BT.any()


def test_rows_takes_the_same_rows_of_every_array():
    packed = pack(make_pieces([9, 8, 7, 6]), ROW_TOKENS, 1)
    part = packed.rows(1, 3)
    for field in dataclasses.fields(packed):
        whole = getattr(packed, field.name)
        np.testing.assert_array_equal(getattr(part, field.name), whole[1:3])


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda pieces: pack(pieces, ROW_TOKENS, 1),
        lambda pieces: fill(pieces, 2, ROW_TOKENS),
    ],
)
def test_a_piece_longer_than_a_row_is_refused(lay_out):
    with pytest.raises(ValueError, match=r"11 tokens does not fit a row of 9.*row_tok"):
        lay_out(make_pieces([3, ROW_TOKENS + 2]))


@hypothesis.given(st.lists(st.integers(2, ROW_TOKENS + 1), min_size=1, max_size=30))
@hypothesis.settings(max_examples=60, deadline=None)
def test_fills_that_follow_each_other_take_every_piece_once(lengths):
    pieces, start = make_pieces(lengths), 0
    while start < len(pieces):
        packed, taken = fill(pieces[start:], 2, ROW_TOKENS)
        assert packed.token_BT.shape == (2, ROW_TOKENS)
        assert taken > 0
        assert_holds(packed, pieces[start : start + taken])
        start += taken


@hypothesis.given(
    st.lists(st.integers(2, ROW_TOKENS + 1), min_size=12, max_size=20),
    st.lists(st.integers(2, ROW_TOKENS + 1), max_size=8),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_a_fill_stops_at_the_first_piece_that_fits_no_row(lengths, others):
    pieces = make_pieces(lengths)
    packed, taken = fill(iter(pieces), 2, ROW_TOKENS)
    room = ROW_TOKENS - (packed.segment_BT > 0).sum(axis=1)
    # Twelve pieces always overflow two rows unless they are short.
    hypothesis.assume(taken < len(pieces))
    assert (len(pieces[taken].tokens) - 1 > room).all()
    # What comes after the piece that stopped it is not looked at.
    again, taken_again = fill(
        iter(pieces[: taken + 1] + make_pieces(others, seed=1)), 2, ROW_TOKENS
    )
    assert taken_again == taken
    for field in dataclasses.fields(packed):
        np.testing.assert_array_equal(
            getattr(again, field.name), getattr(packed, field.name)
        )


def test_a_fill_takes_from_an_endless_stream_no_more_than_it_must():
    seen = []

    def endless():
        for i in itertools.count():
            seen.append(i)
            yield from make_pieces([4])

    _, taken = fill(endless(), 2, ROW_TOKENS)
    assert taken == 6
    assert len(seen) == 7
