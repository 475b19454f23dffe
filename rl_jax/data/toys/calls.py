"""Tool use: a call in the form of a schema, and its result.

    call larger 47 38   ->   max(47,38)=47

The words are those of `FUNCTIONS`. Half for the call, half for the result of the call
that was asked for, written after it since nothing is called while it is written.
"""

import random
import re

from rl_jax.data.toys.task import Grade, Problem, Reply, whole

# The word in a question -> the name in a call.
FUNCTIONS = {"sum": "add", "difference": "sub", "larger": "max", "smaller": "min"}
_NUMBER = "[0-9]{1,2}"
_CALL = re.compile(rf"([a-z]{{3}})\(({_NUMBER}),({_NUMBER})\)")


def problem(draw: random.Random) -> Problem:
    """Two numbers of two digits, for one of four functions."""
    word = draw.choice(list(FUNCTIONS))
    a, b = sorted(draw.sample(range(10, 100), 2), reverse=True)
    if word != "difference" and draw.random() < 0.5:
        a, b = b, a
    call = f"{FUNCTIONS[word]}({a},{b})"
    result = value(FUNCTIONS[word], a, b)
    if draw.random() < 0.5:
        wrong = f"{call}={result + draw.choice((-10, -1, 1, 10))}"
    else:
        other = draw.choice([name for name in FUNCTIONS.values() if name not in call])
        wrong = f"{other}({a},{b})={value(other, a, b)}"
    return Problem(f"call {word} {a} {b}", call, f"{call}={result}", wrong)


def value(name: str, a: int, b: int) -> int:
    """What a call gives."""
    if name == "add":
        return a + b
    if name == "sub":
        return a - b
    return max(a, b) if name == "max" else min(a, b)


def judge(reply: Reply, answer: str) -> Grade | None:
    """Half for the call, character for character, half for its result after `=`."""
    asked = _CALL.fullmatch(answer)
    if asked is None or asked[1] not in FUNCTIONS.values():
        raise ValueError(f"{answer[:60]!r} is no call, as in max(47,38)")
    call, equals, result = reply.final.partition("=")
    if not equals:
        return None
    called = call == answer
    right = called and whole(result) == value(asked[1], int(asked[2]), int(asked[3]))
    parts = {"call": float(called), "result": float(right)}
    return Grade((called + right) / 2, right, reply.final, parts)
