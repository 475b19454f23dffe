"""A reward model's rows as token ids: where replies end, and what is left out."""

import random

import pytest
from tiny_rewards import LETTERS, built, toy_pairs

from rl_jax.errors import ConfigError
from rl_jax.stages import rankings


def turn(role, content):
    return {"role": role, "content": content}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """(tokenizer, what is made of a few rows)"""
    folder = tmp_path_factory.mktemp("rankings")
    before = [turn("user", "1?"), turn("assistant", "ab"), turn("user", "2?")]
    called = [turn("assistant", "cd"), turn("user", "3?"), turn("assistant", "ef")]
    rows = [
        {"prompt": before, "chosen": called, "rejected": "gh"},
        *toy_pairs(3, 0),
    ]
    with built(folder, rows, toy_pairs(2, 1)) as context:
        stage = context.run.stages[0]
        made = rankings.candidates(stage, context.tokenizer, "train")
        yield context.tokenizer, made


def test_a_reply_ends_with_its_end_of_turn_token(found):
    text, made = found
    for item in made:
        for ids, reply in zip(item.ids, item.judged.replies, strict=True):
            assert ids.dtype == "int32" and ids[-1] in text.stop_ids
            shown = text.decode(ids.tolist(), specials=True)
            assert shown.endswith(f"<|assistant|>{reply[-1]['content']}<|end|>")


def test_turns_before_the_last_are_read_too(found):
    text, made = found
    first = next(iter(made))
    shown = [text.decode(ids.tolist(), specials=True) for ids in first.ids]
    asked = "<|user|>1?<|assistant|>ab<|end|><|user|>2?<|assistant|>"
    assert shown[0] == f"{asked}cd<|end|><|user|>3?<|assistant|>ef<|end|>"
    assert shown[1] == f"{asked}gh<|end|>"


def test_the_most_replies_of_a_prompt_are_counted(found):
    assert rankings.most_replies(found[1]) == 2


def test_prompts_that_do_not_fit_or_teach_nothing_are_left_out(tmp_path, capsys):
    draw = random.Random(2)

    def letters(count):
        return "".join(draw.choices(LETTERS, k=count))

    tied = {"prompt": "1?", "replies": ["a", "b"], "scores": [1, 1]}
    long = toy_pairs(1, 0)[0] | {"chosen": letters(400)}
    many = [letters(60) for _ in range(9)]
    together = {"prompt": "1?", "replies": many, "ranks": [*range(9)]}
    rows = [*toy_pairs(3, 0), tied, long, together]
    with built(tmp_path, rows, toy_pairs(2, 1), batch__micro_rows=2) as context:
        stage = context.run.stages[0]
        found = rankings.candidates(stage, context.tokenizer, "train")
    assert len(found) == 3
    out = capsys.readouterr().out
    assert "1 of 6 left out: all replies are as good" in out
    assert "1 of 6 left out: longer than 64 tokens" in out
    assert "1 of 6 left out: longer together than 2 rows of 64 tokens" in out


def test_when_nothing_is_left_the_length_that_would_do_is_told(tmp_path):
    letters = "".join(random.Random(2).choices(LETTERS, k=400))
    rows = [toy_pairs(1, 0)[0] | {"chosen": letters}]
    with built(tmp_path, rows, toy_pairs(2, 1)) as context:
        with pytest.raises(ConfigError, match="longer than 64") as caught:
            stage = context.run.stages[0]
            rankings.candidates(stage, context.tokenizer, "train")
    assert "--config.rm.batch.row_tokens=" in str(caught.value)


def test_a_fault_in_the_data_is_told_before_anything_starts(tmp_path):
    rows = [*toy_pairs(3, 0), {"prompt": "a", "chosen": "b"}]
    with pytest.raises(ConfigError, match=r"train\.jsonl, row 4: .*'rejected'"):
        with built(tmp_path, rows, toy_pairs(2, 1)):
            pass
