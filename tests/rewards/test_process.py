import contextlib
import os
import select
import signal
import time

import pytest

from rl_jax.rewards.process import ProtocolError, WorkerProcess

JOB = b'{"jobs": [{"id": 0, "job": {"completion": "", "prompt": ""}}]}'


def start(tmp_path, body):
    path = tmp_path / "mine.py"
    path.write_text(f"import os, time\ndef fn(completion):\n    {body}\n")
    name = f"{path}:fn"
    worker = WorkerProcess(
        {
            "functions": {"fn": name},
            "weights": {"fn": 1.0},
            "options": {},
            "path": [],
        }
    )
    assert next_messages(worker)[0]["ready"]
    return worker


def next_messages(worker):
    assert select.select([worker.stdout], [], [], 60)[0]
    return worker.receive()


def is_gone(worker):
    deadline = time.monotonic() + 10
    while not worker.ended() and time.monotonic() < deadline:
        time.sleep(0.01)
    return worker.ended() and not os.path.exists(f"/proc/{worker.pid}")


def test_killing_takes_the_whole_process_group_and_leaves_no_zombie(tmp_path):
    body = f"os.system('sleep 100 & echo $! > {tmp_path}/pid'); time.sleep(100)"
    worker = start(tmp_path, body)
    worker.send(JOB)
    pid_file = tmp_path / "pid"
    deadline = time.monotonic() + 30
    while not (pid_file.exists() and pid_file.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    child = int(pid_file.read_text())
    worker.kill()
    assert is_gone(worker)
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{child}") and time.monotonic() < deadline:
        # It may vanish while it is looked at.
        with contextlib.suppress(OSError), open(f"/proc/{child}/stat") as file:
            if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                break  # dead; who adopted it reaps it
        time.sleep(0.01)
    else:
        assert not os.path.exists(f"/proc/{child}")


def test_a_dead_worker_says_what_killed_it(tmp_path):
    worker = start(tmp_path, "os.kill(os.getpid(), 11)")
    worker.send(JOB)
    with pytest.raises(EOFError):
        next_messages(worker)
    assert worker.cause_of_death() == "was killed by SIGSEGV"
    assert is_gone(worker)


def test_what_is_not_json_is_a_protocol_error(tmp_path):
    body = """
    import contextlib, stat
    for fd in range(3, 9):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(fd).st_mode): os.write(fd, b"garbage\\n")
    """
    worker = start(tmp_path, body)
    worker.send(JOB)
    with pytest.raises(ProtocolError, match="garbage"):
        for _ in range(3):
            next_messages(worker)
    worker.kill()
    assert is_gone(worker)


def test_a_line_longer_than_the_pipe_is_sent_without_blocking(tmp_path):
    worker = start(tmp_path, "return len(completion)")
    os.kill(worker.pid, signal.SIGSTOP)  # it reads nothing for now
    text = b"x" * 3_000_000
    waiting = worker.send(
        b'{"jobs": [{"id": 0, "job": {"prompt": "", "completion": "%b"}}]}' % text
    )
    assert waiting
    os.kill(worker.pid, signal.SIGCONT)
    while waiting:
        select.select([], [worker.stdin], [], 10)
        waiting = worker.flush()
    messages = next_messages(worker)
    while not any("score" in message for message in messages):
        messages = next_messages(worker)
    assert messages[-1]["score"]["value"] == 3_000_000
    worker.kill()
    assert is_gone(worker)
