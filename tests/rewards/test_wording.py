import pytest

from rl_jax.rewards import wording


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r"\text{Isosceles}", "isosceles"),
        ("no solution", "no solution"),
        ("xyz", None),
        (r"\text{no}", "no"),
        ("5", None),
        (r"\frac{a}{b}", None),
        ("the Nile", "nile"),
        ("是", "是"),
        (r"\text{星期 二}", "星期二"),
    ],
)
def test_words_are_told_from_variables(text, words):
    assert wording.words(text) == words


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
        ("[B]", "B"),
        ("The answer is B", "B"),
        ("(B) 3 and 4", "B"),
        ("(B)^2", None),
        ("B + C", None),
        ("A = 5", None),
    ],
)
def test_a_choice_is_one_letter(text, letter):
    assert (wording.choice(text) or (None,))[0] == letter


def test_the_text_beside_a_letter_is_kept():
    assert wording.choice(r"\text{(B) } 42") == ("B", "42")
    assert wording.choice("B") == ("B", "")


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("A, C", "AC"),
        ("C and A", "AC"),
        ("(A) and (C)", "AC"),
        (r"\{A, C\}", "AC"),
        ("ABD", "ABD"),
        ("BAD", None),
        ("A", None),
        ("A, A", None),
        ("A or C", None),
        ("x, y", None),
    ],
)
def test_several_letters_are_read_in_order(text, letters):
    assert wording.choice_letters(text) == letters


@pytest.mark.parametrize(
    ("text", "concept"),
    [
        (r"\text{no solution}", r"\emptyset"),
        ("All real numbers", r"\mathbb{R}"),
        ("seven", "7"),
        ("infinitely many", r"\infty"),
        ("sevenths", "sevenths"),
        ("x+1", "x+1"),
    ],
)
def test_words_stand_for_signs_of_mathematics(text, concept):
    assert wording.concept(text) == concept
