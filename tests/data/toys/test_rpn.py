"""The interpreter against a slow one that makes formulas; shares of tests; bounds."""

import itertools
import random

import pytest

from rl_jax.data.toys import rpn
from rl_jax.data.toys.task import Reply


def slow_run(program, x):
    """Turns the program into a formula with brackets, and that into a number."""
    stack = []
    for sign in program:
        if sign in "+-*":
            if len(stack) < 2:
                return None
            b, a = stack.pop(), stack.pop()
            stack.append(f"({a}{sign}{b})")
        else:
            stack.append(f"({x})" if sign == "x" else sign)
    return eval(stack[0]) if len(stack) == 1 else None  # noqa: S307 (our own text)


def test_short_programs_give_what_their_formulas_give():
    for size in range(1, 6):
        for signs in itertools.product("x3+-*", repeat=size):
            program = "".join(signs)
            for x in (0, -2, 7):
                assert rpn.run(program, x) == slow_run(program, x), program


def test_the_pairs_shown_are_among_the_tests_and_every_right_program_passes_all():
    draw = random.Random(0)
    for _ in range(200):
        found = rpn.problem(draw)
        assert f"rpn {found.answer}".startswith(f"{found.text} ")
        tests = [tuple(map(int, t.split("="))) for t in found.answer.split()]
        assert len({x for x, _ in tests}) >= 5
        for x, wanted in tests:
            assert slow_run(found.right, x) == wanted


def test_the_value_is_the_share_of_tests_passed():
    answer = "0=3 1=5 57=117 2=7 5=13 9=21"  # 2 x + 3
    tests = [tuple(map(int, test.split("="))) for test in answer.split()]
    for program in ("x2*3+", "x x + 3 +", "x4+", "3", "xx*4+", "7", "x"):
        grade = rpn.judge(Reply("", program), answer)
        plain = program.replace(" ", "")
        passed = [slow_run(plain, x) == wanted for x, wanted in tests]
        assert grade is not None
        assert grade.value == pytest.approx(sum(passed) / 6, abs=1e-12)
        assert grade.correct is all(passed)


@pytest.mark.parametrize(
    "program",
    [
        "",
        "+",
        "x+",
        "xx",
        "x2/",
        "y",
        "x2**",
        "10**9",
        "x" * (rpn.MAX_STACK + 1) + "+" * rpn.MAX_STACK,  # too deep
        "x" + "1+" * rpn.MAX_STEPS,  # too long
        "99*" + "9*" * 20,  # too large
    ],
)
def test_what_is_no_program_or_beyond_a_bound_gives_nothing(program):
    assert rpn.run(program, 3) is None


def test_a_program_at_the_bounds_still_runs():
    assert rpn.run("x" * rpn.MAX_STACK + "+" * (rpn.MAX_STACK - 1), 2) == 32
    assert rpn.run("x" + "1+" * 31, 2) == 33
