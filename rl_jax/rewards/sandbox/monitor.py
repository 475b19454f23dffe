"""One process above each program: starts it, cleans up after it, says how it ended.

With namespaces it is number 1 of the program's process namespace, so that its end is
the end of them all, and nothing inside can send it a signal.
"""

import os
import resource
import select
import signal
import socket
import time
from typing import Any

from rl_jax.rewards.sandbox import kernel, program, root, seccomp
from rl_jax.rewards.sandbox.layers import Layers
from rl_jax.rewards.sandbox.namespaces import NOBODY

# Between looks at the family's memory: an address space has its own limit, so only
# several together can go past theirs, and not by much in this time.
_WATCH_SECS = 0.01
_REAP_SECS = 0.1
# The grader keeps time; should it be stopped, nothing may run on.
_GRACE_SECS = 1.0


def run(job: program.Job, layers: Layers) -> program.Job:
    """Forks the program and watches over it. Returns only in the program's process."""
    status = socket.socket(fileno=job.fds[program.STATUS])
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        processes = _own_mounts(job, layers) if layers.namespaces else None
        notices, theirs = socket.socketpair()
        if status.recv(1) != b"g":
            os._exit(0)
        job.monitor = os.getpid()
        pid = os.fork()
        if pid == 0:
            status.detach()
            job.notices = theirs
            return job
        theirs.close()
        for index, fd in enumerate(job.fds):
            if index != program.STATUS:
                os.close(fd)
        program.report(status, _watch(pid, job, layers, status, notices, processes))
    except OSError as error:
        program.report(status, {"error": f"{type(error).__name__}: {error}"})
    os._exit(0)


def _own_mounts(job: program.Job, layers: Layers) -> int | None:
    """Gives the program its folder. Returns /proc, which only we can see, if wanted."""
    root.mount_box(job.limits["file_bytes"], NOBODY)
    processes = None
    if layers.watched and not job.bounded:
        if not root.mount_processes("/proc"):
            raise OSError("a /proc was to be had for the zygote, but not for a program")
        processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        kernel.call("umount2", b"/proc", kernel.MNT_DETACH)
    if layers.watched:
        kernel.call("umount2", b"/proc", kernel.MNT_DETACH)
    return processes


def _watch(
    pid: int,
    job: program.Job,
    layers: Layers,
    status: socket.socket,
    notices: socket.socket,
    processes: int | None,
) -> dict[str, Any]:
    """Waits for the program's end, by itself or by us. Returns what to tell of it."""
    pidfd = kernel.pidfd_open(pid)
    deadline = time.monotonic() + job.limits["wall_secs"] + _GRACE_SECS
    poller = select.poll()
    for fd in (pidfd, status.fileno(), notices.fileno()):
        poller.register(fd, select.POLLIN)
    listener: seccomp.Listener | None = None
    out_of_memory = False
    tick_ms = 1000 * (_REAP_SECS if processes is None else _WATCH_SECS)
    while (end := _reap(pid)) is None:
        events = dict(poller.poll(tick_ms))
        if notices.fileno() in events:  # once: the listener, or the end of the process
            _, fds, _, _ = socket.recv_fds(notices, 1, 1)
            poller.unregister(notices)
            for fd in fds:
                listener = seccomp.Listener(fd)
                poller.register(fd, select.POLLIN)
        if listener and listener.fd in events:
            if events[listener.fd] & select.POLLIN:
                listener.answer()
            else:  # nobody is left under the filter
                poller.unregister(listener.fd)
        if processes is not None and not out_of_memory:
            used = _family_bytes(processes, layers.base_resident)
            out_of_memory = used > job.limits["memory_bytes"]
        gone = status.fileno() in events  # the grader has hung up
        if gone or out_of_memory or time.monotonic() > deadline:
            kernel.kill(pidfd)
    return end | {
        "out_of_memory": out_of_memory,
        "refused": list(listener.seen) if listener else [],
    }


def _reap(pid: int) -> dict[str, Any] | None:
    """Takes in the dead, orphans too. Returns the program's end, once it is there."""
    while True:
        try:
            found, code, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if found == 0:
            return None
        if found == pid:
            return {
                "exit_code": os.WEXITSTATUS(code) if os.WIFEXITED(code) else None,
                "signal": os.WTERMSIG(code) if os.WIFSIGNALED(code) else None,
                "cpu_secs": usage.ru_utime + usage.ru_stime,
            }


def _family_bytes(processes: int, base_resident: int) -> int:
    """Resident memory of all processes but ours; 0 if there is only the program.

    What each shares with the bare interpreter counts once. What they share beyond that
    counts for each: too much rather than too little.
    """
    names = [name for name in os.listdir(processes) if name.isdigit() and name != "1"]
    if len(names) < 2:
        return 0
    total = base_resident
    for name in names:
        try:
            fd = os.open(f"{name}/statm", os.O_RDONLY, dir_fd=processes)
        except OSError:  # it has ended
            continue
        try:
            resident = int(os.read(fd, 128).split()[1]) * resource.getpagesize()
        except (OSError, IndexError):
            resident = 0
        finally:
            os.close(fd)
        total += max(0, resident - base_resident)
    return total
