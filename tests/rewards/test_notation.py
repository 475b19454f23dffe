import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_jax.rewards import notation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\$25", r"\dollar 25"),
        ("$25", r"\dollar 25"),
        ("$25$", "25"),
        ("€5", r"\euro 5"),
        ("−13", "-13"),
        ("（3，4）", "(3,4)"),
        (r"2{,}048{,}000", "2,048,000"),
        (r"2\,048\,000", "2048000"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        ("½", r"\frac{1}{2}"),
        ("x²", "x^2"),
        ("10⁻³", "10^{-3}"),
        ("x₁", "x_1"),
        ("2√(3)", r"2\sqrt{3}"),
        ("∛4", r"\sqrt[3]{4}"),
        ("x⩾2", r"x\ge 2"),
        ("θ", r"\theta"),
        ("6\u200b", "6"),
        ("2 048 000", "2048000"),
        ("2 3/4", "2 3/4"),
        ("2{,}5", "2.5"),
        ("0{,}125", "0.125"),
        ("1{,}234", "1,234"),
        (r"\color{red}{19}", "{19}"),
        (r"\large 19", "19"),
        (r"19\hspace{3mm}", "19"),
        (r"\phantom{0}", ""),
        (r"\mathbf{\text{19}}", r"\text{19}"),
        (r"2^\mathbf{10}", "2^{10}"),
        (r"\binom62", r"\binom{6}{2}"),
        (r"x\leqslant 4", r"x\le 4"),
        ("x>=4", r"x\ge 4"),
        (r"\lbrace 1\rbrace", r"\{1\}"),
        ("3*pi/4", r"3*\pi /4"),
        ("2sqrt(1+sqrt(2))", r"2\sqrt{1+\sqrt{2}}"),
        ("exp(2)", "e^{2}"),
        (r"\text{pi day} 3", r"\text{pi day} 3"),
        (r"{6 \choose 2}", r"\binom{6}{2}"),
        (r"\log_e 2", r"\ln 2"),
        ("√75", r"\sqrt{75}"),
        (r"60^{\circ}", r"60^\circ"),
        ("60°", r"60^\circ"),
        (r"\left(1,2\right]", "(1,2]"),
        (r"\boxed{42}", "42"),
        (r"\boxed{\boxed{4}2}", "{4}2"),
        (r"**42**", "42"),
        ("3**3", "3**3"),
        ("42.", "42"),
        (r"62.5\%", "62.5%"),
        (r"\mathbf{7}", "7"),
        (r"\text{19}", "19"),
        (r"\begin{pmatrix}2 \\ 1\end{pmatrix}", r"\begin{pmatrix}2 \\ 1\end{pmatrix}"),
    ],
)
def test_decoration_is_taken_out(text, expected):
    assert notation.normalise(text) == expected


@given(st.integers(), st.text("0123456789+-*/^(){}., x", max_size=12))
def test_normalising_neither_fails_nor_joins_digits(number, text):
    assert notation.normalise(str(number)) == str(number)
    digits = [c for c in notation.normalise(text) if c.isdigit()]
    assert digits == [c for c in text if c.isdigit()]


def test_squeezing_keeps_the_space_of_a_mixed_number():
    assert notation.squeezed("2 3/4") != notation.squeezed("23/4")
    assert notation.squeezed("( 2, 3 )") == "(2,3)"


@pytest.mark.parametrize(
    ("text", "balanced"),
    [("", True), ("{a}{b}", True), (r"\{", True), ("}{", False), ("{", False)],
)
def test_braces_are_counted_as_tex_does(text, balanced):
    assert notation.balanced(text) == balanced
