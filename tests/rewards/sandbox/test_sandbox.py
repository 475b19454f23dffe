import contextlib
import os
import pathlib
import platform
import signal
import subprocess
import sys
import time

import pytest

from rl_jax.errors import ConfigError
from rl_jax.rewards.sandbox import Limits, Sandbox, SandboxError, cgroup
from rl_jax.rewards.sandbox import launcher as launcher_module

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHORT = Limits(wall_secs=0.3)


def descendants(pid):
    """Process ids below this one, zombies included."""
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def first_process(sandbox):
    return sandbox._zygote._process.pid


def wait_until(condition, secs=5.0):
    deadline = time.monotonic() + secs
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


# What a program is given, and what is told of its end.


def test_a_program_reads_its_input_and_prints(each):
    outcome = each.run("print(int(input()) + 1)", stdin=b"41\n")
    assert outcome.stdout == b"42\n"
    assert (outcome.exit_code, outcome.signal, outcome.blocked) == (0, None, "")
    assert not outcome.timed_out and not outcome.output_cut


def test_large_input_and_its_end_are_read(sandbox):
    program = "import sys; print(len(sys.stdin.buffer.read()), repr(sys.stdin.read()))"
    assert sandbox.run(program, stdin=b"x" * 3_000_000).stdout == b"3000000 ''\n"


@pytest.mark.parametrize(
    ("program", "exit_code", "number"),
    [
        ("exit()", 0, None),
        ("import sys; sys.exit(7)", 7, None),
        ("import sys; sys.exit('words')", 1, None),
        ("1 / 0", 1, None),
        ("def f(:", 1, None),
        ("\0", 1, None),
        ("print('\ud800')", 1, None),
        ("import os; os._exit(3)", 3, None),
        ("import os; os.abort()", None, signal.SIGABRT),
        ("import os; os.kill(os.getpid(), 9)", None, signal.SIGKILL),
        ("import ctypes; ctypes.string_at(0)", None, signal.SIGSEGV),
        ("import atexit, os; atexit.register(os._exit, 5)", 5, None),
    ],
)
def test_every_way_to_end_is_told(each, program, exit_code, number):
    outcome = each.run(program)
    assert (outcome.exit_code, outcome.signal) == (exit_code, number)
    assert not outcome.timed_out and not outcome.out_of_memory


def test_a_traceback_shows_the_program_and_nothing_of_ours(each):
    error = each.run("def f():\n    return [][1]\n\nf()\n").stderr.decode()
    assert error.startswith("Traceback (most recent call last):\n")
    assert error.endswith("IndexError: list index out of range\n")
    assert "line 4, in <module>" in error and "rl_jax" not in error


def test_a_program_is_the_main_module_with_what_an_interpreter_has(sandbox):
    program = "import sys; print(__name__, len(sys.argv), quit, 3 ** 9500 > 0)"
    assert sandbox.run(program).stdout.startswith(b"__main__ 1 Use quit()")
    assert len(sandbox.run("print(3 ** 9500)").stdout) == 4534


def test_the_standard_library_can_be_imported_and_nothing_else(each):
    names = "asyncio ctypes decimal hashlib random sqlite3 ssl statistics zoneinfo"
    outcome = each.run(f"import {names.replace(' ', ', ')}")
    assert (outcome.exit_code, outcome.blocked) == (0, ""), outcome.stderr
    for name in ("numpy", "pip", "rl_jax"):
        outcome = each.run(f"import {name}")
        assert b"ModuleNotFoundError" in outcome.stderr


def test_threads_and_event_loops_work(each):
    program = """
import asyncio, concurrent.futures
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(list(pool.map(abs, [-1, -2])))
print(asyncio.run(asyncio.sleep(0, "slept")))
"""
    assert each.run(program).stdout == b"[1, 2]\nslept\n"


def test_processes_of_its_own_work_where_they_can_be_bounded(family):
    program = """
import multiprocessing
with multiprocessing.Pool(2) as pool:
    print(pool.map(abs, [-1, -2]))
"""
    assert family.run(program).stdout == b"[1, 2]\n"


def test_where_they_cannot_be_bounded_there_is_one_with_its_threads(one_process):
    outcome = one_process.run("import os; os.fork()")
    assert b"PermissionError" in outcome.stderr
    assert not one_process.forks
    program = """
import os, threading
thread = threading.Thread(target=lambda: open("a", "w").write("text"))
thread.start()
thread.join()
os.rename("a", "b")
print(open("b").read())
"""
    assert one_process.run(program).stdout == b"text\n"


def test_sets_have_the_same_order_every_time(sandbox):
    program = "print({str(i) for i in range(50)})"
    assert len({sandbox.run(program).stdout for _ in range(3)}) == 1


# What one program leaves, no other finds.


def test_nothing_of_a_program_is_there_for_the_next(each):
    each.run(
        "import builtins, os, sys\n"
        "builtins.mark = sys.mark = os.environ['MARK'] = 'here'\n"
        "import json; json.dumps = None\n"
        "open('mark', 'w').close()\n"
    )
    program = """
import builtins, json, os, sys
found = [hasattr(builtins, "mark"), hasattr(sys, "mark"), "MARK" in os.environ]
try:
    found.append("mark" in os.listdir("."))
except PermissionError:
    pass
print(any(found), json.dumps(1))
"""
    assert each.run(program).stdout == b"False 1\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="reads the memory of another process")
def test_the_text_of_a_program_never_enters_the_memory_that_others_share(apart):
    secret = b"only-this-program-knows-%d" % time.monotonic_ns()
    apart.run(f"'{secret.decode()}'; print(input())", stdin=secret)
    # The program's own processes may still be on their way out.
    wait_until(lambda: len(descendants(first_process(apart))) == 1)
    (pid,) = descendants(first_process(apart))
    num_bytes = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            area, rights, *_ = line.split()
            start, end = (int(part, 16) for part in area.split("-"))
            if "rw" not in rights:
                continue
            memory.seek(start)
            with contextlib.suppress(OSError):
                content = memory.read(end - start)
                num_bytes += len(content)
                assert secret not in content
    assert num_bytes > 1 << 20


# Limits.


def test_a_program_over_its_wall_time_is_stopped(each):
    outcome = each.run("import time; time.sleep(60)", limits=SHORT)
    assert outcome.timed_out and outcome.signal == signal.SIGKILL
    assert 0.3 <= outcome.seconds < 2


def test_a_stopped_or_signal_proof_program_is_stopped_all_the_same(each):
    for program in (
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import signal, time\n"
        "for number in set(signal.Signals) - {9, 19}:\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        "time.sleep(60)",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=[60]).start()",
        "import atexit, time; atexit.register(time.sleep, 60)",
    ):
        outcome = each.run(program, limits=Limits(wall_secs=0.2))
        assert outcome.timed_out and outcome.seconds < 2


def test_a_program_over_its_cpu_time_is_stopped(sandbox):
    program = "import signal; signal.signal(signal.SIGXCPU, signal.SIG_DFL)\nwhile 1: 0"
    outcome = sandbox.run(program, limits=Limits(wall_secs=20, cpu_secs=0.5))
    assert outcome.timed_out and outcome.signal in (signal.SIGXCPU, signal.SIGKILL)


def test_a_program_over_its_memory_is_told_apart(each):
    limits = Limits(memory_bytes=100 << 20)
    outcome = each.run("x = bytearray(200 << 20)", limits=limits)
    assert outcome.out_of_memory and not outcome.timed_out
    assert outcome.stderr.endswith(b"MemoryError\n")
    assert not each.run("x = bytearray(60 << 20)", limits=limits).out_of_memory


def test_a_family_over_its_memory_together_is_stopped(family):
    program = """
import mmap, os, time
for _ in range(2):
    os.fork()
block = mmap.mmap(-1, 60 << 20)
for offset in range(0, 60 << 20, 4096):
    block[offset] = 1
time.sleep(60)
"""
    limits = Limits(memory_bytes=120 << 20, wall_secs=5)
    outcome = family.run(program, limits=limits)
    assert outcome.out_of_memory or outcome.timed_out
    if not family._zygote.group:
        # Seen by polling, and the program stopped; a control group kills some child.
        assert outcome.out_of_memory and outcome.seconds < 4


def test_output_is_cut_and_endless_output_stops_the_program(each):
    limits = Limits(output_bytes=1000, wall_secs=10)
    outcome = each.run("print('a' * 999 + 'b' * 999)", limits=limits)
    assert outcome.stdout == b"a" * 999 + b"b" and outcome.output_cut
    assert outcome.exit_code == 0
    outcome = each.run(
        "import sys; sys.stderr.write('a' * 999 + 'b' * 999)", limits=limits
    )
    assert outcome.stderr == b"a" + b"b" * 999 and outcome.output_cut
    program = "import os\nwhile True: os.write(1, bytes(65536))"
    outcome = each.run(program, limits=limits)
    assert outcome.output_cut and outcome.signal == signal.SIGKILL
    assert not outcome.timed_out and len(outcome.stdout) == 1000


def test_files_are_bounded_one_by_one_and_together(apart):
    limits = Limits(file_bytes=1 << 20)
    outcome = apart.run("open('a', 'wb').write(bytes(2 << 20))", limits=limits)
    assert b"File too large" in outcome.stderr or b"No space" in outcome.stderr
    program = "for i in range(4): open(str(i), 'wb').write(bytes(1 << 19))"
    assert b"No space left" in apart.run(program, limits=limits).stderr
    program = "import os\nfor _ in range(99): os.dup(0)"
    assert b"Too many open files" in apart.run(program, limits=limits).stderr


def test_a_program_longer_than_its_files_may_be_runs_all_the_same(apart):
    program = "print(__file__, len(open(__file__).read()))"
    outcome = apart.run(program)
    assert outcome.stdout == b"/box/program.py %d\n" % len(program)
    limits = Limits(file_bytes=1 << 20)
    outcome = apart.run(f"print(1){' ' * (2 << 20)}", limits=limits)
    assert outcome.stdout == b"1\n"


def test_limits_must_be_above_zero():
    with pytest.raises(ValueError, match="Limits.processes is 0"):
        Limits(processes=0)


# Nothing is left behind.


def test_background_processes_end_with_the_program(family):
    program = """
import os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
    time.sleep(60)
print("done")
"""
    outcome = family.run(program)
    assert outcome.exit_code == 0 and outcome.seconds < 3
    zygote = descendants(first_process(family))
    assert len(zygote) == 1


def test_hangs_and_crashes_leave_no_process_zombie_or_descriptor(each):
    programs = [
        "print(1)",
        "1 / 0",
        "import os; os.kill(os.getpid(), 11)",
        "import time; time.sleep(60)",
        "import os, time\nos.fork()\nos.fork()\nos.setsid()\ntime.sleep(60)",
        "while True: print('x' * 1000)",
    ]
    limits = Limits(wall_secs=0.05, output_bytes=1000)
    each.run("1")
    pid = first_process(each)

    def state():
        return len(descendants(pid)), len(os.listdir("/proc/self/fd"))

    # The first program may be ending still; the zygote is what stays.
    assert wait_until(lambda: len(descendants(pid)) == 1)
    before = state()
    for _ in range(4):
        for program in programs:
            each.run(program, limits=limits)
    assert wait_until(lambda: state() == before, 1.0), (before, state())


def test_the_death_of_the_zygote_is_the_outcome_of_what_ran_and_no_more(each):
    program = "import os, time; os.read(3, 9); os.write(4, b'{}\\n'); time.sleep(60)"
    with each.start(program) as session:
        session.ask({}, 5.0)
        first = first_process(each)
        zygote = min(children(first)) if each.layers.namespaces else first
        os.kill(zygote, signal.SIGKILL)
        outcome = session.close(grace_secs=2.0)
    assert outcome.signal == signal.SIGKILL and outcome.seconds < 2
    assert each.run("print('again')").stdout == b"again\n"


def children(pid):
    return {child for child in descendants(pid) if parent(child) == pid}


def parent(pid):
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def test_closing_ends_all_that_runs():
    sandbox = Sandbox("none")
    session = sandbox.start("import time; time.sleep(60)")
    pid = first_process(sandbox)
    below = descendants(pid) | {pid}
    assert len(below) >= 3
    sandbox.close()
    assert wait_until(lambda: not any(os.path.exists(f"/proc/{p}") for p in below))
    assert session.close().signal == signal.SIGKILL
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run("1")
    sandbox.close()


@pytest.mark.parametrize("without", ["", "namespaces"])
def test_nothing_survives_the_grader(without):
    program = f"""
import os, signal
from rl_jax.rewards.sandbox import Sandbox
sandbox = Sandbox("none", without=frozenset({without.split()!r}))
session = sandbox.start("import time; time.sleep(600)")
print("ready", flush=True)
signal.pause()
"""
    grader = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert grader.stdout is not None and grader.stdout.readline() == b"ready\n"
        assert wait_until(lambda: len(descendants(grader.pid)) >= 3)
        below = descendants(grader.pid)
    finally:
        grader.kill()
        grader.communicate()
    assert wait_until(lambda: not any(is_alive(pid) for pid in below))
    if group := cgroup.create():  # sweeps what the dead grader could not remove
        group.close()


def is_alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


# Levels.


def test_the_level_is_what_was_found(each):
    layers = each.layers
    assert ("no Landlock" in each.describe()) == (not layers.landlock)
    assert layers.namespaces == (each.level == "namespaces")
    assert bool(layers.landlock) or each.level != "landlock"
    assert each.forks == (not each.memory.startswith("one process"))


@pytest.mark.parametrize("isolation", ["namespaces", "landlock"])
def test_too_little_isolation_is_an_error_and_never_silent(isolation):
    without = frozenset({"namespaces", "landlock"})
    with pytest.raises(ConfigError) as caught:
        Sandbox(isolation, without=without)
    text = str(caught.value)
    assert isolation in text and "'none'" in text and len(text.splitlines()) <= 3


def test_the_best_level_is_used_whatever_is_asked_for():
    with Sandbox("none") as least:
        reached = least.level
    with Sandbox(reached) as asked:
        assert asked.level == reached


def test_an_unknown_level_or_machine_is_refused_by_name(monkeypatch):
    with pytest.raises(ConfigError, match="isolation is 'docker'"):
        Sandbox("docker")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(ConfigError, match="riscv64"):
        Sandbox("none")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(ConfigError, match="Darwin"):
        Sandbox("none")


def test_an_interpreter_that_does_not_start_is_our_error(monkeypatch):
    monkeypatch.setattr(launcher_module, "_BOOT", "raise SystemExit(3)")
    with pytest.raises(SandboxError, match="does not start"):
        Sandbox("none")


# Speed: loose bounds, for a machine with other work.


def test_a_trivial_program_costs_little(each):
    each.run("pass")
    seconds = []
    for _ in range(15):
        start = time.perf_counter()
        each.run("print(1)")
        seconds.append(time.perf_counter() - start)
    assert sorted(seconds)[7] < 0.06
