"""Configs of a reward model that are refused before jax starts."""

import pytest

from rl_jax import config as configs
from rl_jax.errors import ConfigError


def resolved(tmp_path, **changes):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    config = configs.chain({"rm": "reward_model"})
    values = {"data.train": str(path)}
    values |= {key.replace("__", "."): value for key, value in changes.items()}
    named = {f"rm.{key}": value for key, value in values.items()}
    config.update_from_flattened_dict(named)
    return configs.resolve(config)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ranking__form": "pointwise"},
        {"ranking__margin": "column", "data__margin_column": "gap"},
        {"ranking__margin": "large", "data__margin_column": "rating"},
    ],
)
def test_what_is_right_is_taken(tmp_path, changes):
    assert resolved(tmp_path, **changes).stages[0].kind == "reward_model"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ranking__margin": "column"}, "rm.data.margin_column, where the margin"),
        ({"ranking__margin": "small"}, "where the rating of a pair stands, is empty"),
        ({"data__margin_column": "gap"}, "so that it would not be read"),
        (
            {
                "ranking__form": "pointwise",
                "ranking__margin": "column",
                "data__margin_column": "gap",
            },
            "replies are not compared",
        ),
        ({"eval__every": 5}, "rm.data.held_out is empty"),
        ({"data__train": "arithmetic"}, "no replies that were compared"),
        ({"ranking__prompts_per_step": 0}, "prompts_per_step is 0"),
    ],
)
def test_what_is_wrong_is_told_with_an_override(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words) as caught:
        resolved(tmp_path, **changes)
    text = str(caught.value)
    assert "--config.rm." in text and text.count("\n") <= 2
