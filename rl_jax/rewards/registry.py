"""Reward functions by name, and their options: what can be checked without importing.

Nothing here imports what a name stands for; loading.py does, in a worker process.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl_jax.errors import ConfigError

# A built-in is `fn(job, options) -> Score`. Its module may have, for all that is in it:
#   warm_up()                called once before the first job, for slow imports
#   gold_fault(job, options) why the row's reference cannot be used; "" if it can
#   limit_secs(options)      wall time a job may take, if not the pool's own limit
BUILT_IN = {
    "maths": "rl_jax.rewards.maths:maths",
    "number": "rl_jax.rewards.number:number",
    "gsm8k": "rl_jax.rewards.gsm8k:gsm8k",
    "multiple_choice": "rl_jax.rewards.multiple_choice:multiple_choice",
    "exact": "rl_jax.rewards.exact_text:exact",
    "code": "rl_jax.rewards.code:code",
    "toy": "rl_jax.rewards.toy:toy",
    "format": "rl_jax.rewards.format:format_reward",
    "cosine_length": "rl_jax.rewards.shaping:cosine_length",
    "repetition": "rl_jax.rewards.shaping:repetition",
    "language": "rl_jax.rewards.shaping:language",
}
# Those that look at how a reply is written. They run after the others, which they may
# look at, and the verdict of a sample is never theirs if it has another function.
SHAPING = ("format", "cosine_length", "repetition", "language")
# Those that judge by the row's reference answers.
NEEDS_ANSWER = ("maths", "number", "gsm8k", "multiple_choice", "exact", "toy")
# What of a job only goes to a function that names it: long, and of use to few.
TOKEN_IDS = ("prompt_ids", "completion_ids")
ANSWER_FORMATS = ("boxed", "any")

# Options of one function, with their defaults; see the function for what they mean.
OPTIONS: dict[str, dict[str, Any]] = {
    "code": {
        "isolation": "namespaces",
        "credit": "binary",
        "threshold": -1.0,
        "max_tests": 50,
        "test_secs": 6.0,
        "total_secs": 60.0,
        "memory_bytes": 1 << 30,
        "output_bytes": 4 << 20,
    },
    "toy": {"credit": "share"},
    "format": {"style": "boxed"},
    "cosine_length": {
        "max_tokens": 0,
        "correct_short": 1.0,
        "correct_long": 0.5,
        "wrong_short": -1.0,
        "wrong_long": -0.5,
        "beyond": -1.0,
    },
    "repetition": {"ngram": 20, "max_penalty": -1.0},
    "language": {"wanted": "en"},
}
FORMAT_STYLES = ("boxed", "think", "think_answer", "think_boxed", "answer")
CREDITS = ("share", "binary")
LANGUAGES = ("en", "zh", "ja", "ko", "ru", "ar", "hi", "el", "he", "th")


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
    functions: Sequence[str],
    weights: Sequence[float],
    options: Mapping[str, Any],
    *,
    key: str = "reward",
) -> None:
    """Refuses what can be seen to be wrong without importing anything.

    Args:
        key: of the config, for messages.

    Raises:
        ConfigError: no function, one twice, an unknown name, a weight missing, or an
            option that no built-in takes as it is.
    """
    if isinstance(functions, str) or not functions:
        raise ConfigError(
            f"{key}.functions needs at least one name, got {functions!r}.\n"
            f"Known: {', '.join(BUILT_IN)}, or package.module:function.\n"
            f"Write --config.{key}.functions=\"('maths',)\"."
        )
    if len(weights) != len(functions):
        raise ConfigError(
            f"{key}.weights has {len(weights)} numbers for {len(functions)} "
            f"functions ({', '.join(functions)}).\n"
            "Give one weight a function; 0 makes it a metric only."
        )
    if len(set(functions)) != len(functions):
        raise ConfigError(
            f"{key}.functions names a function twice: {', '.join(functions)}.\n"
            "Name it once and raise its weight."
        )
    for name in functions:
        check_name(name, f"{key}.functions")
    _check_options(options, key)


def check_name(name: str, key: str) -> None:
    """Raises ConfigError for a name that is no built-in and no import path."""
    if ":" not in name and name not in BUILT_IN:
        raise ConfigError(
            f"{key}: no reward is called {name!r}{nearest(name)}.\n"
            f"Known: {', '.join(BUILT_IN)}. For a function of your own write "
            "package.module:function or path/to/file.py:function."
        )


def _check_options(options: Mapping[str, Any], key: str) -> None:
    answer_format = options.get("answer_format", "boxed")
    if answer_format not in ANSWER_FORMATS:
        raise ConfigError(
            f"{key}.answer_format is {answer_format!r}.\n"
            f"Expected one of: {', '.join(ANSWER_FORMATS)}."
        )
    try:
        re.compile(options.get("format_pattern") or "")
    except re.error as error:
        raise ConfigError(
            f"format_pattern {options['format_pattern']!r} is no regular expression: "
            f"{error}."
        ) from error
    for function, option, known in (
        ("format", "style", FORMAT_STYLES),
        ("language", "wanted", LANGUAGES),
        ("toy", "credit", CREDITS),
    ):
        value = option_of(options, function, option)
        if value not in known:
            raise ConfigError(
                f"{key}.options has {function}.{option}={value}.\n"
                f"Expected one of: {', '.join(known)}."
            )


def option_of(options: Mapping[str, Any], function: str, name: str) -> Any:
    """An option of one function, or its default."""
    return options.get(function, {}).get(name, OPTIONS[function][name])


def parse_options(entries: Iterable[str], key: str = "reward") -> dict[str, Any]:
    """Options of single functions, written "repetition.ngram=4", as nested dicts.

    Raises:
        ConfigError: for one that is not FUNCTION.OPTION=VALUE, that no function has, or
            whose value is of another kind than its default.
    """
    found: dict[str, Any] = {}
    known = [f"{fn}.{name}" for fn, options in OPTIONS.items() for name in options]
    for entry in entries:
        path, equals, text = entry.partition("=")
        function, _, name = path.strip().partition(".")
        if not equals or name not in OPTIONS.get(function, {}):
            raise ConfigError(
                f"{key}.options has {entry!r}{nearest(path, known)}.\n"
                f"Expected FUNCTION.OPTION=VALUE, the options being {', '.join(known)}."
            )
        default = OPTIONS[function][name]
        try:
            value = type(default)(text.strip())
        except ValueError:
            raise ConfigError(
                f"{key}.options has {entry!r}.\n"
                f"Expected {type(default).__name__}, as in {path}={default}."
            ) from None
        found.setdefault(function, {})[name] = value
    return found


def nearest(name: str, choices: Sequence[str] = ()) -> str:
    """A question after the name that may have been meant, or ""."""
    close = difflib.get_close_matches(name, choices or list(BUILT_IN), 1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
