"""Logic: close the brackets that are open.

close ( [ ] {   ->   } )
"""

import random

from rl_jax.data.toys.task import Grade, Problem, Reply, exactly

PAIRS = {"(": ")", "[": "]", "{": "}"}
_SIGNS = (5, 9)  # in a problem, from and to
_MOST_OPEN = 5


def problem(draw: random.Random) -> Problem:
    """Brackets of three kinds of which some are open."""
    size, signs, open_ = draw.randint(*_SIGNS), [], []
    while len(signs) < size or len(open_) < 2:
        if open_ and (len(open_) == _MOST_OPEN or draw.random() < 0.35):
            signs.append(PAIRS[open_.pop()])
        else:
            open_.append(draw.choice("([{"))
            signs.append(open_[-1])
    closing = [PAIRS[sign] for sign in reversed(open_)]
    wrong = list(closing)
    at = draw.randrange(len(wrong))
    wrong[at] = draw.choice([sign for sign in PAIRS.values() if sign != wrong[at]])
    return Problem(
        f"close {' '.join(signs)}", "".join(closing), " ".join(closing), " ".join(wrong)
    )


def judge(reply: Reply, answer: str) -> Grade | None:
    """Right if the reply is just the missing brackets; spaces do not count."""
    if not answer or set(answer) - set(PAIRS.values()):
        raise ValueError(f"{answer[:60]!r} are no closing brackets")
    found = reply.final.replace(" ", "")
    return exactly(found == answer, found) if found else None
