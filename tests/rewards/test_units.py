import pytest

from rl_jax.rewards import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5", ("5", "", 1)),
        ("5 cm", ("5", "cm", 1)),
        ("5cm", ("5", "cm", 1)),
        (r"8 \text{km}", ("8", "km", 1)),
        (r"36\text{ m}^2", ("36", "m^2", 1)),
        (r"36\text{ square metres}", ("36", "m^2", 1)),
        (r"36\text{ cm}^{3}", ("36", "cm^3", 1)),
        ("18 dollars", ("18", "dollar", 1)),
        ("18 eggs", ("18", "", 1)),
        ("5 million", ("5", "", 10**6)),
        (r"5\text{ thousand dollars}", ("5", "dollar", 1000)),
        (r"5\sqrt{3}\text{ cm}", (r"5\sqrt{3}", "cm", 1)),
    ],
)
def test_units_are_taken_off(text, expected):
    assert units.split(text) == expected


@pytest.mark.parametrize(
    "text",
    ["5h", "5xyz", "2 abc", "5x", r"\text{cm}", "5 and 6", r"5\text{ or 6}",
     "5 squared", "5 pi", "x y", r"5\text{ if odd}", "no solution"],
)  # fmt: skip
def test_what_is_no_unit_stays(text):
    assert units.split(text) == (text, "", 1)
