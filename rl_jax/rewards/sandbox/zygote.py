"""The process that programs are forked from: a bare interpreter with nothing to hide.

It never sees a program's text, input or output: those go by descriptor, from the grader
straight to the program. What it has in memory, every program can read.
"""

import ctypes
import dataclasses
import importlib
import os
import resource
import select
import signal
import site
import socket
import sys

from rl_jax.rewards.sandbox import (
    kernel,
    landlock,
    monitor,
    namespaces,
    program,
    root,
    seccomp,
    wire,
)
from rl_jax.rewards.sandbox.layers import Layers

# Imported by most programs that are worth running; a fork has them at once. Not random:
# its state would be the same in each.
_PRELOADED = (
    "bisect collections copy dataclasses datetime decimal functools heapq io itertools "
    "json math operator re string traceback typing"
)
# Extensions that need a display, a terminal or a database of users.
_NOT_LOADED = ("_tkinter", "_test", "xx", "nis", "ossaudiodev", "_curses", "readline")

# Before this the kernel counted a user's processes in all namespaces together.
_OWN_COUNT_SINCE = (5, 14)
# Where it counts those of the user's other work too, that may grow by this much.
_LOOSE_TASKS = 4096
# Where it does not: the first process, the zygote, two programs and their monitors.
_OWN_TASKS = 6


def main() -> None:
    """Serves until the grader closes its end. Never returns."""
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
    plan, _ = wire.receive(control)
    try:
        layers = _set_up(set(plan["without"]))
    except Exception as error:
        reason = str(error) if isinstance(error, OSError) else repr(error)
        wire.send(control, {"error": reason})
        os._exit(1)
    wire.send(control, {"ready": dataclasses.asdict(layers)})
    job = _serve(control, layers)
    if job is not None:
        control.detach()
        program.run(job, layers)
    os._exit(0)


def _set_up(without: set[str]) -> Layers:
    """Loads what programs may need and goes where they will live."""
    _preload()
    with open("/proc/self/statm") as file:
        num_pages, num_resident, *_ = map(int, file.read().split())
    page = resource.getpagesize()
    num_tasks = _count_tasks()
    can_change = namespaces.can_become_nobody()
    apart = "namespaces" not in without
    notes = []
    if apart:
        watched = namespaces.enter(watch="watch" not in without)
        user = namespaces.NOBODY if can_change else None
        if not watched:
            notes.append("no private /proc: programs may not start processes")
    else:
        watched = False
        user = namespaces.NOBODY if can_change and _others_can_read() else None
        if can_change and user is None:
            notes.append("programs run as root: others may not read the library")
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    counted = _processes_are_counted(user)
    if not counted:
        notes.append("no limit on processes for this user: programs may not start any")
    if not apart or _kernel_version() < _OWN_COUNT_SINCE:
        base_processes = num_tasks + _LOOSE_TASKS
    else:
        base_processes = _OWN_TASKS if user is None else 0
    return Layers(
        namespaces=apart,
        landlock=0 if "landlock" in without else landlock.version(),
        user=user,
        counted=counted,
        watched=watched,
        notify=seccomp.can_notify(),
        base_bytes=num_pages * page,
        base_resident=num_resident * page,
        base_processes=base_processes,
        notes=tuple(notes),
    )


def _preload() -> None:
    """Imports modules, and maps the shared libraries that any other would need.

    The latter by loading every extension of the standard library: their own files can
    be opened later, the system's libraries cannot.
    """
    sys.set_int_max_str_digits(0)  # long numbers are a program's right
    site.setquit()
    site.sethelper()
    for name in _PRELOADED.split():
        importlib.import_module(name)
    for folder in sys.path:
        if os.path.basename(folder) != "lib-dynload":
            continue
        for name in sorted(os.listdir(folder)):
            if name.endswith(".so") and not name.startswith(_NOT_LOADED):
                try:
                    ctypes.CDLL(os.path.join(folder, name))
                except OSError:  # what it needs is not installed: nobody can import it
                    pass


def _kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def _count_tasks() -> int:
    """Processes and threads of this user on the whole machine."""
    total = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                total += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            pass
    return total


def _others_can_read() -> bool:
    """Whether a user without rights can use the standard library where it lies."""
    folders = [path for path in root.library() if os.path.isdir(path)]
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(*[namespaces.NOBODY] * 3)
            os.setresuid(*[namespaces.NOBODY] * 3)
            for folder in folders:
                os.listdir(folder)
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _processes_are_counted(user: int | None) -> bool:
    """Whether the limit on processes holds, tried out.

    It does not for the machine's root, whatever number that user has in here.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if user is not None:
                os.setresuid(user, user, user)
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            if os.fork() == 0:
                os._exit(0)
        except BlockingIOError:
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def _serve(control: socket.socket, layers: Layers) -> program.Job | None:
    """Starts a monitor for each request. Returns a job in each program's process."""
    poller = select.poll()
    poller.register(control, select.POLLIN)
    monitors: dict[int, int] = {}  # pidfd -> pid
    while True:
        for fd, _ in poller.poll():
            if fd in monitors:
                os.waitpid(monitors.pop(fd), 0)
                poller.unregister(fd)
                os.close(fd)
                continue
            try:
                message, fds = wire.receive(control)
            except EOFError:
                for pidfd in monitors:
                    kernel.kill(pidfd)
                return None
            job = program.Job(**message, fds=fds)
            try:
                pid = namespaces.fork_apart() if layers.namespaces else os.fork()
            except OSError as error:
                wire.send(control, {"error": f"a program cannot be started: {error}"})
                pid = -1
            if pid == 0:
                os.close(control.fileno())
                for pidfd in monitors:
                    os.close(pidfd)
                return monitor.run(job, layers)
            if pid > 0:
                pidfd = kernel.pidfd_open(pid)
                monitors[pidfd] = pid
                poller.register(pidfd, select.POLLIN)
                wire.send(control, {"started": True}, [pidfd])
            for fd in fds:
                os.close(fd)
