"""Code: a program in reverse Polish notation from pairs of input and output.

    rpn 0=3 1=5 57=117   ->   x2*3+

A program is read from left to right: `x` and a digit put a number on the stack, + - *
take the last two from it and put their result there; at the end one number is left.
The grade is the share of tests passed: the pairs shown, and as many hidden ones, so
that a program that only does for some inputs gets a part. Fully right: all of them.

The pair with the large input makes the problems many. There are fewer functions than
problems, so those of one split are, at other inputs, also in the others.
"""

import random
from collections.abc import Sequence

from rl_jax.data.toys.task import Grade, Problem, Reply, whole

MAX_STEPS = 64  # characters of a program
MAX_STACK = 16
MAX_NUMBER = 10**9  # a larger result ends the program
_HIDDEN = (2, 5, 9)


def problem(draw: random.Random) -> Problem:
    """A linear or a simple quadratic function."""
    form = draw.choice(("xa*b+", "xa*b+", "xa*b+", "xb+a*", "xx*b+"))
    a, b = draw.randint(2, 9), draw.randint(1, 9)
    right = form.replace("a", str(a)).replace("b", str(b))
    # One number is off, as if it had been read from another pair.
    a, b = (a, b % 9 + 1) if "a" not in form or draw.random() < 0.5 else (a % 8 + 2, b)
    wrong = form.replace("a", str(a)).replace("b", str(b))
    shown = _tests(right, (0, 1, draw.randint(10, 99)))
    answer = f"{shown} {_tests(right, _HIDDEN)}"
    return Problem(f"rpn {shown}", answer, right, wrong)


def _tests(program: str, inputs: Sequence[int]) -> str:
    return " ".join(f"{x}={run(program, x)}" for x in inputs)


def judge(reply: Reply, answer: str) -> Grade | None:
    """The share of tests that the program passes; spaces in it do not count."""
    tests = _read(answer)
    if not reply.final:
        return None
    program = reply.final.replace(" ", "")
    passed = sum(run(program, x) == wanted for x, wanted in tests)
    return Grade(passed / len(tests), passed == len(tests), program)


def _read(answer: str) -> list[tuple[int, int]]:
    tests = []
    for test in answer.split():
        given, _, wanted = test.partition("=")
        pair = whole(given), whole(wanted)
        if pair[0] is None or pair[1] is None:
            raise ValueError(f"{test[:60]!r} is no test, as in 1=5")
        tests.append(pair)
    if not tests:
        raise ValueError("there are no tests")
    return tests


def run(program: str, x: int) -> int | None:
    """What a program makes of x; None if it is none, or goes beyond a bound."""
    if len(program) > MAX_STEPS:
        return None
    stack: list[int] = []
    for sign in program:
        if sign == "x":
            stack.append(x)
        elif sign in "0123456789":
            stack.append(int(sign))
        elif sign in "+-*" and len(stack) > 1:
            b, a = stack.pop(), stack.pop()
            stack.append(a + b if sign == "+" else a - b if sign == "-" else a * b)
        else:
            return None
        if len(stack) > MAX_STACK or abs(stack[-1]) > MAX_NUMBER:
            return None
    return stack[0] if len(stack) == 1 else None
