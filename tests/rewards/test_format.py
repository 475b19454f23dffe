import pytest

from rl_jax.rewards.format import format_reward


def value_of(completion, pattern=None, **job):
    options = {"format_pattern": pattern} if pattern else {}
    return format_reward({"completion": completion, "prompt": "", **job}, options).value


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        (r"so \boxed{5}", 1.0),
        (r"<think>maybe \boxed{4}</think>\boxed{5}", 1.0),
        (r"\boxed{4}, \boxed{5}", 0.0),
        (r"<think>\boxed{5}", 0.0),
        (r"\boxed{5", 0.0),
        ("5", 0.0),
        ("", 0.0),
    ],
)
def test_exactly_one_box_outside_of_the_thinking_is_asked_for(completion, value):
    assert value_of(completion) == value


def test_a_reply_that_was_cut_off_is_never_in_format():
    assert value_of(r"\boxed{5}", truncated=True) == 0.0
    assert value_of("<a>5</a>", r"<a>\d</a>", truncated=True) == 0.0


def test_a_pattern_stands_in_for_the_box():
    assert value_of("<a>5</a>", r"<a>\d</a>") == 1.0
    assert value_of(r"\boxed{5}", r"<a>\d</a>") == 0.0


def test_a_pattern_is_not_run_on_a_runaway_reply():
    assert value_of("5" + " " * 100_000, "5") == 0.0
