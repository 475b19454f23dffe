"""The toy tasks where a config names them."""

import pytest

import tiny_stage as tiny
from rl_jax.data import sources
from rl_jax.data.toys import making
from rl_jax.data.toys.table import TOYS
from rl_jax.errors import ConfigError
from rl_jax.rewards import registry
from rl_jax.stages import reading


def test_every_toy_is_a_source_with_problems_and_demonstrations():
    assert set(TOYS) <= set(sources.BUILT_IN)
    assert set(TOYS) <= set(reading.PROBLEMS) & set(reading.DEMONSTRATIONS)
    assert "toy" in registry.NEEDS_ANSWER and "toy" in registry.OPTIONS


def test_a_mixture_of_toys_is_read_with_the_share_that_is_wrong():
    names = ("sums", "rpn")
    run = tiny.run_config(
        sft__data__train="sums,rpn",
        sft__data__num_problems=20,
        sft__data__wrong_share=0.3,
    )
    stage = run.stages[0]
    found = [list(part.items) for part in reading.read(stage, "sft", seed=5).parts]
    for name, rows in zip(names, found, strict=True):
        assert rows == making.demonstrations(name, 20, 5, wrong_share=0.3)


def test_rows_to_try_and_to_evaluate_on_are_the_tasks_own():
    stage = tiny.rl_stage(data__train="safety", data__eval="safety")
    asked = list(reading.read(stage, "rl", seed=2))
    assert asked == making.rows("safety", "rl", len(asked), 2)
    held_out = list(reading.read(stage, "eval", seed=2))
    assert held_out == making.rows("safety", "eval", len(held_out), 0)


@pytest.mark.parametrize("name", sources.AS_THEY_ARE[:2])
def test_a_wrong_share_of_a_task_that_has_none_is_refused(name):
    with pytest.raises(ConfigError) as caught:
        tiny.run_config(sft__data__train=name, sft__data__wrong_share=0.3)
    message = str(caught.value)
    assert "config.sft.data.wrong_share is 0.3" in message and repr(name) in message
    assert "--config.sft.data.wrong_share=0" in message
    assert len(message.splitlines()) <= 3
