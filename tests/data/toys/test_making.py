import pytest

from rl_jax.data import generated
from rl_jax.data.generated import SPLITS, split_of
from rl_jax.data.toys import making
from rl_jax.data.toys.table import TOYS
from rl_jax.data.toys.task import read
from rl_jax.errors import ConfigError

every_task = pytest.mark.parametrize("name", TOYS)


def question(row):
    return row.messages[0]["content"]


def is_right(row):
    reply = read(row.messages[1]["content"])
    assert reply is not None
    grade = TOYS[row.data_source].judge(reply, row.answer)
    return grade is not None and grade.correct


@every_task
def test_splits_share_no_problem_for_any_seed(name):
    asked = {
        split: {
            question(row)
            for seed in range(3)
            for row in making.rows(name, split, 150, seed)
        }
        for split in SPLITS
    }
    assert not asked["sft"] & asked["rl"]
    assert not asked["rl"] & asked["eval"]
    assert not asked["sft"] & asked["eval"]
    for split, found in asked.items():
        assert {split_of(text) for text in found} == {split}


@every_task
def test_rows_ask_and_name_their_task(name):
    found = making.rows(name, "rl", 40, seed=1)
    assert [row.index for row in found] == list(range(40))
    for row in found:
        assert [turn["role"] for turn in row.messages] == ["user"]
        assert row.data_source == name and row.answer and row.extra == {}
    assert making.rows(name, "rl", 30, seed=1) == found[:30]
    assert making.rows(name, "rl", 40, seed=2) != found


@every_task
@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_the_wrong_share_of_demonstrations_is_wrong_and_evenly_spread(name, share):
    found = making.demonstrations(name, 100, seed=0, wrong_share=share)
    right = [is_right(row) for row in found]
    assert right.count(False) == round(100 * share)
    for n in range(1, 101):
        assert abs(right[:n].count(False) - n * share) < 1 + 1e-6


@every_task
def test_which_problems_there_are_does_not_depend_on_the_wrong_share(name):
    right = making.demonstrations(name, 50, seed=3)
    wrong = making.demonstrations(name, 50, seed=3, wrong_share=1.0)
    asked = [found.text for found in making.problems(name, "sft", 50, seed=3)]
    assert list(map(question, right)) == list(map(question, wrong)) == asked
    assert all(map(is_right, right)) and not any(map(is_right, wrong))


def test_demonstrations_of_held_out_problems_are_those_of_their_split():
    found = making.demonstrations("sums", 20, seed=0, split="eval")
    assert [row.messages[0] for row in found] == [
        row.messages[0] for row in making.rows("sums", "eval", 20, seed=0)
    ]


def test_more_problems_than_there_are_is_an_error(monkeypatch):
    monkeypatch.setattr(generated, "_MOST_IN_VAIN", 20)
    with pytest.raises(ConfigError, match="sums has no 100000 different problems"):
        making.rows("sums", "eval", 100_000, seed=0)
