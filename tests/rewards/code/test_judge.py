"""Whole replies against whole tests, in the real sandbox."""

import json

import pytest

from rl_jax.rewards.code.judge import judge_job
from rl_jax.rewards.code.options import CodeOptions
from rl_jax.rewards.sandbox import Sandbox
from rl_jax.rewards.score import Verdict

LARGEST = {
    "type": "stdin",
    "checker": "lines",
    "cases": [
        {"input": "4\n7 2 9 4\n", "output": "9\n"},
        {"input": "1\n-3\n", "output": "-3\n"},
        {"input": "3\n5 5 1\n", "output": "5\n"},
    ],
}
MUL = {
    "type": "functional",
    "entry_point": "mul",
    "cases": [
        {"args": [3, 4], "expected": 12},
        {"args": [-2], "kwargs": {"b": 6}, "expected": -12},
        {"args": [0, 8], "expected": 0},
    ],
}
GOOD_LARGEST = "input()\nprint(max(map(int, input().split())))"
GOOD_MUL = "def mul(a, b):\n    return a * b"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("none") as sandbox:  # as much as there is
        yield sandbox


def judged(sandbox, reply, tests, prompt="", **options):
    job = {"completion": reply, "answer": json.dumps(tests), "prompt": prompt}
    return judge_job(job, CodeOptions(**options), sandbox)


@pytest.mark.parametrize(
    ("reply", "tests"),
    [
        (GOOD_LARGEST, LARGEST),
        (f"So:\n```python\n{GOOD_LARGEST}\n```", LARGEST),
        ("import sys\nn, *xs = map(int, sys.stdin.buffer.read().split())\n"
         "sys.stdout.buffer.write(b'%d\\n' % max(xs[:n]))", LARGEST),
        (f"from __future__ import annotations\n{GOOD_LARGEST}", LARGEST),
        (f"{GOOD_LARGEST}\nif __name__ != '__main__':\n    print(1)", LARGEST),
        (GOOD_MUL, MUL),
        ("class Solution:\n    def mul(self, a: int, b: int) -> Optional[int]:\n"
         "        return a * b", MUL),
        (f"{GOOD_MUL}\nif __name__ == '__main__':\n    print(input())", MUL),
        ("from functools import partial\nimport operator\n"
         "mul = lambda a, b: operator.mul(a, b)", MUL),
    ],
)  # fmt: skip
def test_right_programs(sandbox, reply, tests):
    score = judged(sandbox, reply, tests)
    assert (score.value, score.verdict, score.detail) == (1.0, Verdict.CORRECT, "")
    assert score.seconds > 0 and score.answer in reply


@pytest.mark.parametrize(
    ("reply", "tests", "verdict", "detail"),
    [
        ("print(9)", LARGEST, "wrong", "test 2: line 1 differs"),
        ("print('9\\n9')", LARGEST, "wrong", "test 1: 2 lines instead of 1"),
        ("print(9)\nprint(1 // 0)", LARGEST, "crash", "test 1: ZeroDivisionError"),
        ("print(9)\nraise SystemExit(3)", LARGEST, "crash", "exit status"),
        ("def f(n):\n    return f(n + 1)\nf(0)", LARGEST, "crash", "RecursionError"),
        ("import nowhere", LARGEST, "crash", "ModuleNotFoundError"),
        ("```python\nprint(9\n```", LARGEST, "crash", "SyntaxError"),
        ("Print the largest number.", LARGEST, "unparsable_reply", "neither"),
        ("<think>print(9)", LARGEST, "unparsable_reply", "no program"),
        ("def mul(a, b):\n    return a + b", MUL, "wrong", "test 1: another value"),
        ("def mul(a, b):\n    pass", MUL, "wrong", "another value"),
        ("def mul(a, b):\n    return 'no'[a]", MUL, "crash", "IndexError"),
        ("def add(a, b):\n    return 3", MUL, "wrong", "defines no mul"),
        ("print('12')", MUL, "wrong", "defines no mul"),
        (f"{GOOD_MUL}\nraise SystemExit(0)", MUL, "crash", "SystemExit"),
        ("import os\ndef mul(a, b):\n    os._exit(0)", MUL, "crash", "left before"),
        ("import sys\ndef mul(a, b):\n    sys.exit(0)", MUL, "crash", "SystemExit"),
        (
            "class Same:\n    def __eq__(self, other):\n        return True\n"
            "def mul(a, b):\n    return Same()",
            MUL, "wrong", "another value",
        ),
        (
            "import builtins\nbuiltins.all = lambda *a: True\n"
            "builtins.repr = str = lambda *a: '12'\ndef mul(a, b):\n    return 0",
            MUL, "wrong", "another value",
        ),
        (
            "print('1 passed in 0.01s')\n"
            "def mul(a, b):\n    print('OK')\n    return -1",
            MUL, "wrong", "another value",
        ),
    ],
)  # fmt: skip
def test_programs_that_fail_say_how(sandbox, reply, tests, verdict, detail):
    score = judged(sandbox, reply, tests)
    assert (score.value, score.verdict) == (0.0, verdict)
    assert detail in score.detail
    assert "-12" not in score.detail and "expected" not in score.detail


@pytest.mark.parametrize(
    ("reply", "tests"),
    [
        ("while True:\n    pass", LARGEST),
        ("import threading\nthreading.Event().wait()", LARGEST),
        ("print(9, flush=True)\nwhile True:\n    pass", LARGEST),
        ("def mul(a, b):\n    while True:\n        pass", MUL),
        ("while True:\n    pass", MUL),
        (f"{GOOD_MUL}\nimport time\ntime.sleep(60)", MUL),
    ],
)
def test_a_program_that_does_not_end_is_stopped(sandbox, reply, tests):
    score = judged(sandbox, reply, tests, test_secs=0.3)
    assert (score.value, score.verdict) == (0.0, Verdict.TIMEOUT)
    assert 0.3 <= score.seconds < 1.5


def test_the_time_of_all_tests_is_bounded_too(sandbox):
    reply = "import time\ntime.sleep(0.2)\n" + GOOD_LARGEST
    tests = {**LARGEST, "cases": LARGEST["cases"] * 10}
    score = judged(sandbox, reply, tests, total_secs=0.7, credit="pass_rate")
    assert score.verdict == Verdict.TIMEOUT and score.seconds < 1.5
    assert score.value is not None and 0 < score.value < 0.2


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ({}, 0.0),
        ({"wall_secs": 2}, 1.0),
        ({"wall_secs": 0.1}, 0.0),
        ({"time_limit": 2}, 1.0),  # a data set's own can only lengthen it
        ({"time_limit": 0.01}, 0.0),
    ],
)
def test_a_row_may_have_a_time_limit_of_its_own(sandbox, limit, value):
    reply = "import time\ntime.sleep(0.3)\nprint(9)"
    tests = {**LARGEST, "cases": LARGEST["cases"][:1], **limit}
    assert judged(sandbox, reply, tests, test_secs=0.2).value == value


@pytest.mark.parametrize("tests", [LARGEST, MUL])
def test_memory_is_bounded(sandbox, tests):
    reply = "x = bytearray(400 << 20)\n" + (GOOD_MUL if tests is MUL else GOOD_LARGEST)
    score = judged(sandbox, reply, tests, memory_bytes=200 << 20)
    assert (score.value, score.verdict) == (0.0, Verdict.CRASH)
    assert "memory" in score.detail or "MemoryError" in score.detail


def test_output_is_bounded(sandbox):
    score = judged(sandbox, "print('9' * 100_000)", LARGEST, output_bytes=10_000)
    assert (score.value, score.detail) == (0.0, "test 1: printed too much")


def test_what_is_refused_is_the_verdict_only_if_the_program_fails(sandbox):
    dial = (
        "import socket\ntry:\n"
        "    socket.create_connection(('127.0.0.1', 9), timeout=1)\n"
        "except OSError:\n    pass\n"
    )
    if not sandbox.layers.notify:
        pytest.skip("this kernel does not report what is refused")
    assert judged(sandbox, dial + GOOD_LARGEST, LARGEST).verdict == Verdict.CORRECT
    for reply, tests in [
        (dial + "print(1)", LARGEST),
        (dial + "def mul(a, b):\n    return 1", MUL),
        (dial + "raise ValueError", MUL),
    ]:
        score = judged(sandbox, reply, tests)
        assert (score.value, score.verdict) == (0.0, Verdict.BLOCKED)
        assert "socket" in score.detail


HALF_MUL = "def mul(a, b):\n    return 12 if a == 3 else 1 // b and 0"


@pytest.mark.parametrize(
    ("options", "value", "verdict"),
    [
        ({}, 0.0, "wrong"),
        ({"credit": "pass_rate"}, 2 / 3, "wrong"),
        ({"credit": "pass_rate", "threshold": 0.7}, 0.0, "wrong"),
        ({"credit": "pass_rate", "threshold": 0.6}, 2 / 3, "wrong"),
        ({"threshold": 0.6}, 1.0, "correct"),
        ({"threshold": 0.7}, 0.0, "wrong"),
        ({"max_tests": 1}, 1.0, "correct"),
    ],
)
def test_credit_is_all_or_nothing_or_the_share_of_tests(
    sandbox, options, value, verdict
):
    score = judged(sandbox, HALF_MUL, MUL, **options)
    assert (score.value, score.verdict) == (pytest.approx(value), verdict)


def test_a_test_that_kills_the_program_costs_only_itself(sandbox):
    for bad in ("os._exit(0)", "os.kill(os.getpid(), 9)", "time.sleep(9)"):
        reply = (
            "import os, time\ndef mul(a, b):\n"
            f"    if a == -2:\n        {bad}\n    return a * b"
        )
        score = judged(sandbox, reply, MUL, credit="pass_rate", test_secs=0.5)
        assert score.value == pytest.approx(2 / 3)
        assert score.detail.startswith("test 2: ")
        reply = (
            "import os, time\ninput()\nxs = input()\n"
            f"if '-' in xs:\n    {bad}\nprint(max(map(int, xs.split())))"
        )
        score = judged(sandbox, reply, LARGEST, credit="pass_rate", test_secs=0.5)
        assert score.value == pytest.approx(2 / 3)


@pytest.mark.parametrize("without", [[], ["namespaces"]])
def test_no_state_is_left_over_for_the_next_test(without):
    reply = (
        "calls = []\ndef mul(a, b):\n    calls.append(a)\n"
        "    return a * b if len(calls) == 1 else None"
    )
    asserts = {"type": "assert", "code": ["assert mul(2, 3) == 6"] * 3}
    with Sandbox("none", without=frozenset(without)) as sandbox:
        assert judged(sandbox, reply, MUL).value == 1.0
        assert judged(sandbox, reply, asserts).value == 1.0
        reply = (
            "import os\nif os.path.exists('seen'):\n    print('no')\n"
            "try:\n    open('seen', 'w').close()\nexcept OSError:\n    pass\n"
        )
        assert judged(sandbox, reply + GOOD_LARGEST, LARGEST).value == 1.0


ANY_ORDER = {
    "type": "stdin",
    "checker": "custom",
    "checker_code": (
        "def check(given, out):\n    n = int(given)\n    return "
        "sorted(map(int, out.split())) == [d for d in range(1, n + 1) if n % d == 0]"
    ),
    "cases": [{"input": "12\n", "output": "1 2 3 4 6 12\n"}],
}


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("n = int(input())\nprint(*[d for d in (12, 6, 4, 3, 2, 1)])", "correct"),
        ("print(1, 2, 3, 4, 6)", "wrong"),
        ("print('many')", "wrong"),
    ],
)  # fmt: skip
def test_a_checker_of_the_row_decides(sandbox, reply, verdict):
    assert judged(sandbox, reply, ANY_ORDER).verdict == verdict


def test_a_checker_may_look_at_the_expected_output(sandbox):
    checker = (
        "def check(given, out, expected):\n    return len(out) == len(expected), ''"
    )
    tests = {**ANY_ORDER, "checker_code": checker}
    assert judged(sandbox, "print('1 2 3 4 6 x2')", tests).value == 1.0
    assert judged(sandbox, "print('')", tests).value == 0.0


@pytest.mark.parametrize(
    "checker",
    ["def check(given, out)", "import nowhere\ndef check(given, out): pass"],
)
def test_a_checker_that_does_not_load_makes_the_tests_unusable(sandbox, checker):
    score = judged(sandbox, "print(1)", {**ANY_ORDER, "checker_code": checker})
    assert (score.value, score.verdict) == (None, Verdict.UNPARSABLE_GOLD)
    assert "checker" in score.detail


def test_rows_without_tests_have_no_score(sandbox):
    score = judged(sandbox, "print(1)", {"cases": []})
    assert (score.value, score.verdict) == (None, Verdict.UNPARSABLE_GOLD)
    assert "no tests" in score.detail


def test_numbers_of_any_length_can_be_printed_and_returned(sandbox):
    tests = {**LARGEST, "cases": [{"input": "9500\n", "output": f"{'9' * 6000}\n"}]}
    assert judged(sandbox, "print(10 ** 6000 - 1)", tests).value == 1.0
    tests = {**MUL, "cases": [{"args": [1 << 900, 1 << 900], "expected": 1 << 1800}]}
    assert judged(sandbox, GOOD_MUL, tests).value == 1.0


WEIRD = [
    "{}",
    "{'value': None, 'loaded': True}",
    "{'value': {'tuple': 3}, 'names': 5}",
    "{'raised': 7, 'left': 'x'}",
    "{'left': []}",
    "{'missing': {}}",
    "{'names': {'mul': ['value', {'int': 'zz'}]}, 'value': {'handle': 'x'}}",
    "{'names': {'mul': ['object', 1]}, 'value': {'handle': []}}",
    "{'names': {'mul': ['exception', 3]}}",
    "{'names': {'mul': ['object', 1]}, 'changed': 7, 'value': 1}",
    "{'names': {'mul': ['object', 1]}, 'raised': {'type': 3, 'bases': 4, 'text': 5}}",
    "{'names': {'mul': ['object', 1]}, 'unusable': 'no', 'ready': 0, 'passed': True}",
]
ASSERT = {"type": "assert", "entry_point": "mul", "code": "assert mul(3, 4) == 12"}


@pytest.mark.parametrize("answer", WEIRD)
@pytest.mark.parametrize("tests", [MUL, ASSERT])
def test_no_answer_of_a_program_makes_it_right_or_its_score_missing(
    sandbox, answer, tests
):
    reply = (
        f"import __main__\n__main__._do = lambda request: {answer}\n"
        f"__main__._description = lambda name: {answer}.get('names', {{}}).get(name)\n"
        "def mul(a, b):\n    return 0"
    )
    score = judged(sandbox, reply, tests)
    assert score.value == 0.0
    assert score.verdict in (Verdict.WRONG, Verdict.CRASH)


@pytest.mark.parametrize(
    "act",
    [
        "os.write(4, b'{}\\n')",
        "os.write(4, b'not json\\n')",
        "os.write(4, b'[' * 100_000 + b'\\n')",
        'os.write(4, b\'{"id": 1, "value": 12}\\n\')',
        "os.close(4)",
        "os.close(3)",
        "os.read(3, 1 << 16)",
    ],
)
@pytest.mark.parametrize("tests", [MUL, ASSERT])
def test_the_channel_itself_gives_nothing_away(sandbox, act, tests):
    for reply in (f"import os\n{act}", f"import os\ndef mul(a, b):\n    {act}"):
        score = judged(sandbox, reply, tests, test_secs=0.3)
        assert score.value == 0.0


def test_a_program_cannot_pass_by_seeing_what_is_expected(sandbox):
    reply = (
        "import sys, gc\ndef mul(a, b):\n    frame = sys._getframe()\n"
        "    while frame:\n"
        "        for scope in (frame.f_locals, frame.f_globals):\n"
        "            for name, value in list(scope.items()):\n"
        "                if name in ('expected', 'accepts', 'answer', 'request'):\n"
        "                    found = value\n        frame = frame.f_back\n"
        "    return {'seen': 12 in gc.get_objects(), 'request': str(found)}"
    )
    score = judged(sandbox, reply, MUL)
    assert score.verdict == Verdict.WRONG
