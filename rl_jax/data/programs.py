r"""The built-in task for code: a Python function from a description of three steps.

    Write f(x): times 3, then minus 4, then plus 9.

    def f(x):
        x = x * 3
        x = x - 4
        return x + 9

The reply is run on hidden inputs. The demonstrations for a cold start are of two kinds:
one in four does every step, the others leave one out and are wrong; which kind pays is
for reinforcement learning to find out.

Splits never share a problem: see generated.py.
"""

import json
import random
from collections.abc import Sequence

from rl_jax.data.generated import distinct
from rl_jax.data.rows import Row

_SIGNS = {"plus": "+", "minus": "-", "times": "*", "modulo": "%"}
_OPERANDS = (2, 9)
NUM_STEPS = 3
# Hidden inputs. A program that leaves out a step is wrong on most of them.
_INPUTS = (-7, 0, 1, 5, 12, 100)

Step = tuple[str, int]  # word, operand


def problems(split: str, count: int, seed: int) -> list[tuple[str, tuple[Step, ...]]]:
    """`count` distinct problems of a split: (description, steps).

    Raises:
        ValueError, ConfigError: as `generated.distinct`.
    """
    return distinct(_problem, "programs", split, count, seed)


def _problem(draw: random.Random) -> tuple[str, tuple[Step, ...]]:
    while True:
        steps = tuple(
            (draw.choice(list(_SIGNS)), draw.randint(*_OPERANDS))
            for _ in range(NUM_STEPS)
        )
        # Each step must matter, or leaving it out would be right; and so must x, or a
        # constant would be.
        found = outputs(steps)
        shorter = [steps[:i] + steps[i + 1 :] for i in range(NUM_STEPS)]
        if len(set(found)) > 2 and all(outputs(rest) != found for rest in shorter):
            words = ", then ".join(f"{word} {operand}" for word, operand in steps)
            return f"Write f(x): {words}.", steps


def outputs(steps: Sequence[Step]) -> list[int]:
    """What the steps make of the hidden inputs."""
    found = []
    for x in _INPUTS:
        for word, operand in steps:
            x = {
                "plus": x + operand,
                "minus": x - operand,
                "times": x * operand,
                "modulo": x % operand,
            }[word]
        found.append(x)
    return found


def program(steps: Sequence[Step]) -> str:
    """The function that does the steps, one a line."""
    lines = [f"x {_SIGNS[word]} {operand}" for word, operand in steps]
    body = [f"    x = {line}\n" for line in lines[:-1]]
    return f"def f(x):\n{''.join(body)}    return {lines[-1]}"


def rows(split: str, count: int, seed: int) -> list[Row]:
    """Problems to be answered; the answer holds the hidden tests, as APPS has them."""
    out = []
    for i, (text, steps) in enumerate(problems(split, count, seed)):
        tests = {
            "fn_name": "f",
            "inputs": [[x] for x in _INPUTS],
            "outputs": outputs(steps),
        }
        messages = ({"role": "user", "content": text},)
        out.append(Row(messages, json.dumps(tests), "programs", i, {}))
    return out


def demonstrations(count: int, seed: int, split: str = "sft") -> list[Row]:
    """Conversations for a cold start: every fourth right, the others a step short."""
    out = []
    for i, (text, steps) in enumerate(problems(split, count, seed)):
        left_out = i % 4  # 3: none
        shown = steps[:left_out] + steps[left_out + 1 :]
        messages = (
            {"role": "user", "content": text},
            {"role": "assistant", "content": program(shown)},
        )
        out.append(Row(messages, "", "programs", i, {}))
    return out
