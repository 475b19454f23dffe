"""The three ways of testing a program. Each yields a result a test, in order.

Every one is lazy: a caller that has seen enough stops, and the rest is never run.

What is expected stays in this process (`stdin`, `call`) or in a sandbox of its own
(checkers, and asserts: asserts.py); the program's sandbox is given inputs and gives
back outputs.
"""

import time

from rl_jax.rewards.code import compare
from rl_jax.rewards.code.asserts import asserted
from rl_jax.rewards.code.bench import LATE, Bench, Results
from rl_jax.rewards.code.hosts import (
    PASSED,
    GoneError,
    Host,
    Result,
    ended,
    missing,
    raised,
)
from rl_jax.rewards.code.plain import NotPlainError, encode
from rl_jax.rewards.code.sources import whole_program
from rl_jax.rewards.code.tests import CallCase, InputCase, UnusableTestsError
from rl_jax.rewards.score import Verdict


def results(bench: Bench) -> Results:
    """One result a test.

    Raises:
        UnusableTestsError: the tests turn out not to work, whatever the program.
        SandboxError: a fault of ours.
    """
    kinds = {"stdin": _printed, "call": _returned, "assert": asserted}
    return kinds[bench.suite.kind](bench)


def _printed(bench: Bench) -> Results:
    """Runs the whole program once a test, each time in a process of its own."""
    source = whole_program(bench.suite.preamble, bench.variants)
    for case in bench.suite.cases:
        assert isinstance(case, InputCase)
        until = bench.until()
        if until <= time.monotonic():
            yield LATE
            continue
        outcome = bench.sandbox.run(
            source,
            stdin=case.stdin.encode(errors="surrogatepass"),
            limits=bench.limits(until),
        )
        bench.refuse(outcome.blocked)
        result = ended(outcome)
        if result is None:
            text = outcome.stdout.decode(errors="replace").replace("\r\n", "\n")
            result = _checked(bench, case, text)
        yield result


def _checked(bench: Bench, case: InputCase, text: str) -> Result:
    suite = bench.suite
    if suite.checker == "custom":
        return _custom(bench, case, text)
    where = compare.same_output(
        suite.checker, case.output, text, rel_tol=suite.rel_tol, abs_tol=suite.abs_tol
    )
    return Result(Verdict.WRONG, where) if where else PASSED


def _custom(bench: Bench, case: InputCase, text: str) -> Result:
    """Asks the row's own checker, in a sandbox: it reads what a program wrote."""
    with Host(bench.sandbox, "checker", bench.own_limits(bench.deadline)) as checker:
        try:
            reply = checker.ask({"source": bench.suite.checker_source}, bench.until())
        except GoneError as error:
            if error.result.verdict == Verdict.TIMEOUT:  # the program left no time
                return error.result
            raise UnusableTestsError(f"the checker: {error}") from error
        if "unusable" in reply:
            raise UnusableTestsError(f"the checker: {reply['unusable']}")
        message = {"input": case.stdin, "output": text, "expected": case.output}
        try:
            reply = checker.ask(message, bench.until())
        except GoneError as error:
            return error.result
    return PASSED if reply["right"] else Result(Verdict.WRONG, "the checker says no")


def _returned(bench: Bench) -> Results:
    """Calls a function once a test, and compares what it returns in this process."""
    program: Host | None = None
    try:
        for number, case in enumerate(bench.suite.cases):
            assert isinstance(case, CallCase)
            until = bench.until()
            if until <= time.monotonic():
                yield LATE
                continue
            if program is None:
                program = bench.start()
                try:
                    bench.load(program, until)
                except GoneError as error:  # as it would each time
                    yield from [error.result] * (len(bench.suite.cases) - number)
                    return
            try:
                yield _call(bench, program, case, until)
            except GoneError as error:
                bench.close(program)
                program = None
                yield error.result
            if program is not None and not bench.forks:
                bench.close(program)  # the next test must not find what this one left
                program = None
    finally:
        if program is not None:
            bench.close(program)


def _call(bench: Bench, program: Host, case: CallCase, until: float) -> Result:
    suite = bench.suite
    try:
        args = [encode(value) for value in case.args]
        kwargs = {name: encode(value) for name, value in case.kwargs.items()}
    except NotPlainError as error:
        raise UnusableTestsError(f"an argument: {error}") from error
    program.ask({"op": "begin"}, until)
    request = {"on": {"name": suite.entry_point}, "args": args, "kwargs": kwargs}
    reply = program.ask({"op": "do", "what": "call", **request}, until)
    program.ask({"op": "end"}, until)
    if "value" in reply:
        for expected in case.accepts:
            if compare.same_value(
                expected, reply["value"], rel_tol=suite.rel_tol, abs_tol=suite.abs_tol
            ):
                return PASSED
        return Result(Verdict.WRONG, "another value")
    if "missing" in reply:
        return missing(suite.entry_point)
    return raised(reply)
