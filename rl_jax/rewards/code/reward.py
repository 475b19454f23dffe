"""The reward function "code", as a worker process calls it."""

import atexit
import threading
from collections.abc import Mapping
from typing import Any

from rl_jax.rewards.code.judge import judge_job
from rl_jax.rewards.code.options import from_options
from rl_jax.rewards.code.sources import source
from rl_jax.rewards.code.spellings import problem
from rl_jax.rewards.sandbox import Sandbox
from rl_jax.rewards.score import Score

# One sandbox a level, kept for the worker's life: starting one takes longer than most
# programs. A worker has one job at a time; the lock is for whoever calls from threads.
_sandboxes: dict[str, Sandbox] = {}
# Processes are started in milliseconds; this is for a machine with no time to spare.
_AROUND_SECS = 5.0
_lock = threading.Lock()


def code(job: Mapping[str, Any], options: Mapping[str, Any]) -> Score:
    """1.0 if the program of the reply passes the row's tests, else 0.0.

    The tests are the job's answer or columns of its row (spellings.py).
    `options["code"]` holds fields of CodeOptions, where they are not the defaults.

    Raises:
        ConfigError: an option that cannot be, or less isolation than was asked for.
        SandboxError: a fault of ours, which says nothing about the reply.
    """
    chosen = from_options(options)
    with _lock:
        return judge_job(job, chosen, _sandbox(chosen.isolation))


def gold_fault(job: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Why the tests of a row cannot be used; "" if they can, as far as can be seen."""
    return problem(job)


def limit_secs(options: Mapping[str, Any]) -> float:
    """Wall time that a job may take: its tests, and the sandbox's start and end."""
    return from_options(options).total_secs + _AROUND_SECS


def warm_up(options: Mapping[str, Any] | None = None) -> None:
    """Puts the texts together that run inside; with options, starts the sandbox too.

    Raises:
        ConfigError, SandboxError: as `code`, with options.
    """
    for side in ("program", "tests", "checker"):
        source(side)
    if options is not None:
        with _lock:
            _sandbox(from_options(options).isolation)


def _sandbox(isolation: str) -> Sandbox:
    if isolation not in _sandboxes:
        sandbox = _sandboxes[isolation] = Sandbox(isolation)
        atexit.register(sandbox.close)
    return _sandboxes[isolation]
