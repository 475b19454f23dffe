"""Rejection sampling: several replies to each prompt, of which the good are written.

Each prompt of `data.train` is asked once (replies.py), what is kept is chosen
(selection.py) and written whole to data.jsonl, for a later stage to learn from, and a
share of it apart, to held_out.jsonl. Then data.stats.json says what was left out and
why, and what it was all made from: with the same weights, data and keys there is
nothing to do again. Other keys of `select` choose anew among the replies there are.
"""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rl_jax import config as configs
from rl_jax import processes
from rl_jax.data import files, rankings, rows, sources, written
from rl_jax.data.lines import json_text, write_lines, write_text
from rl_jax.errors import ConfigError
from rl_jax.mesh import is_lead
from rl_jax.metrics import Writer
from rl_jax.models.params import Params
from rl_jax.stages import (
    inputs,
    origin,
    reading,
    replies,
    selection,
    selection_report,
    weights,
)
from rl_jax.stages.context import Context, Preempted
from rl_jax.stages.inputs import Prompt
from rl_jax.stages.selection import Group, Reply
from rl_jax.stages.weights import DATA, HELD_OUT

STATS = "data.stats.json"
REJECTED = "rejected.jsonl"  # replies of select.rejected
_SHOWN_PROMPTS = 16  # whose replies are in samples/
_DISK_SECS = 3600.0  # for the first process to write what it chose


def run(
    context: Context, stage: configs.StageConfig, base: Callable[[], Params]
) -> None:
    """Writes data.jsonl, unless it is there and made from the same."""
    folder = context.folder(stage)
    rejected = stage.select.rejected
    made_of = origin.sum_of(
        [
            origin.sampling(context, stage),
            dataclasses.asdict(dataclasses.replace(stage.select, also="")),
            origin.data_of(stage.select.also),
            origin.weights_of(context, rejected) if rejected else "",
        ]
    )
    files_made = [DATA, HELD_OUT] if stage.select.held_out else [DATA]
    with opened(context, stage) as writer:
        if not unmade(folder, made_of, stage, writer, files_made):
            return
        prompts = _prompts(context, stage)
        # Read now: a fault in it is not to be found when all is sampled.
        also = list(_also(context, stage))
        drawn, worse = _drawn(context, stage, base, prompts, writer)
        groups = [
            selection.choose(prompt.row.data_source, own, stage.select, others)
            for prompt, own, others in zip(prompts, drawn, worse, strict=True)
        ]
        if stage.select.balance:
            groups = selection.balance(groups, context.run.seed)
        found = selection_report.statistics(groups, pairs=stage.select.keep == "pairs")
        lines, held_out = _divided(stage, prompts, groups, context.run.seed)
        found |= {"held_out": len(held_out), "also": len(also)}
        if not lines or len(files_made) > 1 and not held_out:
            raise _nothing_kept(stage, found)
        if is_lead():
            write_lines(folder / DATA, [*lines, *also])
            (folder / HELD_OUT).unlink(missing_ok=True)
            if held_out:
                write_lines(folder / HELD_OUT, held_out)
            writer.log("\n".join(_table(stage, folder, found)))
            shown = replies.records(prompts[:_SHOWN_PROMPTS], drawn[:_SHOWN_PROMPTS])
            writer.samples(1, shown, show=stage.log.num_samples)
            writer.write(1, metrics(found))
            settings = dataclasses.asdict(stage.select)
            write_stats(folder, made_of, found, settings, files_made)
        processes.wait(f"{stage.name} is written", _DISK_SECS)


def _drawn(
    context: Context,
    stage: configs.StageConfig,
    base: Callable[[], Params],
    prompts: Sequence[Prompt],
    writer: Writer,
) -> tuple[list[tuple[Reply, ...]], list[tuple[Reply, ...]]]:
    """The policy's replies to each prompt, and those of `select.rejected` or none."""
    name, key = stage.select.rejected, f"{stage.prefix}select.rejected"
    if not name:
        drawn = replies.draw(context, stage, base, prompts, writer.log)
        return drawn, [()] * len(prompts)
    other = weights.policy(context, name, key, salt=f"{stage.name}.rejected")
    # Both draw with one engine: its programs are compiled once.
    engine = functools.cache(lambda: replies.new_engine(context, stage))
    drawn = replies.draw(context, stage, base, prompts, writer.log, engine=engine)
    writer.log(f"{stage.name}: the worse replies, by {name}")
    worse = replies.draw(
        context,
        dataclasses.replace(stage, init=name),
        other,
        prompts,
        writer.log,
        file=REJECTED,
        engine=engine,
    )
    return drawn, worse


def _divided(
    stage: configs.StageConfig,
    prompts: Sequence[Prompt],
    groups: Sequence[Group],
    seed: int,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows to learn from, and those kept apart: all of a prompt on one side."""
    with_rows = [p.row.id for p, g in zip(prompts, groups, strict=True) if g.rows]
    apart = selection.apart(with_rows, stage.select.held_out, seed)
    lines, held_out = [], []
    for prompt, group in zip(prompts, groups, strict=True):
        side = held_out if prompt.row.id in apart else lines
        side += _lines(prompt, group, stage.select.keep)
    return lines, held_out


@contextlib.contextmanager
def opened(context: Context, stage: configs.StageConfig) -> Iterator[Writer]:
    """The writer of a stage that makes data; says so when it is stopped."""
    if is_lead():
        context.folder(stage).mkdir(parents=True, exist_ok=True)
    writer = Writer(
        context.folder(stage), stage=stage.name, total_steps=1, enabled=is_lead()
    )
    try:
        yield writer
    except Preempted as stop:
        writer.log(f"{stage.name}: {stop}; saved, the same command resumes")
        raise
    finally:
        writer.close()


def unmade(
    folder: pathlib.Path,
    made_of: str,
    stage: configs.StageConfig,
    writer: Writer,
    names: Sequence[str] = (DATA,),
) -> bool:
    """Whether the stage's data must be made; says why if they were made before."""
    wrong = origin.why_make(folder / STATS, made_of, [folder / name for name in names])
    wrong = processes.gather(f"{stage.name} is made", wrong, _DISK_SECS)[0]
    if not wrong:
        writer.log(f"{stage.name}: {folder / DATA} is there, made from the same")
        return False
    if (folder / STATS).is_file():
        writer.log(f"{stage.name}: {folder / DATA} is made again: {wrong}")
    writer.resume(-1)
    return True


def write_stats(
    folder: pathlib.Path,
    made_of: str,
    found: dict[str, Any],
    settings: dict[str, Any],
    names: Sequence[str] = (DATA,),
) -> None:
    """Writes the statistics: last of all, as they say that the data are whole."""
    told = {
        "made_of": made_of,
        "files": {name: origin.file_sum(folder / name) for name in names},
        **found,
        "settings": settings,
    }
    write_text(folder / STATS, [json_text(told, indent=1), "\n"])


def _prompts(context: Context, stage: configs.StageConfig) -> list[Prompt]:
    """The prompts to ask: all in order, or the first ones of each source in turn."""
    found = inputs.train_prompts(stage, context.tokenizer, context.run.seed)
    most = stage.select.max_prompts
    if not most:
        return list(found)
    turns = itertools.zip_longest(*(part.items for part in found.parts))
    in_turn = (prompt for turn in turns for prompt in turn if prompt is not None)
    return list(itertools.islice(in_turn, most))


def _lines(prompt: Prompt, group: Group, keep: str) -> Iterator[dict[str, Any]]:
    """The rows to write for a prompt."""
    for indices in group.rows:
        chosen = [group.replies[i] for i in indices]
        texts = [reply.text for reply in chosen]
        if keep == "pairs":
            gap = selection.margin(group.replies, indices)
            yield written.pair(prompt.row, texts[0], texts[1], gap)
        elif keep == "rankings":
            scores = [reply.score for reply in chosen if reply.score is not None]
            yield written.ranking(prompt.row, texts, scores)
        else:
            judged = {"score": chosen[0].score, "verdict": chosen[0].verdict}
            yield written.conversation(prompt.row, texts[0]) | judged


def _also(context: Context, stage: configs.StageConfig) -> Iterator[dict[str, Any]]:
    """The rows of `select.also`, in the form of those that are kept."""
    keep, key = stage.select.keep, f"{stage.prefix}select.also"
    for source in sources.parse(stage.select.also, key):
        if source.path in sources.BUILT_IN:
            count = stage.data.num_problems
            made = reading.DEMONSTRATIONS[source.path](count, context.run.seed)
            yield from map(written.conversation, made)
        elif keep == "pairs":
            yield from map(written.preference, rows.read_preferences(source.path))
        elif keep == "rankings":
            rankings.read_rankings(source.path)  # raises if one is none
            yield from (record.values for record in files.records(source.path))
        else:
            yield from map(written.conversation, rows.read_conversations(source.path))


def _nothing_kept(stage: configs.StageConfig, found: dict[str, Any]) -> ConfigError:
    counts, key = found["left_out"], f"--config.{stage.prefix}"
    if found["rows"]:
        return ConfigError(
            f"{stage.name} keeps rows of one prompt only: they cannot be divided into "
            f"those to learn from and select.held_out={stage.select.held_out:g}.\n"
            f"Ask more prompts, or write {key}select.held_out=0"
        )
    most = max(counts, key=lambda reason: counts[reason])
    return ConfigError(
        f"{stage.name} keeps none of {found['samples']:,} replies (pass rate "
        f"{found['pass_rate']:.3f}): {counts[most]:,} are left out as {most!r}.\n"
        f"Look at {replies.FILE}; choose others by {key}select.keep, min_score and the "
        f"like (nothing is sampled again), or more by a larger {key}rollout.group_size"
    )


def _table(
    stage: configs.StageConfig, folder: pathlib.Path, found: dict[str, Any]
) -> Sequence[str]:
    lines = [f"{stage.name}: keep={stage.select.keep}", *selection_report.table(found)]
    if found["held_out"]:
        lines.append(f"rows kept apart       {found['held_out']:>10,}  in {HELD_OUT}")
    if found["also"]:
        lines.append(f"also                  {found['also']:>10,}  {stage.select.also}")
    return [*lines, f"wrote                 {folder / DATA}, {STATS}"]


def metrics(found: dict[str, Any]) -> dict[str, float]:
    """The numbers of the statistics, for metrics.jsonl and gates."""
    numbers = {
        name: value for name, value in found.items() if isinstance(value, int | float)
    }
    return {f"select/{name}": value for name, value in numbers.items()}
