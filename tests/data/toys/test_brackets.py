import random

from rl_jax.data.toys import brackets
from rl_jax.data.toys.task import Reply


def slow_is_balanced(text):
    """Takes pairs out of the middle until nothing is left."""
    while any(pair in text for pair in ("()", "[]", "{}")):
        for pair in ("()", "[]", "{}"):
            text = text.replace(pair, "")
    return not text


def test_a_reply_is_right_if_question_and_reply_are_balanced_together():
    draw = random.Random(0)
    for _ in range(300):
        found = brackets.problem(draw)
        shown = found.text.removeprefix("close ").replace(" ", "")
        tried = ["".join(draw.choices(")]}", k=draw.randint(1, 5))) for _ in range(5)]
        for reply in (found.right, found.wrong, *tried):
            grade = brackets.judge(Reply("", reply), found.answer)
            balanced = slow_is_balanced(shown + reply.replace(" ", ""))
            assert grade is not None and grade.correct == balanced, (found, reply)


def test_anything_beside_the_brackets_is_wrong():
    for text in ("})()", "} ) .", "( [ ] { } )"):
        grade = brackets.judge(Reply("", text), "})")
        assert grade is not None and not grade.correct
