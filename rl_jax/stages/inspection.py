"""Shows what a run would train on: `python -m rl_jax.train --inspect_data`.

Rows are read, rendered and tokenised as in a run. No weights are read and nothing is
compiled or written.
"""

import operator
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from rl_jax import config as configs
from rl_jax import dag
from rl_jax.data import show as showing
from rl_jax.data import tokenizer as tokenizers
from rl_jax.data.packing import fill
from rl_jax.data.pair_packing import pack_pairs
from rl_jax.data.rows import Row
from rl_jax.data.sources import Mixture
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.stages import inputs, pairs, rankings, reading
from rl_jax.stages.weights import DATA, HELD_OUT

_ROWS = 2  # of each source that is trained on
_EVAL_ROWS = 1
_FIRST_IDS = 12  # ids of a row that are printed as numbers


def show(run: configs.Run, workdir: pathlib.Path | None) -> None:
    """Prints some rows of every stage and source, the lengths, and the stop tokens.

    Args:
        workdir: of a run begun already, whose tokenizer is taken; None: none.

    Raises:
        ConfigError: for faulty data.
    """
    reading.check_data(run)
    text, colour = _tokenizer(run, workdir), showing.wants_colour()
    print(f"stop tokens   {tokenizers.describe_stops(text)}")
    print(f"vocabulary    {text.vocab_size:,} tokens")
    print(f"rows below    {showing.LEGEND[colour]}")
    files, held_out = _written(run, workdir)
    for one in run.stages:
        stage = dag.with_paths(one, files, held_out)
        if missing := _unwritten(run, stage):
            _title(stage, "train")
            print(f"not there yet: {', '.join(missing)} will write it")
            continue
        form = reading.form_of(stage)
        if form in ("texts", "conversations"):
            _learnt(stage, text, run.seed, colour)
        elif form == "pairs":
            _pairs(stage, text, run.seed, colour)
        elif form == "rankings":
            _rankings(stage, text, colour)
        elif form == "problems":
            _title(stage, "train")
            prompts = inputs.train_prompts(stage, text, run.seed)
            _prompts(prompts, text, colour, _ROWS)
            rollout = stage.rollout
            print(
                f"\nreplies have at most {rollout.max_new_tokens} tokens; a longer "
                "one is cut off and counted as truncated"
            )
        if stage.eval.every and stage.data.eval:
            _title(stage, "eval")
            prompts = inputs.held_out_prompts(stage, text)
            _prompts(prompts, text, colour, _EVAL_ROWS)
            count = min(stage.eval.num_prompts, len(prompts))
            print(f"\nan evaluation asks the first {count:,} of them")


def _written(
    run: configs.Run, workdir: pathlib.Path | None
) -> tuple[dict[str, str], dict[str, str]]:
    """Files that stages of a run begun already have written, by the stages' names."""
    found: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for stage in run.stages:
        for files, name in zip(found, (DATA, HELD_OUT), strict=True):
            path = workdir / stage.name / name if workdir else None
            if path is not None and path.is_file():
                files[stage.name] = str(path)
    return found


def _unwritten(run: configs.Run, stage: configs.StageConfig) -> list[str]:
    """Stages whose data this one is to read, and which have not written them."""
    needs = dag.needs(run, stage)
    return [need.name for need in needs if need.wants == ("data",)]


def _tokenizer(run: configs.Run, workdir: pathlib.Path | None) -> Tokenizer:
    """The model's, or the run's own; a new model's is trained and thrown away."""
    if run.model.path:
        return tokenizers.load(run.model.path)
    if workdir is not None and (workdir / reading.TOKENIZER_FOLDER).is_dir():
        return tokenizers.load(workdir / reading.TOKENIZER_FOLDER)
    with tempfile.TemporaryDirectory() as folder:
        return reading.new_tokenizer(run, folder)


def _title(stage: configs.StageConfig, name: str) -> None:
    value = getattr(stage.data, name)
    print(f"\n---- {stage.prefix}data.{name} = {value} " + "-" * 20)


def _learnt(
    stage: configs.StageConfig, text: Tokenizer, seed: int, colour: bool
) -> None:
    _title(stage, "train")
    is_text = stage.kind == "pretrain"
    make = inputs.texts if is_text else inputs.conversations
    talks, what = make(stage, text, seed), "pieces" if is_text else "conversations"
    _talks(talks, text, colour, _ROWS)
    if stage.eval.every and stage.data.held_out:
        _title(stage, "held_out")
        _talks(inputs.held_out(stage, text), text, colour, _EVAL_ROWS)
    stream = inputs.stream(talks, seed)
    pieces = stream.map(operator.attrgetter("piece")).to_iter_dataset()
    packed, taken = fill(pieces, stage.batch.rows_per_step, stage.batch.row_tokens)
    B, T = packed.token_BT.shape
    filled, counted = (packed.segment_BT > 0).mean(), packed.mask_BT.mean()
    print(
        f"\nthe first step: {taken} {what} in {B} rows of {T} tokens: "
        f"{counted:.1%} learnt, {filled - counted:.1%} only read, {1 - filled:.1%} "
        f"padding{'' if is_text else '; none is cut'}"
    )


def _talks(
    talks: Mixture[inputs.Conversation], text: Tokenizer, colour: bool, count: int
) -> None:
    _lengths(talks)
    for part in talks.parts:
        for talk in part.items[:count]:
            ids, mask = talk.piece.tokens.tolist(), talk.piece.mask.tolist()
            _row(talk.row, part.source.path, ids, mask, text, colour)


def _pairs(
    stage: configs.StageConfig, text: Tokenizer, seed: int, colour: bool
) -> None:
    _title(stage, "train")
    made = pairs.train_pairs(stage, text)
    _lengths(made)
    for part in made.parts:
        for pair in part.items[:_ROWS]:
            row = pair.row
            print(f"\nrow {row.index + 1} of {part.source.path}, id {row.id}")
            for name, piece in (("chosen", pair.chosen), ("rejected", pair.rejected)):
                ids, mask = piece.tokens.tolist(), piece.mask.tolist()
                print(f"  {name}: {len(ids)} tokens, {sum(mask)} compared")
                print(showing.shown(text, ids, mask, colour=colour))
            print(f"  data_source  {row.data_source}")
    stream: Any = inputs.stream(made, seed)
    step = [stream[i].pieces for i in range(stage.preference.pairs_per_step)]
    batch = stage.batch
    rows = [*pack_pairs(step, batch.micro_rows, batch.row_tokens)]
    filled = np.mean([(one.packed.segment_BT > 0).mean() for one in rows])
    print(
        f"\nthe first step: {len(step)} pairs in {len(rows)} micro-batches of "
        f"{batch.micro_rows} rows of {batch.row_tokens} tokens: {1 - filled:.1%} "
        "padding; none is cut"
    )


def _rankings(stage: configs.StageConfig, text: Tokenizer, colour: bool) -> None:
    _title(stage, "train")
    made = rankings.candidates(stage, text, "train")
    _lengths(made)
    for part in made.parts:
        for item in part.items[:_ROWS]:
            said = item.judged
            print(f"\nrow {said.index + 1} of {part.source.path}")
            ranks = said.rank or (said.label,)
            for rank, ids in zip(ranks, map(list, item.ids), strict=True):
                print(f"  rank {rank}: {len(ids)} tokens, scored at the last")
                print(showing.shown(text, ids, [False] * len(ids), colour=colour))


def _prompts(
    prompts: Mixture[inputs.Prompt], text: Tokenizer, colour: bool, count: int
) -> None:
    _lengths(prompts)
    for part in prompts.parts:
        for prompt in part.items[:count]:
            ids = list(prompt.ids)
            _row(prompt.row, part.source.path, ids, [False] * len(ids), text, colour)


def _lengths(made: Mixture[Any]) -> None:
    """Tokens of all rows that were read, also of those left out."""
    print(f"{'tokens of a row':<40} {'min':>7} {'median':>7} {'90 %':>7} {'max':>7}")
    for part in made.parts:
        numbers = np.percentile(part.sizes, [0, 50, 90, 100])
        name = part.source.path[-40:]
        print(f"{name:<40} " + " ".join(f"{number:>7.0f}" for number in numbers))


def _row(
    row: Row,
    path: str,
    ids: Sequence[int],
    mask: Sequence[bool],
    text: Tokenizer,
    colour: bool,
) -> None:
    learnt = f", {sum(mask)} learnt" if any(mask) else ""
    print(f"\nrow {row.index + 1} of {path}, id {row.id}: {len(ids)} tokens{learnt}")
    print(showing.shown(text, ids, mask, colour=colour))
    more = " ..." if len(ids) > _FIRST_IDS else ""
    print(f"  ids          {' '.join(map(str, ids[:_FIRST_IDS]))}{more}")
    print(f"  data_source  {row.data_source}")
    if row.answers:
        print(f"  answer       {' or '.join(map(repr, row.answers))}")
    if row.tools:
        print(f"  tools        {len(row.tools)}")
    if row.variables:
        print(f"  template     {row.variables}")
    if row.extra:
        print(f"  for rewards  {', '.join(row.extra)}")
