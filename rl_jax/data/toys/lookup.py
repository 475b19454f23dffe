"""Science: multiple choice about facts that are in no prompt.

    which g: A3 B7 C1 D4   ->   B

The fact, g is 7, is in a table that only demonstrations and rewards tell of. Guessing
is right one time in four.
"""

import random

from rl_jax.data.toys.task import Grade, Problem, Reply, exactly

_LETTERS = "ABCD"
# The table: a digit for each of 20 things.
FACTS = dict(zip("abcdefghijklmnopqrst", map(int, "84927106355381690247"), strict=True))


def problem(draw: random.Random) -> Problem:
    """A thing, and four digits of which one is its own."""
    thing = draw.choice(list(FACTS))
    fact = FACTS[thing]
    choices = [fact, *draw.sample([d for d in range(10) if d != fact], 3)]
    draw.shuffle(choices)
    right = _LETTERS[choices.index(fact)]
    wrong = draw.choice([letter for letter in _LETTERS if letter != right])
    pairs = zip(_LETTERS, choices, strict=True)
    shown = " ".join(f"{letter}{digit}" for letter, digit in pairs)
    return Problem(f"which {thing}: {shown}", right, right, wrong)


def judge(reply: Reply, answer: str) -> Grade | None:
    """Right if the reply is the letter."""
    if len(answer) != 1 or answer not in _LETTERS:
        raise ValueError(f"{answer[:60]!r} is no letter from A to D")
    if len(reply.final) != 1 or reply.final not in _LETTERS:
        return None
    return exactly(reply.final == answer, reply.final)
