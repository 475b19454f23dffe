"""The file that says that a work folder holds a reward model."""

import pytest

from rl_jax import reward_marker
from rl_jax.errors import ConfigError
from rl_jax.reward_marker import Marker


def test_a_marker_is_read_as_it_was_written(tmp_path):
    marker = Marker("ranking", 0.1, 2.5, 7)
    reward_marker.write(tmp_path, marker)
    assert reward_marker.read(tmp_path, "reward.model") == marker
    assert [path.name for path in tmp_path.iterdir()] == ["reward_model.json"]


def test_scores_are_shifted_and_scaled():
    assert Marker("ranking", 0.5, 2.0, 7).standardised(2.5) == 1.0
    # A model that learnt nothing gives every reply the same score.
    assert Marker("ranking", 0.5, 0.0, 7).standardised(0.5) == 0.0


def test_a_folder_without_a_marker_is_no_reward_model(tmp_path):
    with pytest.raises(
        ConfigError, match=r"rl\.reward\.model names .*has no reward_mo"
    ):
        reward_marker.read(tmp_path, "rl.reward.model")


@pytest.mark.parametrize("text", ["", "[]", '{"mean": 1}'])
def test_a_marker_that_cannot_be_read_is_told(tmp_path, text):
    (tmp_path / "reward_model.json").write_text(text)
    with pytest.raises(ConfigError, match="cannot be read"):
        reward_marker.read(tmp_path, "reward.model")
