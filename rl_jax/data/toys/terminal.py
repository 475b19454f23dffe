"""Terminal: commands that edit a text until it passes its tests.

    edit 3142 to 3124     ->   swap
    edit 3142 to 31477    ->   pop add 7 dup

The text is a stack whose top is its end: `pop` takes the last sign away, `swap`
exchanges the last two, `dup` repeats the last, `add 7` puts one there. In one reply, as
nothing is run while it is written. The grade is the share of three tests: the length,
the last sign, and the whole text; fully right: all of them.
"""

import random
from collections.abc import Sequence

from rl_jax.data.toys.task import Grade, Problem, Reply

DIGITS = "0123456789"
MAX_COMMANDS = 16
MAX_LENGTH = 32  # signs of a text
_NAMES = ("pop", "swap", "dup", "add")


def problem(draw: random.Random) -> Problem:
    """Four digits, and what one to three commands make of them."""
    while True:
        start = "".join(draw.choice(DIGITS) for _ in range(4))
        commands = _commands(draw, draw.choice((1, 2, 2, 3)))
        target = run(commands, start)
        wrong = _commands(draw, len(commands))
        # As short as can be seen: no command may be left out, and none may do nothing.
        shorter = [commands[:i] + commands[i + 1 :] for i in range(len(commands))]
        useless = any(run(some, start) == target for some in shorter)
        if target and not useless and run(wrong, start) not in (target, None):
            return Problem(
                f"edit {start} to {target}",
                f"{start} {target}",
                " ".join(commands),
                " ".join(wrong),
            )


def _commands(draw: random.Random, count: int) -> list[str]:
    names = [draw.choice(_NAMES) for _ in range(count)]
    return [f"add {draw.choice(DIGITS)}" if n == "add" else n for n in names]


def judge(reply: Reply, answer: str) -> Grade | None:
    """The share of tests that the edited text passes."""
    start, _, target = answer.partition(" ")
    if not start or not target or set(start + target) - set(DIGITS):
        raise ValueError(f"{answer[:60]!r} is no pair of texts, as in '3142 3124'")
    commands = _split(reply.final)
    if not commands:
        return None
    text = run(commands, start)
    if text is None:
        return Grade(0.0, False, reply.final)
    tests = (len(text) == len(target), text[-1:] == target[-1:], text == target)
    return Grade(sum(tests) / len(tests), all(tests), text)


def _split(text: str) -> list[str]:
    """The commands of a reply: words, `add` with the one that follows."""
    commands: list[str] = []
    for word in text.split():
        if commands and commands[-1] == "add":
            commands[-1] += f" {word}"
        else:
            commands.append(word)
    return commands


def run(commands: Sequence[str], text: str) -> str | None:
    """The text after the commands; None if one cannot be done, or beyond a bound."""
    if len(commands) > MAX_COMMANDS:
        return None
    for command in commands:
        if command == "pop" and text:
            text = text[:-1]
        elif command == "swap" and len(text) > 1:
            text = text[:-2] + text[-1] + text[-2]
        elif command == "dup" and text:
            text += text[-1]
        elif len(command) == 5 and command[:4] == "add " and command[4] in DIGITS:
            text += command[4]
        else:
            return None
        if len(text) > MAX_LENGTH:
            return None
    return text
