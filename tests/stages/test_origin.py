"""What a result is made from: which changes make another sum."""

import dataclasses
import os

import pytest

import data_stages
from rl_jax import config as configs
from rl_jax.checkpoint import Checkpointer
from rl_jax.data.lines import json_text
from rl_jax.models.params import init_params
from rl_jax.stages import origin

SCORE = "def score(completion, **_):\n    return {}\n"


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    run = data_stages.run_of({"a": "sft", "pick": "select"})
    with data_stages.built(tmp_path_factory.mktemp("origin"), run) as made:
        yield made


def sum_of(context, **changes):
    stage: configs.StageConfig = context.run.stages[1]
    for key, value in changes.items():
        group, _, name = key.partition("__")
        if name:
            value = dataclasses.replace(getattr(stage, group), **{name: value})
        stage = dataclasses.replace(stage, **{group: value})
    return origin.sum_of(origin.sampling(context, stage))


def test_all_that_replies_depend_on_makes_another_sum(context, tmp_path):
    same = sum_of(context)
    assert same == sum_of(context)
    others = [
        {"init": "base"},
        {"name": "other"},
        {"rollout__temperature": 0.5},
        {"rollout__group_size": 2},
        {"reward__answer_format": "any"},
        {"data__instruction": "Box it."},
        {"data__train": "programs"},
    ]
    sums = [sum_of(context, **change) for change in others]
    seed = dataclasses.replace(context.run, seed=1)
    sums.append(sum_of(dataclasses.replace(context, run=seed)))
    assert len({same, *sums}) == 1 + len(sums)


def test_what_replies_do_not_depend_on_leaves_it(context, tmp_path):
    same = sum_of(context)
    assert sum_of(context, reward__workers=7) == same
    assert sum_of(context, data__eval="arithmetic") == same


def test_rows_are_known_by_what_they_say_and_not_by_their_folder(context, tmp_path):
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        rows = [{"prompt": "ask", "answer": "1"}]
        files.append(data_stages.write(tmp_path / name / "x.jsonl", rows))
    first, second = (sum_of(context, data__train=str(file)) for file in files)
    assert first == second == sum_of(context, data__train=str(tmp_path / "one"))
    data_stages.write(files[0], [{"prompt": "ask", "answer": "2"}])
    assert sum_of(context, data__train=str(files[0])) != first
    named = data_stages.write(tmp_path / "y.jsonl", [{"prompt": "ask", "answer": "1"}])
    assert sum_of(context, data__train=str(named)) != first  # another data_source


def test_a_reward_functions_text_counts(context, tmp_path):
    file = tmp_path / "mine.py"
    sums = []
    for value in (1, 2):
        file.write_text(SCORE.format(value))
        sums.append(sum_of(context, reward__functions=(f"{file}:score",)))
    assert sums[0] != sums[1]


def test_weights_are_known_by_their_checkpoint(context):
    folder = context.workdir / "a" / "checkpoints"
    assert origin.weights_of(context, "a") == "none"
    sums = []
    with Checkpointer(folder, keep=3) as saver:
        for step in (1, 2):
            params = init_params(context.model, context.mesh, step)
            saver.save(step, {"params": params}, {})
            saver.wait()
            sums.append(origin.weights_of(context, "a"))
    assert sums[0] != sums[1] == origin.weights_of(context, "a@2")
    assert origin.weights_of(context, "a@1") == sums[0]
    # As a kill while it was deleted would leave it.
    os.remove(folder / "2" / "manifest.json")
    assert origin.weights_of(context, "a") == sums[0]


def test_a_model_folder_is_known_by_its_files(context, tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"1234")
    before = origin.weights_of(context, str(tmp_path))
    assert origin.weights_of(context, str(tmp_path)) == before
    weights.write_bytes(b"12345")
    assert origin.weights_of(context, str(tmp_path)) != before
    assert origin.weights_of(context, "new") == "new"


def test_why_something_must_be_made(tmp_path):
    record, result = tmp_path / "stats.json", tmp_path / "x.jsonl"
    assert "not there" in origin.why_make(record, "1", [result])
    result.write_text("{}\n")
    told = {"made_of": "1", "files": {"x.jsonl": origin.file_sum(result)}}
    record.write_text(json_text(told))
    assert origin.why_make(record, "1", [result]) == ""
    assert "another config" in origin.why_make(record, "2", [result])
    result.write_text("{} \n")
    assert "not the file" in origin.why_make(record, "1", [result])
    result.unlink()
    assert "not the file" in origin.why_make(record, "1", [result])
    record.write_text('{"made_of": "1", "fi')
    assert "cannot be read" in origin.why_make(record, "1", [result])
