"""Rows to ids: what is kept, what is left out and said, what is refused."""

import collections
import dataclasses
import json
from typing import Any

import pytest

import tiny_stage as tiny
from rl_jax.data import arithmetic, chat
from rl_jax.data.rows import Row
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


def drawn_rows(prompts, count) -> list[Row]:
    endless: Any = inputs.stream(prompts, seed=0)
    return [endless[i].row for i in range(count)]


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
    (part,) = prompts.parts
    assert part.left_out == {"longer than 200 tokens": 2}
    assert (len(part.sizes), max(part.sizes) > 200) == (4, True)
    assert capsys.readouterr().out == (
        f"rl.data.train: 2 prompts of {path}; 2 of 4 left out: longer than 200 tokens\n"
    )


def test_every_source_is_counted_in_a_line_of_its_own(text, tmp_path, capsys):
    path = write(tmp_path / "train.jsonl", GSM8K)
    prompts = inputs.train_prompts(
        gsm8k_stage(f"{path},arithmetic", num_problems=16), text, seed=0
    )
    assert len(prompts) == 19
    assert [p.row.data_source for p in prompts][2:4] == ["train", "arithmetic"]
    assert capsys.readouterr().out.splitlines() == [
        f"rl.data.train: 3 prompts of {path}",
        "rl.data.train: 16 prompts of arithmetic",
    ]


def test_shares_are_said_and_kept(text, tmp_path, capsys):
    path = write(tmp_path / "train.jsonl", GSM8K)
    stage = gsm8k_stage(f"{path}@1,arithmetic@3", num_problems=16)
    prompts = inputs.train_prompts(stage, text, seed=0)
    assert f"3 prompts of {path}, 25.0% of what is drawn" in capsys.readouterr().out
    drawn = [row.data_source for row in drawn_rows(prompts, 80)]
    assert collections.Counter(drawn) == {"train": 20, "arithmetic": 60}
    # Without shares every row comes as often as any other.
    prompts = inputs.train_prompts(
        gsm8k_stage(f"{path},arithmetic", num_problems=16), text, seed=0
    )
    drawn = [row.id for row in drawn_rows(prompts, 19)]
    assert sorted(drawn) == sorted(p.row.id for p in prompts)


def test_a_source_of_which_nothing_fits_is_named(text, tmp_path):
    path = write(
        tmp_path / "long.jsonl", [{"question": "x " * 300, "answer": "#### 1"}]
    )
    with pytest.raises(ConfigError, match=f"all 1 prompts of {path} are left out"):
        inputs.train_prompts(gsm8k_stage(f"arithmetic,{path}"), text, seed=0)


def test_the_runs_own_text_goes_around_generated_problems_too(text):
    words = {"data__system": "You count.", "data__instruction": "Be brief."}
    stage = tiny.rl_stage(**words, rollout__max_prompt_tokens=99, batch__row_tokens=0)
    for prompts in (
        inputs.train_prompts(stage, text, seed=0),
        inputs.eval_prompts(stage, text),
    ):
        first = next(iter(prompts))
        system, user = first.row.messages
        assert system == {"role": "system", "content": "You count."}
        assert user["content"].endswith(".\n\nBe brief.")
        assert list(first.ids) == chat.prompt_ids(text, first.row.messages)


def test_the_template_is_given_the_tools_and_variables_of_the_row_and_the_run(
    text, tmp_path
):
    template = (
        "{{ tools | length if tools else 0 }}{{ a }}{{ b }}"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% if m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    text = dataclasses.replace(text, chat_template=template)
    row = {
        "messages": [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "2"},
        ],
        "answer": "2",
        "tools": [{"name": "add"}, {"name": "minus"}],
        "chat_template_kwargs": {"b": 5},
    }
    path = write(tmp_path / "rows.jsonl", [row])
    changes = {"data__train": path, "data__template_variables": "a=3,b=4"}
    (prompt,) = inputs.train_prompts(tiny.rl_stage(**changes), text, seed=0)
    assert text.decode(list(prompt.ids), specials=True) == "235<|user|>1<|assistant|>"
    (talk,) = inputs.conversations(sft_stage(**changes), text, seed=0)
    whole = text.decode(talk.piece.tokens.tolist(), specials=True)
    assert whole == "235<|user|>1<|assistant|>2<|end|>"


def test_if_no_prompt_fits_the_length_to_write_is_told(text):
    stage = tiny.rl_stage(rollout__max_prompt_tokens=5)
    with pytest.raises(ConfigError) as error:
        inputs.train_prompts(stage, text, seed=0)
    message = str(error.value)
    assert len(message.splitlines()) <= 3 and "config.rl.data.train" in message
    assert "all 16 prompts of arithmetic are left out: longer than 5" in message
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


def test_an_evaluation_asks_several_sources_in_turn(text, tmp_path):
    path = write(tmp_path / "test.jsonl", GSM8K)
    stage = gsm8k_stage("arithmetic", eval=f"arithmetic,{path}")
    prompts = inputs.eval_prompts(stage, text)
    sources = [p.row.data_source for p in prompts]
    assert sources == ["arithmetic", "test", "arithmetic", "test"]
    assert [p.row.index for p in prompts] == [0, 0, 1, 1]


def test_a_row_that_the_template_refuses_is_named(text, tmp_path):
    refusing = (
        "{% for m in messages %}{% if m.content == 'no' %}"
        "{{ raise_exception('not that') }}{% endif %}<|user|>{{ m.content }}"
        "{% endfor %}<|assistant|>"
    )
    text = dataclasses.replace(text, chat_template=refusing)
    rows = [{"prompt": "yes", "answer": "1"}, {"prompt": "no", "answer": "1"}]
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ConfigError, match=rf"Row 2 of {path}: .*not that"):
        inputs.train_prompts(tiny.rl_stage(data__train=path), text, seed=0)


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
    inputs.assert_held_out(held_out, [next(iter(prompts)).row])
    assert capsys.readouterr().out == ""


# Conversations.


def sft_stage(**changes):
    changes = {f"sft__{key}": value for key, value in changes.items()}
    return tiny.run_config(**changes).stages[0]


def test_a_conversation_is_learnt_where_the_assistant_speaks(text):
    talks = inputs.conversations(sft_stage(), text, seed=0)
    assert len(talks) == 64
    for talk in talks:
        row, piece = talk.row, talk.piece
        learnt = text.decode(piece.tokens[piece.mask].tolist(), specials=True)
        assert learnt == row.messages[1]["content"] + "<|end|>"
        assert piece.tokens[piece.mask][-1] in text.stop_ids
        prompt = chat.prompt_ids(text, row.messages[:1])
        assert piece.tokens[~piece.mask].tolist() == prompt


def test_turns_that_the_template_rewrites_later_are_learnt_as_they_were_sampled(
    text, tmp_path
):
    # As of reasoning models: the thoughts of all turns but the last are dropped.
    template = (
        "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}"
        "{{ m.content if loop.last else m.content.split('=')[-1] }}<|end|>"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    rewriting = dataclasses.replace(text, chat_template=template)
    turns = ("Start with 1", "1+2=3", "plus 4", "3+4=7")
    roles = ("user", "assistant") * 2
    talk = [{"role": r, "content": c} for r, c in zip(roles, turns, strict=True)]
    path = write(tmp_path / "talks.jsonl", [{"messages": talk}])
    stage = sft_stage(data__train=path, batch__row_tokens=64)
    found = list(inputs.conversations(stage, rewriting, seed=0))
    shown = [
        (
            text.decode(piece.tokens.tolist(), specials=True),
            text.decode(piece.tokens[piece.mask].tolist(), specials=True),
        )
        for piece in (conversation.piece for conversation in found)
    ]
    first = "<|user|>Start with 1<|assistant|>1+2=3<|end|>"
    last = "<|user|>Start with 1<|assistant|>3<|end|>"
    last += "<|user|>plus 4<|assistant|>3+4=7<|end|>"
    assert shown == [(first, "1+2=3<|end|>"), (last, "3+4=7<|end|>")]


def test_conversations_that_are_too_long_are_left_out_and_counted(
    text, tmp_path, capsys
):
    rows = [
        {"prompt": "one", "completion": "1"},
        {"prompt": "two", "completion": "2 and " * 100},
    ]
    path = write(tmp_path / "talks.jsonl", rows)
    talks = inputs.conversations(sft_stage(data__train=path), text, seed=0)
    assert len(talks) == 1
    assert "; 1 of 2 left out: longer than 97 tokens" in capsys.readouterr().out


def test_conversations_without_anything_to_learn_are_left_out_and_counted(
    text, tmp_path, capsys
):
    def talk(reply, learnt):
        turns = [{"role": "user", "content": "one"}]
        return {
            "messages": [
                *turns,
                {"role": "assistant", "content": reply, "loss": learnt},
            ]
        }

    path = write(tmp_path / "talks.jsonl", [talk("1", True), talk("2", False)])
    (kept,) = inputs.conversations(sft_stage(data__train=path), text, seed=0)
    assert kept.row.messages[1]["content"] == "1"
    assert "; 1 of 2 left out: nothing to learn in it" in capsys.readouterr().out
    path = write(tmp_path / "talks.jsonl", [talk("2", False)])
    with pytest.raises(ConfigError, match="Look at the loss flags"):
        inputs.conversations(sft_stage(data__train=path), text, seed=0)


def test_a_conversation_of_one_token_more_than_a_row_still_fits(text, tmp_path):
    path = write(tmp_path / "talks.jsonl", [{"prompt": "one", "completion": "1"}])
    (talk,) = inputs.conversations(sft_stage(data__train=path), text, seed=0)
    tokens = len(talk.piece.tokens)
    # The last token is only ever a target.
    exact = {"data__train": path, "batch__row_tokens": tokens - 1}
    assert len(inputs.conversations(sft_stage(**exact), text, seed=0)) == 1
    short = {"data__train": path, "batch__row_tokens": tokens - 2}
    wanted = rf"--config.sft.batch.row_tokens={tokens - 1} or more"
    with pytest.raises(ConfigError, match=wanted):
        inputs.conversations(sft_stage(**short), text, seed=0)


def test_whole_conversations_are_learnt_where_everything_is(text):
    assistant = inputs.conversations(sft_stage(), text, seed=0)
    whole = sft_stage(supervised__learn="everything")
    everything = inputs.conversations(whole, text, seed=0)
    for one, all_of_it in zip(assistant, everything, strict=True):
        assert all_of_it.piece.tokens.tolist() == one.piece.tokens.tolist()
        assert all_of_it.piece.mask.all() and not one.piece.mask.all()


def test_rows_of_no_weight_are_left_out_and_counted(text, tmp_path, capsys):
    rows = [{"prompt": "one", "completion": str(w), "w": w} for w in (2, 0, 0.5, 0)]
    path = write(tmp_path / "talks.jsonl", rows)
    stage = sft_stage(data__train=path, data__weight_column="w")
    talks = list(inputs.conversations(stage, text, seed=0))
    assert [talk.weight for talk in talks] == [2.0, 0.5]
    assert "; 2 of 4 left out: weight 0" in capsys.readouterr().out
    nothing = write(tmp_path / "nothing.jsonl", rows[1:2])
    stage = sft_stage(data__train=nothing, data__weight_column="w")
    with pytest.raises(ConfigError, match="weight 0.*\n.*data.weight_column"):
        inputs.conversations(stage, text, seed=0)


def test_items_are_numbered_over_all_sources(text, tmp_path):
    path = write(tmp_path / "talks.jsonl", [{"prompt": "one", "completion": "1"}])
    stage = sft_stage(data__train=f"{path},arithmetic", data__num_problems=3)
    talks = inputs.numbered(inputs.conversations(stage, text, seed=0))
    assert [talk.piece.sample for talk in talks] == [0, 1, 2, 3]
    assert [len(part.items) for part in talks.parts] == [1, 3]


# Held-out conversations, and texts.


def test_demonstrations_are_held_out_that_no_stage_learns(text):
    stage = sft_stage(data__held_out="arithmetic", data__num_problems=200)
    unseen = list(inputs.held_out(stage, text))
    assert len(unseen) == 8
    learnt = [talk.row for talk in inputs.conversations(stage, text, seed=0)]
    inputs.assert_held_out(unseen, learnt)
    asked = {talk.row.messages[0]["content"] for talk in unseen}
    rows = arithmetic.rows("eval", 8, seed=0)
    assert asked == {row.messages[0]["content"] for row in rows}
    for talk in unseen:
        assert talk.piece.mask.any() and not talk.piece.mask.all()


def pretrain_stage(**changes):
    return dataclasses.replace(sft_stage(**changes), kind="pretrain")


def test_a_long_text_is_cut_and_nothing_of_it_is_lost(text, tmp_path, capsys):
    long, short = "Start with 1, plus 2, minus 3. " * 20, "Start"
    values = [{"text": t, "w": w} for t, w in ((long, 2), (short, 1), ("", 1))]
    path = write(tmp_path / "texts.jsonl", values)
    stage = pretrain_stage(
        data__train=path, data__weight_column="w", batch__row_tokens=16
    )
    pieces = list(inputs.texts(stage, text, seed=0))
    *cut, whole = pieces
    assert all(len(item.piece.tokens) <= 17 for item in pieces)
    assert all(item.piece.mask.all() for item in pieces)
    assert {item.weight for item in cut} == {2.0} and whole.weight == 1.0
    learnt = [i for item in cut for i in item.piece.tokens[1:].tolist()]
    ids = [*text.encode(long), text.eos_id]
    assert len(cut) > 3 and learnt == ids[1:]
    assert whole.piece.tokens.tolist() == [*text.encode(short), text.eos_id]
    out = capsys.readouterr().out
    assert f"{len(pieces)} pieces of {path}; 1 of {len(pieces) + 1} left out" in out


def test_conversations_are_texts_too(text):
    stage = pretrain_stage(data__num_problems=5)
    for item in inputs.texts(stage, text, seed=0):
        written = text.decode(item.piece.tokens.tolist(), specials=True)
        question, reply = (turn["content"] for turn in item.row.messages)
        assert written == f"<|user|>{question}<|assistant|>{reply}<|end|>"
        assert item.piece.mask.all()


def test_held_out_texts_are_read_as_the_texts_to_learn(text, tmp_path, capsys):
    path = write(tmp_path / "texts.jsonl", [{"text": "Start with 1"}, {"text": "one"}])
    other = write(tmp_path / "other.jsonl", [{"text": "one"}, {"text": "Start"}])
    # A file to measure on has no weights.
    changes = {"data__train": path, "data__held_out": other}
    stage = pretrain_stage(**changes, data__weight_column="w")
    unseen = list(inputs.held_out(stage, text))
    assert [item.row.text for item in unseen] == ["one", "Start"]
    stage = pretrain_stage(**changes)
    learnt = [item.row for item in inputs.texts(stage, text, seed=0)]
    capsys.readouterr()
    inputs.assert_held_out(unseen, learnt, "pieces of data.held_out")
    out = capsys.readouterr().out
    assert out == "note: 1 of 2 pieces of data.held_out are trained on too\n"
