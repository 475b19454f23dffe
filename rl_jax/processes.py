"""The processes of one job: they start together, wait for each other, end together.

Every machine runs the same command. `start` finds the others (`rl_jax.coordinates`),
waits for all of them with a time limit (`rl_jax.roll_call`), and only then hands over
to jax.distributed. After that no wait for another process is without a limit, and none
goes on when one is gone: it names which.

    with processes.start(run.runtime), processes.watchdog(minutes=60):
        processes.wait("restored", secs=600)
        processes.beat(step)

Importing this file does not import jax.
"""

import atexit
import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import socket
import sys
import time
import zlib
from collections.abc import Mapping
from typing import Any

from rl_jax import coordinates
from rl_jax.coordinates import Coordinates, Settings
from rl_jax.errors import ConfigError
from rl_jax.line import LOST_SECS, Ended, Line
from rl_jax.roll_call import RollCall
from rl_jax.watchdog import Watchdog

# For the others at the end of a run: the first process may be writing a large export.
END_SECS = 3600.0
_STEP_MINUTES = 120.0
# Between a failure here and its cause elsewhere being told: a process that dies breaks
# the others' collectives, and those should not be taken for the reason.
_CAUSE_SECS = 2.0


class ProcessTimeout(Exception):  # noqa: N818 (a time limit, as Python's TimeoutError)
    """Other processes did not come in time, or are gone; the text names them."""


@dataclasses.dataclass
class Job:
    """This process among those of its job; a context that ends all in good order.

    Attributes:
        process_id, num_processes: which one this is, of how many.
    """

    process_id: int = 0
    num_processes: int = 1
    line: Line | None = None
    roll_call: RollCall | None = None

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object):
        global _job
        if self.line is None:
            return
        if error is None:
            self._finish(self.line)
        else:
            self._fail(self.line, error)
        _job = Job()

    def _finish(self, line: Line) -> None:
        """Leaves when all others have come to their end too."""
        import jax

        wait("the end of the run", END_SECS)
        jax.distributed.shutdown()
        line.bye()
        if self.roll_call:
            self.roll_call.close(30.0)

    def _fail(self, line: Line, error: BaseException) -> None:
        """Tells the others why this process ends, and sees to it that it does."""
        code = exit_code(error)
        if code == 1 and not isinstance(error, ProcessTimeout):
            time.sleep(_CAUSE_SECS)
        line.fail(code, _reason(error))
        if self.roll_call:
            self.roll_call.close(10.0)
        # After the traceback is printed. jax's own way out waits for minutes for the
        # others, who are gone, and aborts.
        atexit.register(_leave, code)


_job = Job()
_watchdog = Watchdog(0)


def start(settings: Settings, same: Mapping[str, str] | None = None) -> Job:
    """Waits for all processes of the job, and makes jax one program of them.

    Call it before anything touches a device. Alone, it does nothing.

    Args:
        settings: the config's `runtime`.
        same: more that must be alike in all processes, such as a sum of the config.

    Raises:
        ConfigError: for settings that are wrong or not the same everywhere.
        ProcessTimeout: if not all come within `settings.start_secs`; it names them.
    """
    global _job
    found = coordinates.find(settings)
    if found is None:
        return _job
    secs = settings.start_secs
    print(
        f"processes: this is {found.process_id} of {found.num_processes}, on "
        f"{socket.gethostname()}; waiting up to {secs:g} s for all at "
        f"{found.coordinator}; {found.how}",
        flush=True,
    )
    try:
        _job = _met(found, secs, _alike() | dict(same or {}))
    except Ended as end:
        raise _as_error(end) from None
    with contextlib.ExitStack() as stack:
        stack.push(_job)  # which ends it everywhere, if what follows fails
        _begin(found, _job, secs)
        stack.pop_all()
    return _job


def is_alone() -> bool:
    """Whether this process is the only one of its job."""
    return _job.line is None


def say(line: str) -> None:
    """Prints a line for people, once for all processes."""
    if _job.process_id == 0:
        print(line, flush=True)


def is_own(number: int) -> bool:
    """Whether this process does what is numbered so, of work that all share."""
    return number % _job.num_processes == _job.process_id


def patience() -> float:
    """Seconds to wait for others to finish what takes as long as a step may."""
    return _watchdog.limit_secs or END_SECS


def wait(name: str, secs: float) -> None:
    """Waits until every process of the job is at the place called `name`.

    Raises:
        ProcessTimeout: if not all come within `secs`; it names those missing.
    """
    gather(name, None, secs)


def gather(name: str, value: Any, secs: float) -> list[Any]:
    """What every process gives under `name`, in the order of the processes.

    On the hosts, for what is small and decides what all do next: not for arrays. All
    processes make the same calls in the same order.

    Args:
        value: anything that JSON can say.

    Raises:
        ProcessTimeout: if not all come within `secs`; it names those missing.
    """
    if _job.line is None:
        return [value]
    try:
        return _job.line.gather(name, value, secs)
    except Ended as end:
        raise _as_error(end) from None


def watchdog(minutes: float, what: str = "step") -> Watchdog:
    """Ends the job, exit code 1, when `beat` does not come for `minutes`.

    A context. It prints what each thread is doing and each process did last.

    Args:
        minutes: 0: no limit for a process alone, and two hours for several, which may
            wait for one that is stuck.
    """
    global _watchdog
    minutes = minutes or (0 if is_alone() else _STEP_MINUTES)
    _watchdog = _new_watchdog(minutes, what, _job.line)
    return _watchdog


def beat(step: int, doing: str = "") -> None:
    """Tells the watchdog that this process has come on, and others how far.

    Args:
        step: the last one it finished.
        doing: what it does now, such as "grading".
    """
    _watchdog.beat(step)
    if _job.line is not None:
        _job.line.note = f"after step {step}{f', {doing}' if doing else ''}"


def exit_code(error: BaseException) -> int:
    """The exit code of a process that ends by this exception."""
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(bool(error.code))
    if isinstance(error, KeyboardInterrupt):
        return 130
    return 2 if isinstance(error, ConfigError) else 1


def _met(found: Coordinates, secs: float, alike: Mapping[str, str]) -> Job:
    """The job, when all have come; Ended if they have not."""
    roll_call = None
    if found.process_id == 0:
        # Everyone may call, unless all are on this machine.
        host = found.host if found.host in ("127.0.0.1", "::1", "localhost") else ""
        roll_call = RollCall((host, found.port), found.num_processes, secs, same=alike)
    hello = {
        "id": found.process_id,
        "num_processes": found.num_processes,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    line = Line((found.host, found.port), {**hello, **alike}, secs, _ended_elsewhere)
    return Job(found.process_id, found.num_processes, line, roll_call)


def _new_watchdog(minutes: float, what: str, line: Line | None) -> Watchdog:
    if line is None:
        return Watchdog(minutes, what)
    return Watchdog(minutes, what, tell=lambda text: line.fail(1, text), ask=line.state)


def _begin(found: Coordinates, job: Job, secs: float) -> None:
    """Starts jax.distributed, and checks that it sees as many processes."""
    import jax

    assert job.line is not None
    host = f"[{found.host}]" if ":" in found.host else found.host
    with _new_watchdog(secs / 60, "start of jax.distributed", job.line):
        jax.distributed.initialize(
            f"{host}:{job.line.jax_port}",
            found.num_processes,
            found.process_id,
            local_device_ids=found.local_device_ids,
            cluster_detection_method="deactivate",
            initialization_timeout=int(secs) + 30,  # the watchdog's is first
            heartbeat_timeout_seconds=int(LOST_SECS) + 20,
            shutdown_timeout_seconds=60,
        )
        seen = jax.process_count()
    if seen != found.num_processes:
        raise ConfigError(
            f"{found.num_processes} processes met, but jax counts {seen} on "
            f"{jax.default_backend()}: their devices do not belong together.\n"
            "Start one process on each host of one TPU slice or GPU cluster, or write "
            f"--config.runtime.num_processes={seen}"
        )


def _alike() -> dict[str, str]:
    """What must be the same in all processes for them to compile the same programs."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("jax", "jaxlib", "libtpu"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "none"
    return versions | {"code": _sum_of_code()}


def _sum_of_code() -> str:
    """A sum of our own sources: an old copy on one machine is a common mistake."""
    total = 0
    kernels = importlib.util.find_spec("rl_jax.kernels")
    places = kernels.submodule_search_locations if kernels else None
    folders = [pathlib.Path(__file__).parent, *map(pathlib.Path, places or ())]
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            total = zlib.crc32(str(path.relative_to(folder)).encode(), total)
            total = zlib.crc32(path.read_bytes(), total)
    return f"{total:08x}"


def _ended_elsewhere(end: Ended) -> None:
    """Ends this process, whatever it is waiting for, with the reason."""
    print(f"error: {end}", file=sys.stderr)
    _leave(end.code)


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _as_error(end: Ended) -> Exception:
    return ConfigError(str(end)) if end.code == 2 else ProcessTimeout(str(end))


def _reason(error: BaseException) -> str:
    first = (str(error).splitlines() or [""])[0]
    if isinstance(error, ConfigError | ProcessTimeout):
        return first
    return f"{type(error).__name__}: {first}".removesuffix(": ")
