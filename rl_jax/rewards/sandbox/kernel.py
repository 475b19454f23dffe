"""The system calls that Python has no function for, on both sides of the fence.

Python's own os.pidfd_open and os.memfd_create are missing in builds against an old
libc, so these go by number too.
"""

import ctypes
import fcntl
import functools
import os
import platform
import signal

from rl_jax.rewards.sandbox.syscalls import NUMBERS

ARCHITECTURES = ("x86_64", "aarch64")

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_MFD_CLOEXEC, _MFD_ALLOW_SEALING = 1, 2
_F_ADD_SEALS, _ALL_SEALS = 1033, 15  # against sealing more, shrinking, growing, writing


def unsupported() -> str:
    """Why the sandbox cannot run on this machine at all; "" if it can."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux":
        return f"the system is {system}, the sandbox needs Linux"
    if machine not in ARCHITECTURES or ctypes.sizeof(ctypes.c_void_p) != 8:
        known = ", ".join(ARCHITECTURES)
        return f"the architecture is {machine}, the sandbox knows {known}"
    return ""


@functools.cache
def _libc() -> ctypes.PyDLL:
    # PyDLL keeps the interpreter's lock: after `clone` there is nobody to return it.
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


@functools.cache
def number(name: str) -> int | None:
    """The number of a system call here; None if this architecture lacks it."""
    return NUMBERS[name][ARCHITECTURES.index(platform.machine())]


def call(name: str, *arguments: int | bytes | ctypes.Array | None) -> int:
    """Makes a system call.

    Raises:
        OSError: it failed; the message names it.
    """
    converted = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument
        for argument in arguments
    ]
    here = number(name)
    result = _libc().syscall(ctypes.c_long(-1 if here is None else here), *converted)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, *arguments: int) -> int:
    return call("prctl", option, *arguments, *[0] * (4 - len(arguments)))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    call(
        "mount",
        source.encode(),
        target.encode(),
        kind.encode(),
        flags,
        options.encode() or None,
    )


def pidfd_open(pid: int) -> int:
    return call("pidfd_open", pid, 0)  # close-on-exec by itself


def kill(pidfd: int) -> None:
    """SIGKILL to exactly the process that the descriptor stands for, dead or not."""
    try:
        call("pidfd_send_signal", pidfd, int(signal.SIGKILL), None, 0)
    except ProcessLookupError:
        pass


def memory_file(content: bytes) -> int:
    """A descriptor, at its start, of a file in memory that nobody can change."""
    fd = call("memfd_create", b"text", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
