"""Rewards by step: a function counts only from one step to another.

    format=1-200             in the first 200 steps
    helpful=1301             from step 1,301 on
    model=1301-1700          the reward model, in these

Outside of its steps a function's weight is 0: it is measured, as any other. Steps count
from 1, and both ends are inside. DeepSeek-R1 (arXiv:2501.12948) rewards preferences in
the last 400 of 1,700 steps only, as longer is hacked.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from rl_jax.errors import ConfigError
from rl_jax.rewards.registry import nearest

MODEL = "model"  # the name of the reward model's score among the functions' parts
Steps = tuple[int, int | None]  # first and last step, both inside; None: to the end


def parse(
    entries: Iterable[str], names: Sequence[str], key: str = "reward.steps"
) -> dict[str, Steps]:
    """The steps in which each function named counts.

    Args:
        names: of the functions, as in `Score.parts`; MODEL where there is one.
        key: of the config, without "config.", for messages.

    Raises:
        ConfigError: for an unknown name, one that is given twice, and steps that are
            no range from 1.
    """
    found: dict[str, Steps] = {}
    for entry in entries:
        name, equals, text = entry.rpartition("=")
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
        name = name.strip()
        if not equals or not match:
            raise ConfigError(
                f"config.{key} has {entry!r}, expected NAME=FIRST or NAME=FIRST-LAST, "
                f"steps from 1.\nWrite e.g. `--config.{key}={name or names[0]}=1-100`."
            )
        if name not in names:
            raise ConfigError(
                f"config.{key} has {entry!r}, but no reward is called {name!r}"
                f"{nearest(name, names)}.\nExpected one of: {', '.join(names)}."
            )
        first, last = int(match[1]), int(match[2]) if match[2] else None
        if name in found or first < 1 or (last is not None and last < first):
            wrong = "is a second entry of its name" if name in found else "has no step"
            raise ConfigError(
                f"config.{key} has {entry!r}, which {wrong}; steps count from 1.\n"
                f"Write one range of each name, e.g. `--config.{key}={name}=1-100`."
            )
        found[name] = first, last
    return found


def idle(steps: Mapping[str, Steps], step: int) -> frozenset[str]:
    """Names of those that do not count in step `step`, from 1."""
    return frozenset(
        name
        for name, (first, last) in steps.items()
        if step < first or (last is not None and step > last)
    )
