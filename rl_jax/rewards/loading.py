"""Imports reward functions and gives them one signature. For worker processes only.

A user's module may do anything when it is imported.
"""

import asyncio
import dataclasses
import importlib
import importlib.util
import inspect
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.rewards.registry import BUILT_IN, TOKEN_IDS, nearest
from rl_jax.rewards.score import Score, from_json, from_value

Job = Mapping[str, Any]
Outcome = Score | BaseException


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A reward function as the worker calls it.

    Attributes:
        judge: scores for some jobs, or what was raised instead, in order.
        gold_fault: why a job's reference cannot be used; "" if it can.
        takes_batches: gains by many jobs at a time: a batch function, or a coroutine.
        asks: which of `TOKEN_IDS` it names.
        limit_secs: wall time it needs for a job; None leaves it to the pool.
    """

    judge: Callable[[Sequence[Job]], Sequence[Outcome]]
    gold_fault: Callable[[Job], str] = lambda job: ""
    takes_batches: bool = False
    asks: tuple[str, ...] = ()
    limit_secs: float | None = None


def load(name: str, options: Mapping[str, Any]) -> Loaded:
    """Imports a reward function.

    Raises:
        ConfigError: the module, file or function is not there, or its import fails.
    """
    module_name, _, function_name = BUILT_IN.get(name, name).rpartition(":")
    module = _import(name, module_name)
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        callables = [key for key, value in vars(module).items() if callable(value)]
        raise ConfigError(
            f"reward.functions: {module_name} has no function {function_name!r}"
            f"{nearest(function_name, callables)}.\n"
            f"Write {module_name}:<the function's name>."
        )
    if name not in BUILT_IN:
        return _from_user(function)
    _warm_up(name, module)
    gold_fault = getattr(module, "gold_fault", lambda job, options: "")
    limit_secs = getattr(module, "limit_secs", lambda options: None)
    return Loaded(
        judge=_one_by_one(lambda job: function(job, options)),
        gold_fault=lambda job: gold_fault(job, options),
        limit_secs=limit_secs(options),
    )


def _warm_up(name: str, module: Any) -> None:
    try:
        if hasattr(module, "warm_up"):
            module.warm_up()
    except ImportError as error:
        raise ConfigError(
            f"reward.functions: {name!r} needs a package that is not here: {error}.\n"
            "Install what rl_jax depends on: pip install -e ."
        ) from error


def _import(name: str, module_name: str) -> Any:
    try:
        if not module_name.endswith(".py"):
            return importlib.import_module(module_name)
        path = pathlib.Path(module_name).resolve()
        spec = importlib.util.spec_from_file_location(f"reward_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # As for a script: dataclasses look the module up, imports its neighbours.
        sys.modules[spec.name] = module
        sys.path.append(str(path.parent))
        spec.loader.exec_module(module)
        return module
    except FileNotFoundError as error:
        wanted = error.filename or module_name
        raise ConfigError(
            f"reward.functions: {name!r} needs {wanted}, which is not there.\n"
            f"Paths are taken from the working directory, {pathlib.Path.cwd()}."
        ) from error
    except (Exception, SystemExit) as error:  # a script may exit when imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ConfigError(
            f"reward.functions: importing {module_name!r} failed with {reason}.\n"
            "Expected package.module:function or path/to/file.py:function"
            f"{nearest(module_name)}."
        ) from error


# SystemExit too: a function that calls sys.exit() has failed, not the worker.
_FAULTS = (Exception, SystemExit)


def _one_by_one(function: Callable[[Job], Any]) -> Callable[[Sequence[Job]], list]:
    def judge(jobs: Sequence[Job]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for job in jobs:
            try:
                outcomes.append(_as_score(function(job)))
            except _FAULTS as fault:
                outcomes.append(fault)
        return outcomes

    return judge


def _from_user(function: Callable[..., Any]) -> Loaded:
    """Adapts a user's function: over one sample or a batch, plain or async.

    The batch form is known by a parameter `prompts` or `completions`, as in TRL; it is
    called with lists, one entry a sample. A function gets the parameters it names, and
    everything but token ids if it takes **kwargs. Coroutines of several samples run
    together.
    """
    parameters = inspect.signature(function).parameters
    asks = tuple(name for name in TOKEN_IDS if name in parameters)
    if "prompts" in parameters or "completions" in parameters:
        judge = _as_batch(function, parameters)
        return Loaded(judge, takes_batches=True, asks=asks)

    def call(job: Job) -> Any:
        return function(**_chosen(_columns(job), parameters))

    if inspect.iscoroutinefunction(function):
        return Loaded(_together(call), takes_batches=True, asks=asks)
    return Loaded(_one_by_one(call), asks=asks)


def _columns(job: Job) -> dict[str, Any]:
    """Row and job as keywords; what the job itself says wins over such a column."""
    given = dict(job.get("row") or {})
    return given | {key: value for key, value in job.items() if key != "row"}


def _chosen(
    given: dict[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    missing = [
        p.name
        for p in parameters.values()
        if p.name not in given
        and p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if missing:
        raise TypeError(
            f"the function asks for {', '.join(missing)}, "
            f"the row has {', '.join(sorted(given))}"
        )
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return given
    return {key: value for key, value in given.items() if key in parameters}


def _as_batch(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
) -> Callable[[Sequence[Job]], list[Outcome]]:
    def judge(jobs: Sequence[Job]) -> list[Outcome]:
        rows = [_columns(job) for job in jobs]
        names = dict.fromkeys(name for row in rows for name in row)
        lists = {name: [row.get(name) for row in rows] for name in names}
        lists["prompts"] = lists.pop("prompt", [""] * len(jobs))
        lists["completions"] = lists.pop("completion")
        try:
            found = function(**_chosen(lists, parameters))
            if inspect.isawaitable(found):
                found = asyncio.run(_finish(found))
            if not isinstance(found, Iterable):
                raise TypeError(f"expected a list of scores, got {found!r}")
            found = list(found)
            if len(found) != len(jobs):
                raise ValueError(f"{len(jobs)} samples given, {len(found)} came back")
            return [_as_score(one) for one in found]
        except _FAULTS as fault:
            return [fault] * len(jobs)

    return judge


def _together(call: Callable[[Job], Any]) -> Callable[[Sequence[Job]], list[Outcome]]:
    async def each(job: Job) -> Outcome:
        try:
            return _as_score(await call(job))
        except _FAULTS as fault:
            return fault

    async def all_of(jobs: Sequence[Job]) -> list[Outcome]:
        return list(await asyncio.gather(*map(each, jobs)))

    return lambda jobs: asyncio.run(all_of(jobs))


async def _finish(awaitable: Any) -> Any:
    return await awaitable


def _as_score(result: Any) -> Score:
    """A number, None, a pair of one and named components, a Score or a dict of one."""
    if isinstance(result, Score):
        result = result.to_json()
    if isinstance(result, tuple) and len(result) == 2:
        value, parts = result
        result = {"value": value, "parts": dict(parts)}
    return from_json(result) if isinstance(result, Mapping) else from_value(result)
