from fractions import Fraction

import pytest

from rl_jax.rewards import units


def taken_apart(text):
    amount = units.split(text)
    unit = amount.unit
    return amount.body, amount.scale, unit and (dict(unit.dimensions), unit.factor)


METRE, CENTIMETRE = ({"length": 1}, 1), ({"length": 1}, Fraction(1, 100))
SQUARE_METRE, KILOMETRE = ({"length": 2}, 1), ({"length": 1}, 1000)
SPEED, DOLLAR = {"length": 1, "time": -1}, ({"dollar": 1}, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", ("5", 1, None)),
        ("5 cm", ("5", 1, CENTIMETRE)),
        ("5cm", ("5", 1, CENTIMETRE)),
        (r"8 \text{km}", ("8", 1, KILOMETRE)),
        (r"36\text{ m}^2", ("36", 1, SQUARE_METRE)),
        (r"36\text{ m^{2}}", ("36", 1, SQUARE_METRE)),
        (r"36\text{ square metres}", ("36", 1, SQUARE_METRE)),
        ("36 sq m", ("36", 1, SQUARE_METRE)),
        (r"36\text{ cm}^{3}", ("36", 1, ({"length": 3}, Fraction(1, 10**6)))),
        (r"60\text{ km/h}", ("60", 1, (SPEED, Fraction(5, 18)))),
        ("60 kilometers per hour", ("60", 1, (SPEED, Fraction(5, 18)))),
        (r"9 \text{m s^{-1}}", ("9", 1, (SPEED, 1))),
        (r"9 \frac{\text{m}}{\text{s}}", ("9", 1, (SPEED, 1))),
        (r"5\text{ N}", ("5", 1, ({"length": 1, "mass": 1, "time": -2}, 1))),
        ("18 dollars", ("18", 1, DOLLAR)),
        (r"\dollar 18", ("18", 1, DOLLAR)),
        (r"-\dollar 18", ("-18", 1, DOLLAR)),
        ("USD 18", ("18", 1, DOLLAR)),
        (r"25\text{ cents}", ("25", 1, ({"dollar": 1}, Fraction(1, 100)))),
        (r"60^\circ", ("60", 1, ({"degree": 1}, 1))),
        (r"25^\circ C", ("25", 1, ({"celsius": 1}, 1))),
        ("18 eggs", ("18", 1, None)),
        ("5 million", ("5", 10**6, None)),
        (r"5\text{ thousand dollars}", ("5", 1000, DOLLAR)),
        (r"5\sqrt{3}\text{ cm}", (r"5\sqrt{3}", 1, CENTIMETRE)),
        ("36个", ("36", 1, None)),
        ("36厘米", ("36", 1, CENTIMETRE)),
        ("36万", ("36", 10**4, None)),
        (r"36\text{万元}", ("36", 10**4, ({"yuan": 1}, 1))),
    ],
)
def test_units_are_taken_off(text, expected):
    assert taken_apart(text) == expected


@pytest.mark.parametrize(
    "text",
    ["5h", "5xyz", "2 abc", "5x", r"\text{cm}", "5 and 6", r"5\text{ or 6}",
     "5 squared", "5 pi", "x y", r"5\text{ if odd}", "no solution", "36分之5",
     r"5\text{ / } 6", r"5\text{ maybe}", r"\sin 45^\circ", r"\dollar", "36左右"],
)  # fmt: skip
def test_what_is_no_unit_stays(text):
    assert taken_apart(text) == (text, 1, None)
