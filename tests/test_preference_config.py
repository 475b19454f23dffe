"""Which preference loss a config asks for, and what it is told of a wrong one."""

import pathlib

import pytest

import tiny_pairs
from rl_jax.config_keys import Preference, StageConfig
from rl_jax.errors import ConfigError
from rl_jax.objectives.preference import PRESETS, PreferenceLoss
from rl_jax.preference_config import preference_loss_spec


def stage(**chosen):
    return StageConfig("dpo", "", kind="dpo", preference=Preference(**chosen))


@pytest.mark.parametrize("name", PRESETS)
def test_a_name_alone_is_the_named_loss(name):
    assert preference_loss_spec(stage(name=name)) == PRESETS[name]


def test_what_is_given_takes_the_place_of_what_the_named_loss_has():
    spec = preference_loss_spec(stage(name="dpo_norm", beta=2.0, nll_coef=0.1))
    assert spec == PreferenceLoss(beta=2.0, average="mean", nll_coef=0.1)


@pytest.mark.parametrize(
    "chosen, fix",
    [
        ({"name": "ipo", "label_smoothing": 0.1}, "preference.label_smoothing="),
        ({"name": "cdpo", "kind": "hinge"}, "preference.kind="),
    ],
)
def test_a_share_of_swapped_labels_that_the_loss_does_not_know_is_refused(chosen, fix):
    with pytest.raises(ConfigError) as error:
        preference_loss_spec(stage(**chosen))
    text = str(error.value)
    assert "only 'sigmoid' has such a share" in text
    assert fix in text and len(text.splitlines()) <= 3


@pytest.mark.parametrize(
    "key, value",
    [("beta", 0.0), ("label_smoothing", 0.6), ("nll_coef", -1.0)],
)
def test_a_number_out_of_its_range_is_told_with_its_key(tmp_path, key, value):
    train = tiny_pairs.write_pairs(tmp_path / "train.jsonl", 2, 0)
    with pytest.raises(ConfigError, match=f"config.preference.{key} is {value}"):
        tiny_pairs.config(pathlib.Path(train), **{f"preference__{key}": value})
