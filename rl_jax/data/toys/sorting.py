"""Logic: digits in order.

sort 52914   ->   12459
"""

import random

from rl_jax.data.toys.task import Grade, Problem, Reply, exactly

_DIGITS = 5


def problem(draw: random.Random) -> Problem:
    """Five digits, not all alike."""
    while True:
        digits = [draw.choice("0123456789") for _ in range(_DIGITS)]
        right = sorted(digits)
        places = [i for i in range(_DIGITS - 1) if right[i] != right[i + 1]]
        if places:
            break
    wrong, at = list(right), draw.choice(places)
    wrong[at], wrong[at + 1] = wrong[at + 1], wrong[at]
    answer = "".join(right)
    return Problem(f"sort {''.join(digits)}", answer, answer, "".join(wrong))


def judge(reply: Reply, answer: str) -> Grade | None:
    """Right if the reply is the digits in order; spaces do not count."""
    if len(answer) != _DIGITS or not (answer.isascii() and answer.isdecimal()):
        raise ValueError(f"{answer[:60]!r} are not {_DIGITS} digits")
    found = reply.final.replace(" ", "")
    return exactly(found == answer, found) if found else None
