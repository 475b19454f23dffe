"""Which prompts are asked: solved ones retire, and pass rates may weigh the draws.

What is asked depends on the seed, the position and the recorded outcomes alone. What
is remembered of a prompt is a few integers, which a checkpoint keeps as one text; they
are never written to in place, so that what a stop saves is what a step began with.

Pure NumPy. Legend: P prompts, in the order of the data.

Sources: retiring, ScaleRL, arXiv:2510.13786, section 3.2 ("no positive resampling", at
0.9), and Olmo 3, arXiv:2512.13961 (0.875); draws by 1 - pass rate, Kimi k1.5,
arXiv:2501.12599, section 2.3.4. Neither lets a prompt come back: that is ours.
"""

import base64
import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from rl_jax.errors import ConfigError

Draw = Literal["uniform", "hard", "uncertain"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The group `curriculum` of a config; see there."""

    retire_at: float = 0.0
    retire_after: int = 1
    reenter_after: int = 0
    draw: Draw = "uniform"
    floor: float = 0.05

    @property
    def is_on(self) -> bool:
        """False if prompts are asked in the order of the data, whatever came out."""
        return self.retire_at > 0 or self.draw != "uniform"


@dataclasses.dataclass(frozen=True)
class Memory:
    """What is remembered of each prompt.

    Attributes:
        asked_P: int32, times that it was asked since it entered, or re-entered.
        judged_P, solved_P: int32, its replies since then with a score, and right.
        last_P: int32, the step that asked it last, from 1; 0: none did.
        retired_P: bool, it is not asked.
    """

    asked_P: np.ndarray
    judged_P: np.ndarray
    solved_P: np.ndarray
    last_P: np.ndarray
    retired_P: np.ndarray


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of one time that a prompt was asked: replies with a score, and right ones."""

    judged: int
    solved: int


def fresh(num_prompts: int) -> Memory:
    """Before anything is asked."""
    zero_P = np.zeros(num_prompts, np.int32)
    return Memory(zero_P, zero_P, zero_P, zero_P, np.zeros(num_prompts, bool))


def recorded(
    memory: Memory,
    outcomes: Iterable[tuple[int, Outcome]],
    *,
    step: int,
    settings: Settings,
) -> Memory:
    """The memory after step `step` (from 1), with those retired that are now solved.

    A prompt retires when it was asked `retire_after` times or more and at least the
    share `retire_at` of its replies was right (>=: 7 of 8 retire at 0.875).

    Args:
        outcomes: index of a prompt and what came of it; a prompt may come twice.
    """
    now = Memory(**{name: x_P.copy() for name, x_P in vars(memory).items()})
    touched = set()
    for index, outcome in outcomes:
        now.asked_P[index] += 1
        now.judged_P[index] += outcome.judged
        now.solved_P[index] += outcome.solved
        now.last_P[index] = step
        touched.add(index)
    if settings.retire_at > 0:
        for index in touched:
            judged, solved = int(now.judged_P[index]), int(now.solved_P[index])
            often = now.asked_P[index] >= settings.retire_after
            if often and judged and solved / judged >= settings.retire_at:
                now.retired_P[index] = True
    return now


def reentered(memory: Memory, *, step: int, after: int) -> Memory:
    """With those back that retired `after` steps or more before `step`; 0: none.

    A prompt begins anew: what it once was says little about the policy of now, and a
    long history of right replies would retire it again whatever comes.
    """
    due_P = memory.retired_P & (step - memory.last_P >= after)
    return _back(memory, np.flatnonzero(due_P)) if after and due_P.any() else memory


def topped_up(memory: Memory, count: int) -> Memory:
    """With the longest retired back, if fewer than `count` prompts are left to ask."""
    missing = min(count, len(memory.last_P)) - int((~memory.retired_P).sum())
    if missing <= 0:
        return memory
    retired = np.flatnonzero(memory.retired_P)
    oldest = retired[np.argsort(memory.last_P[retired], kind="stable")]
    return _back(memory, oldest[:missing])


def _back(memory: Memory, which: np.ndarray) -> Memory:
    changed = {}
    for name in ("asked_P", "judged_P", "solved_P", "retired_P"):
        changed[name] = np.copy(getattr(memory, name))
        changed[name][which] = 0
    return dataclasses.replace(memory, **changed)


def pass_rate(memory: Memory) -> np.ndarray:
    """p_P, float64: the expected share of right replies, (solved + 1) / (judged + 2).

    Laplace's rule of succession: a prompt never asked has 1/2, and no prompt is held
    to be hopeless, or certain, after a few replies.
    """
    return (memory.solved_P + 1.0) / (memory.judged_P + 2.0)


def draw_weights(p_P: np.ndarray, draw: Draw, floor: float) -> np.ndarray:
    """Weights of prompts with these pass rates, from `floor` to 1.

    uniform: 1; hard: 1 - p; uncertain: 4 p (1 - p).
    """
    if draw == "uniform":
        return np.ones(len(p_P))
    weight_P = 1 - p_P if draw == "hard" else 4 * p_P * (1 - p_P)
    return np.maximum(weight_P, floor)


def chances(memory: Memory, base_P: np.ndarray, draw: Draw, floor: float) -> np.ndarray:
    """How likely each prompt is drawn next, float64: their sum is 1, 0 if retired.

    Args:
        base_P: what the weights are multiplied by, for shares of several sources.
    """
    weight_P = draw_weights(pass_rate(memory), draw, floor) * base_P
    weight_P = np.where(memory.retired_P, 0.0, weight_P)
    return weight_P / weight_P.sum()


def drawn(chance_P: np.ndarray, count: int, seed: Sequence[int]) -> list[int]:
    """Draws different prompts one after the other; all that have a chance, at most.

    The order of independent exponential times with these rates is that of draws
    without replacement (Efraimidis and Spirakis, 2006).
    """
    time_P = np.random.default_rng(seed).exponential(size=len(chance_P))
    possible = np.flatnonzero(chance_P > 0)
    time_P = time_P[possible] / chance_P[possible]
    count = min(count, len(possible))
    first = np.argpartition(time_P, count - 1)[:count]
    return possible[first[np.argsort(time_P[first], kind="stable")]].tolist()


def metrics(memory: Memory) -> dict[str, float]:
    """How the curriculum stands; the pass rate is the mean of the prompts' own."""
    known_P = memory.judged_P > 0
    rate_P = memory.solved_P[known_P] / memory.judged_P[known_P]
    return {
        "data/retired": int(memory.retired_P.sum()),
        "data/asked_share": float((memory.last_P > 0).mean()),
        "data/pass_rate": float(rate_P.mean()) if known_P.any() else 0.0,
    }


def encoded(memory: Memory, summed: int) -> str:
    """A memory as text for a checkpoint's position: 18 bytes a prompt, deflated.

    Args:
        summed: `checksum` of the prompts that it is of.
    """
    arrays = [memory.asked_P, memory.judged_P, memory.solved_P, memory.last_P]
    arrays = [x_P.astype("<i4").tobytes() for x_P in arrays]
    whole = b"".join([*arrays, memory.retired_P.astype("?").tobytes()])
    # Level 1: of a million prompts 0.2 s when few were asked, 1.2 s at the worst.
    body = base64.b64encode(zlib.compress(whole, 1)).decode()
    return f"{len(memory.retired_P)} {summed} {body}"


def decoded(text: str, num_prompts: int, summed: int, *, key: str) -> Memory:
    """Undoes `encoded`.

    Args:
        key: of the config, for the message.

    Raises:
        ConfigError: if it is of other prompts.
    """
    size, number, body = text.split(" ")
    if (int(size), int(number)) != (num_prompts, summed):
        found = "others" if int(size) == num_prompts else f"{num_prompts:,}"
        raise ConfigError(
            f"The checkpoint remembers how {int(size):,} prompts were answered, but "
            f"config.{key} now has {found}.\nGive the data that the run began with, "
            "or another --workdir."
        )
    whole = zlib.decompress(base64.b64decode(body))
    counts = np.frombuffer(whole, "<i4", count=4 * num_prompts).astype(np.int32)
    asked_P, judged_P, solved_P, last_P = counts.reshape(4, num_prompts)
    retired_P = np.frombuffer(whole, "?", offset=16 * num_prompts)
    return Memory(asked_P, judged_P, solved_P, last_P, retired_P)


def checksum(prompts: Iterable[Sequence[int]]) -> int:
    """Of the prompts' token ids, in order: tells whether they are still the same."""
    summed = 0
    for ids in prompts:
        summed = zlib.crc32(np.asarray([len(ids), *ids], "<i4").tobytes(), summed)
    return summed
