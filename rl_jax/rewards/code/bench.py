"""What the tests of one reply have to work with: where, how long, with what."""

import dataclasses
import time
from collections.abc import Generator, Sequence

from rl_jax.rewards.code.head import defines
from rl_jax.rewards.code.hosts import GoneError, Host, Result, raised
from rl_jax.rewards.code.options import CodeOptions
from rl_jax.rewards.code.tests import Suite
from rl_jax.rewards.sandbox import Limits, Sandbox
from rl_jax.rewards.score import Verdict

# As LiveCodeBench's runner sets it: solutions of contest problems recurse deeply.
_RECURSION = 50_000
Results = Generator[Result, None, None]
# To leave by itself, once there are no more requests: what a process was refused is
# lost if it has to be killed.
_LEAVE_SECS = 0.2
LATE = Result(Verdict.TIMEOUT, "no time left for it")


@dataclasses.dataclass(frozen=True)
class Bench:
    """What the tests of one reply have to work with.

    Attributes:
        sandbox: where everything runs.
        suite: the tests, capped.
        variants: whole programs, of which the first that compiles is tested.
        options: the configured limits; the suite may have its own.
        deadline: of time.monotonic(), for all of it.
        refused: what the program asked for and was not allowed, as it comes to light.
    """

    sandbox: Sandbox
    suite: Suite
    variants: Sequence[str]
    options: CodeOptions
    deadline: float
    refused: list[str] = dataclasses.field(default_factory=list)

    @property
    def forks(self) -> bool:
        """False where a program may have no second process: no test gets a fork."""
        return not self.sandbox.memory.startswith("one process")

    def until(self) -> float:
        """The deadline of a test that begins now."""
        secs = max(self.options.test_secs, self.suite.at_least_secs)
        if self.suite.wall_secs is not None:
            secs = self.suite.wall_secs
        return min(time.monotonic() + secs, self.deadline)

    def limits(self, until: float) -> Limits:
        """Limits of the program, with a deadline of time.monotonic()."""
        memory_bytes = self.suite.memory_bytes or self.options.memory_bytes
        own = self.own_limits(until)
        return dataclasses.replace(own, memory_bytes=memory_bytes)

    def own_limits(self, until: float) -> Limits:
        """Limits of what comes with the row: its asserts, its checker."""
        secs = max(0.001, until - time.monotonic())
        return Limits(
            wall_secs=secs,
            cpu_secs=secs,
            memory_bytes=self.options.memory_bytes,
            output_bytes=self.options.output_bytes,
        )

    def start(self) -> Host:
        """Starts the program's side, without the program yet."""
        return Host(self.sandbox, "program", self.limits(self.deadline))

    def load(self, host: Host, until: float) -> None:
        """Loads the program into its side.

        Raises:
            GoneError: it does not compile, raises, leaves or does not end.
        """
        function = self.suite.kind == "call"
        method = any(defines(text, ["Solution"]) for text in self.variants)
        request = {
            "op": "load",
            "programs": list(self.variants),
            "preamble": self.suite.preamble,
            "fill": function or method,
            "recursion": _RECURSION if function else 0,
            "forks": self.forks,
        }
        reply = host.ask(request, until)
        if reply.get("loaded") is not True:
            raise GoneError(raised(reply))

    def close(self, program: Host) -> None:
        """Ends the program's side, and notes what it was refused."""
        self.refuse(program.close(_LEAVE_SECS).blocked)

    def refuse(self, blocked: str) -> None:
        if blocked:
            self.refused.append(blocked)
