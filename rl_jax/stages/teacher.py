"""The teacher of a distillation: found and compared with the student, then read.

It may be a policy of the run itself, another run's work folder (or a stage in it), or a
Hugging Face folder; and a model of other sizes, as long as its token ids mean the same.
Weights and sums have the student's types. It reads the student's ids as they are: its
own chat template is not used.
"""

import dataclasses
import pathlib
from collections.abc import Callable

from rl_jax import config as configs
from rl_jax import dag, load, placement
from rl_jax.data import tokenizer
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError
from rl_jax.models.params import Params
from rl_jax.models.spec import ModelSpec
from rl_jax.stages import context as contexts
from rl_jax.stages import weights
from rl_jax.stages.context import Context


@dataclasses.dataclass(frozen=True)
class Teacher:
    """A frozen model.

    Attributes:
        name: what was found, for people.
        read: reads its weights.
    """

    name: str
    model: ModelSpec
    read: Callable[[], Params]


def find(context: Context, stage: configs.StageConfig) -> Teacher:
    """The teacher that `distill.teacher` names; its weights are not read yet.

    Raises:
        ConfigError: if there is none, if its token ids are not the student's, or its
            sizes do not divide over the mesh.
    """
    name, key = stage.distill.teacher, f"{stage.prefix}distill.teacher"
    word, step = dag.with_step(name)
    if name == "base" or word in {one.name for one in context.run.stages}:
        return Teacher(name, context.model, weights.policy(context, name, key))
    try:
        found = load.find(pathlib.Path(word), step)
        check_same_ids(tokenizer.load(found.files), context.tokenizer)
        model = _typed_as(found.model, context.model)
        check_rows(model, context, whole=stage.distill.form == "soft")
        contexts.check_model(model, context.mesh)
    except ConfigError as error:
        raise ConfigError(f"config.{key}={name!r}: {error}") from error
    return Teacher(
        found.name, model, lambda: load.read_params(found, model, context.mesh)
    )


def placed(stage: configs.StageConfig, params: Params) -> Params:
    """A teacher's weights where they stay while they are not used."""
    return placement.to_host(params) if stage.distill.teacher_host else params


def _typed_as(model: ModelSpec, student: ModelSpec) -> ModelSpec:
    """A model with the types that the student is computed in, and no remat."""
    return dataclasses.replace(
        model,
        dtype=student.dtype,
        param_dtype=student.param_dtype,
        float32_head=student.float32_head,
        remat="none",
    )


def check_same_ids(teacher: Tokenizer, student: Tokenizer) -> None:
    """Raises ConfigError, naming what differs, unless every id is the same token."""
    if teacher.vocab_size != student.vocab_size:
        raise ConfigError(
            f"its tokenizer has {teacher.vocab_size:,} ids, the student's "
            f"{student.vocab_size:,}.\nA teacher must read the student's token ids: "
            "take one of the same tokenizer, or train on its replies (select, sft)."
        )
    for i in range(student.vocab_size):
        texts = teacher.token_text(i), student.token_text(i)
        if texts[0] != texts[1]:
            raise ConfigError(
                f"token {i} is {texts[0]!r} there and {texts[1]!r} in the student's "
                "tokenizer.\nA teacher must read the student's token ids: take one of "
                "the same tokenizer, or train on its replies (select, sft)."
            )


def check_rows(model: ModelSpec, context: Context, *, whole: bool) -> None:
    """Raises ConfigError if the teacher's head has too few rows for what is compared.

    Heads have more rows than there are tokens, and not all models as many: drawn
    tokens can be scored by either, whole distributions only be compared row by row.
    """
    rows, needed = model.vocab_size, context.tokenizer.vocab_size
    if whole and rows != context.model.vocab_size:
        raise ConfigError(
            f"its output head has {rows:,} rows, the student's "
            f"{context.model.vocab_size:,}.\nForm soft compares them row by row: use "
            "an on-policy form, e.g. distill.form=opd."
        )
    if rows < needed:
        raise ConfigError(
            f"its output head has {rows:,} rows for {needed:,} tokens.\n"
            "Expected a row for each token of the tokenizer."
        )
