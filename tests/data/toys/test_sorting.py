import random

from rl_jax.data.toys import sorting
from rl_jax.data.toys.task import Reply


def slow_sorted(digits):
    """Takes the smallest digit out, again and again."""
    left, found = list(digits), ""
    while left:
        smallest = left[0]
        for digit in left:
            if digit < smallest:
                smallest = digit
        left.remove(smallest)
        found += smallest
    return found


def test_the_answer_is_the_digits_in_order():
    draw = random.Random(0)
    for _ in range(300):
        found = sorting.problem(draw)
        assert found.answer == slow_sorted(found.text.removeprefix("sort "))
        assert sorted(found.wrong) == list(found.answer)  # the same digits


def test_spaces_do_not_matter_and_everything_else_does():
    for text, correct in [
        ("12459", True),
        ("1 2 4 5 9", True),
        ("1,2,4,5,9", False),
        ("1245", False),
        ("124599", False),
        ("１２４５９", False),
    ]:
        grade = sorting.judge(Reply("", text), "12459")
        assert grade is not None and grade.correct is correct
