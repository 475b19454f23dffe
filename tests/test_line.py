"""Lines that do not come about; `test_roll_call.py` has those that do."""

import re
import socket
import threading
import time

import pytest

from rl_jax.line import Ended, Line, spelt


def call(port, secs):
    hello = {"id": 1, "num_processes": 2, "host": "here", "pid": 1}
    Line(("127.0.0.1", port), hello, secs, on_end=print)


def answering(text):
    """The port of a server that says `text` to the first who calls."""
    server = socket.create_server(("127.0.0.1", 0))

    def run():
        connection, _ = server.accept()
        connection.recv(1000)
        connection.sendall(text)
        connection.close()
        server.close()

    threading.Thread(target=run, daemon=True).start()
    return server.getsockname()[1]


def test_process_0_that_is_not_there_is_named_with_its_address_and_the_time():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(Ended, match=f"did not answer at 127.0.0.1:{port} within 0.7 s"):
        call(port, 0.7)
    assert time.monotonic() - began < 3


def test_a_line_to_itself_is_no_answer(monkeypatch):
    def connect_to_itself(address, timeout):
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        one.connect(one.getsockname())
        return one

    monkeypatch.setattr(socket, "create_connection", connect_to_itself)
    with pytest.raises(Ended, match=r"did not answer.*\(connected to itself\)"):
        call(1, 0.1)


@pytest.mark.parametrize(
    "text, message",
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "something else than process 0 at"),
        (b"{}\n", "something else than process 0 at"),
        (b"", "closed the line before all processes had come"),
        (b'{"say": "end", "code": 2, "text": "twice"}\n', "^twice$"),
    ],
)
def test_what_answers_instead_is_told(text, message):
    with pytest.raises(Ended, match=re.compile(message)) as caught:
        call(answering(text), 5.0)
    assert caught.value.code == (2 if "twice" in message else 1)


def test_addresses_are_spelt_as_people_write_them():
    assert spelt(("10.0.0.2", 8476)) == "10.0.0.2:8476"
    assert spelt(("fd00::2", 8476)) == "[fd00::2]:8476"
