"""Rows to ids: what is kept, what is left out and said, what is refused."""

import itertools
import json

import pytest

import tiny_stage as tiny
from rl_jax.data import arithmetic, chat
from rl_jax.data.pipeline import stream
from rl_jax.errors import ConfigError
from rl_jax.stages import inputs

GSM8K = [
    {"question": "Ann has 3 and buys 5. How many?", "answer": "3+5=8\n#### 8"},
    {"question": "A robe takes 2 and half as much?", "answer": "2/2=1\n2+1=3\n#### 3"},
    {"question": "She pays 1,000 twice.", "answer": "So #### 1,000 twice.\n#### 2,000"},
]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    with tiny.built(tmp_path_factory.mktemp("model")) as context:
        return context.tokenizer


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def gsm8k_stage(path, **changes):
    columns = {"prompt_column": "question", "answer_after": "####", **changes}
    changes = {f"data__{key}": value for key, value in columns.items()}
    sizes = {"rollout__max_prompt_tokens": 200, "batch__row_tokens": 0}
    return tiny.rl_stage(data__train=path, **sizes, **changes)


# Prompts.


def test_gsm8k_rows_become_prompts_and_answers(text, tmp_path):
    path = write(tmp_path / "train.jsonl", GSM8K)
    stage = gsm8k_stage(path, instruction="Be brief.", system="You count.")
    prompts = inputs.train_prompts(stage, text, seed=0)
    assert [p.row.answer for p in prompts] == ["8", "3", "2,000"]
    for prompt, row in zip(prompts, GSM8K, strict=True):
        shown = text.decode(list(prompt.ids), specials=True)
        question = f"{row['question']}\n\nBe brief."
        assert shown.endswith("<|assistant|>")
        assert [m["content"] for m in prompt.row.messages] == ["You count.", question]
        assert prompt.row.data_source == "train"


def test_prompts_that_are_too_long_are_left_out_and_counted(text, tmp_path, capsys):
    long = {"question": "many words " * 50, "answer": "#### 1"}
    path = write(tmp_path / "train.jsonl", [GSM8K[0], long, GSM8K[1], long])
    prompts = inputs.train_prompts(gsm8k_stage(path), text, seed=0)
    assert [p.row.answer for p in prompts] == ["8", "3"]
    assert "data.train: 2 of 4 prompts are longer than 200 tokens" in (
        capsys.readouterr().out
    )


def test_nothing_is_said_if_every_prompt_fits(text, capsys):
    assert len(inputs.train_prompts(tiny.rl_stage(), text, seed=0)) == 16
    assert capsys.readouterr().out == ""


def test_if_no_prompt_fits_the_length_to_write_is_told(text):
    stage = tiny.rl_stage(rollout__max_prompt_tokens=5)
    with pytest.raises(ConfigError) as error:
        inputs.train_prompts(stage, text, seed=0)
    message = str(error.value)
    assert len(message.splitlines()) <= 3 and "config.rl.data.train" in message
    shortest = int(message.rpartition("max_prompt_tokens=")[2].split()[0])
    enough = tiny.rl_stage(rollout__max_prompt_tokens=shortest)
    assert inputs.train_prompts(enough, text, seed=0)


def test_evaluation_takes_the_first_prompts_that_fit(text):
    stage = tiny.rl_stage(eval__num_prompts=3)
    prompts = inputs.eval_prompts(stage, text)
    want = arithmetic.rows("eval", 8, seed=0)[:3]
    assert [p.row for p in prompts] == want
    assert [p.ids for p in prompts] == [
        tuple(chat.prompt_ids(text, row.messages)) for row in want
    ]


# Held-out problems.


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_generated_problems_are_learnt_or_evaluated_but_never_both(text, seed):
    sizes = {"data__num_problems": 500, "data__num_eval_problems": 200}
    stage = tiny.rl_stage(**sizes, eval__num_prompts=200)
    held_out = inputs.eval_prompts(stage, text)
    assert len(held_out) == 200
    rl_rows = [p.row for p in inputs.train_prompts(stage, text, seed)]
    sft_rows = arithmetic.demonstrations(500, seed)
    for learnt in (rl_rows, sft_rows):
        inputs.assert_held_out(held_out, learnt)
        questions = {row.messages[0]["content"] for row in learnt}
        assert questions.isdisjoint(p.row.messages[0]["content"] for p in held_out)


def test_a_generated_problem_in_both_is_a_bug_that_stops_the_run(text):
    held_out = inputs.eval_prompts(tiny.rl_stage(), text)
    with pytest.raises(AssertionError, match="1 problems in two splits"):
        inputs.assert_held_out(held_out, [held_out[2].row])


def test_a_users_own_prompt_in_both_is_said_and_allowed(text, tmp_path, capsys):
    path = write(tmp_path / "train.jsonl", GSM8K)
    other = write(tmp_path / "test.jsonl", GSM8K[1:])
    stage = gsm8k_stage(path, eval=other, system="Count.")
    prompts = inputs.train_prompts(stage, text, seed=0)
    held_out = inputs.eval_prompts(stage, text)
    inputs.assert_held_out(held_out, [p.row for p in prompts])
    assert "2 of 2 prompts of data.eval are trained on too" in capsys.readouterr().out
    inputs.assert_held_out(held_out, [prompts[0].row])
    assert capsys.readouterr().out == ""


# Conversations.


def sft_stage(**changes):
    changes = {f"sft__{key}": value for key, value in changes.items()}
    return tiny.run_config(**changes).stages[0]


def test_a_conversation_is_learnt_where_the_assistant_speaks(text):
    rows, pieces = inputs.conversations(sft_stage(), text, seed=0)
    assert len(rows) == len(pieces) == 64
    for row, piece in zip(rows, pieces, strict=True):
        learnt = text.decode(piece.tokens[piece.mask].tolist(), specials=True)
        assert learnt == row.messages[1]["content"] + "<|end|>"
        assert piece.tokens[piece.mask][-1] in text.stop_ids
        prompt = chat.prompt_ids(text, row.messages[:1])
        assert piece.tokens[~piece.mask].tolist() == prompt


def test_conversations_that_are_too_long_are_left_out_and_counted(
    text, tmp_path, capsys
):
    rows = [
        {"prompt": "one", "completion": "1"},
        {"prompt": "two", "completion": "2 and " * 100},
    ]
    path = write(tmp_path / "talks.jsonl", rows)
    _, pieces = inputs.conversations(sft_stage(data__train=path), text, seed=0)
    assert len(pieces) == 1
    assert "1 of 2 conversations are longer than 97 tokens" in capsys.readouterr().out


def test_a_conversation_of_one_token_more_than_a_row_still_fits(text, tmp_path):
    path = write(tmp_path / "talks.jsonl", [{"prompt": "one", "completion": "1"}])
    _, (piece,) = inputs.conversations(sft_stage(data__train=path), text, seed=0)
    tokens = len(piece.tokens)
    # The last token is only ever a target.
    exact = {"data__train": path, "batch__row_tokens": tokens - 1}
    assert len(inputs.conversations(sft_stage(**exact), text, seed=0)[1]) == 1
    short = {"data__train": path, "batch__row_tokens": tokens - 2}
    with pytest.raises(ConfigError, match="--config.sft.batch.row_tokens"):
        inputs.conversations(sft_stage(**short), text, seed=0)


# Faults are found before anything starts.


def faults(**changes):
    with pytest.raises(ConfigError) as error:
        inputs.check_data(tiny.run_config(**changes))
    message = str(error.value)
    assert len(message.splitlines()) <= 3, message
    return message


def test_generated_tasks_have_no_faults():
    inputs.check_data(tiny.run_config())


def test_a_missing_prompt_column_names_the_key_of_its_stage(tmp_path):
    path = write(tmp_path / "train.jsonl", GSM8K)
    message = faults(rl__data__train=path)
    assert "'prompt'" in message and "question, answer" in message
    assert "--config.rl.data.prompt_column=question" in message


def test_a_missing_completion_column_names_the_key_of_its_stage(tmp_path):
    path = write(tmp_path / "train.jsonl", GSM8K)
    message = faults(sft__data__train=path, sft__data__prompt_column="question")
    assert "--config.sft.data.completion_column=answer" in message


def test_a_fault_in_the_evaluation_file_is_found_at_the_start(tmp_path):
    path = write(tmp_path / "test.jsonl", [{"prompt": "one", "answer": None}])
    message = faults(rl__data__eval=path)
    assert "test.jsonl" in message and "'answer'" in message


def test_a_file_without_rows_is_refused(tmp_path):
    path = write(tmp_path / "train.jsonl", [])
    assert "train.jsonl" in faults(rl__data__train=path)


def test_an_evaluation_that_never_takes_place_is_not_read(tmp_path):
    path = write(tmp_path / "test.jsonl", [{"neither": 1}])
    run = tiny.run_config(rl__data__eval=path, rl__eval__every=0)
    inputs.check_data(run)


def test_more_generated_problems_than_there_are_names_the_key_of_the_stage(
    text, monkeypatch
):
    monkeypatch.setattr(arithmetic, "NUM_OPERATIONS", 1)
    stage = tiny.rl_stage(data__num_problems=10_000)
    with pytest.raises(ConfigError, match="--config.rl.data.num_problems="):
        inputs.train_prompts(stage, text, seed=0)


# Positions.


def test_reading_goes_on_at_a_position():
    endless = stream(list(range(10)), seed=0)
    items = [inputs.at(endless, i) for i in range(25)]
    assert sorted(items[:10]) == list(range(10)) == sorted(items[10:20])
    assert list(itertools.islice(inputs.from_position(endless, 7), 18)) == items[7:]
