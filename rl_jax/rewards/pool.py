"""The pool of reward workers: samples in, scores out, never in the loop's way."""

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.rewards import registry
from rl_jax.rewards.dispatch import Dispatcher
from rl_jax.rewards.ledger import Ledger
from rl_jax.rewards.score import Score


class RewardPool:
    """Grades samples in worker processes. A context manager.

    Every submitted ticket comes back once, with a score. The same sample gets the
    same score whatever the number of workers, but for one that takes about as long
    as the time limit.

    Args:
        functions: names of built-in rewards, or package.module:function, or
            path/to/file.py:function.
        weights: one a function; 0 makes it a metric only.
        num_workers: samples graded at a time.
        timeout_secs: wall time a sample may take, from when its worker begins. The
            verdict `timeout` is there 0.5 s later at the latest.
        options: for the built-in rewards: "answer_format", "format_pattern".
        recycle_jobs: a worker is replaced after this many jobs, which bounds what a
            leaking function can hold.

    Raises:
        ConfigError: a name or option is wrong, or a function cannot be imported.
        RuntimeError: no worker can be started.
    """

    def __init__(
        self,
        functions: Sequence[str],
        weights: Sequence[float],
        *,
        num_workers: int,
        timeout_secs: float,
        options: Mapping[str, Any] | None = None,
        recycle_jobs: int = 2_000,
    ):
        registry.check(functions, weights, options or {})
        if num_workers < 1 or timeout_secs <= 0:
            raise ConfigError(
                f"reward.workers is {num_workers}, reward.timeout_secs {timeout_secs}."
                "\nExpected 1 or more workers and a time limit above 0."
            )
        self.names = registry.part_names(functions)  # the keys of Score.parts
        self._ledger = Ledger()
        self._dispatcher = Dispatcher(
            self._ledger,
            {
                "functions": list(functions),
                "names": self.names,
                "weights": list(weights),
                "options": dict(options or {}),
                "path": sys.path,
            },
            num_workers=num_workers,
            timeout_secs=timeout_secs,
            recycle_jobs=recycle_jobs,
        )
        # A daemon: a trainer that dies of an exception need not close the pool first.
        self._thread = threading.Thread(
            target=self._dispatcher.run, name="rewards", daemon=True
        )
        self._thread.start()
        try:
            self._ledger.wait_ready()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "RewardPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pending(self) -> int:
        """Tickets whose score has not been handed out yet."""
        return self._ledger.pending()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers alive now."""
        return self._dispatcher.pids()

    def submit(self, ticket: int, job: Mapping[str, Any]) -> None:
        """Queues a sample. Never blocks.

        job: "prompt", "completion", "answer", "row" (a dict of extra columns),
        "num_tokens", "truncated", "data_source". Arrays in it become lists, and what
        JSON has no form for becomes its text.

        Raises:
            ValueError: the ticket is still pending.
        """
        line = json.dumps({"id": ticket, "job": dict(job)}, default=_plain).encode()
        self._ledger.add(ticket, line)
        self._dispatcher.wake()

    def poll(self) -> list[tuple[int, Score]]:
        """The scores that have come in since the last call. Never blocks."""
        return self._ledger.take()

    def wait(self, timeout_secs: float | None = None) -> list[tuple[int, Score]]:
        """Blocks until a score is there, nothing is pending or the time is up."""
        return self._ledger.wait(timeout_secs)

    def stats(self) -> dict[str, Any]:
        """Counts since the pool was made.

        submitted, finished; verdict/<name> for every verdict; none (value None);
        timeouts; crashes; retries (jobs tried again); restarts (workers that were
        killed or died); recycled; errors (times a function raised) and last_error;
        queue_secs (sum, until a worker began), max_queue_secs; grade_secs (sum).
        """
        return self._ledger.stats()

    def close(self) -> None:
        """Kills all workers. Tickets without a score are dropped. May be repeated."""
        self._ledger.close()
        self._dispatcher.wake()
        self._thread.join()


def _plain(value: Any) -> Any:
    """For JSON: arrays as lists, anything else as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
