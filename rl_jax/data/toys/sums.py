"""Maths: sums of numbers up to 99, and products of digits modulo another number.

    sum 47+38    ->  <think>7+8=15 4+3+1=8</think>85
    mod 7*8%5    ->  <think>7*8=56</think>1

What counts is the number after the thinking, which may be left out. One problem in
four is a product; there are 704 of them, so a large set has fewer.
"""

import random

from rl_jax.data.toys.task import Grade, Problem, Reply, exactly, whole

_PRODUCTS = 0.25


def problem(draw: random.Random) -> Problem:
    """A sum, or a product modulo a number, with each step of the thinking."""
    if draw.random() < _PRODUCTS:
        a, b, m = draw.randint(2, 9), draw.randint(2, 9), draw.randint(2, 12)
        right = a * b % m
        wrong = (right + draw.randint(1, m - 1)) % m
        thinking = f"{a}*{b}={a * b}"
        return Problem(
            f"mod {a}*{b}%{m}",
            str(right),
            f"<think>{thinking}</think>{right}",
            f"<think>{thinking}</think>{wrong}",
        )
    a, b = draw.randint(1, 99), draw.randint(1, 99)
    ones, tens = a % 10 + b % 10, a // 10 + b // 10
    carry = ones // 10
    text = f"<think>{a % 10}+{b % 10}={ones} {a // 10}+{b // 10}"
    right = f"{text}{'+1' * carry}={tens + carry}</think>{a + b}"
    if carry:  # forgotten
        wrong = f"{text}={tens}</think>{a + b - 10}"
    else:
        wrong = f"{text}={tens}</think>{a + b + draw.choice((-1, 1, 10))}"
    return Problem(f"sum {a}+{b}", str(a + b), right, wrong)


def judge(reply: Reply, answer: str) -> Grade | None:
    """Right if the final text is the number and nothing else."""
    wanted, found = whole(answer), whole(reply.final)
    if wanted is None:
        raise ValueError(f"{answer[:60]!r} is no whole number")
    return None if found is None else exactly(found == wanted, reply.final)
