"""Rows of preferences to pairs of token ids: what counts, and what is left out."""

import json

import numpy as np
import pytest

import tiny_pairs
from rl_jax.data.pair_packing import pack_pairs
from rl_jax.data.rows import Preference
from rl_jax.errors import ConfigError
from rl_jax.stages import pairs, reading


def turn(role, content):
    return {"role": role, "content": content}


def row(prompt, chosen, rejected):
    turns = [turn("assistant", chosen)], [turn("assistant", rejected)]
    return Preference(tuple(prompt), tuple(turns[0]), tuple(turns[1]), "here", 0, {})


def written(path, *rows):
    lines = (
        {"prompt": [turn("user", p)], "chosen": c, "rejected": r} for p, c, r in rows
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    train = tiny_pairs.write_pairs(folder / "train.jsonl", 50, 0)
    with tiny_pairs.built(folder / "run", train) as context:
        yield context


def stage_of(path, **changes):
    return tiny_pairs.config(path, **changes).stages[0]


def counted(piece, text):
    return text.decode(piece.tokens[piece.mask].tolist(), specials=True)


def test_what_counts_is_the_reply_with_the_token_that_ends_it(context):
    text = context.tokenizer
    pair = pairs.pair_of(row([turn("user", "say a")], "bz", "dead"), text)
    assert counted(pair.chosen, text).startswith("bz")
    assert counted(pair.rejected, text).startswith("dead")
    for piece in pair.pieces:
        assert piece.tokens[piece.mask][-1] in text.stop_ids
    assert pair.num_tokens == (pair.chosen.mask.sum(), pair.rejected.mask.sum())


def test_special_tokens_are_counted_apart_where_the_loss_leaves_them_out(context):
    text, path = context.tokenizer, context.run.stages[0].data.train
    stage = stage_of(path, preference__name="llama3")
    specials = pairs.special_ids(stage, text)
    assert set(text.stop_ids) <= set(specials) == set(text.special_ids.values())
    masked, whole = (
        pairs.train_pairs(stage, text),
        pairs.train_pairs(stage_of(path), text),
    )
    for a, b in zip(masked, whole, strict=True):
        assert a.num_special == (1, 1) and b.num_special == (0, 0)
        assert a.num_tokens == tuple(n - 1 for n in b.num_tokens)
        # They stay in the mask: the likelihood of the chosen reply has them.
        np.testing.assert_array_equal(a.chosen.mask, b.chosen.mask)
    given = stage_of(path, preference__name="llama3", preference__mask_special=False)
    assert pairs.special_ids(given, text) == ()


def test_both_replies_come_after_the_same_prompt(context):
    text = context.tokenizer
    pair = pairs.pair_of(row([turn("user", "say a")], "bz", "dead"), text)
    prompts = [p.tokens[: int(np.argmax(p.mask))].tolist() for p in pair.pieces]
    assert prompts[0] == prompts[1] != []


def test_what_the_assistant_said_before_does_not_count(context):
    text = context.tokenizer
    talk = [turn("user", "say a"), turn("assistant", "face"), turn("user", "say b")]
    pair = pairs.pair_of(row(talk, "bz", "bad"), text)
    assert "face" in text.decode(pair.chosen.tokens.tolist(), specials=True)
    assert "face" not in counted(pair.chosen, text)


def test_rows_as_a_select_stage_writes_them_are_read(context):
    found = pairs.train_pairs(context.run.stages[0], context.tokenizer)
    assert len(found) == 50
    first = next(iter(found))
    assert first.row.extra["margin"] == 1.0 and first.row.data_source == "letters"
    assert [pair.index for pair in found] == list(range(50))


def test_pairs_with_nothing_to_compare_are_left_out_and_counted(
    context, tmp_path, capsys
):
    path = written(
        tmp_path / "mixed.jsonl",
        ("say a", "bz", "ba"),
        ("say a", "same", "same"),
        ("say a", "b" * 200, "ba"),
        ("say b", "cz", "ca"),
    )
    found = pairs.train_pairs(stage_of(path), context.tokenizer)
    assert [pair.row.index for pair in found] == [0, 3]
    assert [pair.index for pair in found] == [0, 1]
    line = capsys.readouterr().out
    assert "2 pairs of" in line
    assert "1 of 4 left out: both replies are the same" in line
    assert "1 of 4 left out: longer than 49 tokens" in line


def test_pairs_that_are_all_too_long_say_how_long_a_row_must_be(context, tmp_path):
    path = written(tmp_path / "long.jsonl", ("say a", "b" * 200, "ba"))
    with pytest.raises(ConfigError) as error:
        pairs.train_pairs(stage_of(path), context.tokenizer)
    fix = str(error.value).rpartition("row_tokens=")[2].split()[0]
    stage = stage_of(path, batch__row_tokens=int(fix))
    assert len(pairs.train_pairs(stage, context.tokenizer)) == 1


def test_pairs_of_several_sources_are_numbered_through(context, tmp_path):
    a = tiny_pairs.write_pairs(tmp_path / "a.jsonl", 3, 0)
    b = tiny_pairs.write_pairs(tmp_path / "b.jsonl", 2, 1)
    stage = stage_of(f"{a}@0.5,{b}@0.5")
    found = pairs.train_pairs(stage, context.tokenizer)
    assert [pair.index for pair in found] == [0, 1, 2, 3, 4]
    assert [pair.row.index for pair in found] == [0, 1, 2, 0, 1]
    assert found.weights == [0.5, 0.5]


def test_a_micro_batch_of_one_row_must_hold_both_replies(context, tmp_path):
    path = written(tmp_path / "two.jsonl", ("say a", "bz", "ba"), ("say a", "z", "b"))
    rows = {"batch__micro_rows": 1}
    stage = stage_of(path, batch__row_tokens=100, **rows)
    both = list(pairs.train_pairs(stage, context.tokenizer))
    sizes = [sum(len(piece.tokens) - 1 for piece in pair.pieces) for pair in both]
    stage = stage_of(path, batch__row_tokens=min(sizes), **rows)
    found = list(pairs.train_pairs(stage, context.tokenizer))
    assert [pair.row.index for pair in found] == [1] and sizes[1] < sizes[0]
    [rows] = pack_pairs([pair.pieces for pair in found], 1, min(sizes))
    assert len(rows.index) == 1
    with pytest.raises(ConfigError, match=f"row_tokens={min(sizes)} or more"):
        stage = stage_of(path, batch__row_tokens=min(sizes) - 1, batch__micro_rows=1)
        pairs.train_pairs(stage, context.tokenizer)


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "a", "chosen": "b"}',
        '{"prompt": "a", "chosen": "b", "rejected": ""}',
    ],
)
def test_a_row_without_a_rejected_reply_is_told_before_anything_starts(tmp_path, line):
    path = written(tmp_path / "faulty.jsonl", ("say a", "bz", "ba"))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ConfigError) as error:
        reading.check_data(tiny_pairs.config(path))
    text = str(error.value)
    assert "faulty.jsonl" in text and "2" in text and "rejected" in text
    assert len(text.splitlines()) <= 3


def test_the_checksum_sees_tokens_masks_and_order(context):
    text = context.tokenizer
    a = pairs.pair_of(row([turn("user", "say a")], "bz", "dead"), text)
    b = pairs.pair_of(row([turn("user", "say b")], "bz", "dead"), text)
    talk = [turn("user", "say a"), turn("assistant", "bz")]
    sums = [pairs.checksum(x) for x in ([a], [b], [a, b], [b, a], [])]
    assert len(set(sums)) == len(sums)
    assert pairs.checksum([a]) == pairs.checksum(
        [pairs.pair_of(row(talk[:1], "bz", "dead"), text)]
    )
    unlearnt = a.chosen.mask.copy()
    unlearnt[-1] = False
    other = pairs.Pair(a.row, type(a.chosen)(a.chosen.tokens, unlearnt), a.rejected)
    assert pairs.checksum([other]) != pairs.checksum([a])


def test_prompts_that_are_trained_on_too_are_told(context, capsys):
    text = context.tokenizer
    learnt = [pairs.pair_of(row([turn("user", "say a")], "bz", "dead"), text)]
    pairs.note_shared(learnt, learnt)
    assert "1 of 1 prompts of data.held_out" in capsys.readouterr().out
