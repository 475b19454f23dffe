"""What the training loop and the pool's thread share: every ticket and its score.

Nothing is lost here: a ticket is queued, with a worker, or done, and `finish` takes it
to the last of these. Every method takes the lock and none blocks but the two `wait`s.
"""

import collections
import dataclasses
import threading
import time
from collections.abc import Iterable
from typing import Any

from rl_jax.rewards.score import Score, Verdict


class RewardsFailedError(RuntimeError):
    """Too many samples have no score for reasons that are none of theirs."""


@dataclasses.dataclass
class Job:
    """A submitted sample. Times are of the monotonic clock, in seconds."""

    ticket: int
    line: bytes
    submitted: float
    functions: tuple[str, ...] = ()  # names of those that judge it
    started: float = 0.0  # when its present worker began; 0 before that
    attempts: int = 0
    alone: bool = False  # not with others in one batch: it may have stopped one


# What `max_failed_share` is a share of: the latest scores, if there are some.
_WINDOW = 256
_MIN_WINDOW = 32


class Ledger:
    """Queue of jobs, list of scores, counts.

    max_failed_share: of the latest scores that may have the verdict `infrastructure`;
    above it everything stops. 1 never does.
    """

    def __init__(self, max_failed_share: float = 1.0):
        self._max_failed_share = max_failed_share
        self._failed: collections.deque[bool] = collections.deque(maxlen=_WINDOW)
        self._asks: frozenset[str] = frozenset()
        self._changed = threading.Condition()
        self._queue: collections.deque[Job] = collections.deque()
        self._done: list[tuple[int, Score]] = []
        self._wanted = 1  # scores that whoever waits is waiting for
        self._tickets: set[int] = set()
        self._counts: collections.Counter[str] = collections.Counter()
        self._queue_secs = self._max_queue_secs = self._grade_secs = 0.0
        self._last_error = ""
        self._ready = self._closed = False
        self._fault: BaseException | None = None

    # The training loop's side.

    def add(self, ticket: int, line: bytes, functions: tuple[str, ...] = ()) -> None:
        """Queues a job; ValueError if its ticket is pending, RuntimeError if closed."""
        with self._changed:
            self._check()
            if self._closed:
                raise RuntimeError("the reward pool is closed")
            if ticket in self._tickets:
                raise ValueError(f"ticket {ticket} is still pending")
            self._tickets.add(ticket)
            self._counts["submitted"] += 1
            self._queue.append(Job(ticket, line, time.monotonic(), functions))

    def take(self) -> list[tuple[int, Score]]:
        """The scores that have come in since the last call."""
        with self._changed:
            return self._take()

    def wait(
        self, timeout_secs: float | None, at_least: int = 1
    ) -> list[tuple[int, Score]]:
        """Blocks until scores are there, nothing is pending or the time is up."""
        with self._changed:
            self._wanted = max(1, at_least)
            self._changed.wait_for(
                lambda: self._is_enough() or self._fault or self._closed, timeout_secs
            )
            self._wanted = 1
            return self._take()

    def wait_ready(self) -> None:
        """Blocks until a worker is ready; raises what kept it from becoming so."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._fault)
            if self._fault and not self._ready:
                raise self._fault

    @property
    def asks(self) -> frozenset[str]:
        """Extras of a job that some function names; known once a worker is ready."""
        return self._asks

    def pending(self) -> int:
        """Tickets whose score has not been taken."""
        with self._changed:
            return len(self._tickets)

    def stats(self) -> dict[str, Any]:
        """As `RewardPool.stats` has it."""
        keys = ("submitted", "finished", "none", "retries", "restarts", "recycled")
        with self._changed:
            return {
                **{key: self._counts[key] for key in (*keys, "errors")},
                **{f"verdict/{v}": self._counts[v] for v in Verdict},
                "timeouts": self._counts[Verdict.TIMEOUT],
                "crashes": self._counts[Verdict.CRASH],
                "queue_secs": self._queue_secs,
                "max_queue_secs": self._max_queue_secs,
                "grade_secs": self._grade_secs,
                "last_error": self._last_error,
            }

    def close(self) -> None:
        """No more jobs; whoever waits is woken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # The thread's side.

    def ready(self, asks: Iterable[str] = ()) -> None:
        """A worker has loaded the functions, which name these extras of a job."""
        with self._changed:
            self._ready, self._asks = True, frozenset(asks)
            self._changed.notify_all()

    def is_ready(self) -> bool:
        """True if a worker has ever loaded the functions."""
        return self._ready

    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    def next(self) -> Job | None:
        """Takes the next job off the queue; None if there is none."""
        with self._changed:
            return self._queue.popleft() if self._queue else None

    def next_batch(self, shares: int, limit: int) -> list[Job]:
        """Takes the first of `shares` equal parts of the queue, at most `limit` jobs.

        A job that is to be alone is given alone.
        """
        with self._changed:
            size = min(limit, -(-len(self._queue) // shares))
            jobs: list[Job] = []
            while len(jobs) < size and not (jobs and self._queue[0].alone):
                jobs.append(self._queue.popleft())
                if jobs[-1].alone:
                    break
            return jobs

    def again(self, job: Job) -> None:
        """Puts a job back, at the front."""
        with self._changed:
            self._counts["retries"] += 1
            job.started, job.alone = 0.0, True
            self._queue.appendleft(job)

    def put_back(self, job: Job) -> None:
        """Puts a job that no worker has begun back, at the front."""
        with self._changed:
            self._queue.appendleft(job)

    def finish(self, job: Job, score: Score, num_errors: int = 0) -> None:
        """Enters the score of a job."""
        queued = (job.started or time.monotonic()) - job.submitted
        with self._changed:
            self._counts["finished"] += 1
            self._counts[score.verdict] += 1
            self._counts["none"] += score.value is None
            self._counts["errors"] += num_errors
            if num_errors or score.verdict == Verdict.INFRASTRUCTURE:
                self._last_error = score.detail
            self._failed.append(score.verdict == Verdict.INFRASTRUCTURE)
            self._queue_secs += queued
            self._max_queue_secs = max(self._max_queue_secs, queued)
            self._grade_secs += score.seconds
            self._done.append((job.ticket, score))
            # Waking the one who waits costs as much as a tenth of an easy grade.
            if self._is_enough():
                self._changed.notify_all()

    def count(self, key: str) -> None:
        """Adds one to a count of `stats`."""
        with self._changed:
            self._counts[key] += 1

    def stop(self, fault: BaseException) -> None:
        """The thread has ended by `fault`, which everybody is to see."""
        with self._changed:
            self._fault = fault
            self._changed.notify_all()

    # Under the lock.

    def _is_enough(self) -> bool:
        return len(self._done) >= min(self._wanted, len(self._tickets))

    def _take(self) -> list[tuple[int, Score]]:
        self._check()
        self._check_failures()
        taken, self._done = self._done, []
        self._tickets.difference_update(ticket for ticket, _ in taken)
        return taken

    def _check(self) -> None:
        if self._fault:
            raise RuntimeError("the reward pool has stopped") from self._fault

    def _check_failures(self) -> None:
        num_failed, num_scores = sum(self._failed), len(self._failed)
        if num_scores >= _MIN_WINDOW:
            if num_failed > self._max_failed_share * num_scores:
                raise RewardsFailedError(
                    f"{num_failed} of the last {num_scores} samples could not be "
                    f"judged; a share of {self._max_failed_share:g} is allowed.\n"
                    f"The last fault was: {self._last_error[:300]}"
                )
