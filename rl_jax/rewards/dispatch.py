"""The pool's thread: starts workers, hands out jobs, keeps time, replaces the dead.

There are `num_workers` processes and some spares, of which at most `num_workers` have
jobs at any time; so when one is killed another is ready at once. Every job ends in
exactly one score, whatever happens to the worker that has it:

    over its time limit       the worker is killed        timeout, value 0
    the worker dies with it   tried once more             then crash, value 0
    a function raises         tried once more             then infrastructure, None
    the protocol breaks       tried once more             then infrastructure, None
    no worker can be started  tried once more             then infrastructure, None

A worker is given several jobs at once where many wait: handing over one costs as much
as grading it. It works on them in order, and the clock of each starts when the one
before it is done; if that takes long, the rest is given to others. Functions that say
so get a batch all together; whatever stops that says nothing about a single job, and
each is then tried alone.
"""

import contextlib
import dataclasses
import math
import os
import selectors
import time
from collections.abc import Mapping
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.rewards.ledger import Job, Ledger
from rl_jax.rewards.process import ProtocolError, WorkerProcess
from rl_jax.rewards.score import Score, Verdict, from_json

# A worker takes 1 s to come up; each four may lose one in that time without a gap.
_SPARES = 0.25
_MAX_ATTEMPTS = 2
_MAX_JOBS = 8  # handed over at once: 20 ms of work or so
_MAX_BATCH = 64  # for functions that take them together
_PATIENCE_SECS = 0.25  # for the job before them, until the others are taken back
_START_SECS = 120.0  # a user's module may be heavy to import
_HANDOVER_SECS = 30.0  # until a worker has taken in what it is sent
_RESTART_SECS = 0.5  # between two attempts at starting a worker
_LEAVE_SECS = 1.0  # for a worker that was told to end, before it is killed


@dataclasses.dataclass(eq=False)
class _Worker:
    """A process and what it is at; `deadline` is when that has lasted too long."""

    process: WorkerProcess
    deadline: float
    ready: bool = False
    batches: bool = False  # it works on all of its jobs together
    limits: dict[str, float | None] = dataclasses.field(default_factory=dict)
    jobs: dict[int, Job] = dataclasses.field(default_factory=dict)  # by ticket
    together: bool = False  # what it was last given were several, for one batch
    lost: set[int] = dataclasses.field(default_factory=set)  # taken back from it
    function: str = ""  # that runs now; "" before the jobs have begun
    parts: dict[str, float | None] = dataclasses.field(default_factory=dict)
    num_jobs: int = 0
    first_bytes: int = 0  # of memory, before its first job
    grown_bytes: int = 0  # since then, at the most

    @property
    def current(self) -> list[Job]:
        """What it works on now; the other jobs wait behind it."""
        jobs = list(self.jobs.values())
        return jobs if self.batches else jobs[:1]


class Dispatcher:
    """Owns all workers. `run` is the body of the thread; `wake` is for any other."""

    def __init__(
        self,
        ledger: Ledger,
        settings: Mapping[str, Any],
        *,
        num_workers: int,
        timeout_secs: float,
        recycle_jobs: int,
        recycle_bytes: int,
    ):
        self._ledger = ledger
        self._settings = settings
        self._num_workers = num_workers
        self._num_processes = num_workers + math.ceil(num_workers * _SPARES)
        self._timeout_secs = timeout_secs
        self._recycle_jobs = recycle_jobs
        self._recycle_bytes = recycle_bytes
        self._workers: list[_Worker] = []
        self._leaving: list[tuple[WorkerProcess, float]] = []
        self._num_failed_starts = 0
        self._next_start = 0.0
        self._selector = selectors.DefaultSelector()
        self._woken = False
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    def wake(self) -> None:
        """Makes the thread look at the ledger, if it has not been told already."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):
                os.write(self._wake_write, b"x")

    def pids(self) -> list[int]:
        """Process ids of the workers alive now."""
        return [worker.process.pid for worker in list(self._workers)]

    def run(self) -> None:
        """Serves until the ledger is closed; then no worker is left."""
        try:
            while not self._ledger.is_closed():
                self._start_missing()
                self._take_back()
                self._assign()
                for key, mask in self._selector.select(self._secs_to_next()):
                    if key.data is None:
                        os.read(self._wake_read, 4096)
                        self._woken = False  # before the ledger is looked at
                    elif key.data in self._workers:  # not dropped in this round
                        self._serve(key.data, mask)
                self._expire()
                self._reap()
        except BaseException as fault:
            self._ledger.stop(fault)
        finally:
            self._end()

    def _end(self) -> None:
        for worker in self._workers:
            worker.process.kill()
            self._leaving.append((worker.process, 0.0))
        self._workers.clear()
        give_up = time.monotonic() + 5.0
        while self._leaving and time.monotonic() < give_up:
            self._reap()
            time.sleep(0.002)
        self._selector.close()
        # The write end stays: a late `wake` must not hit a number used anew.
        os.close(self._wake_read)

    def __del__(self):
        os.close(self._wake_write)

    def _secs_to_next(self) -> float | None:
        moments = [worker.deadline for worker in self._workers]
        if len(self._workers) < self._num_processes:
            moments.append(self._next_start)
        if self._leaving:
            moments.append(time.monotonic() + 0.02)
        if self._free():
            moments += [
                worker.current[0].started + _PATIENCE_SECS
                for worker in self._workers
                if worker.function and len(worker.jobs) > len(worker.current)
            ]
        first = min(moments)
        return None if first == math.inf else max(0.0, first - time.monotonic())

    # Starting and ending workers.

    def _start_missing(self) -> None:
        now = time.monotonic()
        while len(self._workers) < self._num_processes and now >= self._next_start:
            try:
                process = WorkerProcess(self._settings)
            except OSError as error:
                self._start_failed(f"a reward worker cannot be started: {error}")
                return
            worker = _Worker(process, now + _START_SECS)
            self._workers.append(worker)
            self._selector.register(process.stdout, selectors.EVENT_READ, worker)

    def _start_failed(self, reason: str) -> None:
        self._num_failed_starts += 1
        self._next_start = time.monotonic() + _RESTART_SECS
        if self._num_failed_starts < _MAX_ATTEMPTS:
            return
        if any(worker.ready for worker in self._workers):
            return
        if not self._ledger.is_ready():
            raise RuntimeError(reason)
        while job := self._ledger.next():
            self._ledger.finish(job, _infrastructure(reason))

    def _drop(self, worker: _Worker, fault: str | None) -> None:
        """Kills a worker; its job is tried again, or scored if it has been before.

        fault: what it has done wrong; None if it has died.
        """
        self._part_with(worker)
        reason = fault or worker.process.cause_of_death()
        worker.process.kill()
        self._leaving.append((worker.process, 0.0))
        self._ledger.count("restarts")
        if not worker.ready:
            self._start_failed(f"a reward worker {reason}")
        suspects = worker.current
        self._put_back(worker)
        for job in reversed(suspects):
            if job.attempts < _MAX_ATTEMPTS or worker.together:
                self._ledger.again(job)
            elif fault is None and worker.function:
                # Twice is no accident: this text brings its grader down.
                where = f"the worker {reason} in {worker.function}"
                self._ledger.finish(job, _zero(worker, job, Verdict.CRASH, where))
            else:
                self._ledger.finish(job, _infrastructure(f"the worker {reason}"))

    def _put_back(self, worker: _Worker) -> None:
        """Puts the jobs that wait behind the current one back into the queue."""
        waiting = list(worker.jobs.values())[len(worker.current) :]
        for job in reversed(waiting):
            self._ledger.put_back(job)
            del worker.jobs[job.ticket]
            worker.lost.add(job.ticket)

    def _recycle(self, worker: _Worker) -> None:
        self._part_with(worker)
        worker.process.stdin.close()  # it ends by itself, having nothing to do
        self._leaving.append((worker.process, time.monotonic() + _LEAVE_SECS))
        self._ledger.count("recycled")

    def _part_with(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._watch_writes(worker, False)
        self._selector.unregister(worker.process.stdout)

    def _reap(self) -> None:
        staying = []
        for process, deadline in self._leaving:
            if deadline <= time.monotonic() or process.is_dead():
                process.kill()
            if not process.ended():
                staying.append((process, deadline))
        self._leaving = staying

    # Jobs and what workers say of them.

    def _free(self) -> list[_Worker]:
        """Workers that may be given jobs now; never more than `num_workers` have."""
        num_busy = sum(bool(worker.jobs) for worker in self._workers)
        idle = [w for w in self._workers if w.ready and not w.jobs and not w.lost]
        return idle[: max(0, self._num_workers - num_busy)]

    def _assign(self) -> None:
        free = self._free()
        for i, worker in enumerate(free):
            if worker.batches:
                jobs = self._ledger.next_batch(len(free) - i, _MAX_BATCH)
            else:  # ever smaller parts, so that all end at about the same time
                jobs = self._ledger.next_batch(2 * self._num_workers, _MAX_JOBS)
            if not jobs:
                return
            worker.jobs = {job.ticket: job for job in jobs}
            worker.together = worker.batches and len(jobs) > 1
            worker.function = ""
            worker.deadline = time.monotonic() + _HANDOVER_SECS
            lines = b",".join(job.line for job in jobs)
            if worker.process.send(b'{"jobs":[' + lines + b"]}"):
                self._watch_writes(worker, True)
            else:
                self._begin(worker)

    def _begin(self, worker: _Worker) -> None:
        """Starts the clock of what the worker is at now."""
        now = time.monotonic()
        current = worker.current
        names = {name for job in current for name in job.functions}
        own = [worker.limits.get(name) or self._timeout_secs for name in names]
        worker.deadline = now + max(own, default=self._timeout_secs)
        worker.function = next(iter(current[0].functions), "a function")
        worker.parts = {}
        for job in current:
            job.started = now
            job.attempts += 1

    def _take_back(self) -> None:
        """Has others do what waits behind a slow job, if there are others."""
        if not self._free():
            return
        patient = time.monotonic() - _PATIENCE_SECS
        for worker in self._workers:
            if worker.function and len(worker.jobs) > len(worker.current):
                if worker.current[0].started <= patient:
                    self._put_back(worker)

    def _watch_writes(self, worker: _Worker, on: bool) -> None:
        """A worker's input is watched only while its pipe is full."""
        stdin = worker.process.stdin
        if on:
            self._selector.register(stdin, selectors.EVENT_WRITE, worker)
        elif stdin in self._selector.get_map():
            self._selector.unregister(stdin)

    def _serve(self, worker: _Worker, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            if not worker.process.flush():
                self._watch_writes(worker, False)
                if worker.jobs and not worker.function:
                    self._begin(worker)
            return
        try:
            for message in worker.process.receive():
                self._receive(worker, message)
        except ConfigError:
            raise
        except EOFError:
            self._drop(worker, None)
        except (ProtocolError, KeyError, TypeError, ValueError) as error:
            self._drop(worker, f"broke the protocol: {error!r}")

    def _receive(self, worker: _Worker, message: Mapping[str, Any]) -> None:
        if not worker.ready:
            if "error" in message:
                if not self._ledger.is_ready():
                    raise ConfigError(message["error"])
                self._drop(worker, f"cannot load the functions: {message['error']}")
            elif message["ready"]:
                self._num_failed_starts = 0
                worker.ready, worker.deadline = True, math.inf
                worker.batches = bool(message["batches"])
                worker.limits = dict(message["limits"])
                worker.first_bytes = int(message["bytes"])
                self._ledger.ready(message["asks"])
        elif message["id"] in worker.lost:
            if "score" in message:
                worker.lost.remove(message["id"])
                self._next(worker)
        elif message["id"] not in worker.jobs:
            raise ProtocolError("a message about a job that it does not have")
        elif "start" in message:
            worker.function, worker.parts = message["start"], message["parts"]
        else:
            score, num_errors = from_json(message["score"]), int(message["errors"])
            job = worker.jobs.pop(message["id"])
            worker.num_jobs += 1
            worker.grown_bytes = int(message["bytes"]) - worker.first_bytes
            # In a batch a function may have raised because of another job.
            failed = score.verdict == Verdict.INFRASTRUCTURE or (
                num_errors and worker.together
            )
            if failed and job.attempts < _MAX_ATTEMPTS:
                self._ledger.again(job)
            else:
                self._ledger.finish(job, score, num_errors)
            self._next(worker)

    def _next(self, worker: _Worker) -> None:
        """After a score: the clock of the next job, or the end of a worker's time."""
        if worker.jobs:
            if not worker.batches:
                self._begin(worker)
            return
        worker.deadline, worker.function = math.inf, ""
        if worker.lost:  # what others do now, and it in vain
            worker.deadline = time.monotonic() + self._timeout_secs
        elif (
            worker.num_jobs >= self._recycle_jobs
            or worker.grown_bytes >= self._recycle_bytes
        ):
            self._recycle(worker)

    def _expire(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._workers if w.deadline <= now]:
            over = worker.current if worker.function else []
            self._put_back(worker)
            if over:
                worker.jobs = {}
            self._drop(worker, "did not answer in time")
            for job in reversed(over):
                if not worker.together:
                    why = (
                        f"{worker.function} was killed after {now - job.started:.1f} s"
                    )
                    self._ledger.finish(job, _zero(worker, job, Verdict.TIMEOUT, why))
                else:  # one of them, nobody knows which
                    job.attempts -= 1
                    self._ledger.again(job)


def _zero(worker: _Worker, job: Job, verdict: Verdict, reason: str) -> Score:
    """0, also for the function at fault; the later ones were never asked."""
    parts = {name: worker.parts.get(name) for name in job.functions}
    parts[worker.function] = 0.0
    return Score(0.0, verdict, "", time.monotonic() - job.started, reason, parts)


def _infrastructure(reason: str) -> Score:
    return Score(None, Verdict.INFRASTRUCTURE, detail=reason)
