"""Which system calls a program may make: a filter that the kernel runs on each.

The list says what a Python program needs. What is not in it does not exist (ENOSYS), so
that a libc newer than this list falls back by itself; what only an attack asks for ends
the process (SIGSYS); what a harmless program may try in good faith is refused, and the
monitor is told of it.

Source: seccomp(2), seccomp_unotify(2) and linux/bpf_common.h.
"""

import ctypes
import errno
import fcntl
import functools
import os
import platform
import struct

from rl_jax.rewards.sandbox import kernel

# Files and descriptors.
_ALLOWED = """
access chdir close close_range copy_file_range dup dup2 dup3 epoll_create epoll_create1
epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 faccessat faccessat2
fadvise64 fallocate fchdir fdatasync flock fstat fstatfs fsync ftruncate getcwd
getdents getdents64 lseek lstat newfstatat open openat pipe pipe2 poll ppoll pread64
preadv preadv2 pselect6 pwrite64 pwritev pwritev2 read readlink readlinkat readv select
sendfile stat statfs statx umask write writev
"""
# Memory, threads, time.
_ALLOWED += """
alarm arch_prctl brk clock_getres clock_gettime clock_nanosleep exit exit_group futex
futex_waitv getcpu getitimer getrandom gettimeofday madvise membarrier
mincore mmap mprotect mremap msync munmap nanosleep pause restart_syscall rseq
rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait
sched_yield set_robust_list set_tid_address setitimer sigaltstack time timer_create
timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
timerfd_gettime timerfd_settime
"""
# What a process may know of itself, its children, and talk between them.
_ALLOWED += """
capget getegid geteuid getgid getgroups getpeername getpgid getpgrp getpid getppid
getpriority getresgid getresuid getrlimit getrusage getsid getsockname getsockopt gettid
getuid recvfrom recvmsg sched_get_priority_max sched_get_priority_min sched_getaffinity
sched_getparam sched_getscheduler sendmsg sendto setrlimit setsockopt shutdown sysinfo
times uname wait4 waitid
"""
# Only where the program has a folder of its own. Landlock does not see all of these.
_CHANGES = """
chmod fchmod fchmodat fchmodat2 futimesat link linkat mkdir mkdirat rename renameat
renameat2 rmdir symlink symlinkat truncate unlink unlinkat utime utimensat utimes
"""
# Only where the process numbers that a program can name are those of its own family.
_FAMILY = "kill rt_sigqueueinfo rt_tgsigqueueinfo setpgid setsid tgkill tkill"

# No accident: these are for administrators, debuggers and exploits.
_FATAL = """
acct add_key adjtimex bpf chroot clock_adjtime clock_settime delete_module finit_module
fsconfig fsmount fsopen fspick init_module io_uring_enter io_uring_register
io_uring_setup ioperm iopl kcmp kexec_file_load kexec_load keyctl memfd_secret mount
mount_setattr move_mount name_to_handle_at open_by_handle_at open_tree perf_event_open
pidfd_getfd pivot_root process_madvise process_vm_readv process_vm_writev ptrace
quotactl reboot request_key setdomainname sethostname setns settimeofday swapoff swapon
syslog umount2 unshare userfaultfd
"""
# Refused, and reported: the network and other programs.
_REFUSED = "accept accept4 bind connect execve execveat listen socket socketpair"
# Refused where the program must stay the only process.
_REFUSED_ALONE = f"clone fork vfork {_FAMILY}"
# Refused without a word: a libc or a harmless program may ask.
_EPERM = "capset sched_setaffinity setgroups setpriority setresgid setresuid"

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000  # x86_64 numbers from here on are another, unfiltered, set

_CLONE_THREAD = 0x00010000
_CLONE_NEW_ANY = 0x7E020000  # every kind of namespace
_AF_UNIX = 1
_WRITE_FLAGS = 3 | 0o100 | 0o1000  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC
# PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_SET_VMA.
_PRCTL_OPTIONS = (3, 15, 16, 0x53564D41)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
_IOCTL_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# F_DUPFD to F_SETLKW, F_OFD_GETLK to F_OFD_SETLKW, F_DUPFD_CLOEXEC, F_SETPIPE_SZ,
# F_GETPIPE_SZ, F_ADD_SEALS, F_GET_SEALS: none that can have a signal sent elsewhere.
_FCNTL_COMMANDS = (*range(8), 36, 37, 38, 1030, 1031, 1032, 1033, 1034)

_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_GE, _JUMP_IF_ANY, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_RET_KILL, _RET_ERRNO, _RET_NOTIFY, _RET_ALLOW = (
    0x80000000,
    0x00050000,
    0x7FC00000,
    0x7FFF0000,
)
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGUMENTS = 0, 4, 16

_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
_NEW_LISTENER = 8

Code = list[bytes]


def can_notify() -> bool:
    """Whether the kernel can tell a monitor of refused calls (5.0 and later)."""
    action = struct.pack("=I", _RET_NOTIFY)
    try:
        kernel.call("seccomp", _GET_ACTION_AVAIL, 0, action)
    except OSError:
        return False
    return True


@functools.lru_cache(1)
def build(*, alone: int, own_files: bool, read_only: bool, notify: bool) -> bytes:
    """The filter's machine code.

    Args:
        alone: the process's own number, where it must stay the only one and send
            signals to nobody else; 0 where it may have children.
        own_files: it has a folder of its own, and may make and name files there.
        read_only: refuse to open any file for writing.
        notify: report refused calls to the listener that `install` returns.
    """
    allow, kill = _leave(_RET_ALLOW), _leave(_RET_KILL)
    refuse = _leave(_RET_NOTIFY if notify else _RET_ERRNO | errno.EACCES)
    deny = _leave(_RET_ERRNO | errno.EPERM)

    rules: dict[str, Code] = dict.fromkeys(_ALLOWED.split(), allow)
    rules |= dict.fromkeys(_REFUSED_ALONE.split(), refuse if alone else allow)
    rules |= dict.fromkeys(_CHANGES.split(), allow if own_files else refuse)
    rules |= dict.fromkeys(_FATAL.split(), kill)
    rules |= dict.fromkeys(_REFUSED.split(), refuse)
    rules |= dict.fromkeys(_EPERM.split(), deny)
    rules["clone3"] = _leave(_RET_ERRNO | errno.ENOSYS)  # its flags cannot be seen
    rules["prctl"] = _one_of(0, _PRCTL_OPTIONS, allow, deny)
    not_a_terminal = _leave(_RET_ERRNO | errno.ENOTTY)
    rules["ioctl"] = _one_of(1, _IOCTL_REQUESTS, allow, not_a_terminal)
    rules["fcntl"] = _one_of(1, _FCNTL_COMMANDS, allow, deny)
    # Looking up a user asks for a local socket, in vain: no reason to report it.
    rules["socket"] = _one_of(0, (_AF_UNIX,), _leave(_RET_ERRNO | errno.EACCES), refuse)
    # A pair within the family; asyncio has one in every event loop.
    rules["socketpair"] = _one_of(0, (_AF_UNIX,), allow, refuse)
    # Of itself only: the monitor above may have the same user.
    rules["prlimit64"] = _one_of(0, (0,), allow, deny)
    if alone:
        rules["clone"] = _any_bit(0, _CLONE_THREAD, allow, refuse)
        for name in ("kill", "tgkill", "rt_tgsigqueueinfo"):
            rules[name] = _one_of(0, (alone,), allow, refuse)
    rules["clone"] = _any_bit(0, _CLONE_NEW_ANY, kill, rules["clone"])
    if read_only:
        for name, argument in (("open", 1), ("openat", 2)):
            rules[name] = _any_bit(argument, _WRITE_FLAGS, refuse, allow)
    return b"".join(_prologue() + [line for rule in _tests(rules) for line in rule])


def install(code: bytes, *, notify: bool) -> int:
    """Puts the filter on this process for good. Returns the listener if `notify`.

    Raises:
        OSError: the kernel refuses.
    """
    text = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(text))
    return kernel.call(
        "seccomp", _SET_MODE_FILTER, _NEW_LISTENER if notify else 0, program
    )


def _prologue() -> Code:
    code = [
        _line(_LOAD, _OFFSET_ARCH),
        _line(_JUMP_IF_EQUAL, _AUDIT_ARCH[platform.machine()], 1, 0),
        *_leave(_RET_KILL),
        _line(_LOAD, _OFFSET_NUMBER),
    ]
    if platform.machine() == "x86_64":
        code += [_line(_JUMP_IF_GE, _X32_BIT, 0, 1), *_leave(_RET_KILL)]
    return code


def _tests(rules: dict[str, Code]) -> list[Code]:
    """One test for each call's number; the rest does not exist."""
    tests = []
    for name, rule in rules.items():
        number = kernel.number(name)
        if number is not None:
            tests.append([_line(_JUMP_IF_EQUAL, number, 0, len(rule)), *rule])
    return [*tests, _leave(_RET_ERRNO | errno.ENOSYS)]


def _one_of(
    argument: int, values: tuple[int, ...], then: Code, otherwise: Code
) -> Code:
    """Tests an argument of the C type int: the kernel looks at its lower half too."""
    code = [_line(_LOAD, _OFFSET_ARGUMENTS + 8 * argument)]
    for value in values:
        code += [_line(_JUMP_IF_EQUAL, value, 0, len(then)), *then]
    return code + otherwise


def _any_bit(argument: int, bits: int, then: Code, otherwise: Code) -> Code:
    """Tests the lower half of an argument."""
    return [
        _line(_LOAD, _OFFSET_ARGUMENTS + 8 * argument),
        _line(_JUMP_IF_ANY, bits, 0, len(then)),
        *then,
        *otherwise,
    ]


def _leave(action: int) -> Code:
    return [_line(_RETURN, action)]


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


class Listener:
    """The monitor's end: answers refused calls and remembers their names."""

    # struct seccomp_notif and seccomp_notif_resp, _IOWR('!', 0) and _IOWR('!', 1).
    _NOTICE, _ANSWER = "=QIIiIQ6Q", "=QqiI"
    _RECEIVE, _SEND = 0xC0502100, 0xC0182101

    def __init__(self, fd: int):
        self.fd = fd
        self.seen: dict[str, None] = {}  # a set that keeps its order
        names = f"{_REFUSED} {_REFUSED_ALONE} {_CHANGES} open openat".split()
        self._names = {kernel.number(name): name for name in names}

    def answer(self) -> None:
        """Refuses the next call that waits."""
        notice = bytearray(struct.calcsize(self._NOTICE))
        try:
            fcntl.ioctl(self.fd, self._RECEIVE, notice)
            number, _, _, call, *_ = struct.unpack(self._NOTICE, notice)
            self.seen.setdefault(self._names[call])
            answer = struct.pack(self._ANSWER, number, 0, -errno.EACCES, 0)
            fcntl.ioctl(self.fd, self._SEND, bytearray(answer))
        except FileNotFoundError:  # the caller was killed meanwhile
            pass

    def close(self) -> None:
        os.close(self.fd)
