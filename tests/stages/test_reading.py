"""The rows a config names, and their faults, found before anything starts."""

import functools
import json
from typing import Any

import pytest

import tiny_stage as tiny
from rl_jax import config as configs
from rl_jax.data import arithmetic, rows
from rl_jax.errors import ConfigError
from rl_jax.stages import reading

GSM8K = [
    {"question": "Ann has 3 and buys 5. How many?", "answer": "3+5=8\n#### 8"},
    {"question": "A robe takes 2 and half as much?", "answer": "2/2=1\n2+1=3\n#### 3"},
]
WORDS = {"data__train": "word_problems", "data__eval": "word_problems"}


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(reading, "_kept", {})


def write(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def faults(**changes):
    with pytest.raises(ConfigError) as error:
        reading.check_data(tiny.run_config(**changes))
    message = str(error.value)
    assert len(message.splitlines()) <= 3, message
    return message


def test_generated_tasks_have_no_faults():
    reading.check_data(tiny.run_config())


def test_a_missing_prompt_column_names_the_key_of_its_stage(tmp_path):
    path = write(tmp_path / "train.jsonl", GSM8K)
    message = faults(rl__data__train=path)
    assert "holds the prompt" in message and "question, answer" in message
    assert "--config.rl.data.prompt_column=question" in message
    message = faults(rl__data__train=path, rl__data__prompt_column="prompt")
    assert "no column 'prompt'" in message
    assert "--config.rl.data.prompt_column=question" in message


def test_a_missing_completion_column_names_the_key_of_its_stage(tmp_path):
    path = write(tmp_path / "train.jsonl", GSM8K)
    message = faults(sft__data__train=path, sft__data__prompt_column="question")
    assert "--config.sft.data.completion_column=answer" in message


def test_a_fault_in_the_evaluation_file_is_found_at_the_start(tmp_path):
    path = write(tmp_path / "test.jsonl", [{"prompt": "one", "answer": True}])
    graded = {"rl__reward__functions": "maths", "rl__data__eval": path}
    message = faults(**graded)
    assert "test.jsonl" in message and "'answer'" in message


def test_a_fault_in_any_source_is_found(tmp_path):
    path = write(tmp_path / "b.jsonl", [{"neither": 1}])
    assert "b.jsonl, row 1" in faults(rl__data__train=f"arithmetic@1,{path}@2")


def test_an_answer_is_needed_where_a_reward_compares_with_it(tmp_path):
    path = write(tmp_path / "train.jsonl", [{"prompt": "one"}])
    message = faults(rl__data__train=path, rl__reward__functions="maths")
    assert "train.jsonl, row 1: cannot tell which column holds the answer" in message
    assert "--config.rl.data.answer_column=NAME" in message
    for name in ("format", tiny.tiny_run.REWARD):
        run = tiny.run_config(rl__data__train=path, rl__reward__functions=name)
        reading.check_data(run)


def test_a_file_without_rows_is_refused(tmp_path):
    path = write(tmp_path / "train.jsonl", [])
    assert "train.jsonl" in faults(rl__data__train=path)


def test_an_evaluation_that_never_takes_place_is_not_read(tmp_path):
    path = write(tmp_path / "test.jsonl", [{"neither": 1}])
    run = tiny.run_config(rl__data__eval=path, rl__eval__every=0)
    reading.check_data(run)


def test_more_generated_problems_than_there_are_names_the_key_of_the_stage(monkeypatch):
    monkeypatch.setattr(arithmetic, "NUM_OPERATIONS", 1)
    stage = tiny.rl_stage(data__num_problems=10_000)
    with pytest.raises(ConfigError, match="--config.rl.data.num_problems="):
        reading.read(stage, "rl", seed=0)


def test_word_problems_are_a_task_to_learn_by_trying_and_to_evaluate_on():
    stage = tiny.rl_stage(**WORDS)
    learnt, held_out = (list(reading.read(stage, s, seed=3)) for s in ("rl", "eval"))
    assert (len(learnt), len(held_out)) == (16, 8)
    assert {row.data_source for row in learnt} == {"word_problems"}
    asked = {row.messages[0]["content"] for row in learnt}
    assert asked.isdisjoint(row.messages[0]["content"] for row in held_out)


def test_problems_to_evaluate_on_are_the_same_whatever_the_seed():
    stage = tiny.rl_stage()
    one, two = (list(reading.read(stage, "eval", seed)) for seed in (0, 1))
    assert one == two
    one, two = (list(reading.read(stage, "rl", seed)) for seed in (0, 1))
    assert one != two


def test_rows_of_every_split_come_in_the_order_of_the_sources(tmp_path):
    path = write(tmp_path / "train.jsonl", GSM8K)
    columns = {"prompt_column": "question", "answer_after": "####"}
    changes = {f"data__{name}": value for name, value in columns.items()}
    stage = tiny.rl_stage(data__train=f"{path},arithmetic", **changes)
    found = reading.read(stage, "rl", seed=0)
    assert [part.source.path for part in found.parts] == [str(path), "arithmetic"]
    assert [row.answer for row in found.parts[0].items] == ["8", "3"]
    assert [row.data_source for row in found][1:3] == ["train", "arithmetic"]


# Files are read once.


@pytest.fixture
def opened(monkeypatch):
    """Paths of the files that were read, in order."""
    paths, read_records = [], rows.records

    def spy(path):
        paths.append(str(path))
        return read_records(path)

    monkeypatch.setattr(rows, "records", spy)
    return paths


def test_what_the_check_has_read_is_there_for_the_stage(tmp_path, opened):
    values = [{"prompt": "one", "completion": "1", "answer": "1"}]
    train, test = (str(write(tmp_path / f"{n}.jsonl", values)) for n in ("a", "b"))
    changes = {"sft__data__train": train, "rl__data__train": train}
    run = tiny.run_config(**changes, rl__data__eval=test)
    reading.check_data(run)
    # As conversations, as problems, and to evaluate on.
    assert opened == [train, train, test]
    assert "one" in set(reading.corpus(run))
    sft, rl = run.stages
    (talk,) = reading.read(sft, "sft", seed=0)
    (problem,) = reading.read(rl, "rl", seed=0)
    assert len(talk.messages) == 2 and len(problem.messages) == 1
    assert len(list(reading.read(rl, "eval", seed=0))) == 1
    assert len(opened) == 3
    # Given away, not kept for ever.
    reading.read(rl, "rl", seed=0)
    assert len(opened) == 4


def test_other_columns_are_another_reading(tmp_path, opened):
    path = write(tmp_path / "a.jsonl", [{"q": "one", "r": "two", "answer": "1"}])
    for column in ("q", "r"):
        changes = {"rl__data__train": path, "rl__data__prompt_column": column}
        run = tiny.run_config(**changes)
        reading.check_data(run)
    for column, asked in (("r", "two"), ("q", "one")):
        stage = tiny.rl_stage(data__train=path, data__prompt_column=column)
        (row,) = reading.read(stage, "rl", seed=0)
        assert row.messages[0]["content"] == asked
    assert len(opened) == 2


# Every kind.


def changed(config, changes):
    """A run of a config; changes are keys with __ for each dot."""
    for key, value in changes.items():
        *groups, name = key.split("__")
        holder = functools.reduce(getattr, groups, config)
        holder[name] = (
            str(value) if "data" in groups and name != "num_problems" else value
        )
    return configs.resolve(config)


def of_kind(kind, **changes):
    """A run of one stage."""
    return changed(configs.stage(kind), changes)


def chained(kinds, **changes):
    """A run of several: name -> kind."""
    return changed(configs.chain(kinds), changes)


TALK = {"prompt": "one", "completion": "1", "answer": "1"}
PAIR = {"prompt": "one", "chosen": "good", "rejected": "bad"}
LIST = {"prompt": "one", "replies": ["good", "bad"], "scores": [1.0, 0.0]}
FITTING = {
    "pretrain": {"text": "one good text"},
    "sft": TALK,
    "reward_model": LIST,
    "dpo": PAIR,
    "rl": TALK,
    "select": TALK,
    "curate": TALK,
}


@pytest.mark.parametrize("kind", FITTING)
def test_every_kind_reads_rows_of_its_own_form(kind, tmp_path):
    good = write(tmp_path / "good.jsonl", [FITTING[kind]])
    run = of_kind(kind, data__train=good)
    reading.check_data(run)
    words = " ".join(reading.corpus(run))
    for word in ("one", *(("good",) if "good" in str(FITTING[kind]) else ())):
        assert word in words
    bad = write(tmp_path / "bad.jsonl", [{"neither": 1}])
    if kind == "curate":  # which looks at its rows when it has them all
        return
    with pytest.raises(ConfigError, match="bad.jsonl, row 1"):
        reading.check_data(of_kind(kind, data__train=bad))


@pytest.mark.parametrize("kind", ["pretrain", "sft", "dpo", "reward_model"])
def test_what_is_held_out_is_read_where_it_is_measured(kind, tmp_path):
    good = write(tmp_path / "good.jsonl", [FITTING[kind]])
    bad = write(tmp_path / "bad.jsonl", [{"neither": 1}])
    named = {"data__train": good, "data__held_out": bad, "eval__every": 1}
    with pytest.raises(ConfigError, match="bad.jsonl, row 1"):
        reading.check_data(of_kind(kind, **named))
    with pytest.raises(ConfigError, match="it would never be measured"):
        of_kind(kind, **named | {"eval__every": 0})


def test_what_an_earlier_stage_will_write_is_not_looked_for(tmp_path):
    train = write(tmp_path / "train.jsonl", [TALK])
    run = chained(
        {"pick": "select", "clean": "curate", "tune": "sft", "learn": "pretrain"},
        pick__data__train=train,
        clean__data__train="pick",
        tune__data__train=f"clean@1,{train}@1",
        learn__data__train="clean",
    )
    reading.check_data(run)
    assert "one" in set(reading.corpus(run))


def test_a_merge_is_evaluated_and_has_nothing_to_learn(tmp_path):
    kinds = {"one": "sft", "two": "sft", "both": "merge"}
    bad = write(tmp_path / "bad.jsonl", [{"neither": 1}])
    learnt = ("one__data__train", "two__data__train")
    named: dict[str, Any] = dict.fromkeys(learnt, "arithmetic")
    named["both__merge__models"] = ("one", "two")
    run = chained(kinds, **named, both__data__eval="arithmetic")
    reading.check_data(run)
    assert list(reading.corpus(run))
    with pytest.raises(ConfigError, match="bad.jsonl, row 1"):
        reading.check_data(chained(kinds, **named, both__data__eval=bad))


def test_weights_are_of_rows_that_are_trained_on(tmp_path):
    train = write(tmp_path / "train.jsonl", [TALK | {"w": 2}])
    other = write(tmp_path / "other.jsonl", [TALK])
    named = {"data__train": train, "data__held_out": other, "eval__every": 1}
    run = of_kind("sft", **named, data__weight_column="w")
    reading.check_data(run)
    (stage,) = run.stages
    assert [row.weight for row in reading.read(stage, "sft", 0)] == [2.0]
    assert [row.weight for row in reading.read(stage, "held_out", 0)] == [1.0]
    faulty = write(tmp_path / "faulty.jsonl", [TALK | {"w": -2}])
    with pytest.raises(ConfigError, match="faulty.jsonl, row 1: column 'w' holds -2"):
        reading.check_data(of_kind("sft", data__train=faulty, data__weight_column="w"))


@pytest.mark.parametrize("task", reading.PROBLEMS)
def test_a_tokenizer_knows_every_character_of_a_task(task):
    of = reading.DEMONSTRATIONS.get(task)
    kind = "sft" if of else "rl"
    run = of_kind(kind, data__train=task, data__num_problems=1)
    known = {*"".join(reading.corpus(run))}
    found = of(2000, 7) if of else reading.PROBLEMS[task]("rl", 2000, 7)
    found += reading.PROBLEMS[task]("eval", 500, 0)
    said = "".join(turn["content"] for row in found for turn in row.messages)
    assert {*said} <= known


def test_a_text_is_given_to_the_tokenizer_line_by_line(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"text": "one\ntwo\n"}, {"text": "three"}])
    run = of_kind("pretrain", data__train=path)
    assert list(reading.corpus(run)) == ["one\n", "two\n", "three"]
