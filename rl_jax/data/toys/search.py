"""Search: two look-ups in a list of keys and values, written out as a chain.

    find 3: 1>4 3>7 7>2 5>0   ->   3>7>2

In one reply, since nothing is looked up while it is written. The grade is the share of
the two look-ups that are right, a second one after a wrong first counting nothing.
"""

import random

from rl_jax.data.toys.task import Grade, Problem, Reply, whole

_PAIRS = 4


def problem(draw: random.Random) -> Problem:
    """Four pairs, of which two form the chain that is asked for."""
    start, middle, end, *others = draw.sample(range(10), 3 + 2 * (_PAIRS - 2))
    pairs = [(start, middle), (middle, end)]
    pairs += zip(others[::2], others[1::2], strict=True)
    draw.shuffle(pairs)
    shown = " ".join(f"{key}>{value}" for key, value in pairs)
    right = f"{start}>{middle}>{end}"
    # The first look-up is right and the second not, or the other way round.
    if draw.random() < 0.5:
        wrong = f"{start}>{middle}>{draw.choice(others)}"
    else:
        key, value = draw.choice([pair for pair in pairs if pair[0] in others])
        wrong = f"{start}>{key}>{value}"
    return Problem(f"find {start}: {shown}", right, right, wrong)


def judge(reply: Reply, answer: str) -> Grade | None:
    """Half for the first look-up, half for the second."""
    wanted = answer.split(">")
    if len(wanted) != 3 or any(whole(key) is None for key in wanted):
        raise ValueError(f"{answer[:60]!r} is no chain, as in 3>7>2")
    found = reply.final.replace(" ", "").split(">")
    if len(found) < 2:
        return None
    if len(found) > 3 or found[0] != wanted[0] or found[1] != wanted[1]:
        return Grade(0.0, False, reply.final)
    right = found == wanted
    return Grade(1.0 if right else 0.5, right, reply.final)
