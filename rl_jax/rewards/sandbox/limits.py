"""What a program may use, and what came of it. Plain data, nothing runs here."""

import dataclasses

# From most to least: each is enough for whoever asks for one to the right of it.
LEVELS = ("namespaces", "landlock", "none")

# Descriptors of a session's program, beside 0 to 2: requests come in, replies go out.
REQUEST_FD = 3
REPLY_FD = 4


class SandboxError(RuntimeError):
    """The sandbox itself failed: nothing is said about the program."""


class SessionEnded(Exception):  # noqa: N818  an end, and no fault of ours
    """No reply came. `reason`: "timeout", "ended" or "protocol"."""

    def __init__(self, reason: str, detail: str):
        super().__init__(detail)
        self.reason = reason


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds of one program with all the processes it starts.

    Raises:
        ValueError: a limit is not above 0.
    """

    wall_secs: float = 4.0  # from when the program may begin
    cpu_secs: float = 4.0  # of each process; rounded up to a whole second
    memory_bytes: int = 1 << 30  # of the family together, and of each address space
    processes: int = 16  # threads included; 1 of them is the program itself
    open_files: int = 64
    file_bytes: int = 16 << 20  # each file, and all of its private folder together
    output_bytes: int = 1 << 20  # kept of stdout, and as much of stderr
    message_bytes: int = 8 << 20  # one line of a session's channel

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(
                    f"Limits.{field.name} is {getattr(self, field.name)!r}, "
                    "expected a number above 0"
                )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a program ended. None of it says that what it computed is right.

    Exactly one of `exit_code` and `signal` is set. A program that was stopped at a
    limit has the signal SIGKILL and says at which.
    """

    exit_code: int | None
    signal: int | None
    timed_out: bool = False  # wall or CPU time, or that of a session's reply
    out_of_memory: bool = False
    blocked: str = ""  # what it asked for that is not allowed, as far as was seen
    stdout: bytes = b""  # the first `output_bytes`
    stderr: bytes = b""  # the last `output_bytes`
    output_cut: bool = False
    seconds: float = 0.0  # wall time
