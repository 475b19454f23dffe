import numpy
import pytest

from rl_jax.rewards.code.numpy_side import _allclose


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 1.0 + 1e-7),
        (1.0, 1.1),
        ([1.0, 2.0], (1.0, 2.0)),
        ([1.0, 2.0], [1.0, 2.1]),
        ([[1.0], [2.0]], [[1.0], [2.0 + 1e-7]]),
        (1.0, [1.0, 1.0]),
        ([1.0, 2.0], 1.0),
        (float("inf"), float("inf")),
        (float("inf"), 1.0),
        (float("nan"), float("nan")),
        (0.0, 1e-7),
        (0.0, 1e-5),
        (True, 1),
        ([], []),
        (1e9, 1e9 + 50),
        (1e9 + 500, 1e9),
    ],
)
def test_allclose_says_what_numpys_says(one, other):
    for rtol, atol in ((1e-7, 1e-6), (1e-7, 0.0)):
        expected = numpy.allclose(one, other, rtol=rtol, atol=atol)
        assert _allclose(one, other, rtol=rtol, atol=atol) == expected


@pytest.mark.parametrize(
    ("one", "other"), [(None, 1.0), ("a", 1.0), ([1.0, 2.0], [1.0, 2.0, 3.0])]
)
def test_allclose_refuses_what_numpys_refuses(one, other):
    for function in (numpy.allclose, _allclose):
        with pytest.raises((TypeError, ValueError)):
            function(one, other)
