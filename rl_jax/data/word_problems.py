"""The built-in task for pre-trained models: word problems of one step.

    Nora has 7 stamps and buys 5 more. How many stamps does she have now?   ->   12

A small instruction-tuned model solves some of them, not always in the form or with the
care that the task asks for: that is what reinforcement learning on them is to teach.

Splits never share a problem: see generated.py.
"""

import random

from rl_jax.data.generated import distinct
from rl_jax.data.rows import Row

# Sums and products of these: SmolLM2-135M-Instruct, untrained, is right one time in
# five. Differences and quotients it gets right one time in twenty.
NUMBERS = (2, 9)
_PEOPLE = (
    *((name, "she") for name in ("Nora", "Ada", "Mina", "Ruth", "Ines", "Grace")),
    *((name, "he") for name in ("Omar", "Leo", "Tom", "Hugo", "Ravi", "Karl")),
)
_THINGS = ("stamps", "shells", "pencils", "marbles", "apples", "coins", "cards", "eggs")
_PLACES = ("box", "bag", "basket", "drawer", "jar", "tray")

# Sign, then the problem's text; `a` and `b` are the numbers in the order of the sign.
_STORIES = (
    ("+", "{name} has {a} {things} and buys {b} more. How many {things} does {he} have "
          "now?"),
    ("+", "There are {a} {things} in one {place} and {b} {things} in another. How many "
          "{things} are there in all?"),
    ("+", "{name} counted {a} {things} on Monday and {b} on Tuesday. How many {things} "
          "did {he} count altogether?"),
    ("*", "{name} fills {a} {places} with {b} {things} each. How many {things} does "
          "{he} use?"),
    ("*", "One {place} of {things} costs {b} dollars. How many dollars do {a} {places} "
          "cost?"),
)  # fmt: skip


def rows(split: str, count: int, seed: int) -> list[Row]:
    """`count` distinct problems of a split, to be answered.

    Raises:
        ValueError, ConfigError: as `generated.distinct`.
    """
    problems = distinct(_problem, "word_problems", split, count, seed)
    return [
        Row(({"role": "user", "content": text},), str(answer), "word_problems", i, {})
        for i, (text, answer) in enumerate(problems)
    ]


def _problem(draw: random.Random) -> tuple[str, int]:
    sign, story = draw.choice(_STORIES)
    a, b = draw.randint(*NUMBERS), draw.randint(*NUMBERS)
    name, he = draw.choice(_PEOPLE)
    place = draw.choice(_PLACES)
    return story.format(
        a=a,
        b=b,
        name=name,
        he=he,
        things=draw.choice(_THINGS),
        place=place,
        places=f"{place}{'es' if place == 'box' else 's'}",
    ), a + b if sign == "+" else a * b
