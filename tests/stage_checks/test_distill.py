"""What is refused of a distillation before anything starts."""

import pytest
import tiny_distill as tiny

from rl_jax.errors import ConfigError
from rl_jax.objectives.distillation import PRESETS
from rl_jax.stage_checks import distill

SOFT = {"distill__form": "soft"}
ASKED = {"distill__form": "opd", "distill__outcome": 0.5}
WRONG = {
    "no teacher": ({"distill__teacher": ""}, "expected 'base', 'sft', or an existing"),
    "a teacher that is not there": (
        {"distill__teacher": "sftt"},
        "--config.distill.distill.teacher=sft",
    ),
    "itself": ({"distill__teacher": "distill"}, "which is the stage itself"),
    "rows too short for replies": ({"batch__row_tokens": 70}, "row_tokens=76"),
    "rows not in whole passes": (
        SOFT | {"batch__rows_per_step": 5},
        "batch.rows_per_step=6",
    ),
    "updates of conversations": (
        SOFT | {"batch__updates_per_step": 2},
        "updates_per_step=1",
    ),
    "likeliest tokens in reverse": (
        SOFT | {"distill__top_k": 8, "distill__direction": "reverse"},
        "distill.direction=forward",
    ),
    "a rest of nothing": (SOFT | {"distill__rest": "dropped"}, "there is no rest"),
    "problems without demonstrations": (
        SOFT | {"data__train": "word_problems"},
        "distill.form=opd",
    ),
    "rewards of conversations": (SOFT | {"distill__outcome": 0.1}, "does not have"),
    "greedy replies": ({"rollout__temperature": 0.0}, "rollout.temperature=1.0"),
    "rewards with nothing to compare": (ASKED, "rollout.group_size=8"),
    "rewards of the form's own": ({"distill__form": "mopd"}, "distill.outcome=0.0"),
    "updates of parts of a prompt": (
        {"batch__updates_per_step": 3},
        "updates_per_step=1",
    ),
    "a temperature of drawn replies": (
        {"distill__temperature": 2.0},
        "distill.form=soft",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_fault_is_told_in_three_lines_with_what_to_write(name):
    changes, part = WRONG[name]
    with pytest.raises(ConfigError) as caught:
        run = tiny.resolved(**changes)
        distill.check(run, run.stages[1])
    assert part in str(caught.value), str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3


RIGHT = [
    SOFT,
    SOFT | {"distill__top_k": 8, "distill__rest": "dropped"},
    SOFT | {"distill__direction": "reverse", "distill__temperature": 2.0},
    SOFT | {"batch__row_tokens": 70},  # nothing is drawn
    {"distill__teacher": "sft@2"},
    {"distill__teacher": "base"},
    {"distill__form": "mopd", "distill__outcome": 0.0},
    ASKED | {"rollout__group_size": 2},
]


@pytest.mark.parametrize("changes", RIGHT)
def test_what_can_be_run_is_let_through(changes):
    run = tiny.resolved(**changes)
    distill.check(run, run.stages[1])


def test_a_folder_may_teach(tmp_path):
    run = tiny.resolved(distill__teacher=f"{tmp_path}@3")
    distill.check(run, run.stages[1])


@pytest.mark.parametrize("form", PRESETS)
def test_the_forms_that_want_rewards_are_those_whose_presets_do(form):
    stage = tiny.stage_of(distill__form=form, rollout__group_size=2)
    assert distill.is_rewarded(stage) == (PRESETS[form].outcome != 0)
    other = 0.0 if PRESETS[form].outcome else 0.3
    stage = tiny.stage_of(
        distill__form=form, distill__outcome=other, rollout__group_size=2
    )
    assert distill.is_rewarded(stage) == (other != 0)


def test_form_soft_wants_no_rewards():
    assert not distill.is_rewarded(tiny.stage_of(**SOFT))
