import time

import pytest

from rl_jax.rewards.sandbox import Limits, SessionEnded

ECHO = """
import json, os
requests, replies = open(3, "rb"), open(4, "wb", buffering=0)
for line in requests:
    replies.write(json.dumps({"got": json.loads(line)}).encode() + b"\\n")
"""


def answering(text):
    """A program that answers its first request with this."""
    return f"import os, time\nos.read(3, 100)\n{text}"


def test_requests_are_answered_in_turn(each):
    with each.start(ECHO) as session:
        for number in range(20):
            assert session.ask({"n": number}, 5.0) == {"got": {"n": number}}


def test_messages_larger_than_a_pipe_go_both_ways(sandbox):
    with sandbox.start(ECHO) as session:
        text = "x" * 1_000_000
        assert session.ask({"text": text}, 10.0) == {"got": {"text": text}}


def test_what_a_program_prints_does_not_disturb_its_channel(sandbox):
    program = ECHO.replace("for line", "print('{}', flush=True)\nfor line") + (
        "    print('y' * 300_000)\n"
    )
    with sandbox.start(program) as session:
        assert session.ask({"n": 1}, 5.0) == {"got": {"n": 1}}
        assert session.ask({"n": 2}, 5.0) == {"got": {"n": 2}}
        outcome = session.close(grace_secs=5.0)
    assert outcome.exit_code == 0
    assert outcome.stdout.startswith(b"{}\nyyy") and len(outcome.stdout) == 600_005


def test_two_programs_run_at_a_time_and_share_nothing(each):
    with each.start(ECHO) as one, each.start(ECHO) as other:
        assert one.ask({"n": 1}, 5.0) == {"got": {"n": 1}}
        assert other.ask({"n": 2}, 5.0) == {"got": {"n": 2}}
        one.close()
        assert other.ask({"n": 3}, 5.0) == {"got": {"n": 3}}


def test_a_program_has_no_descriptors_but_its_channel(each):
    program = answering("""
import fcntl, json
def is_open(fd):
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
        return True
    except OSError:
        return False
found = [fd for fd in range(1024) if is_open(fd)]
os.write(4, json.dumps({"found": found}).encode() + b"\\n")
""")
    with each.start(program) as session:
        assert session.ask({}, 5.0) == {"found": [0, 1, 2, 3, 4]}


def test_no_reply_in_time_ends_the_session(each):
    with each.start("import time; time.sleep(60)") as session:
        start = time.monotonic()
        with pytest.raises(SessionEnded) as caught:
            session.ask({}, 0.2)
        assert caught.value.reason == "timeout"
        assert 0.2 <= time.monotonic() - start < 2
        with pytest.raises(SessionEnded):
            session.ask({}, 0.2)
        assert session.close().signal == 9 and session.close().timed_out


def test_the_whole_life_of_a_session_is_bounded(sandbox):
    with sandbox.start(ECHO, limits=Limits(wall_secs=0.3)) as session:
        assert session.ask({}, 5.0)
        time.sleep(0.4)
        with pytest.raises(SessionEnded) as caught:
            session.ask({}, 5.0)
        assert caught.value.reason in ("timeout", "ended")
        assert session.close().timed_out


def test_a_request_that_is_not_read_ends_the_session(sandbox):
    with sandbox.start("import time; time.sleep(60)") as session:
        with pytest.raises(SessionEnded) as caught:
            session.ask({"text": "x" * 1_000_000}, 0.2)
        assert caught.value.reason == "timeout"


@pytest.mark.parametrize(
    "program",
    [
        answering("os._exit(0)"),
        answering("os.close(4); time.sleep(60)"),
        answering("os.write(4, b'{'); os._exit(0)"),
        answering("1 / 0"),
        "import os; os._exit(0)",
    ],
)
def test_a_program_that_ends_instead_of_replying_is_told_apart(each, program):
    with each.start(program) as session:
        with pytest.raises(SessionEnded) as caught:
            session.ask({}, 5.0)
        assert caught.value.reason == "ended"


@pytest.mark.parametrize(
    "reply",
    [
        b"hello\n",
        b"[1]\n",
        b"\xff\n",
        b"{}\n{}\n",
        b"[" * 100_000 + b"\n",
        b'{"n": 1' + b"0" * 5000 + b"}\n",
    ],
)
def test_what_is_not_one_object_is_no_reply(sandbox, reply):
    with sandbox.start(answering(f"os.write(4, {reply!r}); time.sleep(9)")) as session:
        with pytest.raises(SessionEnded) as caught:
            session.ask({}, 5.0)
        assert caught.value.reason == "protocol"


def test_an_endless_reply_is_cut_off(sandbox):
    limits = Limits(message_bytes=1 << 20)
    program = answering("while True: os.write(4, bytes(65536))")
    with sandbox.start(program, limits=limits) as session:
        with pytest.raises(SessionEnded) as caught:
            session.ask({}, 5.0)
        assert caught.value.reason == "protocol"


def test_closing_tells_how_the_program_ended(each):
    with each.start(ECHO) as session:
        session.ask({}, 5.0)
        assert session.close(grace_secs=5.0).exit_code == 0
        assert session.close().exit_code == 0
        with pytest.raises(SessionEnded):
            session.ask({}, 1.0)
    with each.start(ECHO) as session:
        assert session.close().signal == 9
