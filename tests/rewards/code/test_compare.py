import collections
import json
import math

import pytest

from rl_jax.rewards.code import compare
from rl_jax.rewards.code.plain import encode


def differs(checker, expected, got):
    return compare.same_output(checker, expected, got, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("checker", "expected", "got"),
    [
        ("lines", "9\n", "9"),
        ("lines", "9\n", "9 \n\n"),
        ("lines", "1 2\n3", "1 2  \n3\n"),
        ("tokens", "1 2\n3", "1\n2\t3"),
        ("float", "0.33333333", "0.3333333333"),
        ("float", "x 3", "x  3.0000001"),
        ("float", "1e6", "1000000"),
        ("float", "nan inf", "nan inf"),
        ("auto", "0.5 yes\n2", "0.50000001  yes \n2\n\n"),
        ("auto", "3", "3.00"),
        ("auto", "", "\n"),
    ],
)
def test_outputs_that_agree(checker, expected, got):
    assert differs(checker, expected, got) == ""


@pytest.mark.parametrize(
    ("checker", "expected", "got", "where"),
    [
        ("lines", "9\n", "8\n", "line 1 differs"),
        ("lines", "2\n4\n", "2\n", "1 line instead of 2"),
        ("lines", "2\n", "2\n4\n", "2 lines instead of 1"),
        ("lines", "2", "", "0 lines instead of 1"),
        ("lines", "1 2", "1  2", "line 1 differs"),
        ("lines", "1", " 1", "line 1 differs"),
        ("lines", "a\n\nb", "a\nb", "line 2 differs"),
        ("tokens", "0.5", "0.50", "word 1 differs"),
        ("tokens", "1 2", "1", "1 word instead of 2"),
        ("float", "0.33333333", "0.333", "word 1 differs"),
        ("float", "1000000007", "1000000008", "word 1 differs"),
        ("float", "0.001", "0.0010001", "word 1 differs"),
        ("float", "1e-12", "1e-5", "word 1 differs"),
        ("float", "1.5", "1_000.5", "word 1 differs"),
        ("float", "1.5", "one", "word 1 differs"),
        ("float", "2", "nan", "word 1 differs"),
        ("auto", "1000000007", "1000000008.0", "line 1 differs"),
        ("auto", "3", "3.1", "line 1 differs"),
        ("auto", "1 2\n3", "1\n2 3", "line 1 differs"),
        ("auto", "Yes", "yes", "line 1 differs"),
    ],
)
def test_outputs_that_differ_say_where(checker, expected, got, where):
    assert differs(checker, expected, got) == where


def agrees(expected, value):
    form = json.loads(json.dumps(encode(value)))
    return compare.same_value(expected, form, rel_tol=1e-6, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (None, None),
        (12, 12),
        (12, 12.0),
        (True, True),
        (1, True),
        (0.1, 0.1 + 1e-9),
        (2.0, 2),
        (math.inf, math.inf),
        (math.nan, math.nan),
        (1 << 90, 1 << 90),
        ("a\ud800", "a\ud800"),
        ([1, [2, 3]], (1, (2, 3))),
        ([], []),
        ({"1": "a", "2": [0.5]}, {1: "a", 2: (0.5,)}),
        ({"a": 1}, collections.OrderedDict(a=1)),
        ({"a": 2}, collections.Counter("aa")),
        ({"true": 1, "null": 2}, {True: 1, None: 2}),
    ],
)
def test_values_that_agree(expected, value):
    assert agrees(expected, value)


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (None, 0),
        (None, False),
        (0, None),
        ("", None),
        (12, 13),
        (12, "12"),
        ("12", 12),
        (1000000007, 1000000008.0),
        (12, 12.000001),
        (1e-12, 1e-5),
        (0.5, 0.501),
        (math.inf, 1e308),
        (1 << 90, (1 << 90) + 1),
        ([1, 2], [1]),
        ([1], [1, 2]),
        ([1, 2], {1, 2}),
        ([1, 2], "12"),
        ([1, 2], iter([1, 2])),
        ({}, []),
        ([], {}),
        ({"1": "a"}, {"1": "a", 1: "b"}),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 1}),
        ({"a": 1}, {("a",): 1}),
        ({"1": 1}, {True: 1}),
        (b"a".hex(), b"a"),
    ],
)
def test_values_that_differ(expected, value):
    assert not agrees(expected, value)


@pytest.mark.parametrize(
    "form",
    [
        {"handle": [1, "Chameleon"]},
        {"int": "zz"},
        {"float": "much"},
        {"tuple": 12},
        {"dict": [12]},
        {"dict": [[1]]},
        {},
        {"a": 1, "b": 2},
    ],
)
def test_a_forged_form_equals_nothing(form):
    for expected in (12, "12", [12], {"12": 1}, None, 1.5):
        assert not compare.same_value(expected, form, rel_tol=1, abs_tol=1e9)


def test_a_deep_forged_form_is_a_difference_and_no_error():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    want = []
    for _ in range(500):
        want = [want]
    assert not compare.same_value(want, deep, rel_tol=0, abs_tol=0)
    while deep:  # freed level by level: Python frees a deep list by recursion
        deep = deep.pop()
