"""The memory of a sandbox with all its programs, bounded by the kernel: control groups.

One group a sandbox, entered by its first process before it starts any other. Needs a
hierarchy that this user may write to, which is root's as a rule; without one the
monitors watch (monitor.py).

Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.
"""

import contextlib
import os
import pathlib
import time

_PREFIX = "rl_jax"
# Version 2, version 1: limit, limit with swap, what is used now, what was killed.
_FILES = {
    2: ("memory.max", "memory.swap.max", "memory.current", "memory.events"),
    1: (
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "memory.usage_in_bytes",
        "memory.oom_control",
    ),
}
_PAGE_BYTES = 4096
_REMOVE_SECS = 2.0  # the kernel lets go of the dead a moment after they are reaped


class Group:
    """A control group with nothing in it yet. `close` removes it."""

    def __init__(self, path: pathlib.Path, version: int):
        self.version = version
        self._path = path
        self._limit, self._swap, self._current, self._events = _FILES[version]
        self._allowed = -1
        self.base_bytes = 0  # what it uses while no program runs

    def add(self, pid: int) -> None:
        (self._path / "cgroup.procs").write_text(str(pid))

    def allow(self, num_bytes: int) -> None:
        """Sets the limit, above what the sandbox uses for itself."""
        wanted = -(-(num_bytes + self.base_bytes) // _PAGE_BYTES) * _PAGE_BYTES
        if wanted == self._allowed:
            return
        # Refused while more is in use, as by a program that is just being killed.
        with contextlib.suppress(OSError):
            (self._path / self._limit).write_text(str(wanted))
            self._allowed = wanted
        swap = 0 if self.version == 2 else wanted
        with contextlib.suppress(OSError):  # no swap accounting
            (self._path / self._swap).write_text(str(swap))

    def used_bytes(self) -> int:
        return int((self._path / self._current).read_text())

    def num_killed(self) -> int:
        """Processes killed for memory since the group was made."""
        with contextlib.suppress(OSError):
            for line in (self._path / self._events).read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
        return 0

    def close(self) -> None:
        """Removes it, once all in it are dead."""
        give_up = time.monotonic() + _REMOVE_SECS
        while time.monotonic() < give_up:
            try:
                self._path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.005)


def create() -> Group | None:
    """A new group below this process's own or the next above; None if none can be."""
    for version, folder in _folders():
        _sweep(folder)
        path = folder / _name(os.getpid(), str(time.monotonic_ns()))
        try:
            path.mkdir()
        except OSError:
            continue
        if (path / _FILES[version][0]).exists():
            return Group(path, version)
        path.rmdir()  # version 2 without the memory controller
    return None


def _folders() -> list[tuple[int, pathlib.Path]]:
    """Where a group may be made: version and folder, nearest first."""
    mounts = _mounts()
    found = []
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        version = 1 if "memory" in controllers.split(",") else 2
        if (controllers and version == 2) or version not in mounts:
            continue
        mount = mounts[version]
        # In a container the mount may begin below the path that is told.
        own = mount / path.lstrip("/")
        if not own.is_dir():
            own = mount
        found += [(version, folder) for folder in (own, *own.parents)]
        found = [entry for entry in found if entry[1].is_relative_to(mounts[entry[0]])]
    return found


def _mounts() -> dict[int, pathlib.Path]:
    mounts: dict[int, pathlib.Path] = {}
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            mounts.setdefault(2, pathlib.Path(before.split()[4]))
        elif kind == "cgroup" and "memory" in options.split(","):
            mounts.setdefault(1, pathlib.Path(before.split()[4]))
    return mounts


def _name(pid: int, number: str) -> str:
    return f"{_PREFIX}-{pid}-{_start_time(pid)}-{number}"


def _start_time(pid: int) -> str:
    """Tells a process from another that has its number later; "" if there is none."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _sweep(folder: pathlib.Path) -> None:
    """Removes groups whose grader was killed before it could."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{_PREFIX}-*-*-*"):
            pid, start = path.name.split("-")[1:3]
            if _start_time(int(pid)) != start:
                with contextlib.suppress(OSError):  # in use after all
                    path.rmdir()
