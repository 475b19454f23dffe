"""What select, curate and merge stages refuse before anything starts."""

import pytest

import data_stages
from rl_jax import reward_marker
from rl_jax.errors import ConfigError
from rl_jax.reward_marker import Marker

CHAIN = {"a": "sft", "b": "sft", "pick": "select", "mix": "merge", "last": "sft"}
RM = {"a": "sft", "r": "reward_model", "mix": "merge"}


def told(kinds, **keys):
    """The message of a config, by its keys with __ for each dot."""
    with pytest.raises(ConfigError) as error:
        data_stages.run_of(kinds, **keys)
    message = str(error.value)
    assert len(message.splitlines()) <= 3
    return message


def merge(**keys):
    return told(CHAIN, **{f"mix__{key}": value for key, value in keys.items()})


def select(**keys):
    return told({"pick": "select"}, **{f"pick__{k}": v for k, v in keys.items()})


def curate(**keys):
    return told({"pick": "curate"}, **{f"pick__{k}": v for k, v in keys.items()})


def test_a_merge_of_fewer_than_two_models_is_refused():
    message = merge(merge__models=("a",))
    assert "two models or more" in message and "--config.mix.merge.models=" in message
    assert "two models or more" in merge()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"merge__weights": (1.0,)}, "has 1 numbers for 2 models"),
        ({"merge__weights": (1.0, -0.5)}, "none below 0"),
        ({"merge__weights": (0.0, 0.0)}, "not all 0"),
        ({"merge__weights": (1.0, 1.0), "merge__ema": 0.5}, "both given"),
        ({"merge__ema": 1.0}, "from 0 to below 1"),
        (
            {"data__eval": "arithmetic", "eval__greedy": False},
            "an evaluation would take no replies",
        ),
    ],
)
def test_weights_of_a_merge_that_are_wrong_are_told(keys, said):
    assert said in merge(merge__models=("a", "b"), **keys)


def test_a_model_that_is_no_earlier_stage_nor_folder_is_told_with_what_there_is():
    message = merge(merge__models=("a", "bb"))
    assert "'bb', expected 'base', 'a', 'b'" in message
    assert "--config.mix.merge.models=a,b" in message
    for name in ("mix", "last", "pick"):
        assert name in merge(merge__models=("a", name))


def test_what_may_be_merged_passes(tmp_path):
    for models in (("a", "b"), ("a@3", "base"), ("b", str(tmp_path))):
        data_stages.run_of(CHAIN, mix__merge__models=models)


def test_a_policy_and_a_reward_model_have_no_average(tmp_path):
    rows = [{"prompt": "What?", "chosen": "This.", "rejected": "No."}]
    pairs = data_stages.write(tmp_path / "pairs.jsonl", rows)
    keys = {"r__data__train": str(pairs)}
    message = told(RM, mix__merge__models=("a", "r"), **keys)
    assert "a a policy, r a reward model" in message
    reward_marker.write(tmp_path, Marker("ranking", 0.0, 1.0, 2))
    both = ("r", str(tmp_path))
    data_stages.run_of(RM, mix__merge__models=both, **keys)
    keys["mix__data__eval"] = "arithmetic"
    assert "answers no prompts" in told(RM, mix__merge__models=both, **keys)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"select__keep": "pairs", "rollout__group_size": 1}, "compares replies"),
        ({"select__keep": "rankings", "rollout__group_size": 1}, "compares replies"),
        ({"select__max_per_prompt": 2}, "writes one reply of each prompt"),
        ({"select__keep": "rankings", "select__max_per_prompt": 1}, "of two replies"),
        ({"select__min_gap": 0.5}, "compares no pairs"),
        ({"select__keep": "rankings", "select__min_score": 0.0}, "good and bad"),
        ({"select__keep": "rankings", "select__only_correct": True}, "good and bad"),
        ({"select__max_pass_rate": 1.5}, "from 0 to 1"),
        ({"select__held_out": 1.0}, "from 0 to below 1"),
        ({"select__rejected": "base"}, "writes no pairs"),
        ({"select__rejected": "bass", "select__keep": "pairs"}, "'bass', expected"),
        ({"select__rejected": "pick", "select__keep": "pairs"}, "the stage itself"),
        ({"select__max_prompts": -1}, "0 or more"),
        ({"select__also": "word_problems"}, "has no demonstrations"),
        ({"select__also": "arithmetic", "select__keep": "pairs"}, "has no pairs"),
        ({"select__also": "arithmetic@0.5"}, "a share"),
        ({"data__train": "arithmetic@0.5,programs@0.5"}, "reads each row once"),
        ({"rollout__temperature": 0.0}, "would be the same"),
        ({"rollout__group_size": 9}, "more than the 8"),
        ({"data__train": ""}, "is empty"),
    ],
)
def test_rules_of_select_that_could_not_hold_are_told(keys, said):
    message = select(**keys)
    assert said in message and "config.pick." in message


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"curate__min_pass_rate": 0.5}, "no pass rate is measured"),
        (
            {
                "curate__pass_rate": True,
                "curate__min_pass_rate": 0.9,
                "curate__max_pass_rate": 0.1,
            },
            "nothing lies between",
        ),
        ({"curate__near": 1.5}, "from 0 to 1"),
        ({"curate__ngram": 0}, "1 or more"),
        ({"data__train": "arithmetic@1"}, "reads each row once"),
        ({"curate__pass_rate": True, "rollout__temperature": 0.0}, "would be the same"),
    ],
)
def test_bounds_of_curate_that_could_not_hold_are_told(keys, said):
    message = curate(**keys)
    assert said in message and "--config.pick." in message


def test_one_likeliest_reply_of_each_prompt_may_be_selected():
    keys = {"rollout__temperature": 0.0, "rollout__group_size": 1}
    data_stages.run_of({"pick": "select"}, **{f"pick__{k}": v for k, v in keys.items()})
