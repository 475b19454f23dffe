"""Pairs of replies in micro-batches of one shape: nothing lost, nothing parted."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.data.packing import Piece
from rl_jax.data.pair_packing import num_places, pack_pairs

ROWS, TOKENS = 3, 13
sizes = st.integers(2, TOKENS + 1)


def made(lengths):
    """A pair for every two lengths, each token of it unlike all others."""
    pairs, start = [], 1
    for both in lengths:
        pieces = []
        for n in both:
            tokens = np.arange(start, start + n, dtype=np.int32)
            pieces.append(Piece(tokens, np.arange(n) >= n // 2))
            start += n
        pairs.append(tuple(pieces))
    return pairs


def found(rows):
    """sample -> (input tokens, targets, targets that count), as the rows have them."""
    packed, samples = rows.packed, {}
    for b, segments_T in enumerate(packed.segment_BT):
        for segment in set(segments_T.tolist()) - {0}:
            at = (b, segments_T == segment)
            sample = {int(i) for i in packed.sample_BT[at]}
            assert len(sample) == 1
            samples[sample.pop()] = tuple(
                x[at].tolist() for x in (packed.token_BT, packed.target_BT)
            ) + (packed.mask_BT[at].tolist(),)
    return samples


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(sizes, sizes), max_size=20))
def test_every_reply_is_there_once_with_the_other_of_its_pair(lengths):
    pairs, seen = made(lengths), []
    for rows in pack_pairs(pairs, ROWS, TOKENS):
        assert rows.packed.token_BT.shape == (ROWS, TOKENS)
        assert 0 < len(rows.index) <= num_places(ROWS, TOKENS)
        samples = found(rows)
        assert samples.keys() == set(range(2 * len(rows.index)))
        for place, i in enumerate(rows.index):
            seen.append(int(i))
            for side, piece in enumerate(pairs[i]):
                tokens, targets, counted = samples[2 * place + side]
                assert tokens == piece.tokens[:-1].tolist()
                assert targets == piece.tokens[1:].tolist()
                assert counted == piece.mask[1:].tolist()
    assert sorted(seen) == list(range(len(pairs)))


def test_short_pairs_go_on_in_the_next_micro_batch_when_all_places_are_taken():
    # Three tokens take two positions: rows would hold 9 pairs, places are for 4.
    batches = list(pack_pairs(made([(3, 3)] * 9), ROWS, TOKENS))
    assert num_places(ROWS, TOKENS) == 4
    assert [len(rows.index) for rows in batches] == [4, 4, 1]


def test_most_positions_hold_a_token():
    rng = np.random.default_rng(0)
    pairs = made(rng.integers(20, 200, (256, 2)).tolist())
    filled = [(b.packed.segment_BT > 0).mean() for b in pack_pairs(pairs, 8, 256)]
    assert np.mean(filled) > 0.9, np.mean(filled)


def test_a_reply_longer_than_a_row_is_refused():
    with pytest.raises(ValueError, match="raise config.batch.row_tokens"):
        list(pack_pairs(made([(4, TOKENS + 2)]), ROWS, TOKENS))


def test_a_pair_needs_room_for_both_replies():
    with pytest.raises(ValueError, match="1 rows of 13"):
        list(pack_pairs(made([(9, 9)]), 1, TOKENS))
