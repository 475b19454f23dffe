"""What is refused of a stage of reinforcement learning, and what it says."""

import pytest

import tiny_stage as tiny
from rl_jax.errors import ConfigError
from rl_jax.objectives.presets import COMPAT
from rl_jax.stage_checks.rl import rewards_by_step


def stage(**changes):
    return tiny.rl_stage(
        **{"reward__functions": "maths,format", "reward__weights": "1.0,0.5"} | changes
    )


def test_what_fits_is_taken():
    found = stage(
        reward__steps="format=1-3,maths=2",
        reward__hidden="number",
        reward__hidden_gap=0.3,
        curriculum__retire_at=0.9,
        curriculum__retire_after=2,
        curriculum__reenter_after=10,
        curriculum__draw="hard",
        curriculum__floor=0.1,
        objective__kl_coef=0.001,
        objective__reference_every=400,
    )
    assert rewards_by_step(found) == {"format": (1, 3), "maths": (2, None)}
    assert rewards_by_step(stage()) == {}


def test_functions_of_routes_are_known_by_their_parts_names():
    routes = "gsm8k*=gsm8k+format@0.1,*=maths"
    found = stage(reward__routes=routes, reward__steps="gsm8k=3,format=1-9")
    assert rewards_by_step(found) == {"gsm8k": (3, None), "format": (1, 9)}


@pytest.mark.parametrize(
    "changes, match, write",
    [
        ({"reward__steps": "matsh=3"}, "did you mean 'maths'", "maths, format"),
        ({"reward__steps": "model=3"}, "no reward is called 'model'", "maths, format"),
        ({"reward__steps": "maths=3-1"}, "has no step", "rl.reward.steps=maths=1-100"),
        (
            {"reward__steps": "maths=1-2,format=1-4"},
            "in step 5 no reward counts",
            "--config.rl.reward.steps=",
        ),
        (
            {"reward__steps": "maths=3,format=2"},
            "in step 1 no reward counts",
            "--config.rl.reward.steps=",
        ),
        ({"reward__hidden": "maths"}, "'maths' is trained on too", "rl.reward.hidden="),
        ({"reward__hidden": "number,number"}, "is there twice", "hidden=number"),
        ({"reward__hidden": "numbr"}, "rl.reward.hidden has", "hidden=number"),
        ({"reward__hidden_gap": 0.5}, "no hidden function", "rl.reward.hidden="),
        ({"reward__model_weight": 0.5}, "no reward model", "rl.reward.model=STAGE"),
        (
            {"objective__reference_every": 3},
            "the weight of the KL is 0",
            "--config.rl.objective.kl_coef=0.001",
        ),
        ({"curriculum__reenter_after": 3}, "means nothing while", "retire_at=0.9"),
        ({"curriculum__retire_after": 3}, "means nothing while", "retire_at=0.9"),
        ({"curriculum__floor": 0.5}, "means nothing while", "curriculum.draw=hard"),
        ({"curriculum__retire_at": 1.5}, "from 0 to 1", "rl.curriculum.retire_at"),
    ],
)
def test_what_does_not_fit_is_told_with_what_to_write(changes, match, write):
    with pytest.raises(ConfigError, match=match) as error:
        stage(**changes)
    assert write in str(error.value)
    assert len(str(error.value).splitlines()) <= 3


def test_steps_after_the_last_need_no_reward():
    # The tiny stage has six steps.
    assert stage(reward__steps="maths=1-6,format=2-3")


KL_OF_ITS_OWN = [
    (compat, name)
    for compat, named in COMPAT.items()
    for name, spec in named.items()
    if spec.kl_coef
]


@pytest.mark.parametrize("compat, name", KL_OF_ITS_OWN[:1])
def test_a_loss_with_a_kl_of_its_own_may_renew_its_reference(compat, name):
    given = {"objective__name": name, "objective__compat": compat}
    assert stage(**given, objective__reference_every=2)
    with pytest.raises(ConfigError, match="the weight of the KL is 0"):
        stage(**given, objective__reference_every=2, objective__kl_coef=0.0)
