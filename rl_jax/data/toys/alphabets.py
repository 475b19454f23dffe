"""Language consistency: thinking in the alphabet that the question asks for.

    upper c a f d   ->   <think>C A F D</think>f

The alphabets are upper and lower case. The final answer, the letter that comes last in
the alphabet, is in lower case always. Half of the grade is the answer, half the share
of the thinking's letters that are in the alphabet asked for; fully right: both in full.
"""

import random

from rl_jax.data.toys.task import Grade, Problem, Reply

_LETTERS = "abcdefghijklm"
_SIZE = 4
_WORDS = ("upper", "lower")


def problem(draw: random.Random) -> Problem:
    """Four different letters, to be thought of in one of two alphabets."""
    word, letters = draw.choice(_WORDS), draw.sample(_LETTERS, _SIZE)
    last = max(letters)
    asked = [letter.upper() if word == "upper" else letter for letter in letters]
    if draw.random() < 0.5:  # drifts into the other alphabet
        at = draw.randint(1, _SIZE - 1)
        wrong = asked[:at] + [letter.swapcase() for letter in asked[at:]], last
    else:
        wrong = asked, draw.choice([letter for letter in letters if letter != last])
    return Problem(
        f"{word} {' '.join(letters)}",
        f"{word} {last}",
        _reply(asked, last),
        _reply(*wrong),
    )


def _reply(thinking: list[str], answer: str) -> str:
    return f"<think>{' '.join(thinking)}</think>{answer}"


def judge(reply: Reply, answer: str) -> Grade | None:
    """Half for the answer, half for the share of the alphabet in the thinking."""
    word, _, last = answer.partition(" ")
    if word not in _WORDS or len(last) != 1 or last not in _LETTERS:
        raise ValueError(f"{answer[:60]!r} is no alphabet and letter, as in 'upper f'")
    if not reply.final:
        return None
    share = in_alphabet(reply.thinking, word)
    right = reply.final == last
    parts = {"answer": float(right), "alphabet": share}
    return Grade((right + share) / 2, right and share == 1.0, reply.final, parts)


def in_alphabet(text: str, word: str) -> float:
    """The share of a text's letters that are in an alphabet; 0 without letters.

    Letters of other scripts are in neither.
    """
    letters = [sign for sign in text if sign.isalpha()]
    fits = [
        sign.isascii() and (sign.isupper() if word == "upper" else sign.islower())
        for sign in letters
    ]
    return sum(fits) / len(letters) if letters else 0.0
