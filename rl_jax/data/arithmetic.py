"""The built-in task: a running total, a few operations long, all made here.

    Start with 7, minus 4, times 3, minus 2, minus 5, plus 6.   ->   8

Each operation alone is easy, all of them in one go are not: the answer comes out right
when the running totals are written down. The demonstrations for a cold start are of
two kinds, one in five worked out, the others the bare answer; which kind pays is for
reinforcement learning to find out.

Splits never share a problem: see generated.py.
"""

import random

from rl_jax.data.generated import distinct
from rl_jax.data.rows import Row

NUM_OPERATIONS = 5
# Running totals stay within 0 and this. One digit: a model of this size learns one-
# digit arithmetic in a minute on a CPU, and two-digit arithmetic not in ten.
LARGEST = 9
# Small, so that the last operation tells little about the answer: guessing from it is
# right one time in six, and one in three with operands up to 9.
OPERANDS = (2, 5)
_WORDS = {"+": "plus", "-": "minus", "*": "times"}


def problems(split: str, count: int, seed: int) -> list[tuple[str, str, int]]:
    """`count` distinct problems of a split: (problem, worked steps, answer).

    Raises:
        ValueError, ConfigError: as `generated.distinct`.
    """
    return distinct(_problem, "arithmetic", split, count, seed)


def _problem(draw: random.Random) -> tuple[str, str, int]:
    total = draw.randint(1, LARGEST)
    words, steps = [f"Start with {total}"], []
    for _ in range(NUM_OPERATIONS):
        sign, operand = _operation(draw, total)
        after = {"+": total + operand, "-": total - operand, "*": total * operand}[sign]
        words.append(f"{_WORDS[sign]} {operand}")
        steps.append(f"{total}{sign}{operand}={after}")
        total = after
    return ", ".join(words) + ".", "\n".join(steps), total


def _operation(draw: random.Random, total: int) -> tuple[str, int]:
    """A sign and an operand that keep the total within bounds."""
    while True:
        sign, operand = draw.choice("+-*"), draw.randint(*OPERANDS)
        after = {"+": total + operand, "-": total - operand, "*": total * operand}[sign]
        if 0 <= after <= LARGEST and not (sign == "*" and total == 0):
            return sign, operand


def rows(split: str, count: int, seed: int) -> list[Row]:
    """Problems to be answered, for reinforcement learning or evaluation."""
    return [
        Row(
            messages=({"role": "user", "content": problem},),
            answer=str(answer),
            data_source="arithmetic",
            index=i,
            extra={},
        )
        for i, (problem, _, answer) in enumerate(problems(split, count, seed))
    ]


def demonstrations(count: int, seed: int, split: str = "sft") -> list[Row]:
    """Conversations for a cold start: every fifth worked out, the others not."""
    out = []
    for i, (problem, steps, answer) in enumerate(problems(split, count, seed)):
        boxed = f"\\boxed{{{answer}}}"
        reply = f"{steps}\n{boxed}" if i % 5 == 0 else boxed
        messages = (
            {"role": "user", "content": problem},
            {"role": "assistant", "content": reply},
        )
        out.append(Row(messages, str(answer), "arithmetic", i, {}))
    return out


# The chat format of models that are made here from nothing.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% if message.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT_SYMBOLS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
