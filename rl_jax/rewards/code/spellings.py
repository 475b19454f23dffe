"""Reads tests out of a row, by whichever names its data set gives them.

    type, cases | code                       rl_jax: the plainest form, see `_house`
    inputs, outputs, fn_name                 APPS, TACO, PRIME, DeepCoder
    [{input, output, testtype | type}]       LiveCodeBench, SYNTHETIC-1, DeepCoder
    public_tests, private_tests, ...         CodeContests: {input: [..], output: [..]}
    public_test_cases, private_test_cases    LiveCodeBench
    test, entry_point, prompt                HumanEval, EvalPlus, LeetCodeDataset
    test_list, test_imports, test_setup_code MBPP
    reward_model.ground_truth                verl, around any of these

Each may be written as a JSON string. Nothing is ever unpickled (packed.py).
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.rewards.code import compare
from rl_jax.rewards.code.packed import unpack
from rl_jax.rewards.code.tests import (
    CallCase,
    InputCase,
    Suite,
    UnusableTestsError,
)

# Columns that hold tests in a form of their own, in the order in which they are asked.
_HOLDERS = (
    "tests",
    "test_cases",
    "verification_info",
    "input_output",
    "ground_truth",
    "reward_model",
    "assert_case",
)
_LISTS = (
    ("public_test_cases", "private_test_cases"),
    ("public_tests", "private_tests", "generated_tests"),
)
_KNOWN = "tests, test, test_list, input_output, public_tests, reward_model.ground_truth"
_TYPES = ("stdin", "functional", "assert")
_MAX_DEPTH = 4  # of one holder inside another


def from_job(job: Mapping[str, Any]) -> Suite:
    """The tests of a job: its answer if that is tests, else the columns of its row.

    An answer that is bare text comes last: it may be a solution with asserts in it.

    Raises:
        UnusableTestsError: there are none, or they cannot be used as they are.
    """
    row = dict(job.get("row") or {})
    answer = job.get("answer") or None
    broken = None
    try:
        if not isinstance(answer, str) or answer.lstrip()[:1] in ("{", "["):
            if found := _read(answer, row, 0):
                return found
    except UnusableTestsError as error:
        broken = error  # unless the row has what the answer has not
    if found := _read(row, {}, 0) or _read(answer, row, 0):
        return found
    raise broken or UnusableTestsError(
        f"the row has no tests: neither its answer nor a column is one of {_KNOWN}"
    )


def problem(job: Mapping[str, Any]) -> str:
    """Why the tests of a row cannot be used, for the check of the data; "" if they can.

    Looks closer than `from_job`: text that asserts must be Python and check something.
    """
    try:
        tests = from_job(job)
    except UnusableTestsError as error:
        return str(error)
    texts = [case for case in tests.cases if isinstance(case, str)]
    for text in filter(None, [tests.setup, tests.checker_source, *texts]):
        try:
            ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return f"a test is no Python: {error}"
    if texts and not any(_CHECKS.search(text) for text in texts):
        return "the tests assert nothing"
    return ""


_CHECKS = re.compile(r"\bassert|\braise\b|\bcheck\(")


def _read(value: Any, context: Mapping[str, Any], depth: int) -> Suite | None:
    """A suite, or None if the value has nothing to do with tests.

    `context` has the columns around it, which may name the function or a limit.
    """
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, str):
        if value.lstrip()[:1] in ("{", "["):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError) as error:
                if re.match(r"\s*[\[{]\s*[\[{\"]", value):
                    raise UnusableTestsError(f"tests that are no JSON: {error}") from (
                        error
                    )
                return None
        elif re.search(r"^assert\b|^def check\(", value, re.MULTILINE):
            return _asserts([value], context)
        else:
            return None
    if isinstance(value, Mapping):
        return _from_mapping(value, context, depth)
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return _from_list(value, context)
    return None


def _from_mapping(
    spec: Mapping[str, Any], context: Mapping[str, Any], depth: int
) -> Suite | None:
    spec = {key: value for key, value in spec.items() if value is not None}
    around = {**context, **spec}
    if spec.get("type") in _TYPES and not spec.keys().isdisjoint(("cases", "code")):
        return _house(spec, around)
    for inputs, outputs in (("inputs", "outputs"), ("input", "output")):
        if isinstance(spec.get(inputs), list) and isinstance(spec.get(outputs), list):
            return _parallel(spec[inputs], spec[outputs], around)
    for names in _LISTS:
        pieces = [_pieces(spec[name], name) for name in names if spec.get(name)]
        if cases := [case for piece in pieces for case in piece]:
            return _from_list(cases, around)
    if isinstance(spec.get("test"), str) and _CHECKS.search(spec["test"]):
        return _asserts([spec["test"]], around)
    if spec.get("test_list"):
        return _asserts(list(spec["test_list"]), around)
    for name in _HOLDERS:
        if name in spec:
            # Without the holder itself: it may not be its own context.
            rest = {key: value for key, value in around.items() if key != name}
            if found := _read(spec[name], rest, depth + 1):
                return found
    return None


def _house(spec: Mapping[str, Any], around: Mapping[str, Any]) -> Suite:
    """Our own form.

    {"type": "stdin", "cases": [{"input", "output"}], "checker", "checker_code"}
    {"type": "functional", "entry_point", "cases": [{"args", "kwargs", "expected"}]}
    {"type": "assert", "code": text or list of texts, "entry_point", "setup"}
    Everywhere, perhaps: "preamble", "abs_tol", "rel_tol", "wall_secs", "memory_bytes".
    """
    cases: Any = spec.get("cases", spec.get("code", ()))
    if spec["type"] == "assert":
        return _asserts([cases] if isinstance(cases, str) else list(cases), around)
    if not isinstance(cases, list) or not all(isinstance(c, Mapping) for c in cases):
        raise UnusableTestsError("cases must be a list of objects")
    try:
        if spec["type"] == "stdin":
            inputs = [InputCase(_text(c["input"]), _text(c["output"])) for c in cases]
            return Suite("stdin", tuple(inputs), **_shared(around))
        calls = []
        for case in cases:
            args, kwargs = case.get("args") or [], case.get("kwargs") or {}
            if not isinstance(args, list) or not isinstance(kwargs, Mapping):
                raise UnusableTestsError("args must be a list, kwargs an object")
            calls.append(CallCase(tuple(args), (case["expected"],), kwargs))
    except (KeyError, TypeError) as error:
        raise UnusableTestsError(f"a case without {error}") from error
    return Suite("call", tuple(calls), _function(around), **_shared(around))


def _parallel(inputs: list, outputs: list, around: Mapping[str, Any]) -> Suite:
    """One list of inputs, one of outputs, and the name of a function if that is it."""
    if len(inputs) != len(outputs):
        raise UnusableTestsError(
            f"{len(inputs)} inputs and {len(outputs)} outputs: they must be as many"
        )
    pairs = list(zip(inputs, outputs, strict=True))
    if not _function(around):
        cases = tuple(InputCase(_text(given), _text(out)) for given, out in pairs)
        return Suite("stdin", cases, **_shared(around))
    # APPS puts the value that is returned into a list of one, most of the time.
    wrapped = all(isinstance(out, list) and len(out) == 1 for out in outputs)
    calls = []
    for given, out in pairs:
        # LiveCodeBench writes arguments and value as JSON; elsewhere text is text.
        out = _value(out) if isinstance(given, str) else out
        calls.append(CallCase(_arguments(given), (out, out[0]) if wrapped else (out,)))
    return Suite("call", tuple(calls), _function(around), **_shared(around))


def _from_list(cases: Sequence[Any], around: Mapping[str, Any]) -> Suite | None:
    """A list of texts that assert, or of objects with an input and an output each."""
    if all(isinstance(case, str) for case in cases):
        checks = any(re.search(r"\bassert\b", case) for case in cases)
        return _asserts(list(cases), around) if checks else None
    if not all(isinstance(case, Mapping) for case in cases):
        return None
    if all("args" in case or "expected" in case for case in cases):
        return _house({"type": "functional", "cases": list(cases)}, around)
    if not all({"input", "output"} <= case.keys() for case in cases):
        return None
    first = cases[0]
    around = {**around, **{k: v for k, v in first.items() if k not in _CASE_KEYS}}
    kind = str(first.get("testtype") or first.get("type") or "")
    if kind.startswith("func") and not _function(around):
        raise UnusableTestsError("the tests do not name the function to call")
    if kind.startswith("std"):
        around = {key: value for key, value in around.items() if key not in _FUNCTIONS}
        around.pop("metadata", None)
    inputs, outputs = zip(*((c["input"], c["output"]) for c in cases), strict=True)
    return _parallel(list(inputs), list(outputs), around)


_CASE_KEYS = ("input", "output", "type", "testtype")
_FUNCTIONS = ("fn_name", "func_name", "function_name", "entry_point")


def _pieces(value: Any, name: str) -> list[Any]:
    """A list of cases, or CodeContests' two lists in an object, perhaps packed."""
    if isinstance(value, str):
        try:
            value = json.loads(value if value[:1] in "[{" else unpack(value))
        except (ValueError, RecursionError) as error:
            raise UnusableTestsError(f"{name}: {error}") from error
    if isinstance(value, Mapping):
        inputs, outputs = value.get("input") or [], value.get("output") or []
        if len(inputs) != len(outputs):
            raise UnusableTestsError(f"{name}: as many inputs as outputs are needed")
        pairs = zip(inputs, outputs, strict=True)
        return [{"input": given, "output": out} for given, out in pairs]
    return list(value)


def _asserts(texts: list[Any], around: Mapping[str, Any]) -> Suite:
    if not all(isinstance(text, str) for text in texts):
        raise UnusableTestsError("a test that should be text is not")
    texts = [text for text in texts if text.strip()]
    imports = around.get("test_imports") or []
    imports = [imports] if isinstance(imports, str) else list(imports)
    setup = [*imports, *(around.get(name) for name in ("test_setup_code", "setup"))]
    defined = any(re.search(r"^def check\(", text, re.MULTILINE) for text in texts)
    called = any(re.search(r"^check\(", text, re.MULTILINE) for text in texts)
    if defined and not called and not _function(around):
        raise UnusableTestsError("the tests define check(...), but name no entry_point")
    return Suite(
        "assert",
        tuple(texts),
        _function(around),
        setup="\n".join(filter(None, map(str, filter(None, setup)))),
        stub=_last_text(around.get("prompt")),
        **_shared(around),
    )


def _last_text(prompt: Any) -> str:
    """A prompt, or the last turn of one in turns."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], Mapping):
        prompt = prompt[-1].get("content")
    return prompt if isinstance(prompt, str) else ""


def _function(around: Mapping[str, Any]) -> str:
    for name in _FUNCTIONS:
        if isinstance(around.get(name), str) and around[name]:
            return around[name]
    metadata = around.get("metadata")
    if isinstance(metadata, str) and metadata.startswith("{"):
        try:
            metadata = json.loads(metadata)
        except (ValueError, RecursionError):
            return ""
    if isinstance(metadata, Mapping):
        return _function({k: v for k, v in metadata.items() if k != "metadata"})
    return ""


def _shared(around: Mapping[str, Any]) -> dict[str, Any]:
    """What every kind of tests may say."""

    def number(name: str, default: Any) -> Any:
        value = around.get(name)
        return default if value is None else float(value)

    try:
        memory_bytes = number("memory_bytes", None)
        return {
            "preamble": str(around.get("preamble") or ""),
            "checker": str(around.get("checker") or "auto"),
            "checker_source": str(around.get("checker_code") or ""),
            "rel_tol": number("rel_tol", compare.REL_TOL),
            "abs_tol": number("abs_tol", compare.ABS_TOL),
            "wall_secs": number("wall_secs", None),
            "memory_bytes": memory_bytes and int(memory_bytes),
            "at_least_secs": _seconds(around.get("time_limit")),
        }
    except (TypeError, ValueError) as error:
        raise UnusableTestsError(f"a limit or a tolerance: {error}") from error


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*(ms|milli|s|$)", re.IGNORECASE)


def _seconds(value: Any) -> float:
    """A data set's time limit: 2, "2.0 seconds", "500 ms", {"seconds", "nanos"}."""
    if isinstance(value, Mapping):
        return float(value.get("seconds") or 0) + float(value.get("nanos") or 0) / 1e9
    if isinstance(value, str):
        match = _DURATION.search(value)
        if match is None:
            return 0.0
        return float(match[1]) / (1000 if match[2].lower().startswith("m") else 1)
    return float(value or 0)


def _text(value: Any) -> str:
    """Standard input or output: text, or a list of lines as in APPS."""
    if isinstance(value, list):
        return "\n".join(map(str, value)) + "\n"
    return str(value)


def _value(value: Any) -> Any:
    """JSON in a string, or else the string."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _arguments(value: Any) -> tuple[Any, ...]:
    """Arguments: a list of them, or LiveCodeBench's lines of JSON."""
    if not isinstance(value, str):
        arguments = list(value) if isinstance(value, list) else [value]
    else:
        lines = [line for line in value.split("\n") if line.strip()]
        arguments = [_value(line) for line in lines]
    # JSON made the keys strings; APPS' own judge takes them for numbers, too.
    first = arguments[0] if arguments else None
    if isinstance(first, dict) and first and all(_is_integer(key) for key in first):
        arguments[0] = {int(key): item for key, item in first.items()}
    return tuple(arguments)


def _is_integer(text: str) -> bool:
    return bool(re.fullmatch(r"-?[0-9]{1,18}", text))
