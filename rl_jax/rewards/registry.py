"""Reward functions by name: the built-in ones and a user's own.

Checking a name costs nothing and happens in the trainer. Importing what it names
happens in a worker process only.
"""

import asyncio
import difflib
import importlib
import importlib.util
import inspect
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.rewards.score import Score, from_json, from_value

Job = Mapping[str, Any]
RewardFunction = Callable[[Job], Score]

# A built-in is `fn(job, options) -> Score`. If its module has a `warm_up()`, a worker
# calls it before it takes its first job, so that imports do not eat a job's time.
BUILT_IN = {
    "maths": "rl_jax.rewards.maths:maths",
    "format": "rl_jax.rewards.format:format_reward",
    "number": "rl_jax.rewards.number:number",
}
ANSWER_FORMATS = ("boxed", "any")


def part_names(functions: Sequence[str]) -> tuple[str, ...]:
    """The name under which each function appears in `Score.parts`.

    A user's function goes by what follows the colon, unless two would share it.
    """
    short = [name.rpartition(":")[2] for name in functions]
    return tuple(
        name if short.count(last) > 1 else last
        for name, last in zip(functions, short, strict=True)
    )


def check(
    functions: Sequence[str], weights: Sequence[float], options: Mapping[str, Any]
) -> None:
    """Refuses what can be seen to be wrong without importing anything.

    Raises:
        ConfigError: no function, one twice, an unknown name, a weight missing, or an
            option that no built-in takes as it is.
    """
    if isinstance(functions, str) or not functions:
        raise ConfigError(
            f"reward.functions needs at least one name, got {functions!r}.\n"
            f"Known: {', '.join(BUILT_IN)}, or package.module:function.\n"
            "Write --config.reward.functions=\"('maths',)\"."
        )
    if len(weights) != len(functions):
        raise ConfigError(
            f"reward.weights has {len(weights)} numbers for {len(functions)} "
            f"functions ({', '.join(functions)}).\n"
            "Give one weight a function; 0 makes it a metric only."
        )
    if len(set(functions)) != len(functions):
        raise ConfigError(
            f"reward.functions names a function twice: {', '.join(functions)}.\n"
            "Name it once and raise its weight."
        )
    for name in functions:
        if ":" not in name and name not in BUILT_IN:
            raise ConfigError(
                f"reward.functions: no reward is called {name!r}{_nearest(name)}.\n"
                f"Known: {', '.join(BUILT_IN)}. For a function of your own write "
                "package.module:function or path/to/file.py:function."
            )
    answer_format = options.get("answer_format", "boxed")
    if answer_format not in ANSWER_FORMATS:
        raise ConfigError(
            f"reward.answer_format is {answer_format!r}.\n"
            f"Expected one of: {', '.join(ANSWER_FORMATS)}."
        )
    try:
        re.compile(options.get("format_pattern") or "")
    except re.error as error:
        raise ConfigError(
            f"format_pattern {options['format_pattern']!r} is no regular expression: "
            f"{error}."
        ) from error


def load(name: str, options: Mapping[str, Any]) -> RewardFunction:
    """Imports a reward function and gives it the signature all of them share.

    To be called in a worker: a user's module may do anything when it is imported.

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
            f"{_nearest(function_name, callables)}.\n"
            f"Write {module_name}:<the function's name>."
        )
    if name in BUILT_IN:
        _warm_up(name, module)
        return lambda job: function(job, options)
    return _from_user(function)


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
            f"{_nearest(module_name)}."
        ) from error


def _nearest(name: str, choices: Sequence[str] = ()) -> str:
    close = difflib.get_close_matches(name, choices or list(BUILT_IN), 1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


def _from_user(function: Callable[..., Any]) -> RewardFunction:
    """Adapts a user's function, per sample or of TRL's batch form.

    The batch form is known by a parameter `prompts` or `completions`; it is called
    with lists of one. A function gets the parameters it names, and everything if it
    takes **kwargs. A coroutine function is run to its end.
    """
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    batch = "prompts" in parameters or "completions" in parameters

    def call(job: Job) -> Score:
        # The row first: what the job itself says wins over a column of that name.
        given: dict[str, Any] = dict(job.get("row") or {})
        given |= {key: value for key, value in job.items() if key != "row"}
        if batch:
            given = {key: [value] for key, value in given.items()}
            given["prompts"] = given.pop("prompt")
            given["completions"] = given.pop("completion")
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
        if not takes_all:
            given = {key: value for key, value in given.items() if key in parameters}
        result = function(**given)
        if inspect.isawaitable(result):
            result = asyncio.run(_finish(result))
        if batch:
            if len(result) != 1:
                raise ValueError(f"one sample was given, {len(result)} came back")
            result = result[0]
        if isinstance(result, Score):
            result = result.to_json()
        return from_json(result) if isinstance(result, Mapping) else from_value(result)

    return call


async def _finish(awaitable: Any) -> Any:
    return await awaitable
