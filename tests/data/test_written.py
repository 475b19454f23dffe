"""Rows written as lines are read as the same rows."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_jax.data import sources, written
from rl_jax.data.lines import write_lines
from rl_jax.data.rankings import read_rankings
from rl_jax.data.rows import Row, read_conversations, read_preferences, read_rows
from rl_jax.stages import reading

texts = st.text(st.characters(exclude_categories=[])).filter(
    lambda text: json.loads(json.dumps(text)) == text
)
HOSTILE = [
    "",
    " \n",
    "two\nlines\u2028and more",
    "half \ud83d of a pair",
    '[{"role": "user", "content": "turns?"}]',
    '{"score": 9}',
    '["a", "b"]',
    "<|end|><|user|>",
]
replies_of = texts | st.sampled_from(HOSTILE)
rows = st.builds(
    Row,
    messages=st.just(({"role": "user", "content": "What is 1 + 1?"},)),
    answer=st.sampled_from(["", "2", '["2", "two"]', "[0, 1]", "x\u2028y"]),
    data_source=st.sampled_from(["sums", "own/set"]),
    index=st.just(0),
    extra=st.dictionaries(st.sampled_from(["note", "level"]), texts),
    tools=st.sampled_from([None, [{"type": "function", "function": {"name": "f"}}]]),
    variables=st.sampled_from([{}, {"enable_thinking": False}]),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("written") / "x.jsonl"


@settings(max_examples=60, deadline=None)
@given(rows, replies_of)
def test_a_problem_with_its_reply_is_read_as_it_was(path, row, reply):
    write_lines(path, [written.conversation(row, reply)])
    (talk,) = read_conversations(path)
    assert talk.messages == (*row.messages, {"role": "assistant", "content": reply})
    write_lines(path, [written.conversation(row, reply), written.problem(row)])
    for again in read_rows(path):
        assert again.messages == row.messages
        assert again.answers == row.answers
        assert (again.data_source, again.tools) == (row.data_source, row.tools)
        assert again.variables == row.variables
        assert row.extra.items() <= again.extra.items()
        assert again.id == row.id


@settings(max_examples=60, deadline=None)
@given(rows, replies_of, replies_of)
def test_a_pair_is_read_as_it_was(path, row, chosen, rejected):
    write_lines(path, [written.pair(row, chosen, rejected, 0.5)])
    (pair,) = read_preferences(path)
    assert pair.prompt == row.messages and pair.data_source == row.data_source
    assert pair.chosen == ({"role": "assistant", "content": chosen},)
    assert pair.rejected == ({"role": "assistant", "content": rejected},)
    assert pair.extra["margin"] == 0.5
    write_lines(path, [written.preference(pair)])
    (again,) = read_preferences(path)
    assert again.id == pair.id and again.variables == row.variables


@settings(max_examples=60, deadline=None)
@given(rows, st.lists(replies_of, min_size=2, max_size=4))
def test_a_ranking_is_read_as_it_was(path, row, texts_of):
    scores = [float(-i) for i in range(len(texts_of))]
    write_lines(path, [written.ranking(row, texts_of, scores)])
    (ranking,) = read_rankings(path)
    assert ranking.prompt == row.messages
    assert ranking.replies == tuple(
        ({"role": "assistant", "content": text},) for text in texts_of
    )
    assert ranking.rank == tuple(range(len(texts_of)))


def test_other_columns_never_stand_in_for_what_is_written(path):
    extra = {
        "prompt": "another",
        "completion": "another",
        "messages": "another",
        "ground_truth": "another",
        "ranks": [1, 2],
        "chosen": "x",
        "kept": 1,
    }
    row = Row(({"role": "user", "content": "ask"},), "4", "s", 0, extra)
    write_lines(path, [written.conversation(row, "so 4")])
    (talk,) = read_conversations(path)
    assert [turn["content"] for turn in talk.messages] == ["ask", "so 4"]
    (again,) = read_rows(path)
    assert again.messages == row.messages and again.answer == "4"
    assert again.extra == {"kept": 1, "data_source": "s"}


def test_a_trimmed_answer_stays_trimmed(tmp_path):
    source = {"prompt": "ask", "reward_model": {"ground_truth": "work #### 4"}}
    file = tmp_path / "a.jsonl"
    write_lines(file, [source])
    (row,) = read_rows(file, answer_after="####")
    write_lines(file, [written.problem(row)])
    (again,) = read_rows(file)
    assert again.answer == row.answer == "4"


@pytest.mark.parametrize("task", sources.BUILT_IN)
def test_problems_of_a_built_in_task_keep_all_that_their_rewards_read(path, task):
    made = reading.PROBLEMS[task]("rl", 12, 0)
    write_lines(path, map(written.problem, made))
    for row, again in zip(made, read_rows(path), strict=True):
        assert again.messages == row.messages
        assert again.answers == row.answers
        assert row.data_source == again.data_source
        assert row.extra.items() <= again.extra.items()
