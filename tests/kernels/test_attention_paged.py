"""Attention over a paged cache in plain JAX; the kernels' tests are with their kind."""

import functools

import attention_cases as cases
import jax
import numpy as np
import pytest

from rl_jax.kernels import attention  # pyright: ignore[reportMissingImports]


@pytest.mark.parametrize("case", cases.PAGED_CASES, ids=lambda case: case.name)
def test_the_plain_form_matches_the_reference(case):
    attend = functools.partial(attention.paged_attention, **case.options)
    cases.check_paged(case, jax.jit(attend)(*cases.draw_paged(case)))


def test_pages_equal_the_same_positions_of_a_cache_of_its_own():
    case = cases.PagedCase("cache", (5, 31, 16), window=12, softcap=3.0)
    q, k, v, page_WJ, length_W = cases.draw_paged(case)
    paged = functools.partial(attention.paged_attention, **case.options)
    cached = functools.partial(attention.cache_attention, **case.options)
    W, K = len(length_W), k.shape[0]
    k_WKSC, v_WKSC = (
        np.nan_to_num(x[:, page_WJ]).swapaxes(0, 1).reshape(W, K, -1, case.C)
        for x in (k, v)
    )
    want = cached(q, k_WKSC, v_WKSC, length_W - 1)
    got = paged(q, k, v, page_WJ, length_W)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)


def test_pages_may_be_wider_than_heads():
    case = cases.PagedCase("wider", (5, 31), C=24)
    q, k, v, page_WJ, length_W = cases.draw_paged(case)
    attend = jax.jit(functools.partial(attention.paged_attention, **case.options))
    wider = [np.pad(x, [(0, 0)] * 3 + [(0, 8)], constant_values=2.0) for x in (k, v)]
    got = attend(q, *wider, page_WJ, length_W)
    assert got.shape == q.shape
    # A longer sum of the same terms and zeros may be taken in another order.
    np.testing.assert_allclose(
        got, attend(q, k, v, page_WJ, length_W), rtol=0, atol=1e-6
    )


def test_heads_that_keys_do_not_divide_are_refused():
    case = cases.PagedCase("heads", (5,), K=3, R=1)
    drawn = cases.draw_paged(case)
    with pytest.raises(ValueError, match="2 query heads are no multiple of 3"):
        attention.paged_attention(drawn.q_WHC[:, :2], *drawn[1:], scale=1.0)
