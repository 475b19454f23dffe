"""What the reference thinks of the pairs: worked out once, kept, and made anew.

Legend: N pairs, 3 the chosen and the rejected reply, the chosen one's special tokens.
"""

import dataclasses
import os
from typing import Any

import numpy as np
import pytest

import tiny_pairs
from rl_jax.data.pair_packing import num_places
from rl_jax.errors import ConfigError
from rl_jax.stages import pairs, reference
from rl_jax.stages.context import Preempted


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    train = tiny_pairs.write_pairs(folder / "train.jsonl", 30, 0)
    with tiny_pairs.built(folder / "run", train) as context:
        yield context


@pytest.fixture
def stage(context):
    (context.folder(context.run.stages[0]) / reference.FILE).unlink(missing_ok=True)
    return context.run.stages[0]


@pytest.fixture
def found(context, stage):
    return list(pairs.train_pairs(stage, context.tokenizer))


class Score:
    """Stands for a model: a reply's total is its weight times the sum of its ids.

    That of the chosen one's special tokens is the sum of both.
    """

    def __init__(self):
        self.calls = 0

    def __call__(self, params, batch):
        self.calls += 1
        rows, row_tokens = batch.target_BT.shape
        total_S = np.zeros(2 * num_places(rows, row_tokens), np.float32)
        counted = np.where(batch.mask_BT, batch.target_BT, 0)
        np.add.at(total_S, np.asarray(batch.sample_BT), params * counted)
        total_N2 = total_S.reshape(-1, 2)
        return np.column_stack((total_N2, total_N2.sum(1)))


def expected(found, weight=-1.0):
    sums = [[weight * p.tokens[p.mask].sum() for p in pair.pieces] for pair in found]
    return np.array([(*both, sum(both)) for both in sums])


def made(context, stage, *sets, weight=-1.0):
    """(logps of each set, calls of the model, times that weights were read)"""
    score: Any = Score()
    reads = []

    def base() -> Any:
        reads.append(1)
        return weight

    found = reference.reference_logps(context, stage, base, score, sets)
    return found, score.calls, len(reads)


def test_each_reply_gets_its_own_number(context, stage, found):
    held_out = found[3:8]
    (train_N3, held_out_N3), _, reads = made(context, stage, found, held_out)
    np.testing.assert_array_equal(train_N3, expected(found))
    np.testing.assert_array_equal(held_out_N3, expected(held_out))
    assert train_N3.dtype == np.float32 and reads == 1


def test_the_second_time_nothing_is_read_but_the_file(context, stage, found):
    (first,), calls, _ = made(context, stage, found)
    (again,), calls_again, reads = made(context, stage, found)
    np.testing.assert_array_equal(again, first)
    assert calls > 0 and calls_again == reads == 0


def test_a_file_made_of_other_pairs_is_not_taken(context, stage, found):
    made(context, stage, found)
    (fewer,), calls, _ = made(context, stage, found[1:])
    np.testing.assert_array_equal(fewer, expected(found[1:]))
    assert calls > 0


@pytest.mark.parametrize("junk", [b"", b"no npz", b"PK\x03\x04 torn"])
def test_a_file_that_cannot_be_read_is_made_anew(context, stage, found, junk, capsys):
    (first,), _, _ = made(context, stage, found)
    path = context.folder(stage) / reference.FILE
    path.write_bytes(junk)
    (again,), calls, _ = made(context, stage, found)
    np.testing.assert_array_equal(again, first)
    assert calls > 0 and "made anew" in capsys.readouterr().out
    assert not list(path.parent.glob("*.unfinished"))
    assert made(context, stage, found)[1] == 0


def test_another_reference_is_not_taken_for_this_one(context, stage, found, tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"first")
    chosen = dataclasses.replace(stage.preference, reference=str(tmp_path))
    other = dataclasses.replace(stage, preference=chosen)
    keys = [reference._key(context, one, [found]) for one in (stage, other)]
    os.utime(weights, (1, 1))
    keys.append(reference._key(context, other, [found]))
    assert len(set(keys)) == 3


def test_what_is_compared_is_part_of_what_a_file_is_made_of(context, stage, found):
    masked = [dataclasses.replace(pair, num_special=(1, 1)) for pair in found]
    keys = {reference._key(context, stage, [pairs]) for pairs in (found, masked)}
    assert len(keys) == 2


def test_weights_that_give_no_number_are_told_with_the_row(context, stage, found):
    with pytest.raises(ConfigError, match="'init' gives a reply of row 1 of letters"):
        made(context, stage, found, weight=np.nan)
    assert not (context.folder(stage) / reference.FILE).exists()


def test_a_stop_leaves_no_file(context, stage, found):
    class Stop:
        def check(self):
            raise Preempted(15)

    stopped = dataclasses.replace(context, stop=Stop())
    with pytest.raises(Preempted):
        made(stopped, stage, found)
    assert not (context.folder(stage) / reference.FILE).exists()
