"""The prompts that a step of RL asks: as the data come, or as the curriculum has it."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from rl_jax import config as configs
from rl_jax.data.pipeline import Reader
from rl_jax.data.sources import Mixture
from rl_jax.stages import curriculum, inputs
from rl_jax.stages.curriculum import Memory, Outcome, Settings
from rl_jax.stages.inputs import Prompt

Item = TypeVar("Item")

# Positions of the data's order looked at for each prompt wanted. Beyond that few
# prompts are left, and going round them is the same as the order of the data.
_PATIENCE = 16
_DRAWS = 0x647261  # keeps these draws apart from others of the seed


class Asker(Protocol):
    """Gives prompts to ask, each with an id that no other ever had."""

    @property
    def position(self) -> int:
        """How far the order of the data, or the draws, have come."""
        ...

    def take(self, count: int) -> list[tuple[int, Any]]:
        """The next prompts, with their ids."""
        ...


@contextlib.contextmanager
def asking(
    stage: configs.StageConfig,
    prompts: Mixture[Prompt],
    seed: int,
    position: Mapping[str, Any],
) -> "Iterator[InOrder | Chooser[Prompt]]":
    """What a stage takes its prompts from, where its checkpoint's position left it.

    Without a curriculum that is the order of the data, at no cost.

    Raises:
        ConfigError: if what the checkpoint remembers is of other prompts.
    """
    start = position.get("next_row", 0)
    group = stage.curriculum
    names = [field.name for field in dataclasses.fields(Settings)]
    settings = Settings(**{name: getattr(group, name) for name in names})
    if not settings.is_on:
        with Reader(inputs.stream(prompts, seed), start) as reader:
            yield InOrder(reader)
        return
    items = list(prompts)
    summed = curriculum.checksum(prompt.ids for prompt in items)
    memory = curriculum.fresh(len(items))
    if text := position.get("curriculum"):
        key = f"{stage.prefix}data.train"
        memory = curriculum.decoded(text, len(items), summed, key=key)
    yield Chooser(
        items,
        # The same order as that of the prompts themselves.
        _order_of(prompts, seed),
        settings,
        seed=seed,
        position=start,
        memory=memory,
        base_P=_shares(prompts),
        summed=summed,
    )


def _order_of(prompts: Mixture[Prompt], seed: int) -> Callable[[int], int]:
    """The index of the prompt at each position of the stage's stream."""
    parts, start = [], 0
    for part in prompts.parts:
        end = start + len(part.items)
        parts.append(dataclasses.replace(part, items=range(start, end)))
        start = end
    numbers: Any = inputs.stream(Mixture(tuple(parts)), seed)
    return lambda position: numbers[position]


def _shares(prompts: Mixture[Prompt]) -> np.ndarray:
    """Of each prompt: the share of its source, over how many prompts that has."""
    shares = prompts.weights or [len(part.items) for part in prompts.parts]
    sizes = [len(part.items) for part in prompts.parts]
    return np.repeat([s / n for s, n in zip(shares, sizes, strict=True)], sizes)


class InOrder:
    """Asks as the data come, whatever comes of it; the methods are `Chooser`'s."""

    def __init__(self, reader: Reader):
        self._reader = reader

    @property
    def position(self) -> int:
        return self._reader.position

    def begin(self, step: int, count: int) -> str:
        return ""

    def take(self, count: int) -> list[tuple[int, Any]]:
        return self._reader.take(count)

    def record(self, outcomes: Mapping[int, Outcome], step: int) -> None:
        pass

    def remembered(self) -> dict[str, Any]:
        return {}

    def metrics(self) -> dict[str, float]:
        return {}


class Chooser(Generic[Item]):
    """Asks by what came of the prompts before.

    Every step: `begin`, any number of `take`, then `record`.

    Attributes:
        position: how far the order of the data, or the draws, have come. A prompt that
            is taken gets a number below it as its id, which no other ever had.
        memory: before the step that was begun, and after it once it is recorded.
    """

    def __init__(
        self,
        items: Sequence[Item],
        order: Callable[[int], int],
        settings: Settings,
        *,
        seed: int,
        position: int,
        memory: Memory,
        base_P: np.ndarray | None = None,
        summed: int = 0,
    ):
        """See `chances` for base_P; None: all alike.

        Args:
            order: index of the prompt at each position from 0, without end.
            summed: `curriculum.checksum` of the prompts.
        """
        self.position, self.memory = position, memory
        self._items, self._order, self._settings = items, order, settings
        self._seed, self._summed = seed, summed
        self._base_P = np.ones(len(items)) if base_P is None else base_P
        self._asked: dict[int, int] = {}  # id -> index, of the step

    def begin(self, step: int, count: int) -> str:
        """Lets prompts re-enter before step `step` (from 1), which wants `count`.

        Returns:
            A line for people if some had to come back before their time, as too few
            were left; "" otherwise.
        """
        after = self._settings.reenter_after
        due = curriculum.reentered(self.memory, step=step, after=after)
        self.memory = curriculum.topped_up(due, count)
        self._asked = {}
        retired, total = int(due.retired_P.sum()), len(self._items)
        if not (back := retired - int(self.memory.retired_P.sum())):
            return ""
        which = "all" if retired == total else f"all but {total - retired} of"
        return (
            f"step {step}: {which} {total:,} prompts are retired; the {back} that were "
            "solved longest ago are asked again"
        )

    def take(self, count: int) -> list[tuple[int, Item]]:
        """The next prompts to ask, each with an id; never fewer than `count`."""
        chosen = (
            self._in_order(count)
            if self._settings.draw == "uniform"
            else self._by_weight(count)
        )
        self._asked |= chosen
        return [(number, self._items[index]) for number, index in chosen.items()]

    def record(self, outcomes: Mapping[int, Outcome], step: int) -> None:
        """Remembers what came of the step's prompts, by their ids."""
        found = [(self._asked[number], outcome) for number, outcome in outcomes.items()]
        self.memory = curriculum.recorded(
            self.memory, found, step=step, settings=self._settings
        )

    def remembered(self) -> dict[str, Any]:
        """For a checkpoint's position: a function that writes the memory of now."""
        written = functools.partial(curriculum.encoded, self.memory, self._summed)
        return {"curriculum": written}

    def metrics(self) -> dict[str, float]:
        """How the curriculum stands."""
        return curriculum.metrics(self.memory)

    def _in_order(self, count: int) -> dict[int, int]:
        """As the data come, without those retired."""
        chosen: dict[int, int] = {}
        skipped: list[int] = []
        while len(chosen) < count and len(skipped) < _PATIENCE * count:
            index = self._order(self.position)
            if self.memory.retired_P[index]:
                skipped.append(self.position)
            else:
                chosen[self.position] = index
            self.position += 1
        missing = count - len(chosen)
        if missing:
            rest = self._longest_unasked([*self._asked.values(), *chosen.values()])
            for k in range(missing):
                chosen[skipped[k]] = rest[k % len(rest)]
        return chosen

    def _longest_unasked(self, this_step: Sequence[int]) -> list[int]:
        """All that may be asked, first those that this step did not ask."""
        active = np.flatnonzero(~self.memory.retired_P)
        times_P = self._times(this_step)
        last_P, asked_P = self.memory.last_P, self.memory.asked_P
        order = np.lexsort((asked_P[active], last_P[active], times_P[active]))
        return active[order].tolist()

    def _by_weight(self, count: int) -> dict[int, int]:
        """By chance; none twice in a step, as long as there are others."""
        chance_P = curriculum.chances(
            self.memory, self._base_P, self._settings.draw, self._settings.floor
        )
        times_P = self._times([*self._asked.values()])
        chosen: dict[int, int] = {}
        while len(chosen) < count:
            fewest = times_P[chance_P > 0].min()
            least_P = np.where(times_P == fewest, chance_P, 0.0)
            seed = (self._seed, _DRAWS, self.position)
            for index in curriculum.drawn(least_P, count - len(chosen), seed):
                chosen[self.position] = index
                times_P[index] += 1
                self.position += 1
        return chosen

    def _times(self, this_step: Sequence[int]) -> np.ndarray:
        """How often a step has asked each prompt so far."""
        return np.bincount(np.array(this_step, int), minlength=len(self._items))
