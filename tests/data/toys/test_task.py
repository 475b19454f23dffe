import pytest

from rl_jax.data.toys.task import (
    MAX_REPLY_CHARS,
    Grade,
    Reply,
    exactly,
    read,
    whole,
)


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("12", Reply("", "12")),
        (" 12\n", Reply("", "12")),
        ("<think>1+1</think>2", Reply("1+1", "2")),
        ("\n<think> 1 </think> 2 ", Reply("1", "2")),
        ("<think></think>", Reply("", "")),
        ("<think>1", None),  # never closed
        ("1</think>2", None),
        ("0<think>1</think>2", None),  # not at the beginning
        ("<think>1</think>2<think>3</think>", None),
        ("<think>1<think></think>2", None),
        ("x" * (MAX_REPLY_CHARS + 1), None),
    ],
)
def test_thinking_is_one_stretch_at_the_beginning_or_none(text, reply):
    assert read(text) == reply


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("85", 85), ("-3", -3), ("007", 7), ("123456", 123456)],
)
def test_numbers_are_read(text, number):
    assert whole(text) == number


@pytest.mark.parametrize(
    "text",
    ["", "-", "--3", "+3", " 3", "3 ", "1_0", "1.0", "1e3", "٣", "³", "1234567", "x"],
)
def test_what_is_no_plain_number_is_none(text):
    assert whole(text) is None


def test_a_task_without_parts_gives_all_or_nothing():
    assert exactly(True, "a") == Grade(1.0, True, "a")
    assert exactly(False, "b") == Grade(0.0, False, "b")
