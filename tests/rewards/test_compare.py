import pytest

from rl_jax.rewards import compare


def equal(gold, reply):
    gold, reply = compare.parse(gold), compare.parse(reply)
    assert gold is not None and reply is not None
    return compare.equal(gold, reply)


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
        (r"\pi", "3.14159265", True),
        (r"\pi", "3.1416", False),
        (r"\pi", r"\frac{355}{113}", False),
        ("0", r"\sqrt{2}+\sqrt{3}-\sqrt{5+2\sqrt{6}}", True),
        ("0", "10^{-60}", False),
        ("e^{\\pi\\sqrt{163}}", "262537412640768744", False),
        (r"\infty", r"-\infty", False),
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
    assert compare.parse(r"\operatorname{rows}(\begin{matrix}1\\2\end{matrix})") is None


@pytest.mark.parametrize(
    "text", [r"1-\frac{1}{2}\end{x}", r"\frac{1}{2}\&\text{cm}!!", r"\le\frac{1}{2}"]
)
def test_a_number_inside_what_cannot_be_read_is_not_the_answer(text):
    assert compare.parse(text) is None


def test_sympy_cannot_be_made_to_evaluate_text():
    import sympy

    assert compare.parse("x+12.5") is not None
    for text in ("__import__('os')", "1+1", "x", "lambda: 1", "().__class__"):
        if text == "x":
            assert sympy.sympify(text) == sympy.Symbol("x")
        else:
            with pytest.raises((sympy.SympifyError, ValueError, TypeError)):
                sympy.sympify(text)
