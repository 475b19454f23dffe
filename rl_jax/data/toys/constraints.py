"""Instruction following: letters that meet several constraints at once.

    write 3 a, 2 c, from f, end d   ->   f a a a c c d

`3 a` asks for exactly three of them, `from` names the first letter and `end` the last.
Spaces do not count and other letters are allowed, so many replies are right. The grade
is the share of constraints met; fully right: all of them.
"""

import random

from rl_jax.data.toys.task import Grade, Problem, Reply, whole

LETTERS = "abcdefgh"
MAX_LETTERS = 24  # of a reply; more meets no constraint


def problem(draw: random.Random) -> Problem:
    """Two counts and an end, in two cases of three also a beginning."""
    x, y, last, first = draw.sample(LETTERS, 4)
    counts = draw.randint(1, 4), draw.randint(1, 3)
    asked = [f"{counts[0]} {x}", f"{counts[1]} {y}"]
    begins = draw.random() < 2 / 3
    asked += [f"from {first}"] * begins + [f"end {last}"]
    text = ", ".join(asked)
    parts = [first * begins, x * counts[0], y * counts[1], last]
    right = " ".join("".join(parts))
    slip = draw.randrange(3)
    if slip == 0:  # one too many, or too few
        parts[1] = x * (
            counts[0] + (-1 if counts[0] > 1 and draw.random() < 0.5 else 1)
        )
    elif slip == 1:  # the end forgotten
        parts[3] = ""
    else:  # the second letter forgotten
        parts[2] = ""
    return Problem(f"write {text}", text, right, " ".join("".join(parts)))


def judge(reply: Reply, answer: str) -> Grade | None:
    """The share of constraints that the reply meets."""
    asked = [_read(part) for part in answer.split(", ")]
    found = reply.final.replace(" ", "")
    if not found:
        return None
    if len(found) > MAX_LETTERS:
        return Grade(0.0, False, found)
    met = sum(_is_met(word, letter, found) for word, letter in asked)
    return Grade(met / len(asked), met == len(asked), found)


def _read(part: str) -> tuple[str, str]:
    """A constraint as a word (`from`, `end` or a number) and a letter."""
    word, _, letter = part.partition(" ")
    known = word in ("from", "end") or whole(word) is not None
    if not known or len(letter) != 1 or letter not in LETTERS:
        raise ValueError(f"{part[:60]!r} is no constraint, as in '3 a' or 'end d'")
    return word, letter


def _is_met(word: str, letter: str, text: str) -> bool:
    if word == "from":
        return text[0] == letter
    if word == "end":
        return text[-1] == letter
    return text.count(letter) == whole(word)
