"""Faults of a stage of pairs that need neither data nor devices to be seen."""

import pytest

import tiny_pairs
from rl_jax import config as configs
from rl_jax.errors import ConfigError


@pytest.fixture
def train(tmp_path):
    return tiny_pairs.write_pairs(tmp_path / "train.jsonl", 2, 0)


def fault(train, **changes):
    with pytest.raises(ConfigError) as error:
        tiny_pairs.config(train, **changes)
    text = str(error.value)
    assert len(text.splitlines()) <= 3, text
    return text


def test_a_reference_that_is_not_there_is_told(train):
    text = fault(train, preference__reference="bse")
    assert "config.preference.reference is 'bse'" in text
    assert "--config.preference.reference=base" in text


def test_init_base_and_folders_are_references(train, tmp_path):
    for name in ("init", "base", str(tmp_path)):
        run = tiny_pairs.config(train, preference__reference=name)
        assert run.stages[0].preference.reference == name


@pytest.mark.parametrize("key", ["data__train", "data__held_out"])
def test_a_built_in_task_has_no_pairs(train, key):
    text = fault(train, **{key: "arithmetic"}, eval__every=int("held" in key))
    assert "'arithmetic', a task without pairs" in text and "keep=pairs" in text


def test_pairs_that_would_never_be_measured_are_told(train):
    text = fault(train, data__held_out=str(train))
    assert "never be measured" in text and "--config.eval.every=50" in text


def chain(keep, reference="init"):
    tree = configs.chain({"start": "rl", "pick": "select", "dpo": "dpo"})
    for stage in (tree.start, tree.pick):
        stage.data.train = "arithmetic"
    tree.pick.select.keep = keep
    tree.dpo.init = "start"
    tree.dpo.data.train = "pick"
    tree.dpo.preference.reference = reference
    return configs.resolve(tree)


def test_a_stage_that_writes_pairs_can_be_learnt_from():
    assert chain("pairs", "start@3").stages[2].data.train == "pick"


def test_a_stage_that_writes_something_else_cannot():
    with pytest.raises(ConfigError, match="writes 'best' and no pairs"):
        chain("best")


def test_a_stage_that_makes_no_policy_is_no_reference():
    with pytest.raises(ConfigError, match="config.dpo.preference.reference"):
        chain("pairs", "pick")
