"""The worker process: takes jobs as JSON lines, runs reward functions, answers scores.

Started by process.py as `python -m rl_jax.rewards.worker PARENT_PID`. The protocol has
the original standard input and output to itself; what a reward function prints goes to
standard error, and what it reads is empty.

In, first line: {"functions", "names", "weights", "options", "path"}.
Out, once:      {"ready": true}, or {"error": why the functions cannot be loaded}.
In, a job:      {"id", "job"}.
Out, a job:     {"id", "start": name, "parts": values so far} before each function, then
                {"id", "score", "errors": how many functions raised}.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.rewards import registry
from rl_jax.rewards.score import Score, Verdict, combine

# Room that the computer algebra may take beyond what the process has already: a matrix
# of 10^5 by 10^5 must end in a MemoryError and not in the host's swap.
_BUILT_IN_BYTES = 2 << 30
_PR_SET_PDEATHSIG = 1

Send = Callable[[Mapping[str, Any]], None]


def main() -> None:
    """Runs until standard input ends, which it does when the trainer dies."""
    _die_with_parent(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    jobs, scores = _take_channels()

    def send(message: Mapping[str, Any]) -> None:
        scores.write(json.dumps(message).encode() + b"\n")
        scores.flush()

    settings = json.loads(jobs.readline() or b"null")
    if settings is None:
        return
    sys.path.extend(entry for entry in settings["path"] if entry not in sys.path)
    try:
        functions = {
            name: registry.load(function, settings["options"])
            for name, function in zip(
                settings["names"], settings["functions"], strict=True
            )
        }
    except ConfigError as error:
        send({"error": str(error)})
        return
    weights = dict(zip(settings["names"], settings["weights"], strict=True))
    send({"ready": True})
    for line in jobs:
        message = json.loads(line)
        score, num_errors = run(
            message["job"],
            functions,
            weights,
            lambda event, job_id=message["id"]: send({"id": job_id, **event}),
        )
        send({"id": message["id"], "score": score.to_json(), "errors": num_errors})


def run(
    job: registry.Job,
    functions: Mapping[str, registry.RewardFunction],
    weights: Mapping[str, float],
    send: Send,
) -> tuple[Score, int]:
    """Calls every function on one job; returns the sum and how many of them raised.

    A function that raises is a bug, ours or the user's, and never a 0: its score is
    None with the last line of the traceback.
    """
    scores: dict[str, Score] = {}
    num_errors = 0
    for name, function in functions.items():
        send({"start": name, "parts": {key: s.value for key, s in scores.items()}})
        start = time.perf_counter()
        try:
            with _memory_limit() if name in registry.BUILT_IN else _no_limit():
                score = function(job)
        # SystemExit too: a function that calls sys.exit() has failed, not the worker.
        except (Exception, SystemExit) as error:
            num_errors += 1
            score = Score(None, Verdict.INFRASTRUCTURE, detail=_last_line(error))
        scores[name] = Score(
            value=score.value,
            verdict=score.verdict,
            answer=score.answer,
            seconds=time.perf_counter() - start,
            detail=score.detail,
        )
    return combine(scores, weights), num_errors


def _last_line(error: BaseException) -> str:
    line = " ".join(traceback.format_exception_only(error)[-1].split())[:500]
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return line
    return f"{line} ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})"


@contextlib.contextmanager
def _memory_limit() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    allowed = taken + _BUILT_IN_BYTES
    if hard != resource.RLIM_INFINITY:
        allowed = min(allowed, hard)
    resource.setrlimit(resource.RLIMIT_AS, (allowed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _no_limit() -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _take_channels() -> tuple[Any, Any]:
    """Moves the protocol off descriptors 0 and 1, which functions may use at will.

    The copies are not inherited by programs that a function starts.
    """
    jobs = os.fdopen(os.dup(0), "rb")
    scores = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # the trainer runs without a standard error
        os.dup2(null, 1)
        os.dup2(null, 2)
    os.close(null)
    return jobs, scores


def _die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the trainer dies, be it by kill -9."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


if __name__ == "__main__":
    main()
