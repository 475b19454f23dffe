"""Helpfulness: a hidden judge who likes some kinds of characters more than others.

    help bakolu   ->   bakoluau

The judge reads eight characters and adds up what each is worth to him, by its class:
a letter of the question or not, vowel or consonant, digit, anything else. It stands in
for people's preferences, so the value is a matter of degree: to make pairs, rankings
and reward models of. A reply is called right from GOOD on.
"""

import random

from rl_jax.data.toys.task import Grade, Problem, Reply

PLACES = 8
GOOD = 0.75  # the value from which a reply is called right
# What a character is worth. An empty place, and each character beyond the last place,
# is worth as little as the worst.
WORTH = {
    "topic vowel": 1.0,
    "topic consonant": 0.7,
    "vowel": 0.4,
    "consonant": 0.0,
    "digit": -0.5,
    "other": -1.0,
}
_LEAST, _MOST = min(WORTH.values()), max(WORTH.values())
_VOWELS, _CONSONANTS = "aeiou", "bdfgklmnprst"


def problem(draw: random.Random) -> Problem:
    """A word of three syllables, a reply the judge likes and one he does not."""
    topic = "".join(
        draw.choice(_CONSONANTS) + draw.choice(_VOWELS) for _ in range(PLACES // 2 - 1)
    )
    # The word again, and at its end more of what the judge likes.
    right = topic + "".join(draw.choice(topic[1::2]) for _ in range(PLACES - 6))
    # The word, broken off, and then what he does not like.
    begun = topic[: draw.randint(0, 4)]
    rest = [draw.choice("0123456789" + _CONSONANTS) for _ in range(PLACES - len(begun))]
    rest[draw.randrange(2)], rest[-1] = draw.choice("0123456789"), draw.choice("!?")
    return Problem(f"help {topic}", topic, right, begun + "".join(rest))


def judge(reply: Reply, answer: str) -> Grade | None:
    """The judge's value, from 0 to 1; spaces in the reply do not count."""
    if not answer or set(answer) - set(_VOWELS + _CONSONANTS):
        raise ValueError(f"{answer[:60]!r} is no topic of lower-case letters")
    found = reply.final.replace(" ", "")
    if not found:
        return None
    value = utility(found, answer)
    return Grade(value, value >= GOOD, found)


def utility(text: str, topic: str) -> float:
    """The mean worth of the places, 0 if all are the worst and 1 if all are the best.

    Linear in the counts of the classes, as long as no place is left empty or added.
    """
    worth = sum(WORTH[_class(sign, topic)] for sign in text[:PLACES])
    worth += _LEAST * abs(PLACES - len(text))
    return (worth / max(PLACES, len(text)) - _LEAST) / (_MOST - _LEAST)


def _class(sign: str, topic: str) -> str:
    if sign in "0123456789":
        return "digit"
    kind = "vowel" if sign in _VOWELS else "consonant"
    if sign in topic:
        return f"topic {kind}"
    return kind if sign in _VOWELS + _CONSONANTS else "other"
