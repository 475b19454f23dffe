import pytest

from rl_jax.rewards import compare, shape


def number(text):
    try:
        return float(text)
    except ValueError:
        return None


VALUES = compare.Values(
    equal=lambda a, b: a.replace(" ", "") == b.replace(" ", ""),
    number=number,
    equations=lambda a, b: set(a) == set(b),
    inequalities=lambda a, b: a == b,
    last_of_chain=lambda sides: sides[-1],
    expressions=lambda a, b: False,
)


def same(gold, reply):
    return compare.same(shape.read(gold), shape.read(reply), VALUES)


@pytest.mark.parametrize(
    ("gold", "reply"),
    [
        (r"\{1,2\}", "2, 1"),
        ("1, 2", r"\{2,1\}"),
        ("(1,2)", "1, 2"),
        ("(1,2)", "x=1, y=2"),
        ("(1,2)", "y=2, x=1"),
        ("(x,y)=(1,2)", "y=2, x=1"),
        ("x=1, y=2", "(1,2)"),
        (r"\{1,2\}", r"x=1\text{ or }x=2"),
        (r"\{1,2\}", "x_1=1, x_2=2"),
        ("1, 2", "x=1, y=2"),
        ("(1,2), (3,4)", r"\{(3,4),(1,2)\}"),
        ("17", "n=17"),
        ("17", "AB=17"),
        ("n=17", "17"),
        (r"\{17\}", "17"),
        ("17", r"\{17\}"),
        ("f(x)=2x", "y=2x"),
        ("(1,2,3)", "[1,2,3]"),
        ("(1,2,3)", r"\begin{pmatrix}1\\2\\3\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{bmatrix}1&2\end{bmatrix}"),
        ("(1,2)", "1<x<2"),
        ("5", "5, 5"),
    ],
)
def test_shapes_that_mean_the_same(gold, reply):
    assert same(gold, reply)


@pytest.mark.parametrize(
    ("gold", "reply"),
    [
        (r"\{1,2\}", "1"),
        (r"\{1,2\}", "1, 2, 3"),
        ("1", "1, 2"),
        ("5, 5", "5"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "2, 1"),
        ("(1,2)", "[1,2]"),
        ("(1,2)", r"\{1,2\}"),
        (r"\{1,2\}", "(1,2)"),
        (r"\{1,2\}", "x=1, y=2"),
        ("x=1, y=2", "x=2, y=1"),
        ("x=1, y=2", "(2,1)"),
        ("(x,y)=(1,2)", "(y,x)=(1,2)"),
        ("x=5", "y=5"),
        ("3x-2y=6", "6"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        ("1", "(1,2)"),
        ("1", "0<x<2"),
    ],
)
def test_shapes_that_do_not(gold, reply):
    assert not same(gold, reply)


@pytest.mark.parametrize(
    "text",
    ["x", "x_1", r"\theta", "AB", "|AB|", "f(x)", "f^{-1}(x)", r"m\angle ABC", "(x, y)",
     r"\text{Area}", r"\overline{AB}", "a_n", "P(A)", r"\cos\theta", "f'(x)"],
)  # fmt: skip
def test_a_label_only_names_something(text):
    assert compare.is_label(text)


@pytest.mark.parametrize(
    "text", ["3x-2y", "x+1", "2", "5x", "x^2", r"\frac{x}{2}", r"\pi"]
)
def test_an_expression_is_no_label(text):
    assert not compare.is_label(text)
