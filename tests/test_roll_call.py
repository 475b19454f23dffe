"""Lines and roll call together, in threads of this process: no jax, no config."""

import contextlib
import json
import os
import re
import socket
import threading
import time

import pytest
from launched import free_port

from rl_jax import line as lines
from rl_jax import roll_call as roll_calls
from rl_jax.line import Ended, Line
from rl_jax.roll_call import RollCall


class Told:
    """What a process is told at the end, as `on_end` of its line."""

    def __init__(self):
        self.end: Ended | None = None
        self._came = threading.Event()

    def __call__(self, end):
        self.end = end
        self._came.set()

    def wait(self):
        assert self._came.wait(10) and self.end, "was not told to end"
        return self.end.code, str(self.end)


def hello(i, n, **more):
    return {"id": i, "num_processes": n, "host": f"host-{i}", "pid": 100 + i, **more}


def call(port, i, n, secs=10.0, lost_secs=lines.LOST_SECS, **more):
    """A line, or the Ended that it raised; and what it was told later."""
    told = Told()
    try:
        one = Line(
            ("127.0.0.1", port), hello(i, n, **more), secs, told, lost_secs=lost_secs
        )
    except Ended as end:
        return end, told
    return one, told


def call_all(hellos, n, secs=10.0, **options):
    """A roll call of n, and what became of the line of each hello, in order."""
    roll_call = RollCall(("127.0.0.1", 0), n, secs, **options)
    found: list = [None] * len(hellos)
    lost_secs = options.get("lost_secs", lines.LOST_SECS)

    def run(k, keywords):
        found[k] = call(roll_call.port, secs=secs, lost_secs=lost_secs, **keywords)

    threads = [threading.Thread(target=run, args=item) for item in enumerate(hellos)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)  # in this order
    for thread in threads:
        thread.join(20)
    return roll_call, found


def full(n, **options):
    roll_call, found = call_all([{"i": i, "n": n} for i in range(n)], n, **options)
    assert all(isinstance(one, Line) for one, _ in found), found
    return roll_call, [one for one, _ in found], [told for _, told in found]


def cut(one):
    """What the system does with the connection of a process that is killed."""
    one._is_leaving = True
    one._connection.shutdown(socket.SHUT_RDWR)


def leave(roll_call, here):
    threads = [threading.Thread(target=one.bye) for one in here]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    roll_call.close(5)
    assert not roll_call._thread.is_alive()


def test_all_go_when_the_last_has_come_with_the_same_port():
    roll_call, here, _ = full(3)
    assert len({one.jax_port for one in here}) == 1
    assert 0 < here[0].jax_port != roll_call.port
    leave(roll_call, here)


def test_those_that_do_not_come_are_named_to_all_that_did():
    hellos = [{"i": 0, "n": 4}, {"i": 2, "n": 4}]
    _, found = call_all(hellos, 4, secs=0.5)
    for end, _ in found:
        assert isinstance(end, Ended) and end.code == 1
        assert str(end).startswith(
            "processes 1, 3 of 4 did not come within 0.5 s; here: processes 0 (host-0, "
            "pid 100), 2 (host-2, pid 102)."
        ), end


def test_the_wait_is_told_of_now_and_then(monkeypatch):
    monkeypatch.setattr(roll_calls, "TOLD_SECS", 0.2)
    said = []
    call_all([{"i": 0, "n": 3}], 3, secs=0.7, say=said.append)
    assert said[0] == "processes: still waiting for processes 1, 2"
    assert 1 <= len(said) <= 3


def test_a_process_of_another_count_ends_all_as_a_wrong_setting():
    _, found = call_all([{"i": 0, "n": 2}, {"i": 1, "n": 3}], 2)
    for end, _ in found:
        assert isinstance(end, Ended) and end.code == 2
        assert "process 1 (host-1, pid 101) was started as one of 3 processes" in str(
            end
        )
        assert "process 0 as one of 2" in str(end)
        assert len(str(end).splitlines()) <= 3


def test_two_processes_of_the_same_number_end_all():
    hellos = [{"i": 0, "n": 3}, {"i": 1, "n": 3}, {"i": 1, "n": 3}]
    _, found = call_all(hellos, 3)
    assert [end.code for end, _ in found] == [2, 2, 2]
    assert "Two processes have number 1" in str(found[0][0])


def test_another_version_on_one_machine_is_named():
    hellos = [{"i": 0, "n": 2, "jax": "0.10.2"}, {"i": 1, "n": 2, "jax": "0.12.0"}]
    _, found = call_all(hellos, 2, same=["jax"])
    for end, _ in found:
        assert end.code == 2
        assert (
            "process 1 (host-1, pid 101) has jax 0.12.0, process 0 (host-0, pid 100) "
            "has 0.10.2."
        ) in str(end)


def test_a_process_may_go_and_come_again_before_all_are_there():
    roll_call = RollCall(("127.0.0.1", 0), 2, 10.0)
    with socket.create_connection(("127.0.0.1", roll_call.port)) as early:
        lines.send(early, say="hello", **hello(1, 2))
        time.sleep(0.1)
    time.sleep(0.1)
    found = {}
    threads = [
        threading.Thread(
            target=lambda i=i: found.update({i: call(roll_call.port, i, 2)})
        )
        for i in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert all(isinstance(one, Line) for one, _ in found.values()), found
    leave(roll_call, [one for one, _ in found.values()])


@pytest.mark.parametrize(
    "text", [b"GET / HTTP/1.1\r\n\r\n", b'{"say": "at"}\n', b"[]\n"]
)
def test_strangers_are_turned_away_and_change_nothing(text):
    roll_call, here, told = full(2)
    with socket.create_connection(("127.0.0.1", roll_call.port)) as stranger:
        stranger.sendall(text)
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(10) == b""
    assert here[0].note == "" and told[0].end is None
    leave(roll_call, here)


# Meeting.


def gather_all(here, name, values, secs=10.0):
    found: list = [None] * len(here)

    def run(i):
        try:
            found[i] = here[i].gather(name, values[i], secs)
        except Ended as end:
            found[i] = end

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(here))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_everyone_gets_the_values_of_all_in_order():
    roll_call, here, _ = full(3)
    values = [{"stop": 0}, None, [1.5, "é"]]
    assert gather_all(here, "a", values) == [values] * 3
    assert gather_all(here, "a", [1, 2, 3]) == [[1, 2, 3]] * 3  # a name may come again
    leave(roll_call, here)


def test_large_values_pass_whole():
    roll_call, here, _ = full(2)
    values = ["x" * 300_000, "y" * 300_000]
    assert gather_all(here, "large", values) == [values] * 2
    leave(roll_call, here)


def test_a_wait_names_who_is_missing_and_what_it_did_last(monkeypatch):
    monkeypatch.setattr(lines, "BEAT_SECS", 0.1)
    roll_call, here, _ = full(3)
    here[2].note = "after step 7, grading"
    time.sleep(0.4)  # some beats
    found = gather_all(here[:2], "saved", [None, None], secs=0.3)
    for end in found:
        assert isinstance(end, Ended) and end.code == 1
        assert str(end) == (
            "waited 0.3 s at 'saved' for process 2 (host-2, pid 102) after step 7, "
            "grading"
        )
    assert here[0].state() == (
        "after step 7, grading: process 2 (host-2, pid 102); "
        "at the start: processes 0 (host-0, pid 100), 1 (host-1, pid 101)"
    )
    leave(roll_call, here)


# Ending.


@pytest.mark.parametrize("lost", [1, 2])
def test_a_process_that_is_killed_is_named_to_all_others_at_once(lost):
    _, here, told = full(3)
    began = time.monotonic()
    cut(here[lost])
    for i in sorted({0, 1, 2} - {lost}, reverse=True):  # process 0 is told last
        code, text = told[i].wait()
        assert code == 1
        assert text.startswith(
            f"process {lost} (host-{lost}, pid {100 + lost}) ended without a word"
        )
        cut(here[i])  # it ends, as it was told
    assert time.monotonic() - began < 5
    assert told[lost].end is None


def test_process_0_that_is_killed_is_missed_by_all():
    port = free_port()
    child = os.fork()
    if not child:  # process 0, which only listens and ends without a word
        with contextlib.suppress(BaseException):
            RollCall(("127.0.0.1", port), 3, 10.0)
            call(port, 0, 3)
            time.sleep(0.3)
        os._exit(0)
    found = {}
    threads = [
        threading.Thread(target=lambda i=i: found.update({i: call(port, i, 3)}))
        for i in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    os.waitpid(child, 0)
    for i in (1, 2):
        code, text = found[i][1].wait()
        assert code == 1
        assert text.startswith(f"process 0 at 127.0.0.1:{port} ended without a word")


@pytest.mark.parametrize("code", [1, 2])
@pytest.mark.parametrize("failing", [0, 1])
def test_the_reason_of_one_is_told_to_the_others_with_its_code(failing, code):
    roll_call, here, told = full(2)
    thread = threading.Thread(target=here[failing].fail, args=(code, "no such file"))
    thread.start()
    other = 1 - failing
    if failing:  # process 0 stays until this one is gone
        thread.join(10)
        assert told[0].end is None
        cut(here[1])
    assert told[other].wait() == (
        code,
        f"process {failing} (host-{failing}, pid {100 + failing}) ended: no such file",
    )
    cut(here[other])
    thread.join(10)
    assert not thread.is_alive() and told[failing].end is None
    roll_call.close(5)


def test_a_process_that_is_silent_is_taken_as_lost(monkeypatch):
    monkeypatch.setattr(lines, "BEAT_SECS", 0.1)
    roll_call = RollCall(("127.0.0.1", 0), 2, 10.0, lost_secs=0.6)
    silent = socket.create_connection(("127.0.0.1", roll_call.port))
    lines.send(silent, say="hello", **hello(1, 2))
    one, told = call(roll_call.port, 0, 2)
    assert isinstance(one, Line)
    closing = threading.Timer(1.2, silent.close)  # it gets no tick either, and ends
    closing.start()
    code, text = told.wait()
    assert code == 1
    assert "nothing was heard of process 1 (host-1, pid 101) for 0.6 s" in text
    closing.join()


def test_beats_keep_a_quiet_job_together():
    roll_call, here, told = full(2, lost_secs=1.0)
    time.sleep(1.5)
    assert [one.end for one in told] == [None, None]
    leave(roll_call, here)


def test_leaving_one_after_the_other_ends_nobody():
    roll_call, here, told = full(3)
    for one in here[1:]:
        one.bye()
    time.sleep(0.3)
    assert told[0].end is None
    here[0].bye()
    roll_call.close(5)
    assert not roll_call._thread.is_alive()


def test_many_processes_are_named_by_the_first_few():
    roll_call = RollCall(("127.0.0.1", 0), 40, 0.3)
    end, _ = call(roll_call.port, 0, 40, secs=0.3)
    assert re.match(r"processes 1, 2, 3, 4, 5, 6, 7, 8 and 31 more of 40 did", str(end))


def test_a_message_is_one_line_of_json():
    left, right = socket.socketpair()
    lines.send(left, say="beat", note="a\nb")
    received = right.recv(1000)
    assert received.count(b"\n") == 1
    assert json.loads(received) == {"say": "beat", "note": "a\nb"}
    left.close()
    right.close()
