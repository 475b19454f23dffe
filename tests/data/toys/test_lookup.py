import random

from rl_jax.data.toys import lookup
from rl_jax.data.toys.task import Reply


def test_one_choice_of_four_is_the_fact():
    draw, letters = random.Random(0), []
    for _ in range(400):
        found = lookup.problem(draw)
        _, thing, *choices = found.text.split(" ")
        fact = lookup.FACTS[thing.removesuffix(":")]
        named = [choice[0] for choice in choices if int(choice[1]) == fact]
        assert named == [found.answer] and len(set(choices)) == 4
        letters.append(found.answer)
    # No letter is a better guess than the others.
    assert all(60 <= letters.count(letter) <= 140 for letter in "ABCD")


def test_the_reply_is_one_letter():
    for text, correct in [("B", True), ("A", False)]:
        grade = lookup.judge(Reply("", text), "B")
        assert grade is not None and grade.correct is correct
    for text in ("", "b", "AB", "E", "B.", "7", "Ｂ"):
        assert lookup.judge(Reply("", text), "B") is None
