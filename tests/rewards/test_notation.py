import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_jax.rewards import notation


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\$25", "25"),
        ("−13", "-13"),
        ("（3，4）", "(3,4)"),
        (r"2{,}048{,}000", "2,048,000"),
        (r"2\,048\,000", "2048000"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        ("½", r"\frac{1}{2}"),
        ("x²", "x^{2}"),
        ("√75", r"\sqrt{75}"),
        (r"60^\circ", "60"),
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
    ("text", "words"),
    [
        (r"\text{Isosceles}", "isosceles"),
        ("no solution", "no solution"),
        ("xyz", None),
        (r"\text{no}", "no"),
        ("5", None),
        (r"\frac{a}{b}", None),
    ],
)
def test_words_are_told_from_variables(text, words):
    assert notation.words(text) == words


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("(B)", "B"),
        (r"\text{(B)}", "B"),
        (r"\text{B) } 42", "B"),
        ("B. 42", "B"),
        ("b", "B"),
        ("option C", "C"),
        ("A or B", None),
        (r"\text{B and C}", None),
        ("A, B", None),
        ("(A) not (B)", None),
        ("a triangle", None),
        ("42", None),
    ],
)
def test_a_choice_is_one_letter(text, letter):
    assert notation.choice_letter(text) == letter


@pytest.mark.parametrize(
    ("text", "balanced"),
    [("", True), ("{a}{b}", True), (r"\{", True), ("}{", False), ("{", False)],
)
def test_braces_are_counted_as_tex_does(text, balanced):
    assert notation.balanced(text) == balanced
