"""Names of reward models that are refused before jax starts."""

import pytest

from rl_jax import config as configs
from rl_jax import reward_marker
from rl_jax.errors import ConfigError
from rl_jax.reward_marker import Marker
from rl_jax.stage_checks import judge


def checked(tmp_path, model):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    config = configs.chain({"judge": "reward_model", "rl": "rl"})
    config.judge.data.train = config.rl.data.train = str(path)
    config.rl.reward.functions, config.rl.reward.weights = ("format",), (1.0,)
    run = configs.resolve(config)
    rl = run.stages[1]
    object.__setattr__(rl.reward, "model", model)
    judge.check(run, rl)


@pytest.mark.parametrize("model", ["", "judge", "judge@20"])
def test_none_and_an_earlier_stage_are_taken(tmp_path, model):
    checked(tmp_path, model)


@pytest.mark.parametrize("ending", ["", "@20"])
def test_a_folder_with_a_reward_model_is_taken(tmp_path, ending):
    reward_marker.write(tmp_path, Marker("ranking", 0.0, 1.0, 2))
    checked(tmp_path, f"{tmp_path}{ending}")


def test_a_folder_without_one_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no reward model with a head in it"):
        checked(tmp_path, str(tmp_path))


def test_a_name_that_is_nothing_gets_the_nearest_stage(tmp_path):
    with pytest.raises(ConfigError, match="rl.reward.model=judge`") as caught:
        checked(tmp_path, "jugde")
    assert str(caught.value).count("\n") <= 2
