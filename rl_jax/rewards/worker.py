"""The worker process: takes jobs as JSON lines, runs reward functions, answers scores.

Started by process.py as `python -m rl_jax.rewards.worker PARENT_PID`. The protocol has
the original standard input and output to itself; what a reward function prints goes to
standard error, and what it reads is empty.

In, first line: {"functions": {name: path}, "weights": {name: number}, "options",
                 "path"}.
Out, once:      {"ready": true, "asks", "batches", "limits", "bytes"}, or {"error": why
                the functions cannot be loaded}.
In, jobs:       {"jobs": [{"id", "job", "weights", "idle"}, ...]}; "weights" names the
                functions of this job if they are not all, "idle" those of them that
                are only measured.
Out, a job:     {"id", "start": name, "parts": values so far} before each function but
                the first; then {"id", "score", "errors": how many functions raised,
                "bytes": the most memory this process has had}.
                Job after job, in order; or of the first only, and then a score for
                each, if some function takes batches.

With "check_gold" in a job its functions are not asked for a score but whether they
could use its reference answer.
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.rewards import loading, registry
from rl_jax.rewards.loading import Job, Loaded
from rl_jax.rewards.score import Score, Verdict, combine

# Room that the computer algebra may take beyond what the process has already: a matrix
# of 10^5 by 10^5 must end in a MemoryError and not in the host's swap.
_BUILT_IN_BYTES = 2 << 30
_PR_SET_PDEATHSIG = 1

Send = Callable[[Mapping[str, Any]], None]
Weights = Mapping[str, float]


def main() -> None:
    """Runs until standard input ends, which it does when the trainer dies."""
    _die_with_parent(int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    lines, scores = _take_channels()

    def send(message: Mapping[str, Any]) -> None:
        scores.write(json.dumps(message).encode() + b"\n")
        scores.flush()

    settings = json.loads(lines.readline() or b"null")
    if settings is None:
        return
    sys.path.extend(entry for entry in settings["path"] if entry not in sys.path)
    try:
        functions = {
            name: loading.load(path, settings["options"])
            for name, path in settings["functions"].items()
        }
    except ConfigError as error:
        send({"error": str(error)})
        return
    send(
        {
            "ready": True,
            "asks": sorted({name for fn in functions.values() for name in fn.asks}),
            "batches": any(fn.takes_batches for fn in functions.values()),
            "limits": {name: fn.limit_secs for name, fn in functions.items()},
            "bytes": _peak_bytes(),
        }
    )
    together = any(function.takes_batches for function in functions.values())
    for line in lines:
        asked = json.loads(line)["jobs"]
        for batch in [asked] if together else [[message] for message in asked]:
            jobs = [message["job"] for message in batch]
            weights = [message.get("weights", settings["weights"]) for message in batch]
            first = {"id": batch[0]["id"]}
            results = run(
                jobs,
                functions,
                weights,
                lambda event, at=first: send({**at, **event}),
                [message.get("idle", ()) for message in batch],
            )
            for message, (score, num_errors) in zip(batch, results, strict=True):
                result = {"score": score.to_json(), "errors": num_errors}
                send({"id": message["id"], **result, "bytes": _peak_bytes()})


def _peak_bytes() -> int:
    # Not ru_maxrss: on Linux a process begins with that of the one that started it,
    # and a trainer is so large that a worker's own growth would never show.
    try:
        with open("/proc/self/status") as status:
            lines = dict(line.split(":", 1) for line in status)
        return int(lines["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(
    jobs: Sequence[Job],
    functions: Mapping[str, Loaded],
    weights: Sequence[Weights],
    send: Send,
    idle: Sequence[Collection[str]] | None = None,
) -> list[tuple[Score, int]]:
    """Calls the functions of some jobs; returns each sum, and how many of them raised.

    A function that raises is a bug, ours or the user's, and never a 0: its score is
    None with the last line of the traceback. A job has in "scores" the values of the
    functions that came before, those of `registry.SHAPING` coming last.
    """
    scores: list[dict[str, Score]] = [{} for _ in jobs]
    num_errors = [0] * len(jobs)
    for name in sorted(functions, key=lambda name: name in registry.SHAPING):
        chosen = [i for i in range(len(jobs)) if name in weights[i]]
        if not chosen:
            continue
        if any(scores):
            send({"start": name, "parts": _values(scores[0])})
        start = time.perf_counter()
        given = [{**jobs[i], "scores": _values(scores[i])} for i in chosen]
        with _memory_limit() if name in _LIMITED else contextlib.nullcontext():
            outcomes = _outcomes(functions[name], given)
        seconds = (time.perf_counter() - start) / len(chosen)
        for i, outcome in zip(chosen, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                num_errors[i] += 1
                detail = _last_line(outcome)
                outcome = Score(None, Verdict.INFRASTRUCTURE, detail=detail)
            scores[i][name] = Score(
                value=outcome.value,
                verdict=outcome.verdict,
                answer=outcome.answer,
                seconds=seconds,
                detail=outcome.detail,
                parts=outcome.parts,
            )
    sums = [
        _checked(scores[i])
        if jobs[i].get("check_gold")
        else _combined(scores[i], functions, weights[i], idle[i] if idle else ())
        for i in range(len(jobs))
    ]
    return list(zip(sums, num_errors, strict=True))


# Functions of ours that work in this process. The programs that "code" starts have
# limits of their own, and would inherit this one.
_LIMITED = frozenset(registry.BUILT_IN) - {"code"}


def _values(scores: Mapping[str, Score]) -> dict[str, float | None]:
    return {name: score.value for name, score in scores.items()}


def _combined(
    scores: Mapping[str, Score],
    functions: Mapping[str, Loaded],
    weights: Weights,
    idle: Collection[str],
) -> Score:
    if not scores:
        return Score(None, Verdict.INFRASTRUCTURE, detail="no function for this job")
    in_order = {name: scores[name] for name in functions if name in scores}
    return combine(in_order, weights, shaping=registry.SHAPING, idle=idle)


def _checked(scores: Mapping[str, Score]) -> Score:
    """Of a gold check: what the first function says that has something to say."""
    for name, score in scores.items():
        if score.value is None:
            return Score(None, score.verdict, detail=f"{name}: {score.detail}")
    return Score(1.0, Verdict.CORRECT)


def _outcomes(function: Loaded, jobs: Sequence[Job]) -> Sequence[loading.Outcome]:
    if not jobs[0].get("check_gold"):
        return function.judge(jobs)
    outcomes: list[loading.Outcome] = []
    for job in jobs:
        try:
            fault = function.gold_fault(job)
        except Exception as error:
            outcomes.append(error)
            continue
        verdict = Verdict.UNPARSABLE_GOLD if fault else Verdict.CORRECT
        outcomes.append(Score(None if fault else 1.0, verdict, detail=fault))
    return outcomes


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


def _take_channels() -> tuple[Any, Any]:
    """Moves the protocol off descriptors 0 and 1, which functions may use at will.

    The copies are not inherited by programs that a function starts.
    """
    lines = os.fdopen(os.dup(0), "rb", buffering=1 << 18)
    scores = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # the trainer runs without a standard error
        os.dup2(null, 1)
        os.dup2(null, 2)
    os.close(null)
    return lines, scores


def _die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the trainer dies, be it by kill -9."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before we asked
        os._exit(1)


if __name__ == "__main__":
    main()
