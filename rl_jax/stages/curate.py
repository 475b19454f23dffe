"""Leaves rows out of a data set, as `python -m rl_jax.curate` does, within a chain.

In this order: exact and near duplicates, what holds a held-out prompt
(`curate.against`), and, with `curate.pass_rate`, what the weights of `init` solve too
often or too seldom: they are asked only what is left by then (replies.py). What is kept
is written as it was to data.jsonl; data.stats.json says what was left out and why.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_jax import config as configs
from rl_jax import processes
from rl_jax.data import curation, sources, written
from rl_jax.data.curation import Removed
from rl_jax.data.entries import Entry, entry
from rl_jax.data.entries import written as as_it_was
from rl_jax.data.files import Record, records
from rl_jax.data.lines import write_lines
from rl_jax.errors import ConfigError
from rl_jax.mesh import is_lead
from rl_jax.metrics import Writer
from rl_jax.models.params import Params
from rl_jax.stages import inputs, origin, reading, replies, selection
from rl_jax.stages.context import Context
from rl_jax.stages.select import opened, unmade, write_stats
from rl_jax.stages.weights import DATA

_DISK_SECS = 3600.0  # for the first process to write what is kept


def run(
    context: Context, stage: configs.StageConfig, base: Callable[[], Params]
) -> None:
    """Writes data.jsonl, unless it is there and made from the same."""
    folder, settings = context.folder(stage), dataclasses.asdict(stage.curate)
    made_of = origin.sum_of(
        [
            origin.sampling(context, stage) if stage.curate.pass_rate else None,
            dataclasses.asdict(dataclasses.replace(stage.data, train="", eval="")),
            origin.data_of(stage.data.train),
            {**settings, "against": origin.data_of(stage.curate.against)},
            context.run.seed,
        ]
    )
    with opened(context, stage) as writer:
        if not unmade(folder, made_of, stage, writer):
            return
        read = _entries(stage, stage.data.train, context.run.seed)
        entries = [one for found in read.values() for one in found]
        removed: dict[int, Removed] = {}
        conflicts, held_out = _leave_out_said_before(stage, entries, removed)
        rates: list[float | None] = [None] * len(entries)
        if stage.curate.pass_rate:
            rates = _pass_rates(context, stage, base, read, removed, writer)
            curation.leave_out_by_pass_rate(
                entries,
                removed,
                rates,
                low=stage.curate.min_pass_rate,
                high=stage.curate.max_pass_rate,
                drop_unrated=True,
            )
        found = curation.statistics(
            read,
            removed,
            rates,
            conflicts=conflicts,
            held_out=held_out,
            settings=settings,
        )
        if not found["kept"]:
            raise _nothing_kept(stage, found)
        if is_lead():
            write_lines(folder / DATA, _lines(entries, removed, rates))
            told = [f"{stage.name}:", *curation.table(found), f"wrote {folder / DATA}"]
            writer.log("\n".join(told))
            writer.write(1, metrics(found, removed, rates))
            write_stats(folder, made_of, found, settings)
        processes.wait(f"{stage.name} is written", _DISK_SECS)


def _leave_out_said_before(
    stage: configs.StageConfig, entries: Sequence[Entry], removed: dict[int, Removed]
) -> tuple[int, dict[str, dict[str, int]]]:
    """Leaves out what an earlier row says, and what a held-out source asks.

    Returns:
        Exact duplicates with another answer, and of each held-out source how many
        prompts it has and how many of them were found.
    """
    curate = stage.curate
    conflicts = curation.leave_out_duplicates(
        entries,
        removed,
        by=curate.by,
        near=curate.near,
        near_ngram=curate.near_ngram,
        same_figures=True,
    )
    if not curate.against:
        return conflicts, {}
    tests = _entries(stage, curate.against, 0, held_out=True)
    held_out = curation.leave_out_contaminated(
        entries,
        removed,
        [one for found in tests.values() for one in found],
        ngram=curate.ngram,
        overlap=curate.overlap,
    )
    return conflicts, held_out


def _entries(
    stage: configs.StageConfig, text: str, seed: int, *, held_out: bool = False
) -> dict[str, list[Entry]]:
    """The rows of each source that a key names.

    Of a built-in task they are the problems that `rl` stages train on; those that
    stages are evaluated on with `held_out`.
    """
    data, found = stage.data, {}
    for source in sources.parse(text):
        if source.path in sources.BUILT_IN:
            count = data.num_eval_problems if held_out else data.num_problems
            kind = "eval" if held_out else "rl"
            made = reading.PROBLEMS[source.path](kind, count, seed)
            read = [
                Record(written.problem(row), pathlib.Path(source.path), row.index + 1)
                for row in made
            ]
            found[source.path] = [entry(record) for record in read]
            continue
        # Held-out files have columns of their own, found by their usual names.
        columns = {} if held_out else _columns(data)
        found[source.path] = [entry(one, **columns) for one in records(source.path)]
    return found


def _columns(data: Any) -> dict[str, str]:
    names = ("prompt_column", "completion_column", "answer_column")
    return {name: getattr(data, name) for name in names}


def _pass_rates(
    context: Context,
    stage: configs.StageConfig,
    base: Callable[[], Params],
    read: Mapping[str, Sequence[Entry]],
    removed: Mapping[int, Removed],
    writer: Writer,
) -> list[float | None]:
    """The pass rate of every row that is left; None of those that cannot be asked."""
    found = inputs.train_prompts(stage, context.tokenizer, context.run.seed)
    first, places, prompts = 0, [], []
    for part, entries in zip(found.parts, read.values(), strict=True):
        for prompt in part.items:
            place = first + prompt.row.index
            if place not in removed:
                places.append(place)
                prompts.append(prompt)
        first += len(entries)
    drawn = replies.draw(context, stage, base, prompts, writer.log)
    rates: list[float | None] = [None] * first
    for place, group in zip(places, drawn, strict=True):
        rates[place] = selection.pass_rate(group)
    return rates


def _lines(
    entries: Sequence[Entry],
    removed: Mapping[int, Removed],
    rates: Sequence[float | None],
) -> list[dict[str, Any]]:
    """What is kept, as it was; with its pass rate where there is one."""
    lines = []
    for i, one in enumerate(entries):
        if i not in removed:
            rated = {} if rates[i] is None else {"pass_rate": rates[i]}
            lines.append(as_it_was(one.record) | rated)
    return lines


def _nothing_kept(stage: configs.StageConfig, found: dict[str, Any]) -> ConfigError:
    counts = found["removed"]
    most = max(counts, key=lambda reason: counts[reason])
    key = f"--config.{stage.prefix}curate"
    return ConfigError(
        f"{stage.name} keeps none of {found['read']:,} rows: {counts[most]:,} are left "
        f"out as {most!r}.\nChoose other bounds: {key}.near, {key}.overlap, "
        f"{key}.min_pass_rate or {key}.max_pass_rate"
    )


def metrics(
    found: dict[str, Any],
    removed: Mapping[int, Removed],
    rates: Sequence[float | None],
) -> dict[str, float]:
    """The numbers of the statistics, for metrics.jsonl and gates."""
    counts = found["removed"]
    numbers: dict[str, float] = {
        "curate/read": found["read"],
        "curate/kept": found["kept"],
        "curate/removed": sum(counts.values()),
        "curate/contaminated": counts.get("contaminated", 0),
        "curate/duplicates": counts.get("exact duplicate", 0)
        + counts.get("near duplicate", 0),
    }
    kept = [r for i, r in enumerate(rates) if i not in removed and r is not None]
    if kept:
        numbers["curate/pass_rate"] = sum(kept) / len(kept)
    return numbers
