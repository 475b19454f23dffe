"""The rows that a config names: files of the user's, and built-in tasks."""

import contextlib
import pathlib
from collections.abc import Hashable, Iterator
from typing import Literal

from rl_jax import checks
from rl_jax import config as configs
from rl_jax.data import (
    arithmetic,
    generated,
    programs,
    rows,
    sources,
    tokenizer,
    word_problems,
)
from rl_jax.data.messages import text_of
from rl_jax.data.rows import Row
from rl_jax.data.sources import Mixture, Part, Source
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError
from rl_jax.rewards import registry

TOKENIZER_FOLDER = "tokenizer"  # in a workdir

# What rows are for: problems to learn by trying, conversations, problems held out.
Split = Literal["rl", "sft", "eval"]

PROBLEMS = {
    "arithmetic": arithmetic.rows,
    "programs": programs.rows,
    "word_problems": word_problems.rows,
}
DEMONSTRATIONS = {
    "arithmetic": arithmetic.demonstrations,
    "programs": programs.demonstrations,
}

# What check_data has read and no stage has taken yet, so that a file is read once.
_kept: dict[Hashable, list[Row]] = {}


def read(stage: configs.StageConfig, split: Split, seed: int) -> Mixture[Row]:
    """Rows of `data.eval` for "eval", of `data.train` for the others.

    Generated problems to evaluate on are the same whatever the seed, and are none of
    those that any stage trains on.
    """
    found = _sources(stage, "eval" if split == "eval" else "train")
    parts = [Part(source, _rows(source, stage, split, seed)) for source in found]
    return Mixture(tuple(parts))


def check_data(run: configs.Run) -> None:
    """Reads every data file once, so that faults are found before anything starts.

    Raises:
        ConfigError: for a missing file or column, or a value of the wrong kind.
    """
    for stage in run.stages:
        splits: dict[Split, str] = {stage.kind: "train"}
        if stage.eval.every:
            splits["eval"] = "eval"
        for split, name in splits.items():
            for source in _sources(stage, name):
                if source.path not in sources.BUILT_IN:
                    _from_file(source.path, stage, split, keep=True)


def corpus(run: configs.Run) -> Iterator[str]:
    """Text for a new model's tokenizer: what the stages will train on."""
    for stage in run.stages:
        for source in _sources(stage, "train"):
            if source.path in sources.BUILT_IN:
                # Any 2,000 have every word and digit of the task.
                count = min(stage.data.num_problems, 2000)
                split = "sft" if source.path in DEMONSTRATIONS else "rl"
                found = _generated(source.path, stage, split, count, run.seed)
            else:
                found = _from_file(source.path, stage, stage.kind, keep=True)
            for row in found:
                yield from map(text_of, row.messages)
                yield from row.answers


def new_tokenizer(run: configs.Run, folder: str | pathlib.Path) -> Tokenizer:
    """Trains the tokenizer of a new model on `corpus`, into a folder."""
    return tokenizer.train(
        corpus(run),
        folder,
        vocab_size=run.model.vocab_size,
        chat_template=arithmetic.CHAT_TEMPLATE,
        specials=arithmetic.CHAT_SYMBOLS,
    )


def _sources(stage: configs.StageConfig, name: str) -> tuple[Source, ...]:
    return sources.parse(getattr(stage.data, name), f"{stage.prefix}data.{name}")


def _rows(
    source: Source, stage: configs.StageConfig, split: Split, seed: int
) -> list[Row]:
    if source.path not in sources.BUILT_IN:
        return _from_file(source.path, stage, split)
    if split == "eval":
        return _generated(source.path, stage, split, stage.data.num_eval_problems, 0)
    return _generated(source.path, stage, split, stage.data.num_problems, seed)


def _generated(
    task: str, stage: configs.StageConfig, split: Split, count: int, seed: int
) -> list[Row]:
    with _own_keys(stage):
        if split == "sft":
            found = DEMONSTRATIONS[task](count, seed)
        else:
            found = PROBLEMS[task](split, count, seed)
    questions = (text_of(row.messages[0]) for row in found)
    assert all(generated.split_of(question) == split for question in questions)
    framing = _framing(stage)
    return [rows.framed(row, framing) for row in found]


def _from_file(
    path: str, stage: configs.StageConfig, split: Split, *, keep: bool = False
) -> list[Row]:
    """Rows of a path; `keep` leaves them for the next caller."""
    data = stage.data
    needs_answer = bool(set(registry.NEEDS_ANSWER) & set(stage.reward.functions))
    key = (path, split == "sft", data, needs_answer)
    found = _kept.pop(key, None)
    if found is None:
        with _own_keys(stage):
            if split == "sft":
                found = rows.read_conversations(
                    path,
                    prompt_column=data.prompt_column,
                    completion_column=data.completion_column,
                    framing=_framing(stage),
                )
            else:
                found = rows.read_rows(
                    path,
                    prompt_column=data.prompt_column,
                    answer_column=data.answer_column,
                    answer_after=data.answer_after,
                    needs_answer=needs_answer,
                    framing=_framing(stage),
                )
    if keep:
        _kept[key] = found
    return found


def _framing(stage: configs.StageConfig) -> rows.Framing:
    data, key = stage.data, f"{stage.prefix}data.template_variables"
    variables = checks.template_variables(data.template_variables, key)
    return rows.Framing(data.system, data.instruction, variables)


@contextlib.contextmanager
def _own_keys(stage: configs.StageConfig) -> Iterator[None]:
    """Makes errors about data name the keys of this stage of a chain."""
    try:
        yield
    except ConfigError as error:
        text = str(error).replace("--config.data.", f"--config.{stage.prefix}data.")
        raise ConfigError(text) from error
