"""The program's own process: gives up everything, then runs the text."""

import atexit
import builtins
import contextlib
import dataclasses
import fcntl
import json
import math
import os
import resource
import signal
import socket
import struct
import sys
import types
from typing import Any, NoReturn

from rl_jax.rewards.sandbox import kernel, landlock, root, seccomp
from rl_jax.rewards.sandbox.layers import Layers

# Places in Job.fds; a session's channel follows.
SOURCE, STDIN, STDOUT, STDERR, STATUS, CHANNEL = range(6)

_STACK_BYTES = 64 << 20
_CAPABILITY_VERSION = 0x20080522  # of capset(2): 64 bits in two halves
_LAST_CAPABILITY = 63


@dataclasses.dataclass
class Job:
    """What the zygote is asked to start.

    limits: the fields of `Limits`.
    bounded: the grader has a control group for the family's memory.
    fds: as they were received.
    notices: where the monitor waits for the listener of refused calls.
    monitor: process number of the monitor, as the program sees it.
    """

    limits: dict[str, Any]
    bounded: bool
    fds: list[int]
    notices: socket.socket | None = None
    monitor: int = 0


def report(status: socket.socket, message: dict[str, Any]) -> None:
    """Tells the grader, if it is still there."""
    with contextlib.suppress(OSError):
        status.send(json.dumps(message).encode(), socket.MSG_NOSIGNAL)


def run(job: Job, layers: Layers) -> NoReturn:
    """Runs the program and ends with it."""
    status = socket.socket(fileno=job.fds[STATUS])
    try:
        source = _read_all(job.fds[SOURCE])
        status = _place_descriptors(job, status)
        _open_streams()
        _limit(job.limits, layers)
        name = _settle(source, layers)
        _renounce(job, layers)
    except BaseException as error:
        # The program has not begun, so this can only be our own fault.
        report(status, {"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    status.close()
    _execute(source, name)


def _read_all(fd: int) -> bytes:
    with open(fd, "rb") as file:
        return file.read()


def _place_descriptors(job: Job, status: socket.socket) -> socket.socket:
    """Leaves 0 to 2 and the channel; behind them ours, for as long as it takes."""
    assert job.notices is not None
    wanted = [*job.fds[STDIN:STATUS], *job.fds[CHANNEL:]]
    num_kept = len(wanted)
    wanted += [status.detach(), job.notices.detach()]
    # Out of the way first, so that no number is overwritten before it is read.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in wanted]
    for number, fd in enumerate(high):
        os.dup2(fd, number)
    _close_from(len(high))
    job.notices = socket.socket(fileno=num_kept + 1)
    return socket.socket(fileno=num_kept)


def _close_from(first: int) -> None:
    try:
        kernel.call("close_range", first, (1 << 32) - 1, 0)
    except OSError:  # before 5.9; ours are few, and the lowest there were
        os.closerange(first, 256)


def _open_streams() -> None:
    """Streams on the new descriptors, as a fresh interpreter has them."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = open(
            number,
            "w" if number else "r",
            buffering=1 if number == 2 else -1,
            encoding="utf-8",
            errors="backslashreplace" if number == 2 else "surrogateescape",
            closefd=False,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _limit(limits: dict[str, Any], layers: Layers) -> None:
    cpu_secs = math.ceil(limits["cpu_secs"])
    address_bytes = limits["memory_bytes"] + layers.base_bytes
    processes = limits["processes"] + layers.base_processes
    for kind, soft, hard in (
        (resource.RLIMIT_CPU, cpu_secs, cpu_secs + 1),
        (resource.RLIMIT_AS, address_bytes, address_bytes),
        (resource.RLIMIT_STACK, _STACK_BYTES, _STACK_BYTES),
        (resource.RLIMIT_NPROC, processes, processes),
        (resource.RLIMIT_FSIZE, limits["file_bytes"], limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"], limits["open_files"]),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        _, most = resource.getrlimit(kind)
        if most != resource.RLIM_INFINITY:  # the user's own limit may be lower
            soft, hard = min(soft, most), min(hard, most)
        resource.setrlimit(kind, (soft, hard))


def _settle(source: bytes, layers: Layers) -> str:
    """Changes user and folder. Returns the program's name, for its tracebacks."""
    if layers.namespaces:
        os.setsid()
    for number in range(_LAST_CAPABILITY + 1):
        # Fails without a privilege to lose, and past the last that there is.
        with contextlib.suppress(OSError):
            kernel.prctl(kernel.PR_CAPBSET_DROP, number)
    if layers.user is not None:
        os.setgroups([])
        os.setresgid(layers.user, layers.user, layers.user)
        os.setresuid(layers.user, layers.user, layers.user)
    os.umask(0o077)
    os.environ.clear()
    if not layers.namespaces:
        os.chdir("/")
        return "<program>"
    os.chdir(root.BOX)
    try:
        with open("program.py", "wb") as file:
            file.write(source)
    except OSError:  # longer than what it may write: it runs all the same
        with contextlib.suppress(OSError):
            os.remove("program.py")
        return "<program>"
    return f"{root.BOX}/program.py"


def _renounce(job: Job, layers: Layers) -> None:
    """Gives up privileges, then files, then system calls. There is no way back."""
    # Only now: a change of user undoes it. And the program cannot, by the filter.
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != job.monitor:  # it died before we asked
        os._exit(1)
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    kernel.call("capset", header, bytes(24))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    if layers.landlock:
        rules = landlock.ruleset(_visible(layers), abi=layers.landlock)
        landlock.restrict(rules)
        os.close(rules)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = seccomp.build(
        alone=0 if layers.may_fork(job.bounded) else os.getpid(),
        own_files=layers.namespaces,
        read_only=not layers.namespaces and not layers.landlock,
        notify=layers.notify,
    )
    listener = seccomp.install(code, notify=layers.notify)
    assert job.notices is not None
    if layers.notify:
        socket.send_fds(job.notices, [b"l"], [listener])
        os.close(listener)
    job.notices.close()


def _visible(layers: Layers) -> dict[str, int]:
    """What Landlock lets the program open."""
    devices = dict.fromkeys(root.DEVICES, landlock.DEVICE)
    if layers.namespaces:
        return {"/": landlock.READ, root.BOX: landlock.WRITE | landlock.READ} | devices
    paths: dict[str, int] = {}
    for folder, parts in root.library_parts().items():
        paths[folder] = landlock.LIST
        paths |= dict.fromkeys(parts, landlock.READ)
    return paths | devices


def _execute(source: bytes, name: str) -> NoReturn:
    """Runs the text as `python program.py` would, and ends the process."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    main.__file__ = name
    for loaded in [key for key in sys.modules if key.partition(".")[0] == "rl_jax"]:
        del sys.modules[loaded]
    sys.modules["__main__"] = main
    sys.argv[:] = [name]
    code = 1
    try:
        exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)
        code = 0
    except SystemExit as error:
        if error.code is None:
            code = 0
        elif isinstance(error.code, int):
            code = error.code & 0xFF
        else:
            print(error.code, file=sys.stderr)
    except BaseException as error:
        if error.__traceback__ is not None:  # without our own line
            error.__traceback__ = error.__traceback__.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
