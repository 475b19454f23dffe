"""The sandbox as a grader uses it: a text goes in, an outcome comes out."""

import contextlib
import dataclasses
import os

from rl_jax.errors import ConfigError
from rl_jax.rewards.sandbox import kernel, wire
from rl_jax.rewards.sandbox.launcher import Zygote
from rl_jax.rewards.sandbox.layers import Layers
from rl_jax.rewards.sandbox.limits import LEVELS, Limits, Outcome, SandboxError
from rl_jax.rewards.sandbox.running import Running
from rl_jax.rewards.sandbox.session import Session

_REMEDIES = {
    "namespaces": (
        "Allow user namespaces: sysctl user.max_user_namespaces=10000 and "
        "kernel.unprivileged_userns_clone=1 and "
        "kernel.apparmor_restrict_unprivileged_userns=0, where there is such a key; "
        "for a container --security-opt seccomp=unconfined or --privileged."
    ),
    "landlock": "Use Linux 5.13 or later, with landlock among its lsm= modules.",
}


class Sandbox:
    """Runs hostile programs, each in processes of its own. A context manager.

    For one caller at a time. What can be had is found at the start: namespaces, or
    else Landlock alone, or else neither; seccomp and resource limits always.

    Args:
        isolation: the least that will do, one of `LEVELS`.
        without: layers to leave out even where they can be had, for tests:
            "namespaces", "landlock", "cgroup", "watch".

    Raises:
        ConfigError: this machine does not give what `isolation` asks for.
        SandboxError: no process can be started at all.
    """

    def __init__(
        self,
        isolation: str = "namespaces",
        *,
        without: frozenset[str] = frozenset(),
    ):
        if isolation not in LEVELS:
            raise ConfigError(
                f"isolation is {isolation!r}.\nExpected one of: {', '.join(LEVELS)}."
            )
        if reason := kernel.unsupported():
            raise ConfigError(f"Programs cannot be run here: {reason}.")
        self._isolation = isolation
        self._without = without
        self._running: list[Running] = []
        self._zygote: Zygote | None = None
        self._zygote = self._start()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def layers(self) -> Layers:
        """What keeps programs apart here."""
        assert self._zygote is not None, "the sandbox is closed"
        return self._zygote.layers

    @property
    def level(self) -> str:
        """What was reached, one of `LEVELS`."""
        return self.layers.level

    @property
    def forks(self) -> bool:
        """Whether programs may start processes: only where all can be bounded."""
        assert self._zygote is not None, "the sandbox is closed"
        return self.layers.may_fork(bounded=self._zygote.group is not None)

    @property
    def memory(self) -> str:
        """How the memory of a program with its children is bounded, in words."""
        assert self._zygote is not None, "the sandbox is closed"
        if not self.forks:
            return "one process, with a limit of its own"
        if self._zygote.group is not None:
            return f"control group, version {self._zygote.group.version}"
        return "watched by a monitor"

    def describe(self) -> str:
        """The layers in words."""
        layers = self.layers
        user = "same user as the grader" if layers.user is None else "user nobody"
        landlock = f"Landlock {layers.landlock}" if layers.landlock else "no Landlock"
        parts = [user, landlock, "seccomp", f"memory: {self.memory}", *layers.notes]
        return "; ".join(parts)

    def run(
        self, source: str, *, stdin: bytes = b"", limits: Limits | None = None
    ) -> Outcome:
        """Runs a whole program to its end or its limits.

        Raises:
            SandboxError: it could not be started.
        """
        running = self._launch(source, stdin, limits or Limits(), ())
        try:
            outcome = running.wait()
        finally:
            running.end()
        if running.error:
            raise SandboxError(running.error)
        assert outcome is not None
        return outcome

    def start(self, source: str, *, limits: Limits | None = None) -> Session:
        """Starts a program that answers requests on its channel.

        Several sessions may be open at a time; each must be closed.

        Raises:
            SandboxError: it could not be started.
        """
        limits = limits or Limits()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            their_requests, requests = _pipe(theirs, ours, reads=True)
            their_replies, replies = _pipe(theirs, ours, reads=False)
            channel = (their_requests, their_replies)
            running = self._launch(source, b"", limits, channel)
            ours.pop_all()
        return Session(running, limits, requests, replies)

    def close(self) -> None:
        """Ends the sandbox with all that runs in it. May be repeated."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _start(self) -> Zygote:
        """The best of what can be had, tried out; or an error if it is too little."""
        reasons: list[str] = []
        plans = [self._without]
        if "namespaces" not in self._without:
            plans.append(self._without | {"namespaces"})
        for plan in plans:
            try:
                zygote = Zygote(plan)
                self._try_out(zygote)
            except SandboxError as error:
                reasons.append(str(error))
                continue
            reached = zygote.layers.level
            if LEVELS.index(reached) <= LEVELS.index(self._isolation):
                return zygote
            zygote.close()
            because = f" ({reasons[0]})" if reasons else ""
            raise ConfigError(
                f"isolation is {self._isolation!r}, but this machine gives only "
                f"{reached!r}{because}.\n{_REMEDIES[self._isolation]}\n"
                f"Or accept less, for every program that is run: isolation={reached!r}."
            )
        raise SandboxError("; ".join(dict.fromkeys(reasons)))

    def _try_out(self, zygote: Zygote) -> None:
        """Runs an empty program: every step of its way in has to work here."""
        try:
            running = self._attempt(zygote, "", b"", Limits(wall_secs=30.0), ())
            outcome = running.wait()
            if running.error or outcome is None or outcome.exit_code != 0:
                raise SandboxError(running.error or f"an empty program: {outcome}")
        except (EOFError, OSError) as error:
            zygote.close()
            raise SandboxError(f"the zygote dies at once: {error!r}") from error
        except SandboxError:
            zygote.close()
            raise

    def _launch(
        self, source: str, stdin: bytes, limits: Limits, channel: tuple[int, ...]
    ) -> Running:
        if self._zygote is None:
            raise SandboxError("the sandbox is closed")
        try:
            return self._attempt(self._zygote, source, stdin, limits, channel)
        except (EOFError, ConnectionError, TimeoutError):
            # The zygote is dead, killed for memory as like as not: another, once.
            self.close()
            self._zygote = self._start()
        except OSError as error:  # out of descriptors
            raise SandboxError(f"a program cannot be started: {error}") from error
        try:
            return self._attempt(self._zygote, source, stdin, limits, channel)
        except (EOFError, OSError) as error:
            raise SandboxError(f"the zygote dies at once: {error!r}") from error

    def _attempt(
        self,
        zygote: Zygote,
        source: str,
        stdin: bytes,
        limits: Limits,
        channel: tuple[int, ...],
    ) -> Running:
        group = zygote.group
        self._running = [r for r in self._running if r.outcome is None]
        if group is not None:
            active = sum(running.limits.memory_bytes for running in self._running)
            group.allow(active + limits.memory_bytes)
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            fds = [_text(theirs, source.encode("utf-8", "surrogatepass"))]
            fds.append(_text(theirs, stdin))
            their_stdout, stdout = _pipe(theirs, ours, reads=False)
            their_stderr, stderr = _pipe(theirs, ours, reads=False)
            status, their_status = wire.pair()
            theirs.enter_context(their_status)
            ours.enter_context(status)
            fds += [their_stdout, their_stderr, their_status.fileno(), *channel]
            request = {
                "limits": dataclasses.asdict(limits),
                "bounded": group is not None,
            }
            wire.send(zygote.control, request, fds)
            answer, received = wire.receive(zygote.control)
            if "error" in answer:
                raise SandboxError(answer["error"])
            (pidfd,) = received
            ours.pop_all()
        running = Running(
            limits,
            pidfd=pidfd,
            status=status,
            stdout=stdout,
            stderr=stderr,
            whole=zygote.layers.namespaces,
            group=group,
        )
        self._running.append(running)
        return running


def _pipe(
    theirs: contextlib.ExitStack, ours: contextlib.ExitStack, *, reads: bool
) -> tuple[int, int]:
    """A pipe: the program's end, which it reads from or writes to, and ours."""
    read, write = os.pipe()
    given, kept = (read, write) if reads else (write, read)
    theirs.callback(os.close, given)
    ours.callback(os.close, kept)
    os.set_blocking(kept, False)
    return given, kept


def _text(theirs: contextlib.ExitStack, content: bytes) -> int:
    fd = kernel.memory_file(content)
    theirs.callback(os.close, fd)
    return fd
