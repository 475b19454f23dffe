"""Which reward functions judge a row: decided by the name of its data set.

    gsm8k=gsm8k                      the data source "gsm8k" by the function "gsm8k"
    deepmath*=maths+format@0.1       every source that begins so, by a weighted sum
    *=judges.py:helpful@0.5          all others; without it these are an error
    built_in                         the table below

An exact name wins over a prefix, the longest prefix over shorter ones. Of two entries
for one name the first is taken, so that one's own may go before `built_in`.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

from rl_jax.errors import ConfigError
from rl_jax.rewards.registry import check_name, nearest


@dataclasses.dataclass(frozen=True)
class Route:
    """Functions and weights for the data sources that a pattern fits."""

    pattern: str
    functions: tuple[str, ...]
    weights: tuple[float, ...]


# Data sets as they call themselves, or as trainers in use call them in `data_source`.
BUILT_IN = {
    "math": "maths",
    "maths": "maths",
    "math_dapo": "maths",
    "lighteval/MATH": "maths",
    "DigitalLearningGmbH/MATH-lighteval": "maths",
    "HuggingFaceH4/MATH-500": "maths",
    "HuggingFaceH4/aime_2024": "maths",
    "aime*": "maths",
    "numina*": "maths",
    "number": "number",
    "gsm8k": "gsm8k",
    "openai/gsm8k": "gsm8k",
    "multiple_choice": "multiple_choice",
    "exact": "exact",
    "code": "code",
    "apps": "code",
    "taco": "code",
    "codecontests": "code",
    "codeforces": "code",
    "livecodebench*": "code",
    "humaneval*": "code",
    "mbpp*": "code",
}


def parse(entries: Iterable[str], key: str = "reward.routes") -> tuple[Route, ...]:
    """The table that a config writes as in this module's docstring.

    Raises:
        ConfigError: an entry that cannot be read, or an unknown function.
    """
    routes: list[Route] = []
    for entry in entries:
        if entry.strip() == "built_in":
            routes += [Route(name, (fn,), (1.0,)) for name, fn in BUILT_IN.items()]
            continue
        pattern, equals, text = entry.partition("=")
        pattern = pattern.strip()
        if not equals or not pattern or "*" in pattern[:-1]:
            raise ConfigError(
                f"{key} has {entry!r}.\n"
                "Expected SOURCE=FUNCTION, PREFIX*=FUNCTION+FUNCTION@WEIGHT, "
                "*=FUNCTION or built_in."
            )
        pairs = [_weighted(word.strip(), entry, key) for word in text.split("+")]
        functions, weights = zip(*pairs, strict=True)
        if len(set(functions)) < len(functions):
            raise ConfigError(
                f"{key} has {entry!r}, which names a function twice.\n"
                "Name it once, with its weight: FUNCTION@WEIGHT."
            )
        for name in functions:
            check_name(name, key)
        routes.append(Route(pattern, functions, weights))
    return tuple(routes)


def _weighted(word: str, entry: str, key: str) -> tuple[str, float]:
    name, at, weight = word.rpartition("@")
    try:
        value = float(weight) if at else 1.0
    except ValueError:
        value = math.nan
    if not word or not math.isfinite(value):
        raise ConfigError(
            f"{key} has {entry!r}, where {word!r} is no function with a weight.\n"
            "Expected FUNCTION or FUNCTION@WEIGHT, with + between."
        )
    return (name if at else word), value


def find(routes: Sequence[Route], source: str) -> Route | None:
    """The route of a data source; None if no pattern fits it."""
    for route in routes:
        if route.pattern == source:
            return route
    fitting = [
        route
        for route in routes
        if route.pattern.endswith("*") and source.startswith(route.pattern[:-1])
    ]
    return max(fitting, key=lambda route: len(route.pattern), default=None)


def check_source(
    routes: Sequence[Route], source: str, *, where: str, key: str = "reward.routes"
) -> None:
    """Raises ConfigError for a row whose data source no route fits.

    Args:
        where: names the row, as in "row 3 of train.jsonl".
    """
    if find(routes, source) is None:
        patterns = [route.pattern for route in routes]
        near = nearest(source, patterns) if source else ""
        raise ConfigError(
            f"{where}: no reward is set for the data source {source!r}{near}.\n"
            f"Known: {', '.join(patterns)}.\n"
            f"Add '{source or '*'}=maths' (or another function) to {key}."
        )


def functions_of(routes: Sequence[Route]) -> tuple[str, ...]:
    """All functions that some route names, each once."""
    return tuple(dict.fromkeys(name for route in routes for name in route.functions))
