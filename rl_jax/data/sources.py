"""What `data.train` and `data.eval` name: one source or several, perhaps with weights.

    gsm8k/train.jsonl                a file, a glob, a folder, or a built-in task
    gsm8k/train.jsonl,math           all rows of both
    gsm8k/train.jsonl@0.7,math@0.3   seven rows of the first for three of the other

A path with a comma or an @ in its name is taken as it is where it exists.
"""

import dataclasses
import glob
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, TypeVar

from rl_jax.data.toys.table import TOYS
from rl_jax.errors import ConfigError

Item = TypeVar("Item")

AS_THEY_ARE = ("arithmetic", "programs", "word_problems")  # without wrong_share
BUILT_IN = (*AS_THEY_ARE, *TOYS)


@dataclasses.dataclass(frozen=True)
class Source:
    """One source; `weight` is None where all rows of all sources are taken."""

    path: str
    weight: float | None = None


@dataclasses.dataclass(frozen=True)
class Part(Generic[Item]):
    """What a source gave.

    Attributes:
        items: in order.
        sizes: tokens of every row that was read, also of those left out.
        left_out: reason -> number of rows that are not among the items.
    """

    source: Source
    items: Sequence[Item]
    sizes: Sequence[int] = ()
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Mixture(Generic[Item]):
    """The items of several sources, in order of the sources."""

    parts: tuple[Part[Item], ...]

    def __len__(self) -> int:
        return sum(len(part.items) for part in self.parts)

    def __iter__(self) -> Iterator[Item]:
        for part in self.parts:
            yield from part.items

    @property
    def weights(self) -> list[float] | None:
        """The share of each source, their sum being 1; None without weights."""
        weights = [part.source.weight for part in self.parts]
        given = [weight for weight in weights if weight is not None]
        return [weight / sum(given) for weight in given] or None


def parse(text: str, key: str = "data.train") -> tuple[Source, ...]:
    """The sources that a value of `data.train` or `data.eval` names.

    Shares are relative: their sum need not be 1.

    Args:
        text: as in the module's docstring; "" names none.
        key: of the config, for messages.

    Raises:
        ConfigError: for a share that is no number, for shares of some sources only,
            and for nothing between two commas. Whether a path exists is for others.
    """
    if not text or exists(text):
        return (Source(text),) if text else ()
    sources = tuple(_source(word.strip(), key) for word in text.split(","))
    bare = [source.path for source in sources if source.weight is None]
    if bare and len(bare) < len(sources):
        paths = ",".join(source.path for source in sources)
        raise ConfigError(
            f"config.{key} gives shares to some of its sources, but none to "
            f"{bare[0]!r}.\nWrite `--config.{key}={paths}`, or PATH@SHARE for each."
        )
    return sources


def _source(word: str, key: str) -> Source:
    path, at, weight = word.rpartition("@")
    if not word or (at and not path):
        raise ConfigError(
            f"config.{key} has a source without a path: {word!r}.\n"
            "Write PATH or PATH@SHARE, with commas between."
        )
    if not at or exists(word):
        return Source(word)
    try:
        value = float(weight)
    except ValueError:
        if not exists(path):
            return Source(word)  # a path with an @ in it, which is not there
        value = math.nan
    if not (0 < value < math.inf):
        raise ConfigError(
            f"config.{key} has the share {weight!r} for {path!r}, expected a number "
            f"above 0.\nWrite e.g. `--config.{key}={path}@1`, and so on."
        )
    return Source(path, value)


def exists(path: str) -> bool:
    """True for a built-in task, and for a file, folder or glob that is there."""
    if path in BUILT_IN:
        return True
    path = os.path.expanduser(path)
    return os.path.exists(path) or bool(glob.glob(path, recursive=True))
