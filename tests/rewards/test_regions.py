import math

import pytest

from rl_jax.rewards import regions, shape

VALUES = {r"\infty": math.inf, r"-\infty": -math.inf, "a": None, "b": None}


def value(text):
    return (
        VALUES[text] if text in VALUES else float(text.replace("-(-", "(").strip("()"))
    )


def region(text):
    return regions.of_shape(shape.read(text), value)


def same(gold, reply):
    one, other = region(gold), region(reply)
    assert one is not None and other is not None
    return regions.same(one, other, lambda a, b: value(a) == value(b), value)


@pytest.mark.parametrize(
    ("gold", "reply"),
    [
        ("(2,5]", r"2<x\le 5"),
        ("(2,5]", r"x\in(2,5]"),
        ("(2,5]", "]2,5]"),
        ("(2,5]", r"5\ge x>2"),
        ("(2,5]", r"\{x \mid 2<x\le 5\}"),
        ("(2,5]", r"x>2\text{ and }x\le 5"),
        ("(2,5]", r"x>2, x\le 5"),
        (r"x\ge 4", r"[4,+\infty)"),
        (r"x\ge 4", r"4\le x<\infty"),
        (r"(-\infty,-2)\cup(3,\infty)", r"x<-2\text{ or }x>3"),
        (r"(-\infty,-2)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,-2)"),
        (r"(-\infty,-2)\cup(3,\infty)", r"(-\infty,-2) \text{ or } (3,\infty)"),
        ("[-1,1]", r"|x|\le 1"),
        (r"(-\infty,-1)\cup(1,\infty)", "|x|>1"),
        (r"(-\infty,0)\cup(0,\infty)", r"x\ne 0"),
        (r"(-\infty,0)\cup(0,\infty)", r"\mathbb{R}\setminus\{0\}"),
        (r"[2,5)\cup(5,8]", r"2\le x\le 8, x\ne 5"),
        (r"\mathbb{R}", r"(-\infty,\infty)"),
        ("[1,3]", r"[1,2]\cup(2,3]"),
        ("(1,2)", r"(1,3)\cap(0,2)"),
        (r"\{3\}\cup(5,6)", r"(5,6)\cup\{3\}"),
    ],
)
def test_one_region_may_be_written_in_many_ways(gold, reply):
    assert same(gold, reply) and same(reply, gold)


@pytest.mark.parametrize(
    ("gold", "reply"),
    [
        ("(2,5]", "[2,5]"),
        ("(2,5]", "(2,6]"),
        ("(2,5]", "(5,2]"),
        (r"x\ge 4", "x>4"),
        (r"x\ge 4", r"x\le 4"),
        ("x>2", "y>2"),
        (r"(1,2)\cup(2,3)", "(1,3)"),
        (r"(-\infty,-2)\cup(3,\infty)", r"(-\infty,3)\cup(-2,\infty)"),
        (r"(-\infty,-2)\cup(3,\infty)", r"x<-2\text{ and }x>3"),
        ("[-1,1]", "|x|<1"),
        ("(15,-29)", "[15,-29)"),
    ],
)
def test_regions_that_differ_at_all_are_not_the_same(gold, reply):
    assert not same(gold, reply)


@pytest.mark.parametrize(
    "text",
    ["5", "1, 2", r"\{1,2\}", "(1,2,3)", "x+y<3", r"\langle 1,2\rangle"],
)
def test_what_is_no_region_is_none(text):
    assert region(text) is None


def test_ends_without_a_value_are_compared_as_they_stand():
    one, other = region("(a,b]"), region(r"a<x\le b")
    assert one and other and regions.same(one, other, str.__eq__, value)
    assert region(r"(a,2)\cap(1,b)") is None


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("x+y<3", ("<", "x+y", "3")),
        (r"3\ge x+y", (r"\le", "x+y", "3")),
        (r"x\ne y", (r"\ne", "x", "y")),
        ("1<x<2", None),
        ("x<", None),
    ],
)
def test_an_inequality_has_a_smaller_side(text, sides):
    assert regions.two_sides(text) == sides
