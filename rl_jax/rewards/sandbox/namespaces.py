"""Leaving the machine behind: a user, a network, a set of processes of one's own.

first process   unshares everything, builds the root, waits
  zygote        number 1 of the new process namespace: when it dies, all die
    monitor     number 1 of a further one, with mounts of its own: one a program
      program
"""

import ctypes
import os
import signal

from rl_jax.rewards.sandbox import kernel, root

# Inside and outside, where we may choose: the conventional user without any rights.
NOBODY = 65534

_ALL = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
)


def can_become_nobody() -> bool:
    """Whether this process is root, and of a machine or container that has others."""
    if os.geteuid() != 0:
        return False
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}") as file:
            ranges = [tuple(map(int, line.split())) for line in file]
        if not any(first <= NOBODY < first + count for first, _, count in ranges):
            return False
    return True


def enter(*, watch: bool) -> bool:
    """Moves this process into new namespaces and forks the zygote there.

    Args:
        watch: mount a /proc of the new processes, if the kernel lets us.

    Returns:
        in the zygote: whether there is one. The process that called stays outside of
        the new process namespace and ends with the zygote.

    Raises:
        OSError: the kernel refuses a step; the message names it.
    """
    _unshare_mapped()
    new = root.build()
    pid = os.fork()
    if pid:
        os.closerange(3, 256)  # the zygote's: the grader must see it close
        os.waitpid(pid, 0)
        os._exit(0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    # Before the old root goes: the kernel wants to see a whole /proc to give another.
    watched = watch and root.mount_processes(new + "/proc")
    root.enter(new)
    kernel.call("sethostname", b"sandbox", 7)
    return watched


def _unshare_mapped() -> None:
    """Unshares all; another process, which stays outside, writes who is who."""
    pid = os.getpid()
    told, tell = os.pipe()
    writer = os.fork()
    if writer == 0:
        os.close(tell)
        code = 1
        try:
            if os.read(told, 1):
                _write_maps(pid)
                code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    os.close(told)
    try:
        kernel.call("unshare", _ALL)
        os.write(tell, b"g")
    finally:
        os.close(tell)
        _, status = os.waitpid(writer, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        raise OSError(code, f"writing the user map: {os.strerror(abs(code))}")


def _write_maps(pid: int) -> None:
    if can_become_nobody():
        # Root sets up, as the owner of files that others may not read; programs run
        # as nobody.
        maps = [f"0 0 1\n{NOBODY} {NOBODY} 1"] * 2
    else:
        _write(pid, "setgroups", "deny")
        maps = [f"{NOBODY} {os.geteuid()} 1", f"{NOBODY} {os.getegid()} 1"]
    for name, text in zip(("uid_map", "gid_map"), maps, strict=True):
        _write(pid, name, text)


def _write(pid: int, name: str, text: str) -> None:
    fd = os.open(f"/proc/{pid}/{name}", os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def fork_apart() -> int:
    """Forks a child that is number 1 of a new process namespace with its own mounts.

    Python's os.fork takes no flags. The child must fork once more, properly, before
    anything runs that is not ours: libc still has the parent's thread number in it.
    """
    ctypes.pythonapi.PyOS_BeforeFork()
    flags = kernel.CLONE_NEWPID | kernel.CLONE_NEWNS | signal.SIGCHLD
    pid = -1
    try:
        pid = kernel.call("clone", flags, 0, 0, 0, 0)
    finally:
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
        else:
            ctypes.pythonapi.PyOS_AfterFork_Parent()
    return pid
