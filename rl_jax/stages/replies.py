"""Replies to every prompt of a data set: drawn and scored once, kept as they come.

WORKDIR/STAGE/replies.jsonl has a line that says what they are made of, then one for
each prompt. Prompts are asked `rollout.prompts_per_step` at a time, and a chunk counts
once it is on the disk: an interrupted stage goes on with the next chunk. What a chunk
draws depends on nothing before it, so that the file is the same in the end, to the
byte.
"""

import dataclasses
import json
import os
import pathlib
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rl_jax import config as configs
from rl_jax import processes
from rl_jax.data.lines import json_line
from rl_jax.mesh import is_lead
from rl_jax.models.params import Params
from rl_jax.rollout.engine import Engine
from rl_jax.rollout.sample import Request
from rl_jax.stages import origin, selection
from rl_jax.stages.context import Context
from rl_jax.stages.inputs import Prompt
from rl_jax.stages.judge import Judge, open_judge
from rl_jax.stages.scoring import (
    Scored,
    check_rows,
    make_engine,
    make_pool,
    sample_and_score,
)
from rl_jax.stages.selection import Reply

FILE = "replies.jsonl"
_SECS_BETWEEN_LINES = 1.0
_DISK_SECS = 600.0  # for the first process to read what there is


def draw(
    context: Context,
    stage: configs.StageConfig,
    base: Callable[[], Params],
    prompts: Sequence[Prompt],
    log: Callable[[str], None],
    *,
    file: str = FILE,
    engine: Callable[[], Engine] | None = None,
) -> list[tuple[Reply, ...]]:
    """`rollout.group_size` scored replies to each prompt, in order.

    The weights are read only if something is left to draw.

    Args:
        base: reads the weights that `stage.init` names.
        log: takes lines for people; called by process 0.
        file: in the stage's work folder, to keep them in. Its name decides the draws.
        engine: gives the one to draw with, as `make_engine`; None: a new one.

    Raises:
        ConfigError: for a row that could not be judged.
        Preempted: if the run was asked to stop; what was drawn is kept.
    """
    path = context.folder(stage) / file
    ids = [prompt.ids for prompt in prompts]
    made_of = origin.sum_of([origin.sampling(context, stage), ids])
    chunk = stage.rollout.prompts_per_step
    found = _resume(path, made_of, len(prompts), chunk, log)
    if len(found) < len(prompts):
        found += _drawn(context, stage, base, prompts, len(found), path, log, engine)
    return found


def _resume(
    path: pathlib.Path,
    made_of: str,
    num_prompts: int,
    chunk: int,
    log: Callable[[str], None],
) -> list[tuple[Reply, ...]]:
    """The replies that are on the disk; makes the file ready for those that follow."""
    ends, fault = _ends(path, made_of) if is_lead() else ([], "")
    done = len(ends) - 1
    if done < num_prompts:  # in the middle of a chunk nothing can be taken up
        done -= done % chunk
    # All processes see one file system, and what the first decides.
    done = processes.gather(f"{path.parent.name} begins", max(done, 0), _DISK_SECS)[0]
    if is_lead():
        if fault:
            log(f"{path.parent.name}: {path} is not used: {fault}")
        if not ends:
            header = {"made_of": made_of, "prompts": num_prompts}
            path.write_text(json_line(header), encoding="utf-8")
        else:
            os.truncate(path, ends[done])
        if 0 < done < num_prompts:
            log(f"{path.parent.name}: {done:,} of {num_prompts:,} prompts asked before")
    if not done:
        return []
    lines = path.read_bytes().split(b"\n")[1 : done + 1]
    return [read(json.loads(line)) for line in lines]


def _ends(path: pathlib.Path, made_of: str) -> tuple[list[int], str]:
    """Where the header and each whole line after it end, and what is wrong if []."""
    if not path.is_file():
        return [], ""
    ends, end = [], 0
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            values = json.loads(line)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            break  # torn: what follows it cannot be trusted
        if not ends and values.get("made_of") != made_of:
            return [], "it was drawn by another config, or from other weights or data"
        end += len(line) + 1
        ends.append(end)
    return ends, "" if ends else "its first line is damaged"


def _drawn(
    context: Context,
    stage: configs.StageConfig,
    base: Callable[[], Params],
    prompts: Sequence[Prompt],
    start: int,
    path: pathlib.Path,
    log: Callable[[str], None],
    make: Callable[[], Engine] | None,
) -> list[tuple[Reply, ...]]:
    """Draws the replies to all prompts from `start` on, and adds them to the file."""
    found: list[tuple[Reply, ...]] = []
    chunk, shown = stage.rollout.prompts_per_step, -_SECS_BETWEEN_LINES
    with make_pool(stage) as pool:
        check_rows(pool, stage, prompts)
        judge = _judge(context, stage)
        params = base()
        engine = make() if make else new_engine(context, stage)
        drawn_before = engine.tokens_drawn
        began = time.monotonic()
        for first in range(start, len(prompts), chunk):
            processes.beat(first, "sampling")
            context.stop.check()
            scored, _ = sample_and_score(
                engine,
                pool,
                context.tokenizer,
                params,
                list(requests(stage, prompts, first, chunk, path.name)),
                version=0,
                check_stop=context.stop.check,
                judge=judge,
                judge_weight=stage.reward.model_weight,
            )
            groups = list(grouped(scored, stage.rollout.group_size))
            if is_lead():
                _append(path, groups)
            found += groups
            now, done = time.monotonic(), start + len(found)
            if now - shown >= _SECS_BETWEEN_LINES or done == len(prompts):
                rate = selection.pass_rate([r for group in groups for r in group])
                rated = "" if rate is None else f"  pass rate {rate:.1%}"
                speed = (engine.tokens_drawn - drawn_before) / (now - began)
                log(
                    f"{stage.name} {done:,}/{len(prompts):,} prompts{rated}  "
                    f"{speed:,.0f} tokens/s"
                )
                shown = now
    return found


def new_engine(context: Context, stage: configs.StageConfig) -> Engine:
    """An engine for the stage's replies; nothing is compiled yet."""
    return make_engine(
        stage, context.model, context.tokenizer, context.mesh, context.run.seed
    )


def _judge(context: Context, stage: configs.StageConfig) -> Judge | None:
    """The reward model whose score is added, if there is one."""
    if not stage.reward.model:
        return None
    longest = stage.rollout.max_prompt_tokens + stage.rollout.max_new_tokens
    key = f"{stage.prefix}reward.model"
    return open_judge(context, stage.reward.model, key, row_tokens=longest)


def requests(
    stage: configs.StageConfig,
    prompts: Sequence[Prompt],
    first: int,
    count: int,
    file: str = FILE,
) -> Iterator[tuple[Request, Prompt]]:
    """What is asked of the engine for the prompts of a chunk."""
    rollout = stage.rollout
    # A stream of its own: two stages of a run never draw the same.
    stream = zlib.crc32(f"{stage.name}/{file}".encode())
    for i in range(first, min(first + count, len(prompts))):
        request = Request(
            i,
            prompts[i].ids,
            rollout.group_size,
            rollout.max_new_tokens,
            rollout.temperature,
            stream,
        )
        yield request, prompts[i]


def grouped(scored: Sequence[Scored], size: int) -> Iterator[tuple[Reply, ...]]:
    """The replies to each prompt, as they are kept."""
    for i in range(0, len(scored), size):
        yield tuple(
            Reply(
                s.completion,
                None if s.score.value is None else float(s.score.value),
                s.score.verdict.value,
                int(s.sample.policy_mask.sum()),
                s.sample.truncated,
            )
            for s in scored[i : i + size]
        )


def read(values: dict[str, Any]) -> tuple[Reply, ...]:
    """The replies that a line of the file holds."""
    return tuple(Reply(**reply) for reply in values["replies"])


def _append(path: pathlib.Path, groups: Sequence[tuple[Reply, ...]]) -> None:
    lines = [{"replies": [dataclasses.asdict(r) for r in group]} for group in groups]
    with open(path, "a", encoding="utf-8", newline="\n") as file:
        file.writelines(map(json_line, lines))
        file.flush()
        os.fsync(file.fileno())


def records(
    prompts: Sequence[Prompt], groups: Sequence[tuple[Reply, ...]]
) -> list[dict[str, Any]]:
    """Replies as rows for the samples file, which names what it takes rates from."""
    return [
        {
            "prompt": prompt.row.messages[-1]["content"],
            "completion": reply.text,
            "answer": prompt.row.answer,
            "score": reply.score,
            "verdict": reply.verdict,
            "num_tokens": reply.num_tokens,
        }
        for prompt, group in zip(prompts, groups, strict=True)
        for reply in group
    ]
