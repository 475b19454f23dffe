from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_jax.rewards import exact


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("72", 72),
        ("+72", 72),
        ("-72", -72),
        ("1,234,567", 1234567),
        (".75", Fraction(3, 4)),
        ("3.", 3),
        ("-3/4", Fraction(-3, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"\frac34", Fraction(3, 4)),
        (r"\frac{-1}{2}", Fraction(-1, 2)),
        (r"-2\frac{1}{5}", Fraction(-11, 5)),
        ("2 1/2", Fraction(5, 2)),
        ("1.5e-3", Fraction(3, 2000)),
        (r"7.2\times 10^{4}", 72000),
        (r"9.1\cdot 10^{-31}", Fraction(91, 10**32)),
        ("{8}", 8),
        ("(3)", 3),
        ("2^3", 8),
        ("-2^{10}", -1024),
        ("10^{-5}", Fraction(1, 10**5)),
        (r"0.\overline{3}", Fraction(1, 3)),
        (r"-0.1\overline{6}", Fraction(-1, 6)),
        (r"0.\dot{1}\dot{2}", Fraction(12, 99)),
        (r"0.333\ldots", Fraction(1, 3)),
        (r"0.1666\ldots", Fraction(1, 6)),
    ],
)
def test_numbers_are_read_exactly(text, value):
    number = exact.read(text)
    assert number is not None and number.value == value


@pytest.mark.parametrize(
    "text",
    ["", "x", "3x", "1,23", "12,34,5", "1/0", r"\frac{1}{0}", "5!", "1/2/3",
     "(3", "3,4", "--3", "2^3^4", "9^{9999}", "0^{-1}", "(-2)^2",
     "11_0", r"12\ldots", "1e99999", "9" * 2000, "12:30", "2e^3"],
)  # fmt: skip
def test_what_is_no_plain_number_is_left_alone(text):
    assert exact.read(text) is None


@pytest.mark.parametrize(
    ("gold", "reply", "same"),
    [
        ("0.5", "1/2", True),
        ("987654321098765432", "987654321098765433", False),
        ("9.1e-31", "9.2e-31", False),
        (r"\frac{1}{3}", "0.333333", True),
        (r"\frac{1}{3}", "0.3333", False),
        ("0.333333", "1/3", True),
        ("1", "0.9999999", False),
        (r"\frac{1}{6}", "0.166667", True),
        (r"\frac{1}{6}", "0.166666", True),
        (r"\frac{1}{6}", "0.166668", False),
        (r"\frac{1}{3}", "0.3333334", False),
        (r"\frac{1}{60000000}", "0.0000000166667", True),
        (r"\frac{1}{60000000}", "0.000000017", False),
        (r"\frac{1}{6}", r"16.666667\%".replace("\\", ""), True),
        (r"\frac{-1}{6}", "0.166667", False),
        ("3.14159", "3.141593", False),
        ("62.5%", "5/8", True),
        ("62.5%", "62.5", True),
        ("40", "40%", True),
        ("40%", "60%", False),
        ("40%", "4", False),
        ("1011_2", "1011_{2}", True),
        ("52_8", "52_6", False),
        ("1011_2", "1011", True),
        ("11", "1011_2", True),
        ("1011", "1011_2", False),
        ("1011_2", "(1011)_2", True),
    ],
)
def test_numbers_agree_exactly_but_for_rounded_decimals(gold, reply, same):
    a, b = exact.read(gold), exact.read(reply)
    assert a is not None and b is not None
    assert exact.agree(a, b) == same


def as_latex(value: Fraction) -> str:
    sign = "-" if value < 0 else ""
    return rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


@given(st.fractions(), st.fractions())
def test_two_fractions_agree_if_and_only_if_they_are_equal(a, b):
    gold, reply = exact.read(as_latex(a)), exact.read(f"{b.numerator}/{b.denominator}")
    assert gold is not None and gold.value == a
    assert reply is not None and reply.value == b
    assert exact.agree(gold, reply) == (a == b)


@given(st.integers(), st.integers(0, 12))
def test_a_decimal_is_the_fraction_it_spells(digits, places):
    text = f"{abs(digits):0{places + 1}d}"
    text = f"{text[:-places]}.{text[-places:]}" if places else text
    number = exact.read(text)
    assert number is not None and number.value == Fraction(abs(digits), 10**places)
    assert exact.terminates(number.value)
