import pytest

from rl_jax.rewards import shape
from rl_jax.rewards.shape import (
    Conditions,
    Equation,
    Interval,
    Matrix,
    Members,
    Value,
    read,
)


def items(text, **options):
    found = read(text, **options)
    assert isinstance(found, Members)
    return found.kind, [item.text for item in found.items]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1, 2", ("list", ["1", "2"])),
        ("1; 2", ("list", ["1", "2"])),
        (r"1\text{ and }2", ("list", ["1", "2"])),
        ("1, 2, and 3", ("list", ["1", "2", "3"])),
        ("1或2", ("list", ["1", "2"])),
        (r"\{1, 2\}", ("set", ["1", "2"])),
        ("{1, 2}", ("set", ["1", "2"])),
        ("(1, 2)", ("tuple", ["1", "2"])),
        (r"\langle 1, 2\rangle", ("tuple", ["1", "2"])),
        ("[1, 2, 3]", ("square", ["1", "2", "3"])),
        ("(1,2), (3,4)", ("list", ["(1,2)", "(3,4)"])),
        (r"f(1,2), \frac{1}{2}", ("list", ["f(1,2)", r"\frac{1}{2}"])),
        (r"3\pm\sqrt{2}", ("list", [r"3+\sqrt{2}", r"3-\sqrt{2}"])),
        (r"\pm 15, 0", ("list", ["+ 15", "- 15", "0"])),
        (r"a\pm b\mp c", ("list", ["a+ b- c", "a- b+ c"])),
        (r"\pm 1\pm 2", ("list", ["+ 1+ 2", "+ 1- 2", "- 1+ 2", "- 1- 2"])),
        ("1,234, 5", ("list", ["1,234", "5"])),
        ("(1,2,3)^T", ("tuple", ["1", "2", "3"])),
        (r"\begin{cases}x=1\\y=2\end{cases}", ("list", ["x=1", "y=2"])),
    ],
)
def test_lists_sets_and_points_are_told_apart(text, expected):
    assert items(text) == expected


def test_a_thousands_separator_is_none_in_a_list_without_spaces():
    assert read("100,200") == Value("100,200")
    assert items("100,200", thousands=False) == ("list", ["100", "200"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(2,5]", ("2", "5", True, False)),
        ("[2,5)", ("2", "5", False, True)),
        ("]2,5]", ("2", "5", True, False)),
        (r"[4, \infty[", ("4", r"\infty", False, True)),
    ],
)
def test_intervals_with_brackets_of_two_kinds_are_nothing_else(text, expected):
    found = read(text)
    assert isinstance(found, Interval)
    assert (found.low, found.high, found.low_open, found.high_open) == expected


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (r"\begin{pmatrix}1 & 2\\3 & 4\end{pmatrix}", (("1", "2"), ("3", "4"))),
        (r"\begin{bmatrix}1\\[4pt]2\\\end{bmatrix}", (("1",), ("2",))),
        (r"(\begin{array}{cc}1&2\end{array})", (("1", "2"),)),
        (r"\begin{pmatrix}1&2\end{pmatrix}^T", (("1",), ("2",))),
    ],
)
def test_matrices_are_read_row_by_row(text, rows):
    found = read(text)
    assert isinstance(found, Matrix) and found.rows == rows


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("x=1", ("x", "1")),
        ("x = 2+3 = 5", ("x", "2+3", "5")),
        (r"x\in\{1,2\}", ("x", r"\{1,2\}")),
        ("(x,y)=(1,2)", ("(x,y)", "(1,2)")),
    ],
)
def test_equations_have_sides(text, sides):
    found = read(text)
    assert isinstance(found, Equation) and found.sides == sides


@pytest.mark.parametrize(
    "text", ["x<1", r"x\ge 1, x\ne 2", r"(1,2)\cup(3,4)", r"\{x \mid x>1\}"]
)
def test_inequalities_and_unions_are_conditions(text):
    assert isinstance(read(text), Conditions)


@pytest.mark.parametrize(
    "text",
    [r"\sum_{k=1}^{n} k", r"\frac{1}{2}", "f(1,2)", "(x+1)(x+2)", "|x|", "{x}",
     r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", r"\begin{pmatrix}1&2\\3\end{pmatrix}"],
)  # fmt: skip
def test_everything_else_is_one_value(text):
    assert isinstance(read(text), Value)


def test_the_reader_survives_brackets_without_partners():
    for text in ("(", ")", "[1,", r"\{", "((((", "1,)", "}{", "]", "[", r"\begin{x}"):
        assert isinstance(read(text), shape.Shape)
