"""The rows that a config names: files of the user's, and built-in tasks."""

import contextlib
import dataclasses
import functools
import itertools
import operator
import pathlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal

from rl_jax import config as configs
from rl_jax import data_checks
from rl_jax.data import (
    arithmetic,
    generated,
    programs,
    rows,
    sources,
    tokenizer,
    word_problems,
)
from rl_jax.data.columns import maybe_json
from rl_jax.data.files import Record, records
from rl_jax.data.messages import text_of
from rl_jax.data.rankings import Judged, read_rankings
from rl_jax.data.rows import Preference, Row
from rl_jax.data.sources import Mixture, Part, Source
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.data.toys import making
from rl_jax.data.toys.table import TOYS
from rl_jax.errors import ConfigError
from rl_jax.kinds import KINDS
from rl_jax.objectives.reward_model import MARGINS
from rl_jax.rewards import registry
from rl_jax.stage_checks.distill import is_rewarded

TOKENIZER_FOLDER = "tokenizer"  # in a workdir

# What rows are for: problems to learn by trying, conversations to learn, texts or
# conversations to learn whole, problems held out, and what is learnt held out.
Split = Literal["rl", "sft", "pretrain", "eval", "held_out"]

# What a row of a file is; any: a record, as the file has it.
Form = Literal["problems", "conversations", "texts", "pairs", "rankings", "any"]

# What data.train and data.held_out hold, by the kind of the stage.
FORMS: dict[str, Form] = {
    "pretrain": "texts",
    "sft": "conversations",
    "reward_model": "rankings",
    "dpo": "pairs",
    "rl": "problems",
    "distill": "problems",  # soft: conversations
    "select": "problems",
    "curate": "any",
    "merge": "any",
}
# What select.also holds, by select.keep; else conversations.
_ALSO: dict[str, Form] = {"pairs": "pairs", "rankings": "rankings"}

PROBLEMS = {
    "arithmetic": arithmetic.rows,
    "programs": programs.rows,
    "word_problems": word_problems.rows,
    **{name: functools.partial(making.rows, name) for name in TOYS},
}
DEMONSTRATIONS = {
    "arithmetic": arithmetic.demonstrations,
    "programs": programs.demonstrations,
    **{name: functools.partial(making.demonstrations, name) for name in TOYS},
}

# What check_data has read and no stage has taken yet, so that a file is read once.
_kept: dict[Hashable, list[Any]] = {}


def read(stage: configs.StageConfig, split: Split, seed: int) -> Mixture[Row]:
    """Rows of `data.eval`, of `data.held_out`, or of `data.train` for other splits.

    Generated problems to evaluate on are the same whatever the seed, and are none of
    those that any stage trains on; what is held out are demonstrations of them.
    """
    found = _sources(stage, split if split in ("eval", "held_out") else "train")
    parts = [Part(source, _rows(source, stage, split, seed)) for source in found]
    return Mixture(tuple(parts))


def preferences(
    stage: configs.StageConfig, name: str, *, keep: bool = False
) -> Mixture[Preference]:
    """Pairs of replies of `data.train` or `data.held_out`, whichever `name` says.

    Args:
        keep: leaves them for the next caller.
    """
    found = _sources(stage, name)
    parts = [
        Part(source, _from_file(source.path, stage, "pairs", keep=keep))
        for source in found
    ]
    return Mixture(tuple(parts))


def rankings(stage: configs.StageConfig, name: str) -> Mixture[Judged]:
    """Judged replies of `data.train` or `data.held_out`, whichever `name` says."""
    found = _sources(stage, name)
    parts = [Part(x, _from_file(x.path, stage, "rankings")) for x in found]
    return Mixture(tuple(parts))


def check_data(run: configs.Run) -> None:
    """Reads every data file once, so that faults are found before anything starts.

    What an earlier stage will write is not there yet and is not looked at.

    Raises:
        ConfigError: for a missing file or column, or a value of the wrong kind.
    """
    for stage in run.stages:
        forms: dict[str, Form] = {
            "train": form_of(stage),
            "select.also": _ALSO.get(stage.select.keep, "conversations"),
            "curate.against": "any",
        }
        # A merge is evaluated once, when it is made.
        if stage.eval.every or stage.kind == "merge":
            forms |= {"eval": "problems", "held_out": form_of(stage)}
        for name, form in forms.items():
            weighted = name == "train"
            keep = form != "any" and name != "select.also"  # which is read by select
            for path in _files(run, stage, name):
                _from_file(path, stage, form, weighted=weighted, keep=keep)


def form_of(stage: configs.StageConfig) -> Form:
    """What the rows of `data.train` and `data.held_out` are for a stage."""
    if stage.kind == "distill" and stage.distill.form == "soft":
        return "conversations"
    return FORMS[stage.kind]


def _files(run: configs.Run, stage: configs.StageConfig, name: str) -> list[str]:
    """Paths that a stage names: no built-in tasks, nothing that a stage is to write."""
    made = [one.name for one in run.stages if KINDS[one.kind].makes == "data"]
    found = [source.path for source in _sources(stage, name)]
    return [path for path in found if path not in (*sources.BUILT_IN, *made)]


def corpus(run: configs.Run) -> Iterator[str]:
    """Text for a new model's tokenizer: what the stages will train on."""
    for stage in run.stages:
        for source in _sources(stage, "train"):
            if source.path in sources.BUILT_IN:
                yield from _words_of_task(source.path, stage, run.seed)
        forms: dict[str, Form] = {
            "train": form_of(stage),
            "select.also": _ALSO.get(stage.select.keep, "conversations"),
        }
        for name, form in forms.items():
            weighted = name == "train"
            keep = form != "any" and name != "select.also"  # which is read by select
            for path in _files(run, stage, name):
                found = _from_file(path, stage, form, weighted=weighted, keep=keep)
                for row in found:
                    yield from _words(row)


def _words_of_task(task: str, stage: configs.StageConfig, seed: int) -> Iterator[str]:
    """Texts of a built-in task, with every character that it ever uses."""
    split = "sft" if task in DEMONSTRATIONS else "rl"

    def texts(count: int) -> list[str]:
        found = _generated(task, stage, split, count, seed)
        return [word for row in found for word in _words(row)]

    # Any 2,000 have every word and digit of the task.
    words = texts(min(stage.data.num_problems, 2000))
    yield from words
    # A few may lack a character, which would be the unknown token wherever it is met.
    if stage.data.num_problems < _EVERY_CHARACTER:
        missing = {*"".join(texts(_EVERY_CHARACTER))} - {*"".join(words)}
        if missing:
            yield "".join(sorted(missing))


_EVERY_CHARACTER = 500  # problems, of which tests say that they have every one


def _words(row: Row | Preference | Judged | Record) -> Iterator[str]:
    """Every text of a row."""
    if isinstance(row, Record):
        yield from _strings(row.values)
        return
    if isinstance(row, Preference):
        yield from map(text_of, (*row.prompt, *row.chosen, *row.rejected))
        return
    if isinstance(row, Judged):
        yield from map(text_of, itertools.chain(row.prompt, *row.replies))
        return
    if row.text is not None:
        # One line at a time, as a tokenizer that is trained takes each text whole.
        yield from row.text.splitlines(keepends=True)
    yield from map(text_of, row.messages)
    yield from row.answers


def _strings(value: Any) -> Iterator[str]:
    """Every string in a value, at any depth; JSON in a string is looked into."""
    value = maybe_json(value)
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _strings(entry)


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
    key = name if "." in name else f"data.{name}"
    return sources.parse(operator.attrgetter(key)(stage), f"{stage.prefix}{key}")


_FORM_OF_SPLIT: dict[str, Form] = {
    "rl": "problems",
    "eval": "problems",
    "sft": "conversations",
    "pretrain": "texts",
}


def _rows(
    source: Source, stage: configs.StageConfig, split: Split, seed: int
) -> list[Row]:
    if source.path not in sources.BUILT_IN:
        form = form_of(stage) if split == "held_out" else _FORM_OF_SPLIT[split]
        weighted = split in ("sft", "pretrain")
        return _from_file(source.path, stage, form, weighted=weighted)
    if split in ("eval", "held_out"):
        return _generated(source.path, stage, split, stage.data.num_eval_problems, 0)
    return _generated(source.path, stage, split, stage.data.num_problems, seed)


def _generated(
    task: str, stage: configs.StageConfig, split: Split, count: int, seed: int
) -> list[Row]:
    of = {"pretrain": "sft", "held_out": "eval"}.get(split, split)
    with _own_keys(stage):
        if split in ("sft", "pretrain", "held_out"):
            # What is held out is answered rightly: to measure by.
            of_toys = task in TOYS and of == "sft"
            more = {"wrong_share": stage.data.wrong_share} if of_toys else {}
            found = DEMONSTRATIONS[task](count, seed, split=of, **more)
        else:
            found = PROBLEMS[task](of, count, seed)
    questions = (text_of(row.messages[0]) for row in found)
    assert all(generated.split_of(question) == of for question in questions)
    framing = _framing(stage)
    return [rows.framed(row, framing) for row in found]


def _from_file(
    path: str,
    stage: configs.StageConfig,
    form: Form,
    *,
    weighted: bool = False,
    keep: bool = False,
) -> list[Any]:
    """Rows of a path; `keep` leaves them for the next caller.

    Args:
        weighted: they may have weights: those to train on.
    """
    # Where a file is named does not change what is in it.
    data = dataclasses.replace(stage.data, train="", eval="", held_out="")
    if not weighted:
        data = dataclasses.replace(data, weight_column="")
    key = (path, form, data, stage.ranking)
    key = (*key, form == "problems" and _needs_answer(stage))
    found = _kept.pop(key, None)
    if found is None:
        with _own_keys(stage):
            one = dataclasses.replace(stage, data=data)
            found = _READERS[form](path, one)
    if keep:
        _kept[key] = found
    return found


def _needs_answer(stage: configs.StageConfig) -> bool:
    if stage.kind == "distill" and not (is_rewarded(stage) or stage.eval.every):
        return False  # nobody grades what the student says
    return bool(set(registry.NEEDS_ANSWER) & set(stage.reward.functions))


def _problems(path: str, stage: configs.StageConfig) -> list[Row]:
    data = stage.data
    return rows.read_rows(
        path,
        prompt_column=data.prompt_column,
        answer_column=data.answer_column,
        answer_after=data.answer_after,
        needs_answer=_needs_answer(stage),
        framing=_framing(stage),
    )


def _conversations(path: str, stage: configs.StageConfig) -> list[Row]:
    data = stage.data
    return rows.read_conversations(
        path,
        prompt_column=data.prompt_column,
        completion_column=data.completion_column,
        weight_column=data.weight_column,
        framing=_framing(stage),
    )


def _texts(path: str, stage: configs.StageConfig) -> list[Row]:
    data = stage.data
    return rows.read_texts(
        path,
        text_column=data.text_column,
        prompt_column=data.prompt_column,
        completion_column=data.completion_column,
        weight_column=data.weight_column,
        framing=_framing(stage),
    )


def _pairs(path: str, stage: configs.StageConfig) -> list[Preference]:
    data = stage.data
    return rows.read_preferences(
        path,
        prompt_column=data.prompt_column,
        chosen_column=data.chosen_column,
        rejected_column=data.rejected_column,
        framing=_framing(stage),
    )


def _rankings(path: str, stage: configs.StageConfig) -> list[Judged]:
    data, margin = stage.data, stage.ranking.margin
    return read_rankings(
        path,
        form=stage.ranking.form,
        prompt_column=data.prompt_column,
        chosen_column=data.chosen_column,
        rejected_column=data.rejected_column,
        margin_column="" if margin == "none" else data.margin_column,
        ratings=MARGINS.get(margin, ()),
        framing=_framing(stage),
    )


# A kind with rows of a form of its own adds the form, and its reader, here.
_READERS: dict[Form, Callable[[str, configs.StageConfig], list[Any]]] = {
    "problems": _problems,
    "conversations": _conversations,
    "texts": _texts,
    "pairs": _pairs,
    "rankings": _rankings,
    "any": lambda path, stage: list(records(path)),
}


def _framing(stage: configs.StageConfig) -> rows.Framing:
    data, key = stage.data, f"{stage.prefix}data.template_variables"
    variables = data_checks.template_variables(data.template_variables, key)
    return rows.Framing(data.system, data.instruction, variables)


@contextlib.contextmanager
def _own_keys(stage: configs.StageConfig) -> Iterator[None]:
    """Makes errors about data name the keys of this stage of a chain."""
    try:
        yield
    except ConfigError as error:
        text = str(error).replace("--config.data.", f"--config.{stage.prefix}data.")
        raise ConfigError(text) from error
