import signal

import pytest

from rl_jax.rewards.code import hosts
from rl_jax.rewards.sandbox import Outcome


@pytest.mark.parametrize(
    ("outcome", "meaning"),
    [
        (Outcome(0, None), None),
        (Outcome(1, None, stderr=b"Traceback\nValueError: 12\n"), "crash ValueError"),
        (Outcome(1, None, stderr=b"x\njson.decoder.JSONDecodeError: no"),
         "crash json.decoder.JSONDecodeError"),
        (Outcome(3, None), "crash exit status other than 0"),
        (Outcome(1, None, stderr=b"\xff\xfe"), "crash exit status other than 0"),
        (Outcome(None, signal.SIGSEGV), "crash killed by SIGSEGV"),
        (Outcome(None, signal.SIGXCPU), "timeout out of time"),
        (Outcome(None, 63), "crash killed by a signal"),
        (Outcome(None, 9, output_cut=True), "wrong printed too much"),
        (Outcome(None, 9, timed_out=True), "timeout out of time"),
        (Outcome(None, 9, out_of_memory=True), "crash out of memory"),
    ],
)  # fmt: skip
def test_the_end_of_a_program_has_a_meaning(outcome, meaning):
    result = hosts.ended(outcome)
    assert meaning == (result and f"{result.verdict} {result.detail}")


@pytest.mark.parametrize("status", [0, 3, None, "x", [], 1 << 80, -(1 << 80), True])
def test_a_status_of_any_shape_is_a_crash(status):
    assert hosts.left_by(status).verdict == "crash"


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        ({"raised": {"type": "KeyError"}}, "KeyError"),
        ({"raised": {"type": "a\nb <b>" + "x" * 99}}, "abb" + "x" * 53),
        ({"raised": {"type": 3}}, "an exception"),
        ({"raised": None}, "an exception"),
        ({}, "an exception"),
    ],
)
def test_what_a_program_says_that_it_raised_is_a_short_name(reply, detail):
    assert hosts.raised(reply).detail == detail
