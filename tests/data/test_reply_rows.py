"""Whole replies in rows: each once, a prompt's together, the last token found."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from rl_jax.data.reply_rows import fits, pack_groups

B, T = 3, 7
GROUPS = st.lists(st.lists(st.integers(1, T), min_size=1, max_size=B), max_size=12)


def replies(lengths):
    """Groups of replies of these lengths, no two with the same ids."""
    first, groups = 1, []
    for group in lengths:
        made = []
        for n in group:
            made.append(np.arange(first, first + n, dtype=np.int32))
            first += n
        groups.append(made)
    return groups


@hypothesis.given(GROUPS, st.integers(1, 4))
@hypothesis.settings(deadline=None, max_examples=60)
def test_every_reply_stands_once_and_those_of_a_prompt_together(lengths, most):
    groups = replies(lengths)
    seen = []
    for rows in pack_groups(groups, B, T, most):
        assert rows.token_BT.shape == (B, T)
        assert 0 < len(rows.groups) <= most
        held = 0
        for group, ends in zip(rows.groups, rows.last, strict=True):
            seen.append(group)
            for reply, (b, end) in zip(groups[group], ends, strict=True):
                at = (b, slice(end - len(reply) + 1, end + 1))
                np.testing.assert_array_equal(rows.token_BT[at], reply)
                np.testing.assert_array_equal(rows.position_BT[at], range(len(reply)))
                segment = rows.segment_BT[b, end]
                assert segment > 0
                in_segment = rows.segment_BT[b] == segment
                assert in_segment.sum() == len(reply) and in_segment[at[1]].all()
                held += len(reply)
        # What is left is padding.
        assert (rows.segment_BT > 0).sum() == held
        assert not rows.token_BT[rows.segment_BT == 0].any()
    assert sorted(seen) == list(range(len(groups)))


def test_the_longest_go_first_and_the_same_groups_give_the_same_rows():
    groups = replies([[2, 1], [7, 7], [3, 3]])
    once, again = (list(pack_groups(groups, B, T, 9)) for _ in range(2))
    assert once[0].groups[0] == 1
    for a, b in zip(once, again, strict=True):
        np.testing.assert_array_equal(a.token_BT, b.token_BT)
        assert (a.groups, a.last) == (b.groups, b.last)


@pytest.mark.parametrize("sizes", [[T + 1], [7, 7, 7, 1], [5, 5, 5, 3]])
def test_what_fits_no_micro_batch_is_refused(sizes):
    assert not fits(sizes, B, T)
    with pytest.raises(ValueError, match=r"do not fit 3 rows of 7.*row_tokens"):
        list(pack_groups(replies([sizes]), B, T, 4))
    assert fits([7, 7, 7], B, T)
