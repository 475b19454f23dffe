"""What stages take from one another."""

import dataclasses

import pytest

from rl_jax import config as defaults
from rl_jax import dag
from rl_jax.errors import ConfigError


def rounds():
    """A chain with a stage of each sort, whose references are all right."""
    kinds = {
        "warm": "pretrain",
        "pick": "select",
        "duels": "select",
        "sft": "sft",
        "rm": "reward_model",
        "dpo": "dpo",
        "soup": "merge",
        "small": "distill",
        "rl": "rl",
    }
    config = defaults.chain(kinds)
    for name in kinds:
        if name != "soup":
            config[name].data.train = "arithmetic"
    config.sft.data.train = "pick@0.5,arithmetic@0.5"
    config.sft.init = "warm@20"
    config.duels.select.keep = "pairs"
    config.rm.data.train = config.dpo.data.train = config.rm.data.held_out = "duels"
    config.rm.eval.every = 1
    config.soup.merge.models = ("sft", "dpo")
    config.small.distill.teacher = "soup"
    config.small.init = "new"
    config.rl.reward.model = "rm"
    return config


def fault(config):
    with pytest.raises(ConfigError) as error:
        defaults.resolve(config)
    text = str(error.value)
    assert len(text.splitlines()) <= 3
    return text


def test_each_stage_knows_what_it_takes_from_which():
    run = defaults.resolve(rounds())
    found = {
        stage.name: [(need.key, need.name) for need in dag.needs(run, stage)]
        for stage in run.stages
    }
    assert found == {
        "warm": [],
        "pick": [("pick.init", "warm")],
        "duels": [("duels.init", "warm")],
        "sft": [("sft.init", "warm"), ("sft.data.train", "pick")],
        "rm": [
            ("rm.init", "sft"),
            ("rm.data.train", "duels"),
            ("rm.data.held_out", "duels"),
        ],
        "dpo": [("dpo.init", "sft"), ("dpo.data.train", "duels")],
        "soup": [("soup.merge.models", "sft"), ("soup.merge.models", "dpo")],
        "small": [("small.distill.teacher", "soup")],
        "rl": [("rl.init", "small"), ("rl.reward.model", "rm")],
    }


def test_weights_come_by_default_from_the_last_stage_that_makes_a_policy():
    config = rounds()
    assert config.dpo.init == "sft"  # not rm, which makes none
    assert config.rm.init == "sft" and config.pick.init == "warm"


@pytest.mark.parametrize(
    ("stage", "key", "value", "parts"),
    [
        ("sft", "init", "sft", ["config.sft.init", "'sft'", "the stage itself"]),
        ("sft", "init", "rl", ["config.sft.init", "'rl'", "a later one"]),
        ("sft", "init", "sftt", ["config.sft.init", "'sftt'"]),
        ("sft", "init", "pick", ["a select stage", "a policy", "warm"]),
        ("rl", "init", "rm", ["a reward_model stage", "a policy"]),
        ("sft", "data.train", "rl", ["config.sft.data.train", "a later one"]),
        ("rl", "data.train", "sft", ["a sft stage", "makes data", "pick"]),
        ("rl", "data.train", "pikc", ["'pikc'", "does not exist"]),
        ("small", "distill.teacher", "small", ["the stage itself"]),
        ("rl", "reward.model", "sft", ["a sft stage", "a reward_model", "rm"]),
        ("soup", "merge.models", ("sft", "pick"), ["a select stage"]),
    ],
)
def test_a_reference_to_what_no_earlier_stage_makes_is_told(stage, key, value, parts):
    config = rounds()
    group, _, name = key.rpartition(".")
    node = config[stage][group] if group else config[stage]
    node[name] = value
    text = fault(config)
    for part in parts:
        assert part in text, text


def test_names_of_stages_are_replaced_by_the_files_they_write():
    run = defaults.resolve(rounds())
    sft = dag.with_paths(run.stages[3], {"pick": "/runs/a,b@c/pick/data.jsonl"}, {})
    assert sft.data.train == "/runs/a,b@c/pick/data.jsonl@0.5,arithmetic@0.5"
    rm = dag.with_paths(
        run.stages[4], {"duels": "train.jsonl"}, {"duels": "kept.jsonl"}
    )
    assert (rm.data.train, rm.data.held_out) == ("train.jsonl", "kept.jsonl")
    untouched = dag.with_paths(run.stages[0], {"pick": "x"}, {})
    assert untouched == run.stages[0]


def test_some_stages_can_be_chosen():
    run = defaults.resolve(rounds())
    names = [stage.name for stage in run.stages]
    assert dag.to_run(run, "", "") == names
    assert dag.to_run(run, "rm", "") == ["rm"]
    assert dag.to_run(run, "", "soup") == ["soup", "small", "rl"]
    with pytest.raises(ConfigError, match="--only=small"):
        dag.to_run(run, "smal", "")
    with pytest.raises(ConfigError, match="--from"):
        dag.to_run(run, "rm", "rl")


def test_a_loop_has_each_stage_once_a_round():
    stages = dag.repeat({"rm": "reward_model", "pick": "select"}, over=(1, "b"))
    assert list(stages.items()) == [
        ("rm_1", "reward_model"),
        ("pick_1", "select"),
        ("rm_b", "reward_model"),
        ("pick_b", "select"),
    ]
    assert set(defaults.chain(stages).stages) == set(stages)


def test_stages_without_steps_have_none():
    run = defaults.resolve(rounds())
    assert [s.steps for s in run.stages if s.kind in ("select", "merge")] == [0] * 3
    assert dataclasses.replace(run).stages[0].steps > 0
