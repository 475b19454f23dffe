"""The pool's thread: starts workers, hands out jobs, keeps time, replaces the dead.

There are `num_workers` processes and some spares, of which at most `num_workers` have
a job at any time; so when one is killed another is ready at once. Every job ends in
exactly one score, whatever happens to the worker that has it:

    over its time limit       the worker is killed        timeout, value 0
    the worker dies with it   tried once more             then crash, value 0
    the protocol breaks       tried once more             then infrastructure, None
    no worker can be started  tried once more             then infrastructure, None
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
_START_SECS = 120.0  # a user's module may be heavy to import
_HANDOVER_SECS = 30.0  # from sending a job to the worker's saying that it has begun
_RESTART_SECS = 0.5  # between two attempts at starting a worker
_LEAVE_SECS = 1.0  # for a worker that was told to end, before it is killed


@dataclasses.dataclass(eq=False)
class _Worker:
    """A process and what it is at; `deadline` is when that has lasted too long."""

    process: WorkerProcess
    deadline: float
    ready: bool = False
    job: Job | None = None
    function: str = ""  # that runs now; "" before the job has begun
    parts: dict[str, float | None] = dataclasses.field(default_factory=dict)
    num_jobs: int = 0


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
    ):
        self._ledger = ledger
        self._settings = settings
        self._num_workers = num_workers
        self._num_processes = num_workers + math.ceil(num_workers * _SPARES)
        self._timeout_secs = timeout_secs
        self._recycle_jobs = recycle_jobs
        self._workers: list[_Worker] = []
        self._leaving: list[tuple[WorkerProcess, float]] = []
        self._num_failed_starts = 0
        self._next_start = 0.0
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    def wake(self) -> None:
        """Makes the thread look at the ledger. A full pipe will wake it as well."""
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
                self._assign()
                for key, mask in self._selector.select(self._secs_to_next()):
                    if key.data is None:
                        os.read(self._wake_read, 4096)
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
        job = worker.job
        if job is None:
            return
        if job.attempts < _MAX_ATTEMPTS:
            self._ledger.again(job)
        elif fault is None and worker.function:
            # Twice is no accident: this text brings its grader down.
            reason = f"the worker {reason} in {worker.function}"
            seconds = time.monotonic() - job.started
            self._ledger.finish(job, self._zero(worker, Verdict.CRASH, seconds, reason))
        else:
            self._ledger.finish(job, _infrastructure(f"the worker {reason}"))

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

    def _assign(self) -> None:
        num_busy = sum(worker.job is not None for worker in self._workers)
        idle = [w for w in self._workers if w.ready and w.job is None]
        for worker in idle[: max(0, self._num_workers - num_busy)]:
            job = self._ledger.next()
            if job is None:
                return
            job.attempts += 1
            worker.job, worker.function, worker.parts = job, "", {}
            worker.deadline = time.monotonic() + _HANDOVER_SECS
            if worker.process.send(job.line):
                self._watch_writes(worker, True)

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
        job = worker.job
        if not worker.ready:
            if "error" in message:
                if not self._ledger.is_ready():
                    raise ConfigError(message["error"])
                self._drop(worker, f"cannot load the functions: {message['error']}")
            elif message["ready"]:
                self._num_failed_starts = 0
                worker.ready, worker.deadline = True, math.inf
                self._ledger.ready()
        elif job is None or message["id"] != job.ticket:
            raise ProtocolError("a message about a job that it does not have")
        elif "start" in message:
            if not worker.function:
                job.started = time.monotonic()
                worker.deadline = job.started + self._timeout_secs
            worker.function, worker.parts = message["start"], message["parts"]
        else:
            score, num_errors = from_json(message["score"]), int(message["errors"])
            worker.job, worker.deadline = None, math.inf
            worker.num_jobs += 1
            self._ledger.finish(job, score, num_errors)
            if worker.num_jobs >= self._recycle_jobs:
                self._recycle(worker)

    def _expire(self) -> None:
        now = time.monotonic()
        for worker in [w for w in self._workers if w.deadline <= now]:
            job = worker.job
            if job and worker.function:
                worker.job = None
            self._drop(worker, "did not answer in time")
            if job and worker.function:
                seconds = now - job.started
                reason = f"{worker.function} was killed after {seconds:.1f} s"
                score = self._zero(worker, Verdict.TIMEOUT, seconds, reason)
                self._ledger.finish(job, score)

    def _zero(
        self, worker: _Worker, verdict: Verdict, seconds: float, reason: str
    ) -> Score:
        """0, also for the function at fault; the later ones were never asked."""
        parts = {name: worker.parts.get(name) for name in self._settings["names"]}
        parts[worker.function] = 0.0
        return Score(0.0, verdict, "", seconds, reason, parts)


def _infrastructure(reason: str) -> Score:
    return Score(None, Verdict.INFRASTRUCTURE, detail=reason)
