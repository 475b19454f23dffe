"""The filter's code is run by a slow interpreter of its own, for both machines."""

import ctypes
import ctypes.util
import errno
import platform
import signal
import struct

import pytest

from rl_jax.rewards.sandbox import kernel, seccomp
from rl_jax.rewards.sandbox.syscalls import NUMBERS

ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003
ALLOW, KILL, NOTIFY = 0x7FFF0000, 0x80000000, 0x7FC00000
CLONE_THREAD, CLONE_NEWUSER = 0x10000, 0x10000000


def error(code):
    return 0x00050000 | code


def slow_filter(code, number, arguments=(), arch=None):
    """What the kernel would decide; seccomp(2), section on classic BPF."""
    arch = ARCH[platform.machine()] if arch is None else arch
    arguments = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments)
    lines = [struct.unpack_from("<HBBI", code, at) for at in range(0, len(code), 8)]
    register, at = 0, 0
    while True:
        operation, if_true, if_false, value = lines[at]
        at += 1
        if operation == 0x20:
            (register,) = struct.unpack_from("<I", data, value)
        elif operation == 0x06:
            return value
        else:
            test = {
                0x15: register == value,
                0x35: register >= value,
                0x45: register & value != 0,
            }
            at += if_true if test[operation] else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    kernel.number.cache_clear()
    seccomp.build.cache_clear()
    yield request.param
    kernel.number.cache_clear()
    seccomp.build.cache_clear()


def decide(code, name, *arguments):
    number = kernel.number(name)
    assert number is not None
    return slow_filter(code, number, [a & (1 << 64) - 1 for a in arguments])


def test_a_family_may_have_processes_files_and_signals_but_nothing_else(machine):
    code = seccomp.build(alone=0, own_files=True, read_only=False, notify=False)
    for name in ("openat", "mmap", "read", "kill", "unlinkat", "getrandom", "wait4"):
        assert decide(code, name) == ALLOW
    for name in ("ptrace", "mount", "bpf", "keyctl", "userfaultfd", "unshare", "setns"):
        assert decide(code, name) == KILL
    assert decide(code, "memfd_create") == error(errno.ENOSYS)
    assert decide(code, "execve") == error(errno.EACCES)
    assert decide(code, "clone", signal.SIGCHLD) == ALLOW
    assert decide(code, "clone", CLONE_NEWUSER | signal.SIGCHLD) == KILL
    assert decide(code, "clone3") == error(errno.ENOSYS)


def test_a_program_alone_has_threads_and_sends_signals_to_itself_only(machine):
    code = seccomp.build(alone=1234, own_files=True, read_only=False, notify=False)
    refused = error(errno.EACCES)
    assert decide(code, "clone", CLONE_THREAD) == ALLOW
    assert decide(code, "clone", signal.SIGCHLD) == refused
    assert decide(code, "clone", CLONE_THREAD | CLONE_NEWUSER) == KILL
    for name in ("kill", "tgkill"):
        assert decide(code, name, 1234, 9) == ALLOW
        for pid in (0, 1, -1, -1234, 1235):
            assert decide(code, name, pid, 9) == refused
    assert decide(code, "tkill", 1234, 9) == refused
    assert decide(code, "setsid") == refused
    assert decide(code, "unlinkat") == ALLOW


def test_without_a_folder_of_its_own_a_program_changes_no_file(machine):
    code = seccomp.build(alone=1, own_files=False, read_only=False, notify=False)
    for name in ("fchmod", "unlinkat", "renameat", "mkdirat", "utimensat"):
        assert decide(code, name) == error(errno.EACCES)
    assert decide(code, "openat", 0, 0, 1) == ALLOW  # for Landlock to decide


def test_arguments_decide_where_a_call_can_do_harm(machine):
    code = seccomp.build(alone=0, own_files=False, read_only=True, notify=True)
    assert decide(code, "openat", 0, 0, 0o2000000) == ALLOW  # O_RDONLY | O_CLOEXEC
    for flags in (1, 2, 0o100, 0o1000):  # write, read and write, create, truncate
        assert decide(code, "openat", 0, 0, flags) == NOTIFY
    assert decide(code, "socket", 2, 1) == NOTIFY
    assert decide(code, "socket", 1, 1) == error(errno.EACCES)  # AF_UNIX: in silence
    assert decide(code, "socketpair", 1, 1) == ALLOW
    assert decide(code, "socketpair", 16, 1) == NOTIFY
    assert decide(code, "prctl", 15) == ALLOW  # PR_SET_NAME
    for option in (kernel.PR_SET_PDEATHSIG, kernel.PR_SET_DUMPABLE, 22):
        assert decide(code, "prctl", option) == error(errno.EPERM)
    assert decide(code, "prlimit64", 0, 7) == ALLOW
    assert decide(code, "prlimit64", 1, 7) == error(errno.EPERM)
    assert decide(code, "ioctl", 0, 0x5401) == ALLOW
    assert decide(code, "ioctl", 0, 0x5412) == error(errno.ENOTTY)  # TIOCSTI
    assert decide(code, "fcntl", 0, 3) == ALLOW
    for command in (8, 10, 15, 1024, 1026):  # owners and signals of descriptors
        assert decide(code, "fcntl", 0, command) == error(errno.EPERM)


def test_other_instruction_sets_and_unknown_calls_get_nowhere(machine):
    code = seccomp.build(alone=0, own_files=True, read_only=False, notify=False)
    assert slow_filter(code, 0, arch=I386) == KILL
    other = ARCH["aarch64" if machine == "x86_64" else "x86_64"]
    assert slow_filter(code, 0, arch=other) == KILL
    assert slow_filter(code, 9999) == error(errno.ENOSYS)
    if machine == "x86_64":  # x32 has the same arch and a bit of its own
        assert slow_filter(code, 0x40000000) == KILL


def test_every_name_in_the_lists_is_in_the_table(machine):
    code = seccomp.build(alone=1, own_files=False, read_only=True, notify=True)
    assert len(code) % 8 == 0 and len(code) // 8 < 4096  # BPF_MAXINSNS


def test_the_numbers_are_those_of_libseccomp():
    path = ctypes.util.find_library("seccomp")
    if path is None:
        pytest.skip("libseccomp is not installed")
    resolve = ctypes.CDLL(path).seccomp_syscall_resolve_name_arch
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    for name, ours in NUMBERS.items():
        for number, arch in zip(ours, ARCH.values(), strict=True):
            theirs = resolve(arch, name.encode())
            # -1 is a name that is younger than the library; others it makes up.
            assert theirs == -1 or number == (theirs if theirs >= 0 else None), name


def test_refused_calls_are_reported_and_an_attack_ends_the_program(each):
    if not each.layers.notify:
        pytest.skip("the kernel does not report refused calls")
    program = "import socket\ntry: socket.socket()\nexcept OSError: print('no')"
    outcome = each.run(program)
    assert (outcome.blocked, outcome.stdout, outcome.exit_code) == (
        "socket",
        b"no\n",
        0,
    )
    program = "import os\ntry: os.execv('/bin/sh', ['sh'])\nexcept OSError: print('no')"
    assert each.run(program).blocked == "execve"
    program = "import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0)"
    outcome = each.run(program)
    assert outcome.signal == signal.SIGSYS
    assert outcome.blocked == "a forbidden system call"


def test_looking_up_a_user_is_no_attempt_at_the_network(each):
    program = "import os, pwd\ntry: pwd.getpwnam('root')\nexcept KeyError: pass\n"
    assert each.run(program).blocked == ""
