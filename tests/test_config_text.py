import json

import pytest

from rl_jax import command_line, config_text, schema
from rl_jax import config as defaults


@pytest.mark.parametrize("stages", [{}, {"sft": "sft", "rl": "rl"}])
def test_the_printed_tree_holds_every_key_once_as_it_is_written(stages):
    config = defaults.chain(stages) if stages else defaults.stage("rl")
    group, found = "", []
    for line in config_text.describe(config).splitlines():
        assert len(line) <= config_text.WIDTH
        group = line[: config_text.INDENT].strip() or group
        prefix = "" if group == "run" else f"{group}."
        words = line[config_text.INDENT :].split()
        found += [(prefix + word).partition("=")[::2] for word in words]
    table = defaults.tree_keys(defaults.kinds_of(config))
    values = schema.leaves(config)
    assert sorted(path for path, _ in found) == sorted(table)
    for path, text in found:
        assert command_line.parsed(table[path], text) == values[path], path


def test_what_the_command_line_set_is_marked():
    config = defaults.stage("rl")
    config.steps, config.optim.lr = 3, 1e-4
    text = config_text.describe(config, ["steps=3", "optim.lr=0.0001"])
    assert {word for word in text.split() if word.startswith("*")} == {
        "*",
        "*steps=3",
        "*lr=0.0001",
    }
    assert "*" not in config_text.describe(config)


def test_sizes_that_a_model_folder_brings_are_not_printed():
    config = defaults.stage("rl")
    assert "num_layers=4" in config_text.describe(config)
    config.model.path = "somewhere"
    text = config_text.describe(config)
    assert "num_layers" not in text
    assert "path=somewhere dtype=float32" in text


def test_texts_with_spaces_are_quoted():
    config = defaults.stage("rl")
    config.data.system = "Think first."
    assert "system='Think first.'" in config_text.describe(config)


def test_json_holds_the_whole_tree():
    config = defaults.chain({"sft": "sft", "rl": "rl"})
    read = json.loads(config_text.to_json(config))
    assert read["stages"] == ["sft", "rl"]
    assert read["rl"]["objective"]["kl"] is None
    assert read["rl"]["optim"]["lr"] == 1e-6

    def count(node):
        if not isinstance(node, dict):
            return 1
        return sum(map(count, node.values()))

    assert count(read) == len(defaults.tree_keys(defaults.kinds_of(config)))


def test_of_a_long_chain_what_differs_from_the_defaults_is_printed():
    kinds = {"pretrained": "pretrain", "sft": "sft", "preferences": "dpo"}
    config = defaults.chain(kinds)
    config.preferences.preference.beta = 0.5
    text = config_text.describe(config, ["sft.optim.lr=1e-05"])
    words = text.split()
    assert "*lr=1e-05" in words and "weight_decay=0.0" not in words
    for name, kind in kinds.items():
        assert f"kind={kind}" in words and name in words
    line = next(x for x in text.splitlines() if x.startswith("preferences.preference"))
    assert line.split() == ["preferences.preference", "beta=0.5"]
    assert words.count("init=sft") == words.count("init=pretrained") == 1
    assert "--help has all" in text
