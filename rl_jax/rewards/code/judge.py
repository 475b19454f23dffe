"""A reply and the tests of its row, made one score.

    correct            every test passed, or as large a share as was asked for
    wrong              a test failed: its output, its value, an assertion
    crash              the program raised, was killed, or left
    timeout, blocked   it took too long; it asked for what is not allowed, and failed
    unparsable_reply   there is no program in the reply
    unparsable_gold    the tests cannot be used: no score

The verdict is that of the first test that fails.
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from rl_jax.rewards.code import extract, spellings
from rl_jax.rewards.code.bench import Bench
from rl_jax.rewards.code.hosts import NOT_PYTHON, Result
from rl_jax.rewards.code.options import CodeOptions
from rl_jax.rewards.code.runs import results
from rl_jax.rewards.code.tests import Suite, UnusableTestsError
from rl_jax.rewards.sandbox import Sandbox
from rl_jax.rewards.score import Score, Verdict

_MAX_ANSWER = 20_000  # characters of a program kept with its score


def judge_job(job: Mapping[str, Any], options: CodeOptions, sandbox: Sandbox) -> Score:
    """Judges a job by the tests that it carries; see `judge`."""
    start = time.perf_counter()
    try:
        suite = spellings.from_job(job)
    except UnusableTestsError as error:
        seconds = time.perf_counter() - start
        return Score(None, Verdict.UNPARSABLE_GOLD, "", seconds, str(error))
    return judge(job["completion"], suite, options, sandbox, job.get("prompt") or "")


def judge(
    reply: str, suite: Suite, options: CodeOptions, sandbox: Sandbox, prompt: str = ""
) -> Score:
    """Runs the program of a reply against the tests.

    Args:
        reply: the completion, with its thinking.
        prompt: as rendered. It may end in an open <think> or fence, and may hold the
            head of the function that a reply completes if `suite.stub` does not.

    Returns:
        The value: 1 or 0, or with the credit "pass_rate" the share of tests that
        passed; 0 below the threshold; None if the tests cannot be used. The detail
        names the first test that failed, and nothing that was expected.

    Raises:
        SandboxError: a fault of ours, which says nothing about the reply.
    """
    start = time.perf_counter()
    suite = dataclasses.replace(suite, stub=suite.stub or prompt)
    suite = suite.capped(options.max_tests)
    program = extract.program(
        reply,
        prompt=prompt,
        stub=suite.stub,
        names=suite.names,
        reads=suite.kind == "stdin",
    )
    if program is None:
        return _score(0.0, Result(Verdict.UNPARSABLE_REPLY, "no program"), "", start)
    text = program.text[:_MAX_ANSWER]
    deadline = time.monotonic() + options.total_secs
    bench = Bench(sandbox, suite, program.variants, options, deadline)
    try:
        passed, total, failure = _counted(bench)
    except UnusableTestsError as error:
        return _score(None, Result(Verdict.UNPARSABLE_GOLD, str(error)), text, start)
    if failure is None:
        return _score(1.0, Result(Verdict.CORRECT), text, start)
    rate = passed / total
    value = 0.0
    if rate >= options.needed and passed:
        value = 1.0 if options.credit == "binary" else rate
    if value == 1.0:
        failure = Result(Verdict.CORRECT, failure.detail)
    elif program.is_prose and failure.detail.endswith(NOT_PYTHON):
        failure = Result(Verdict.UNPARSABLE_REPLY, "neither a fenced block nor Python")
    return _score(value, failure, text, start)


def _counted(bench: Bench) -> tuple[int, int, Result | None]:
    """How many tests passed, of how many, and the first failure.

    Where one failure settles the matter, the tests after it are not run, and count as
    failed.
    """
    passed = total = 0
    failure = None
    outcomes = results(bench)
    try:
        for result in outcomes:
            total += 1
            passed += result.verdict == Verdict.CORRECT
            if result.verdict != Verdict.CORRECT and failure is None:
                failure = Result(result.verdict, f"test {total}: {result.detail}")
                if bench.options.stops_early:
                    break
    finally:
        outcomes.close()  # ends its processes, and shows what they were refused
    if failure and bench.refused and failure.verdict != Verdict.TIMEOUT:
        failure = Result(Verdict.BLOCKED, f"not allowed: {bench.refused[0]}"[:200])
    return passed, total, failure


def _score(value: float | None, result: Result, text: str, start: float) -> Score:
    seconds = time.perf_counter() - start
    return Score(value, result.verdict, text, seconds, result.detail)
