from fractions import Fraction

import pytest

from rl_jax.rewards import algebra


def equal(gold, reply):
    gold, reply = algebra.parse(gold), algebra.parse(reply)
    assert gold is not None and reply is not None
    return algebra.equal(gold, reply)


@pytest.mark.parametrize(
    ("gold", "reply", "same"),
    [
        (r"5\sqrt{3}", r"\sqrt{75}", True),
        ("6", r"6\sqrt{3}", False),
        (r"x^2+2x+1", "(x+1)^2", True),
        ("2x", "2y", False),
        (r"\sqrt{x^2}", "|x|", True),
        ("x", "|x|", False),
        (r"\frac{x}{2}", "0.5x", True),
        (r"\frac{n(n+1)}{2}", r"\binom{n+1}{2}", True),
        (r"\sin 2x", r"2\sin x\cos x", True),
        (r"e^{i\pi}", "-1", True),
        ("3+2i", "3-2i", False),
        (r"\frac{1}{3^{80}}", r"\frac{1}{3^{81}}", False),
        (r"\sqrt{2}\times 10^{-20}", r"\sqrt{3}\times 10^{-20}", False),
        (r"\pi", "3.14159265", False),
        (r"\pi", r"\frac{355}{113}", False),
        ("0", r"\sqrt{2}+\sqrt{3}-\sqrt{5+2\sqrt{6}}", True),
        ("0", "10^{-60}", False),
        ("e^{\\pi\\sqrt{163}}", "262537412640768744", False),
        (r"\infty", r"-\infty", False),
        (r"\frac{\sqrt{2}}{2}", r"\sin 45^\circ", True),
        (r"2\frac{1}{2}\pi", r"\frac{5\pi}{2}", True),
        (r"2\sqrt{2}", r"\sqrt{8.00001}", False),
        (r"\left(\frac{a}{b}\right)^n", r"\frac{a^n}{b^n}", True),
        ("(-1)^n", r"\cos(n\pi)", True),
        ("3n", "3m", False),
        ("n", "(-1)^n n", False),
        ("2", r"\frac{0}{0}", False),
    ],
)
def test_expressions_are_compared_by_value(gold, reply, same):
    assert equal(gold, reply) == same


@pytest.mark.parametrize(
    ("gold", "reply", "same"),
    [
        (r"\{2,-7\}", "-7, 2", True),
        ("11, 13, 17", "11, 17", False),
        (r"3\pm\sqrt{2}", r"3+\sqrt{2}, 3-\sqrt{2}", True),
        (r"\pm 15", "15", False),
        ("(4,-9)", "(-9,4)", False),
        ("(1,2,3)", "(1,3,2)", False),
        ("(2,5]", "[2,5]", False),
        (r"x \ge 4", r"[4,\infty)", True),
        (r"[4,\infty)", r"x \ge 4", True),
        ("y < -2", "-2 > y", True),
        ("y < -2", "y > -2", False),
        ("3x-2y=6", r"y=\frac{3}{2}x-3", True),
        ("3x-2y=6", "3x-2y=7", False),
        ("8", "[1,100]", False),
        ("8", r"\pm 8", False),
        (r"\begin{pmatrix}2 & 0 \\ 1 & 5\end{pmatrix}",
         r"\begin{bmatrix}2 & 0 \\ 1 & 5\end{bmatrix}", True),
        (r"\begin{pmatrix}2 & 0 \\ 1 & 5\end{pmatrix}",
         r"\begin{pmatrix}2 & 1 \\ 0 & 5\end{pmatrix}", False),
    ],
)  # fmt: skip
def test_containers_are_compared_member_by_member(gold, reply, same):
    assert equal(gold, reply) == same


def test_a_list_of_answers_to_choose_from_is_not_read():
    assert algebra.parse(r"\operatorname{rows}(\begin{matrix}1\\2\end{matrix})") is None


@pytest.mark.parametrize(
    "text", [r"1-\frac{1}{2}\end{x}", r"\frac{1}{2}\&\text{cm}!!", r"\le\frac{1}{2}"]
)
def test_a_number_inside_what_cannot_be_read_is_not_the_answer(text):
    assert algebra.parse(text) is None


def test_sympy_cannot_be_made_to_evaluate_text():
    import sympy

    assert algebra.parse("x+12.5") is not None
    for text in ("__import__('os')", "1+1", "x", "lambda: 1", "().__class__"):
        if text == "x":
            assert sympy.sympify(text) == sympy.Symbol("x")
        else:
            with pytest.raises((sympy.SympifyError, ValueError, TypeError)):
                sympy.sympify(text)


@pytest.mark.parametrize(
    ("gold", "reply", "same"),
    [
        (("3x-2y", "6"), ("y", r"\frac{3}{2}x-3"), True),
        (("3x-2y", "6"), ("6x-4y-12", "0"), True),
        (("3x-2y", "6"), ("3x-2y", "5"), False),
        (("3x-2y", "6"), ("3x-2z", "6"), False),
        (("y", r"\frac{1}{x}"), ("xy", "1"), True),
        (("y", "x"), ("y^2", "x^2"), False),
        (("y", "2x"), ("y", r"\frac{"), None),
        (("x", "2"), ("1", "2"), False),
    ],
)
def test_equations_are_the_same_if_their_solutions_are(gold, reply, same):
    assert algebra.same_equation(gold, reply) is same


def test_inequalities_keep_their_direction():
    gold = ("x+y", "3")
    assert algebra.same_equation(gold, ("2x", "6-2y"), positive=True)
    assert not algebra.same_equation(gold, ("3", "x+y"), positive=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [(r"\sqrt{4}", 2.0), (r"\pi", 3.141592653589793), ("x", None), (r"\frac{", None)],
)
def test_a_constant_has_a_value(text, value):
    assert algebra.number(text) == value


def test_numbers_become_exact_objects():
    third = algebra.rational(Fraction(1, 3))
    assert algebra.equal(third, algebra.parse(r"\frac{2}{6}"))
    assert algebra.equal(algebra.scaled(third, Fraction(3)), algebra.parse("1"))


def test_a_constant_is_exact_or_has_fifty_digits():
    assert algebra.constant(algebra.parse(r"\frac{2}{6}")) == (Fraction(1, 3), True)
    pi = algebra.constant(algebra.parse(r"\pi"))
    assert pi is not None and not pi[1]
    assert abs(pi[0] - Fraction("3.14159265358979323846264338327950288")) < 1e-34
    for text in ("x", r"\infty", "2i"):
        assert algebra.constant(algebra.parse(text)) is None
