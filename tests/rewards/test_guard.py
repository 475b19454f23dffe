import pytest

from rl_jax.rewards import guard


@pytest.mark.parametrize(
    "text",
    ["8^{8^{8^{8}}}", "9^{9^9}", "a^b^c^d", "10^{1000000}", "2^{-1234567}", "12345!",
     "(10^{9})!", "((12!)!)!", "10^{9}!", "5!!!",
     "{" * 41 + "}" * 41, "x" * 2001, "a.__class__"],
)  # fmt: skip
def test_what_never_ends_is_refused(text):
    assert guard.danger(text)


@pytest.mark.parametrize(
    "text",
    ["e^{-x^2}", "2^{2^{10}}", "x^2+y^2", r"\frac{x^{2}}{y^{3^2}}", "2^{2024}", "2024!",
     "(n+1)!", r"\frac{n!}{k!(n-k)!}", "7!!", "(x^2)^2", "10^{-31}",
     r"\sqrt{1+\sqrt{1+\sqrt{1+\sqrt{x}}}}"],
)  # fmt: skip
def test_ordinary_answers_pass(text):
    assert guard.danger(text) == ""
