"""Which of the replies to a prompt are kept, and why the others are not.

Source: rejection sampling keeps the best of K by a reward model (Llama 2,
arXiv:2307.09288, section 3.2; Llama 3, arXiv:2407.21783, section 4.2) or all that are
correct (DeepSeek-R1, arXiv:2501.12948, section 2.3.3). Of equal scores the reply that
was drawn first is taken.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from rl_jax.config_keys import Select
from rl_jax.data.duplicates import exact_duplicates

# Why a reply is left out; of several reasons the first in this order.
REASONS = (
    "too easy",
    "no score",
    "cut off",
    "below min_score",
    "wrong",
    "duplicate",
    "not the best",
    "over max_per_prompt",
    "no gap",
    "scores agree",
    "balance",
)
# Scores are sums of a few floats: a gap of 0.3 - 0.1 counts as 0.2.
_ROUNDING = 1e-9
_APART = 0x61706172  # keeps its draws from others of the seed


@dataclasses.dataclass(frozen=True)
class Reply:
    """A sampled reply.

    Attributes:
        score: None if nobody could judge it.
        verdict: as rewards/score.py has them.
        num_tokens: drawn, with the stop token.
        truncated: cut off at the limit of tokens.
    """

    text: str
    score: float | None
    verdict: str
    num_tokens: int
    truncated: bool

    @property
    def correct(self) -> bool:
        return self.verdict == "correct"


@dataclasses.dataclass(frozen=True)
class Group:
    """The replies to one prompt, and what becomes of them.

    Attributes:
        source: the prompt's data source.
        rows: for each row to write the replies in it: one; the better and the worse
            one (pairs); all of them (rankings).
        left_out: reply -> reason, one of REASONS; every reply is here or in a row.
        num_own: replies of the policy itself, which come first; those after them are
            another's (select.rejected).
    """

    source: str
    replies: tuple[Reply, ...]
    rows: tuple[tuple[int, ...], ...]
    left_out: dict[int, str]
    num_own: int

    @property
    def own(self) -> tuple[Reply, ...]:
        return self.replies[: self.num_own]


def pass_rate(replies: Sequence[Reply]) -> float | None:
    """Share of correct replies among those that could be judged; None without any."""
    judged = [reply for reply in replies if reply.score is not None]
    return sum(reply.correct for reply in judged) / len(judged) if judged else None


def choose(
    source: str, own: Sequence[Reply], select: Select, worse: Sequence[Reply] = ()
) -> Group:
    """Takes of the replies to one prompt those that `select` asks for.

    Args:
        own: replies of the policy itself.
        worse: of another policy, for the worse reply of a pair; (): it is one of `own`.
    """
    replies, left_out = [*own, *worse], dict[int, str]()

    def keep(holds: Callable[[Reply], bool], reason: str) -> None:
        for i, reply in enumerate(replies):
            if i not in left_out and not holds(reply):
                left_out[i] = reason

    def left() -> list[int]:
        return [i for i in range(len(replies)) if i not in left_out]

    rate = pass_rate(own)
    if rate is not None and rate > select.max_pass_rate:
        keep(lambda reply: False, "too easy")
    keep(lambda reply: reply.score is not None, "no score")
    if select.keep == "pairs":
        first_worse = len(own) if worse else 0
        rows = _pair(replies, left(), select, left_out, first_worse)
    elif select.keep == "rankings":
        rows = _ranking(replies, left(), select, left_out)
    else:
        for reason, holds in _conditions(select):
            keep(holds, reason)
        rows = _singles(replies, left(), select, left_out)
    return Group(source, tuple(replies), tuple(rows), left_out, len(own))


def _conditions(select: Select) -> list[tuple[str, Callable[[Reply], bool]]]:
    """What a reply must be to be learnt from."""
    only_correct = select.only_correct or select.keep == "correct"
    least = -np.inf if select.min_score is None else select.min_score - _ROUNDING
    return [
        ("cut off", lambda reply: select.truncated or not reply.truncated),
        ("below min_score", lambda reply: score_of(reply) >= least),
        ("wrong", lambda reply: reply.correct or not only_correct),
    ]


def _singles(
    replies: Sequence[Reply], left: list[int], select: Select, left_out: dict[int, str]
) -> list[tuple[int, ...]]:
    """Best, or correct: rows of one reply each."""
    left = _without_copies(replies, left, select, left_out)
    by_score = sorted(left, key=lambda i: (-score_of(replies[i]), i))
    if select.keep == "best":
        most, reason = 1, "not the best"
    else:
        most, reason = select.max_per_prompt or len(left), "over max_per_prompt"
    left_out |= dict.fromkeys(by_score[most:], reason)
    return [(i,) for i in sorted(by_score[:most])]


def _pair(
    replies: Sequence[Reply],
    left: list[int],
    select: Select,
    left_out: dict[int, str],
    first_worse: int,
) -> list[tuple[int, ...]]:
    """The best reply that may be learnt from, and the worst of the others.

    With replies of another policy, from `first_worse` on, the worst is one of those and
    the best is none. Source: Delta Learning (Geng et al., arXiv:2507.06187).
    """
    conditions = _conditions(select)
    good = [i for i in left if all(holds(replies[i]) for _, holds in conditions)]
    good = [i for i in good if not first_worse or i < first_worse]
    best = max(good, key=lambda i: (score_of(replies[i]), -i), default=-1)
    others = [i for i in left if i != best and i >= first_worse]
    worst = min(others, key=lambda i: (score_of(replies[i]), i), default=-1)
    if best < 0 or worst < 0:
        left_out |= dict.fromkeys(left, "no gap")
        return []
    gap = margin(replies, (best, worst))
    if gap <= 0 or gap < select.min_gap - _ROUNDING:
        left_out |= dict.fromkeys(left, "no gap")
        return []
    left_out |= {i: "not the best" for i in left if i not in (best, worst)}
    return [(best, worst)]


def _ranking(
    replies: Sequence[Reply], left: list[int], select: Select, left_out: dict[int, str]
) -> list[tuple[int, ...]]:
    """All replies, the first of them if there are too many."""
    left = _without_copies(replies, left, select, left_out)
    most = select.max_per_prompt or len(left)
    left_out |= dict.fromkeys(left[most:], "over max_per_prompt")
    left = left[:most]
    if len({score_of(replies[i]) for i in left}) < 2:
        left_out |= dict.fromkeys(left, "scores agree")
        return []
    return [tuple(left)]


def _without_copies(
    replies: Sequence[Reply], left: list[int], select: Select, left_out: dict[int, str]
) -> list[int]:
    if not select.dedupe:
        return left
    first = exact_duplicates(replies[i].text for i in left)
    copies = [i for i, earlier in zip(left, first, strict=True) if earlier >= 0]
    left_out |= dict.fromkeys(copies, "duplicate")
    return [i for i in left if i not in left_out]


def score_of(reply: Reply) -> float:
    """The score of a reply that has one; the others are left out before."""
    assert reply.score is not None
    return reply.score


def margin(replies: Sequence[Reply], row: tuple[int, ...]) -> float:
    """By how much the first reply of a row beats the last."""
    return score_of(replies[row[0]]) - score_of(replies[row[-1]])


def balance(groups: Sequence[Group], seed: int) -> list[Group]:
    """As many rows of each data source that has any; which ones is drawn by the seed.

    The order stays as it is.
    """
    places: dict[str, list[tuple[int, int]]] = {}
    for g, group in enumerate(groups):
        for r in range(len(group.rows)):
            places.setdefault(group.source, []).append((g, r))
    fewest = min(map(len, places.values()), default=0)
    kept: set[tuple[int, int]] = set()
    for number, source in enumerate(sorted(places)):
        rng = np.random.default_rng((seed, number))
        drawn = rng.permutation(len(places[source]))[:fewest]
        kept |= {places[source][i] for i in drawn}
    balanced = []
    for g, group in enumerate(groups):
        gone = [row for r, row in enumerate(group.rows) if (g, r) not in kept]
        rows = tuple(row for r, row in enumerate(group.rows) if (g, r) in kept)
        more = {i: "balance" for row in gone for i in row}
        balanced.append(
            dataclasses.replace(group, rows=rows, left_out=group.left_out | more)
        )
    return balanced


def apart(names: Sequence[str], share: float, seed: int) -> set[str]:
    """About a share of the different names, at least one and never all of them.

    Names that are the same are on one side: that of a prompt that is asked twice.
    """
    different = list(dict.fromkeys(names))
    count = min(max(round(share * len(different)), 1), len(different) - 1)
    if not share or count < 1:
        return set()
    drawn = np.random.default_rng((seed, _APART)).permutation(len(different))[:count]
    return {different[i] for i in drawn}
