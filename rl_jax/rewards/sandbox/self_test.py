"""Tries at the start of a run whether the sandbox holds what its level says."""

import contextlib
import ctypes
import dataclasses
import json
import os
import pathlib
import secrets
import signal
import socket
import tempfile
from collections.abc import Iterator
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.rewards.sandbox import canaries, kernel
from rl_jax.rewards.sandbox.limits import Limits, Outcome
from rl_jax.rewards.sandbox.sandbox import Sandbox

_LIMITS = Limits(
    wall_secs=10.0,
    cpu_secs=10.0,
    memory_bytes=128 << 20,
    processes=8,
    file_bytes=1 << 20,
)
_MANY_PROCESSES = 64
_PTRACE_ATTACH, _CLONE_NEWUSER = 16, 0x10000000


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one canary met. `promised`: the level says that it is contained."""

    canary: str
    contained: bool
    saw: str
    promised: bool = True


@dataclasses.dataclass(frozen=True)
class Report:
    """The isolation that was found; as text, a small table."""

    level: str
    layers: str
    findings: tuple[Finding, ...]

    @property
    def escapes(self) -> tuple[Finding, ...]:
        """What got out though the level says that it does not."""
        return tuple(f for f in self.findings if f.promised and not f.contained)

    def check(self) -> None:
        """Raises if something got out.

        Raises:
            ConfigError: names the canaries and what they saw.
        """
        if self.escapes:
            what = "; ".join(f"{f.canary}: {f.saw}" for f in self.escapes)
            raise ConfigError(
                f"The sandbox says {self.level!r} and does not hold it: {what}.\n"
                "No program is run on this machine until that is understood; "
                "please report it with the table and the kernel's version."
            )

    def __str__(self) -> str:
        rows = [
            (
                finding.canary,
                "contained"
                if finding.contained
                else "ESCAPED"
                if finding.promised
                else "open",
                finding.saw,
            )
            for finding in self.findings
        ]
        widths = [max(len(row[i]) for row in rows) for i in (0, 1)]
        lines = [f"isolation: {self.level} ({self.layers})"]
        lines += [
            f"  {name:{widths[0]}}  {result:{widths[1]}}  {saw}"
            for name, result, saw in rows
        ]
        return "\n".join(lines)


def self_test(sandbox: Sandbox) -> Report:
    """Runs every canary. Takes about half a second.

    Raises:
        SandboxError: a canary could not be started.
    """
    findings = [
        _file(sandbox),
        _environment(sandbox),
        _descriptors(sandbox),
        _network(sandbox),
        _processes(sandbox),
        _signal(sandbox),
        _memory(sandbox),
        _kernel(sandbox),
        _execute(sandbox),
        _family_memory(sandbox),
        _disk(sandbox),
    ]
    return Report(sandbox.level, sandbox.describe(), tuple(findings))


def _run(
    sandbox: Sandbox, canary: str, limits: Limits = _LIMITS, /, **arguments: Any
) -> tuple[Outcome, dict[str, Any]]:
    """Runs a canary; what it printed is {} if it was stopped before."""
    program = canaries.program(canary, json.dumps(arguments))
    outcome = sandbox.run(program, limits=limits)
    try:
        printed = json.loads(outcome.stdout)
    except ValueError:
        printed = {}
    return outcome, printed if isinstance(printed, dict) else {}


def _words(outcome: Outcome, printed: dict[str, Any]) -> str:
    """What a contained canary met, for the table."""
    if printed:
        return ", ".join(f"{key}: {value}" for key, value in printed.items())[:100]
    if outcome.signal is not None:
        return f"killed by {signal.Signals(outcome.signal).name}"
    return f"exit code {outcome.exit_code}, nothing printed"


def _file(sandbox: Sandbox) -> Finding:
    """Open to anybody outside, so that only the sandbox keeps it."""
    secret = secrets.token_hex(16)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        path = pathlib.Path(folder) / "canary"
        path.write_text(secret)
        path.chmod(0o666)
        outcome, printed = _run(sandbox, "file", path=str(path))
        intact = os.listdir(folder) == ["canary"] and path.read_text() == secret
    read = secret.encode() in outcome.stdout or b"canary" in outcome.stdout
    saw = (
        "changed it" if not intact else "read it" if read else _words(outcome, printed)
    )
    # Without Landlock only writing is refused.
    promised = sandbox.level != "none" or not intact
    return Finding("file", intact and not read, saw, promised)


def _environment(sandbox: Sandbox) -> Finding:
    outcome, printed = _run(sandbox, "environment", pid=str(os.getpid()))
    # An empty list, or the name of an error.
    found = [
        key
        for key, value in printed.items()
        if value and not str(value).endswith("Error")
    ]
    saw = f"read {', '.join(found)}" if found else _words(outcome, printed)
    ours = all(key in ("self", "1") for key in found)
    promised = sandbox.level != "none"
    return Finding("environment", not found or ours, saw, promised)


def _descriptors(sandbox: Sandbox) -> Finding:
    outcome, printed = _run(sandbox, "descriptors")
    return Finding("descriptors", printed.get("open") == [], _words(outcome, printed))


def _network(sandbox: Sandbox) -> Finding:
    name = f"rl_jax-{secrets.token_hex(8)}"
    with _listener(socket.AF_INET, ("127.0.0.1", 0)) as tcp:
        with _listener(socket.AF_UNIX, "\0" + name) as unix:
            port = tcp.getsockname()[1]
            outcome, printed = _run(sandbox, "network", port=port, name=name)
            reached = _was_reached(tcp) or _was_reached(unix)
    opened = [
        k for k, v in printed.items() if not str(v).endswith(("Error", "gaierror"))
    ]
    saw = f"got through: {', '.join(opened)}" if opened else _words(outcome, printed)
    return Finding("network", not reached and not opened, saw)


@contextlib.contextmanager
def _listener(family: socket.AddressFamily, address: Any) -> Iterator[socket.socket]:
    with socket.socket(family) as listener:
        listener.bind(address)
        listener.listen()
        listener.setblocking(False)
        yield listener


def _was_reached(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def _processes(sandbox: Sandbox) -> Finding:
    name = f"rl{secrets.token_hex(5)}"
    _, printed = _run(sandbox, "processes", tries=_MANY_PROCESSES, name=name)
    children = printed.get("children", 0)
    left = _alive(name)
    saw = f"{children} of {_MANY_PROCESSES} children, {left} left after its end"
    # The kernel's count may hold other processes of ours besides.
    most = _LIMITS.processes + sandbox.layers.base_processes
    return Finding("processes", children <= most and left == 0, saw)


def _alive(name: str) -> int:
    """Processes of this name, wherever they are."""
    total = 0
    for path in pathlib.Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            total += path.read_text().strip() == name
    return total


def _signal(sandbox: Sandbox) -> Finding:
    outcome, printed = _run(sandbox, "signal", pid=os.getpid(), group=os.getpgrp())
    reached = "reached" in printed.values()
    return Finding("signal", not reached, _words(outcome, printed))


def _memory(sandbox: Sandbox) -> Finding:
    secret = secrets.token_hex(16)
    held = ctypes.create_string_buffer(secret.encode())
    outcome, printed = _run(
        sandbox,
        "memory",
        pid=os.getpid(),
        address=ctypes.addressof(held),
        size=len(secret),
    )
    read = secret.encode() in outcome.stdout
    saw = "read it" if read else _words(outcome, printed)
    return Finding("memory", not read, saw, promised=sandbox.level != "none")


def _kernel(sandbox: Sandbox) -> Finding:
    """Calls that must end the program, or at least fail."""
    calls = {
        "ptrace": [_PTRACE_ATTACH, os.getpid(), 0, 0],
        "process_vm_readv": [os.getpid(), 0, 0, 0, 0, 0],
        "mount": [0, 0, 0, 0, 0],
        "unshare": [_CLONE_NEWUSER],
        "bpf": [0, 0, 0],
        "keyctl": [0, -3, 1],
        "userfaultfd": [0],
        "perf_event_open": [0, 0, -1, -1, 0],
        "io_uring_setup": [1, 0],
    }
    seen: dict[str, list[str]] = {}
    for name, arguments in calls.items():
        number = kernel.number(name)
        assert number is not None
        outcome, printed = _run(sandbox, "call", call=[number, *arguments])
        result = str(printed["result"]) if printed else _words(outcome, printed)
        seen.setdefault(result, []).append(name)
    saw = "; ".join(f"{result}: {', '.join(names)}" for result, names in seen.items())
    return Finding("kernel", list(seen) == ["killed by SIGSYS"], saw)


def _execute(sandbox: Sandbox) -> Finding:
    outcome, printed = _run(sandbox, "execute")
    escaped = b"escaped" in outcome.stdout
    return Finding("execute", not escaped, _words(outcome, printed))


def _family_memory(sandbox: Sandbox) -> Finding:
    """Four children that together want twice what one may have."""
    each = _LIMITS.memory_bytes // 2
    limits = dataclasses.replace(_LIMITS, wall_secs=2.0)
    outcome, printed = _run(sandbox, "family memory", limits, children=4, each=each)
    saw = "out of memory" if outcome.out_of_memory else _words(outcome, printed)
    return Finding("family memory", printed.get("held") != 4, saw)


def _disk(sandbox: Sandbox) -> Finding:
    each = _LIMITS.file_bytes // 2
    outcome, printed = _run(sandbox, "disk", files=8, each=each)
    return Finding(
        "disk", not isinstance(printed.get("filled"), int), _words(outcome, printed)
    )
