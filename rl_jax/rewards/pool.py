"""The pool of reward workers: samples in, scores out, never in the loop's way."""

import dataclasses
import json
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.rewards import registry, routing
from rl_jax.rewards.dispatch import Dispatcher
from rl_jax.rewards.ledger import Ledger
from rl_jax.rewards.routing import Route
from rl_jax.rewards.score import Score


class RewardPool:
    """Grades samples in worker processes. A context manager.

    Every submitted ticket comes back once, with a score. The same sample gets the
    same score whatever the number of workers, but for one that takes about as long
    as the time limit.

    Args:
        functions: names of built-in rewards, or package.module:function, or
            path/to/file.py:function. They judge every sample.
        weights: one a function; 0 makes it a metric only.
        routes: instead of the two above, functions and weights by data source.
        hidden: functions that judge every sample in a job of their own: a score has
            their values as the parts "hidden/<name>", and is otherwise what it would
            be without them, even where they fail or take too long.
        num_workers: samples graded at a time.
        timeout_secs: wall time a sample may take, from when its worker begins. The
            verdict `timeout` is there 0.5 s later at the latest. Functions that run
            programs have a limit of their own, if that is longer.
        options: for the built-in rewards: "answer_format", "format_pattern",
            "max_new_tokens", and by name of the function what is its own.
        recycle_jobs, recycle_bytes: a worker is replaced after this many jobs, or
            when it has grown by this much, which bounds what a function may leak.
        max_infrastructure_share: of the latest samples that may remain without a score
            for no fault of theirs. Above it `poll` and `wait` raise.

    Attributes:
        names: keys of `Score.parts`, without those of hidden functions.
        idle: names of functions that are only measured in samples submitted from now
            on, as if their weight were 0.

    Raises:
        ConfigError: a name or option is wrong, or a function cannot be imported.
        RuntimeError: no worker can be started.
    """

    def __init__(
        self,
        functions: Sequence[str] = (),
        weights: Sequence[float] = (),
        *,
        routes: Sequence[Route] = (),
        hidden: Sequence[str] = (),
        num_workers: int,
        timeout_secs: float,
        options: Mapping[str, Any] | None = None,
        recycle_jobs: int = 2_000,
        recycle_bytes: int = 1 << 30,
        max_infrastructure_share: float = 1.0,
    ):
        if routes:
            functions = routing.functions_of(routes)
            weights = [1.0] * len(functions)
        # One that also counts is loaded once.
        every = tuple(dict.fromkeys((*functions, *hidden)))
        registry.check(functions, weights, options or {})
        registry.check(every, [1.0] * len(every), options or {})
        if num_workers < 1 or timeout_secs <= 0:
            raise ConfigError(
                f"reward.workers is {num_workers}, reward.timeout_secs {timeout_secs}."
                "\nExpected 1 or more workers and a time limit above 0."
            )
        self.idle: Collection[str] = ()
        self._name_of = dict(zip(every, registry.part_names(every), strict=True))
        self.names = tuple(self._name_of[function] for function in functions)
        self._weights = dict(zip(self.names, map(float, weights), strict=True))
        self._hidden = {self._name_of[function]: 1.0 for function in hidden}
        self._halves: dict[int, tuple[int, Score]] = {}  # whose other half is missing
        self._routes = tuple(routes)
        self._ledger = Ledger(max_infrastructure_share)
        self._dispatcher = Dispatcher(
            self._ledger,
            {
                "functions": {name: path for path, name in self._name_of.items()},
                "weights": self._weights,
                "options": dict(options or {}),
                "path": sys.path,
            },
            num_workers=num_workers,
            timeout_secs=timeout_secs,
            recycle_jobs=recycle_jobs,
            recycle_bytes=recycle_bytes,
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
        if not self._hidden:
            return self._ledger.pending()
        return (self._ledger.pending() + len(self._halves)) // 2

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers alive now."""
        return self._dispatcher.pids()

    def submit(self, ticket: int, job: Mapping[str, Any]) -> None:
        """Queues a sample. Never blocks.

        job: "prompt", "completion", "answer" or "answers" (all that are right), "row"
        (a dict of extra columns), "num_tokens", "truncated", "data_source"; and
        "prompt_ids" and "completion_ids", which only a function gets that names them.
        Arrays in it become lists, and what JSON has no form for becomes its text.

        Raises:
            ValueError: the ticket is still pending.
            ConfigError: there are routes, and none for this data source.
        """
        weights = self._weights_of(str(job.get("data_source", "")))
        self._add(ticket, job, weights, [name for name in self.idle if name in weights])
        if self._hidden:
            assert ticket >= 0
            self._add(-1 - ticket, job, self._hidden, ())

    def _add(
        self,
        ticket: int,
        job: Mapping[str, Any],
        weights: Mapping[str, float],
        idle: Collection[str],
    ) -> None:
        unasked = [name for name in registry.TOKEN_IDS if name not in self._ledger.asks]
        message: dict[str, Any] = {
            "id": ticket,
            "job": {key: value for key, value in job.items() if key not in unasked},
        }
        if self._routes or self._hidden:
            message["weights"] = weights
        if idle:
            message["idle"] = sorted(idle)
        line = json.dumps(message, default=_plain).encode()
        in_order = sorted(weights, key=lambda name: name in registry.SHAPING)
        self._ledger.add(ticket, line, tuple(in_order))
        self._dispatcher.wake()

    def weight(self, source: str) -> float:
        """The sum of the weights, without their signs, that count for a data source."""
        weights = self._weights_of(source)
        return sum(abs(w) for name, w in weights.items() if name not in self.idle)

    def _weights_of(self, source: str) -> dict[str, float]:
        if not self._routes:
            return self._weights
        routing.check_source(self._routes, source, where="a sample")
        route = routing.find(self._routes, source)
        assert route is not None
        names = [self._name_of[function] for function in route.functions]
        return dict(zip(names, route.weights, strict=True))

    def check_golds(self, jobs: Sequence[Mapping[str, Any]]) -> list[tuple[int, str]]:
        """Which of the jobs have no reference that their functions could use, and why.

        To be asked when data is loaded, with nothing else pending. A job needs what a
        row has: no prompt and no completion. Returns indices with a reason each.
        """
        assert not self.pending, "there are samples to be graded"
        for i, job in enumerate(jobs):
            empty = {"prompt": "", "completion": "", "row": {}, "data_source": ""}
            self.submit(i, {**empty, **job, "check_gold": True})
        found: dict[int, str] = {}
        while left := self._ledger.pending():
            for ticket, score in sorted(self._ledger.wait(None, left)):
                if score.value is None:
                    found[max(ticket, -1 - ticket)] = score.detail
        return sorted(found.items())

    def poll(self) -> list[tuple[int, Score]]:
        """The scores that have come in since the last call. Never blocks."""
        return self._whole(self._ledger.take())

    def wait(
        self, timeout_secs: float | None = None, *, at_least: int = 1
    ) -> list[tuple[int, Score]]:
        """Blocks until so many scores are there, or all, or the time is up.

        What is there by then is returned. Being woken once and not for every score
        leaves the cores to the workers.
        """
        if not self._hidden:
            return self._ledger.wait(timeout_secs, at_least)
        end = None if timeout_secs is None else time.monotonic() + timeout_secs
        found: list[tuple[int, Score]] = []
        while len(found) < at_least and self.pending:
            left = None if end is None else end - time.monotonic()
            halves = 2 * (at_least - len(found)) - len(self._halves)
            came = self._ledger.wait(left and max(left, 0.0), max(halves, 1))
            if not came:  # the time is up, or the pool is closed
                break
            found += self._whole(came)
        return found

    def _whole(self, came: list[tuple[int, Score]]) -> list[tuple[int, Score]]:
        """Scores with what the hidden functions say, once both halves are there."""
        if not self._hidden:
            return came
        whole = []
        for half in came:
            ticket = max(half[0], -1 - half[0])
            if ticket not in self._halves:
                self._halves[ticket] = half
                continue
            (_, hidden), (_, score) = sorted(
                [half, self._halves.pop(ticket)], key=lambda half: half[0]
            )
            named = {f"hidden/{name}": x for name, x in hidden.parts.items()}
            parts = score.parts | named
            whole.append((ticket, dataclasses.replace(score, parts=parts)))
        return whole

    def stats(self) -> dict[str, Any]:
        """Counts since the pool was made, hidden functions' jobs among them.

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
