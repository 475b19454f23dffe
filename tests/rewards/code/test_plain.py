import collections
import enum
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_jax.rewards.code.plain import NotPlainError, decode, encode


def sent(value):
    return decode(json.loads(json.dumps(encode(value))))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(1 << 20_000), max_value=1 << 20_000)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.fractions()
    | st.decimals(allow_nan=False)
)
KEYS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.sets(KEYS, max_size=4)
        | st.frozensets(KEYS, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.lists(inner, max_size=4).map(collections.deque)
    ),
    max_leaves=12,
)


def types_in(value):
    kinds = [type(value)]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        kinds += sorted((kind for item in value for kind in types_in(item)), key=str)
    return kinds


@given(VALUES)
def test_plain_values_arrive_as_they_were(value):
    arrived = sent(value)
    assert arrived == value
    assert types_in(arrived) == types_in(value)


def test_special_floats_keep_their_kind_and_sign():
    nan, inf, zero = sent([math.nan, -math.inf, -0.0])
    assert math.isnan(nan) and inf == -math.inf and math.copysign(1, zero) == -1


class Colour(enum.IntEnum):
    RED = 3


class Liar(int):
    def __eq__(self, other):
        return True

    def __int__(self):
        return 12

    __index__ = __float__ = __int__


class LyingList(list):
    def __iter__(self):
        return iter([12])


class LyingText(str):
    def __str__(self):
        return "12"


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, 3),
        (Liar(4), 4),
        (LyingList([1]), [1]),
        (LyingText("no"), "no"),
        (Point(1, 2), (1, 2)),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
    ],
)
def test_a_subclass_arrives_as_what_it_is_made_of(value, plain):
    arrived = sent(value)
    assert plain == arrived and type(arrived) is type(plain)


def test_collections_that_compare_in_their_own_way_keep_their_type():
    assert type(sent(collections.Counter("aab"))) is collections.Counter
    ordered = sent(collections.OrderedDict(b=1, a=2))
    assert ordered != collections.OrderedDict(a=2, b=1) and list(ordered) == ["b", "a"]
    assert sent(range(1, 9, 3)) == range(1, 9, 3)
    assert list(sent(iter([1, 2]))) == [1, 2]
    assert sent(...) is ...


@pytest.mark.parametrize("value", [object(), len, (x for x in []), type, math])
def test_other_objects_are_not_plain(value):
    with pytest.raises(NotPlainError, match=type(value).__name__):
        encode([value])


def test_the_caller_may_have_a_form_of_its_own():
    assert encode([len], lambda value: {"handle": 7}) == [{"handle": 7}]
    assert decode([{"handle": 7}], lambda kind, content: (kind, content)) == [
        ("handle", 7)
    ]


def test_a_value_that_contains_itself_is_refused():
    one, wide = [], []
    one.append(one)
    wide.extend([wide] * 50)
    for value in (one, wide):
        with pytest.raises(NotPlainError, match="too deep"):
            encode(value)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"tuple": [], "list": []},
        {"object": []},
        {"handle": 3},
        {"int": "12 or so"},
        {"int": 7},
        {"float": "much"},
        {"set": [[1]]},
        {"dict": [1, 2]},
        {"dict": [[[1], 2]]},
        {"bytes": "xy"},
        {"range": [1, 2, 0]},
        {"complex": ["a"]},
        {"fraction": [1, 0]},
        {"decimal": "x"},
        {"tuple": 3},
    ],
)
def test_a_form_that_is_not_well_formed_is_refused(form):
    with pytest.raises(NotPlainError):
        decode([form])
