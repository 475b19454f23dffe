import pytest

from rl_jax.rewards import conventions


@pytest.mark.parametrize(
    ("gold", "reply", "same"),
    [
        ("3:2", "6:4", True),
        ("3:2", "3/2", True),
        ("3:2", "2:3", False),
        ("1:2:3", "2:4:6", True),
        ("1:2:3", "1:2", False),
        ("12:30", "12:30", True),
        ("12:30", "2:5", False),
        ("12:00", "1:00", False),
        (r"3:30\text{ p.m.}", "3:30 PM", True),
        (r"3:30\text{ p.m.}", "3:30", True),
        (r"3:30\text{ p.m.}", r"3:30\text{ a.m.}", False),
        ("3:30", "3.5", False),
        ("0:5", "0", False),
        ("5", "6", None),
        (r"1:\sqrt{2}", r"1:\sqrt{3}", None),
    ],
)
def test_times_are_no_ratios(gold, reply, same):
    assert conventions.same_ratio(gold, reply) is same


@pytest.mark.parametrize(
    ("gold", "reply", "same"),
    [
        (r"x\equiv 3\pmod 7", r"3 \pmod{7}", True),
        (r"x\equiv 3\pmod 7", r"x\equiv -4\pmod 7", True),
        (r"x\equiv 3\pmod 7", r"x \equiv 3 (\text{mod } 7)", True),
        (r"x\equiv 3\pmod 7", r"x\equiv 3\pmod 8", False),
        (r"x\equiv 3\pmod 7", "3", True),
        (r"x\equiv 3\pmod 7", "10", False),
        ("3", r"3\pmod 7", None),
    ],
)
def test_remainders_agree_for_the_same_modulus(gold, reply, same):
    assert conventions.same_remainder(gold, reply) is same


@pytest.mark.parametrize(
    ("reply", "left"),
    [
        (r"\pi+k\pi", r"\pi+k\pi"),
        (r"\pi+n\pi, n\in\mathbb{Z}", r"\pi+k\pi"),
        (r"\pi+n\pi", r"\pi+k\pi"),
        (r"\pi+k\pi (k \in \mathbb{Z})", r"\pi+k\pi"),
        (r"\pi+m\pi+n", r"\pi+m\pi+n"),
    ],
)
def test_a_whole_parameter_may_have_any_name(reply, left):
    gold = r"\pi+k\pi, k\in\mathbb{Z}"
    assert conventions.with_one_parameter(gold, reply) == (r"\pi+k\pi", left)


def test_a_set_is_no_parameter():
    pair = (r"x\in\mathbb{Z}", "5")
    assert conventions.with_one_parameter(*pair) == pair
