"""Finding a teacher: a policy of the run, a folder, another model of the same ids."""

import dataclasses
import shutil
from typing import Any

import jax
import numpy as np
import pytest
import tiny_distill as tiny

import tiny_stage
from rl_jax.data import arithmetic, tokenizer
from rl_jax.errors import ConfigError
from rl_jax.models import export
from rl_jax.models.params import init_params
from rl_jax.stages import context as contexts
from rl_jax.stages import distill, run_state, teacher


def named(context, name):
    distilled = dataclasses.replace(context.run.stages[1].distill, teacher=name)
    return dataclasses.replace(context.run.stages[1], distill=distilled)


def found(context, name):
    return teacher.find(context, named(context, name))


@pytest.fixture(scope="module", autouse=True)
def compiled_once(tmp_path_factory):
    with tiny_stage.compilation_cache(tmp_path_factory.mktemp("programs")):
        yield


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    with tiny.built(tmp_path_factory.mktemp("run")) as context:
        yield context


def make_run(context, folder, **sizes: Any):
    """A work folder with a checkpoint of another model, and its weights."""
    model = dataclasses.replace(context.model, **sizes)
    other = dataclasses.replace(context, model=model, workdir=folder)
    folder.mkdir()
    contexts.write_model_file(model, folder)
    files = context.workdir / contexts.TOKENIZER_FOLDER
    shutil.copytree(files, folder / contexts.TOKENIZER_FOLDER)
    stage = other.run.stages[0]
    tx, _ = run_state.optimiser_of(stage, model)
    params = init_params(model, context.mesh, seed=5)
    with run_state.open_stage(other, stage, lambda: params, tx) as session:
        session.save(stage.steps, session.state, {})
    return params


def test_the_base_and_stages_of_the_run_are_models_like_the_student(context):
    params = tiny.teach(context)
    for name in ("sft", "sft@4", str(context.workdir / "sft")):
        one = found(context, name)
        assert one.model == context.model
        np.testing.assert_array_equal(one.read().embed_VD, params.embed_VD)
    base = found(context, "base").read()
    first = contexts.first_params(context)
    np.testing.assert_array_equal(base.embed_VD, first.embed_VD)


def test_a_larger_model_of_another_run_teaches_the_same_ids(context, tmp_path):
    sizes = {"width": 48, "num_layers": 2, "head_dim": 24}
    params = make_run(context, tmp_path / "big", **sizes)
    one = found(context, str(tmp_path / "big" / "sft"))
    assert (one.model.width, one.model.num_layers) == (48, 2)
    np.testing.assert_array_equal(one.read().embed_VD, params.embed_VD)
    with tiny.built(tmp_path / "small", distill__form="soft", steps=1) as small:
        stage = named(small, str(tmp_path / "big" / "sft"))
        distill.run(small, stage, lambda: tiny.student(small))
        (line,) = tiny.lines(small.workdir)
    assert line["train/forward_kl"] > 0.1


def test_a_hugging_face_folder_teaches_in_the_types_of_the_student(context, tmp_path):
    params = init_params(context.model, context.mesh, seed=7)
    export.save_params(params, context.model, tmp_path)
    files = context.workdir / contexts.TOKENIZER_FOLDER
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    one = found(context, str(tmp_path))
    assert one.model.param_dtype == context.model.param_dtype
    jax.tree.map(np.testing.assert_array_equal, one.read(), params)


# What is refused.


def refused(context, name, form="opd"):
    stage = named(context, str(name))
    distilled = dataclasses.replace(stage.distill, form=form)
    with pytest.raises(ConfigError) as caught:
        teacher.find(context, dataclasses.replace(stage, distill=distilled))
    message = str(caught.value)
    assert message.startswith(f"config.distill.distill.teacher={str(name)!r}: ")
    assert len(message.splitlines()) <= 3, message
    return message


def test_a_folder_without_a_model_is_refused(context, tmp_path):
    assert "holds no model" in refused(context, tmp_path)


def test_a_head_of_other_rows_may_score_replies_but_not_be_compared(context, tmp_path):
    rows = context.model.vocab_size
    make_run(context, tmp_path / "more", vocab_size=rows + 64)
    message = refused(context, tmp_path / "more" / "sft", form="soft")
    assert f"has {rows + 64} rows, the student's {rows}" in message
    assert found(context, str(tmp_path / "more" / "sft")).model.vocab_size == rows + 64


class Ids:
    """A tokenizer of these tokens."""

    def __init__(self, *texts: str):
        self.vocab_size, self.token_text = len(texts), texts.__getitem__


def test_what_differs_between_two_vocabularies_is_named():
    student: Any = Ids("a", "b", "c")
    same: Any = Ids("a", "b", "c")
    teacher.check_same_ids(same, student)
    swapped: Any = Ids("a", "c", "b")
    with pytest.raises(ConfigError, match="token 1 is 'c' there and 'b' in the stu"):
        teacher.check_same_ids(swapped, student)
    longer: Any = Ids("a", "b", "c", "d")
    with pytest.raises(ConfigError, match="has 4 ids, the student's 3"):
        teacher.check_same_ids(longer, student)


def test_a_teacher_of_another_tokenizer_is_refused(context, tmp_path):
    make_run(context, tmp_path / "other")
    files = tmp_path / "other" / contexts.TOKENIZER_FOLDER
    shutil.rmtree(files)
    tokenizer.train(
        ["Which letters are these?", "Others!"] * 50,
        files,
        vocab_size=64,
        chat_template=arithmetic.CHAT_TEMPLATE,
        specials=arithmetic.CHAT_SYMBOLS,
    )
    message = refused(context, tmp_path / "other" / "sft")
    assert "A teacher must read the student's token ids" in message


def test_a_teacher_that_does_not_divide_over_the_mesh_is_refused(tmp_path, context):
    make_run(context, tmp_path / "odd", width=36, head_dim=18)
    many = contexts.make_mesh(1, 8, 1)
    with pytest.raises(ConfigError, match="width=36 does not divide by 8"):
        found(dataclasses.replace(context, mesh=many), str(tmp_path / "odd" / "sft"))
