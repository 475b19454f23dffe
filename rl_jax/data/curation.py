"""Which rows of a data set to leave out, and why.

Each function looks at the rows that none before it has left out, and adds its own to
`removed`, by their index.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rl_jax.data.contamination import HeldOut
from rl_jax.data.duplicates import exact_duplicates, near_duplicates
from rl_jax.data.entries import Entry

REASONS = (
    "exact duplicate",
    "near duplicate",
    "contaminated",
    "too easy",
    "too hard",
    "no pass rate",
)
_MOST_EXAMPLES = 3  # of each reason, in the statistics
_SHOWN = 160  # letters of an example


class Removed(NamedTuple):
    """Why a row was left out, what it is like, and how much of that it has."""

    reason: str
    like: str = ""
    share: float | None = None


def leave_out_duplicates(
    entries: Sequence[Entry],
    removed: dict[int, Removed],
    *,
    by: str,
    near: float,
    near_ngram: int,
    same_figures: bool,
) -> int:
    """Leaves out what an earlier row says too.

    Args:
        by: "prompt", or "row": the replies must be the same too.
        near: share of runs in common from which rows are nearly the same; 0: only rows
            that are the same are left out.
        near_ngram, same_figures: see `near_duplicates`.

    Returns:
        How many exact duplicates have other answers than the row that is kept: one of
        the two is wrong.
    """
    texts = [entry.prompt if by == "prompt" else entry.whole for entry in entries]
    left = _left(entries, removed)
    conflicts = 0
    for i, first in zip(left, exact_duplicates(texts[i] for i in left), strict=True):
        if first >= 0:
            same = entries[left[first]]
            removed[i] = Removed("exact duplicate", same.record.where)
            conflicts += set(entries[i].answers) != set(same.answers)
    if not near:
        return conflicts
    left = _left(entries, removed)
    found = near_duplicates(
        (texts[i] for i in left),
        n=near_ngram,
        threshold=near,
        same_figures=same_figures,
    )
    for i, first in zip(left, found, strict=True):
        if first >= 0:
            removed[i] = Removed("near duplicate", entries[left[first]].record.where)
    return conflicts


def leave_out_contaminated(
    entries: Sequence[Entry],
    removed: dict[int, Removed],
    tests: Sequence[Entry],
    *,
    ngram: int,
    overlap: float,
) -> dict[str, dict[str, int]]:
    """Leaves out what holds a held-out prompt, in its prompt or in a reply.

    Args:
        tests: the held-out rows.
        ngram, overlap: see `HeldOut`.

    Returns:
        file -> how many prompts it has, and how many of them led to a row's removal.
    """
    held_out = HeldOut([test.prompt for test in tests], n=ngram, share=overlap)
    hit = set()
    for i in _left(entries, removed):
        found = held_out.found_in(entries[i].parts)
        if found:
            where = tests[found.index].record.where
            removed[i] = Removed("contaminated", where, round(found.share, 4))
            hit.add(found.index)
    counts: dict[str, dict[str, int]] = {}
    for i, test in enumerate(tests):
        count = counts.setdefault(str(test.record.file), {"prompts": 0, "found": 0})
        count["prompts"] += 1
        count["found"] += i in hit
    return counts


def leave_out_by_pass_rate(
    entries: Sequence[Entry],
    removed: dict[int, Removed],
    rates: Sequence[float | None],
    *,
    low: float,
    high: float,
    drop_unrated: bool,
) -> None:
    """Leaves out rows whose pass rate is below `low` or above `high`."""
    for i in _left(entries, removed):
        rate = rates[i]
        if rate is None:
            if drop_unrated:
                removed[i] = Removed("no pass rate")
        elif rate > high:
            removed[i] = Removed("too easy", share=round(rate, 4))
        elif rate < low:
            removed[i] = Removed("too hard", share=round(rate, 4))


def _left(entries: Sequence[Entry], removed: Mapping[int, Removed]) -> list[int]:
    return [i for i in range(len(entries)) if i not in removed]


def counted(removed: Mapping[int, Removed]) -> dict[str, int]:
    """How many rows each reason has left out, in the order of `REASONS`."""
    counts = collections.Counter(why.reason for why in removed.values())
    return {reason: counts[reason] for reason in REASONS if counts[reason]}


def histogram(
    rates: Sequence[float | None], kept: Iterable[int]
) -> dict[str, dict[str, int]]:
    """Rows by tenths of the pass rate, as read and as kept; {} if none has one.

    A rate on a boundary counts above it, 1.0 in the last tenth.
    """
    if all(rate is None for rate in rates):
        return {}
    names = [f"{k / 10:.1f} to {(k + 1) / 10:.1f}" for k in range(10)]
    found = {name: {"read": 0, "kept": 0} for name in names}
    among = set(kept)
    for i, rate in enumerate(rates):
        if rate is not None:
            # Rounded: 0.3 * 10 would be a little below 3.
            count = found[names[min(int(round(rate * 10, 9)), 9)]]
            count["read"] += 1
            count["kept"] += i in among
    return found


def reasons(
    entries: Sequence[Entry], removed: Mapping[int, Removed]
) -> list[dict[str, Any]]:
    """Of every row left out: where it stands, what it asks, and why."""
    return [
        {
            "where": entries[i].record.where,
            "prompt": entries[i].prompt,
            **why._asdict(),
        }
        for i, why in sorted(removed.items())
    ]


def statistics(
    entries: Mapping[str, Sequence[Entry]],
    removed: Mapping[int, Removed],
    rates: Sequence[float | None],
    *,
    conflicts: int,
    held_out: Mapping[str, Mapping[str, int]],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """What was kept and what was left out, in all and of each source.

    Args:
        entries: of each source, by its name; their indices go on from one to the next.
        rates: pass rates, None where there is none.
        conflicts: what `leave_out_duplicates` returned.
        held_out: what `leave_out_contaminated` returned.
        settings: that the choice was made by.
    """
    every = [entry for found in entries.values() for entry in found]
    kept = [i for i in range(len(every)) if i not in removed]
    first, sizes = 0, {}
    for name, found in entries.items():
        inside = range(first, first + len(found))
        sizes[name] = {"read": len(found), "kept": sum(i in inside for i in kept)}
        first += len(found)
    return {
        "read": len(every),
        "kept": len(kept),
        "removed": counted(removed),
        "sources": sizes,
        "conflicting_answers": conflicts,
        "held_out": held_out,
        "pass_rates": histogram(rates, kept),
        "examples": _examples(reasons(every, removed)),
        "settings": settings,
    }


def _examples(left_out: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first few rows that each reason left out, cut short."""
    found = []
    for name in REASONS:
        of_it = [line for line in left_out if line["reason"] == name][:_MOST_EXAMPLES]
        found += [line | {"prompt": line["prompt"][:_SHOWN]} for line in of_it]
    return found


def table(found: Mapping[str, Any]) -> list[str]:
    """The statistics for people."""
    total = found["read"]

    def row(name: str, count: int, more: str = "") -> str:
        return f"{name:<18}{count:>10,}{count / total:>8.1%}{more}"

    lines = [row("rows read", total)]
    for reason, count in found["removed"].items():
        more = ""
        if reason == "exact duplicate" and found["conflicting_answers"]:
            more = f"  {found['conflicting_answers']:,} with another answer"
        lines.append(row(f"  {reason}", count, more))
    lines.append(row("kept", found["kept"]))
    if len(found["sources"]) > 1:
        for path, count in found["sources"].items():
            lines.append(f"  {path}: {count['kept']:,} of {count['read']:,}")
    for path, count in found["held_out"].items():
        lines.append(
            f"held out  {path}: {count['found']:,} of {count['prompts']:,} prompts "
            "found"
        )
    for name, count in found["pass_rates"].items():
        lines.append(f"pass rate {name}: {count['kept']:,} of {count['read']:,}")
    return lines
