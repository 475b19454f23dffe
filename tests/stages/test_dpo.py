"""The stage that learns from pairs: what a step is, what is learnt, what resumes."""

import dataclasses
import json
import math
import os
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest

import tiny_pairs
import tiny_run
from rl_jax import checkpoint
from rl_jax.data.pair_packing import pack_pairs
from rl_jax.data.pipeline import stream
from rl_jax.objectives.preference import PRESETS
from rl_jax.stages import context as contexts
from rl_jax.stages import dpo, pairs, reference
from rl_jax.stages.context import Preempted

STEPS, TRAIN, HELD_OUT = 60, 600, 100


def files(folder):
    train = tiny_pairs.write_pairs(folder / "train.jsonl", TRAIN, 0)
    return train, tiny_pairs.write_pairs(folder / "held_out.jsonl", HELD_OUT, 1)


def run(context, base=None):
    stage = context.run.stages[0]
    return dpo.run(context, stage, base or (lambda: contexts.first_params(context)))


def no_weights():
    raise AssertionError("the first weights were read again")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(context, metrics, last weights) of one pass over the pairs and a bit."""
    folder = tmp_path_factory.mktemp("dpo")
    train, held_out = files(folder)
    with tiny_pairs.built(
        folder / "run",
        train,
        steps=STEPS,
        data__held_out=str(held_out),
        eval__every=20,
        checkpoint__every=20,
    ) as context:
        params = run(context)
        yield context, tiny_pairs.lines(folder / "run"), params


def steps_of(metrics):
    return [line for line in metrics if "train/loss" in line]


def evaluations(metrics):
    return {line["step"]: line for line in metrics if "eval/loss" in line}


def test_the_first_step_is_taken_where_policy_and_reference_are_one(trained):
    first = steps_of(trained[1])[0]
    assert first["train/loss"] == pytest.approx(math.log(2), abs=1e-6)
    for name in ("train/reward_margin", "train/rewards/chosen"):
        assert first[name] == pytest.approx(0, abs=1e-6)
    assert first["train/grad_norm"] > 0.1
    assert first["train/logps/chosen"] < -5


def test_it_learns_which_replies_are_preferred(trained):
    found = evaluations(trained[1])
    assert list(found) == [0, 20, 40, 60]
    assert found[0]["eval/loss"] == pytest.approx(math.log(2), abs=1e-6)
    last = found[STEPS]
    assert last["eval/accuracy_pairs"] > 0.9
    assert last["eval/loss"] < 0.5 and last["eval/reward_margin"] > 0.5
    gained = last["eval/logps/chosen"] - last["eval/logps/rejected"]
    before = found[0]["eval/logps/chosen"] - found[0]["eval/logps/rejected"]
    # The margin is beta times what the difference grew by.
    grown = PRESETS["dpo"].beta * (gained - before)
    assert grown == pytest.approx(last["eval/reward_margin"], abs=1e-3)


def test_steps_take_the_pairs_in_the_order_of_the_stream(trained):
    context, metrics, _ = trained
    stage, tokens = context.run.stages[0], 0
    found = list(pairs.train_pairs(stage, context.tokenizer))
    endless: Any = stream(found, seed=context.run.seed)
    for number, line in enumerate(steps_of(metrics)):
        taken = [endless[8 * number + i] for i in range(8)]
        tokens += sum(len(p.tokens) - 1 for pair in taken for p in pair.pieces)
        assert line["train/num_tokens"] == tokens
        assert line["train/epoch"] == pytest.approx(8 * (number + 1) / TRAIN)


def test_a_step_may_need_more_micro_batches_than_one(trained):
    context, _, _ = trained
    stage = context.run.stages[0]
    found = list(pairs.train_pairs(stage, context.tokenizer))[:8]
    batch = stage.batch
    rows = pack_pairs([p.pieces for p in found], batch.micro_rows, batch.row_tokens)
    assert len(list(rows)) > 1


def test_a_finished_stage_is_not_trained_again(trained):
    context, metrics, params = trained
    again = run(context, no_weights)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert tiny_pairs.lines(context.workdir) == metrics
    assert checkpoint.latest_step(context.workdir / "checkpoints") == STEPS


def test_a_resumed_stage_repeats_the_uninterrupted_one_to_the_bit(trained, tmp_path):
    context, metrics, params = trained

    lines = tmp_path / "run" / "metrics.jsonl"

    class Stop:
        """Stops in the middle of the stage, between two checkpoints."""

        def check(self):
            pass

        def check_together(self, secs):
            if lines.exists() and '"step": 29' in lines.read_text():
                raise Preempted(15)

    here = dataclasses.replace(context, workdir=tmp_path / "run")
    with pytest.raises(Preempted):
        run(dataclasses.replace(here, stop=Stop()))
    before = (here.workdir / reference.FILE).stat().st_mtime_ns
    assert checkpoint.latest_step(here.workdir / "checkpoints") in range(21, STEPS)
    again = run(here, no_weights)
    jax.tree.map(np.testing.assert_array_equal, again, params)
    assert tiny_pairs.lines(here.workdir) == metrics
    assert (here.workdir / reference.FILE).stat().st_mtime_ns == before


def test_what_was_kept_of_the_reference_is_what_is_made_anew(trained, tmp_path):
    context, _, _ = trained
    kept = np.load(context.workdir / reference.FILE)
    here = dataclasses.replace(
        context,
        workdir=tmp_path,
        run=dataclasses.replace(
            context.run,
            stages=(dataclasses.replace(context.run.stages[0], steps=0),),
        ),
    )
    run(here)
    made = np.load(tmp_path / reference.FILE)
    assert kept.files == made.files == ["key", "set0", "set1"]
    for name in made.files:
        np.testing.assert_array_equal(made[name], kept[name])
    # A stage of no steps evaluates and saves all the same.
    assert checkpoint.latest_step(tmp_path / "checkpoints") == 0
    assert list(evaluations(tiny_pairs.lines(tmp_path))) == [0]


def test_without_a_learning_rate_nothing_is_learnt(tmp_path):
    train, held_out = files(tmp_path)
    with tiny_pairs.built(
        tmp_path / "run",
        train,
        optim__lr=0.0,
        data__held_out=str(held_out),
        eval__every=4,
    ) as context:
        run(context)
        metrics = tiny_pairs.lines(tmp_path / "run")
    found = evaluations(metrics)
    assert {**found[4], "step": 0} == found[0]
    assert found[4]["eval/accuracy_pairs"] < 0.9
    for line in steps_of(metrics):
        assert line["train/loss"] == pytest.approx(math.log(2), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_every_named_loss_trains(tmp_path, name):
    train, held_out = files(tmp_path)
    with tiny_pairs.built(
        tmp_path / "run",
        train,
        steps=STEPS,
        preference__name=name,
        data__held_out=str(held_out),
        eval__every=STEPS,
    ) as context:
        run(context)
        found = evaluations(tiny_pairs.lines(tmp_path / "run"))
    assert found[STEPS]["eval/loss"] < found[0]["eval/loss"]
    assert found[STEPS]["eval/accuracy_pairs"] > 0.8


@pytest.mark.slow
def test_many_devices_train_as_one_does(tmp_path):
    train, _ = files(tmp_path)
    losses = []
    for devices, sizes in ((1, {}), (8, {"mesh__fsdp": 4, "mesh__tensor": 2})):
        with tiny_pairs.built(
            tmp_path / f"on{devices}",
            train,
            devices,
            model__num_kv_heads=2,
            optim__eps=1e-3,
            batch__micro_rows=8,
            **sizes,
        ) as context:
            run(context)
        metrics = steps_of(tiny_pairs.lines(tmp_path / f"on{devices}"))
        losses.append([line["train/loss"] for line in metrics])
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=1e-5)
    assert losses[0][-1] < math.log(2) - 1e-3


RECIPE = """
from rl_jax import config as defaults

def get_config():
    config = defaults.stage("dpo")
    config.data.train = {train!r}
    return config
"""


def test_a_row_without_a_rejected_reply_ends_the_run_with_exit_code_2(tmp_path):
    train = tiny_pairs.write_pairs(tmp_path / "train.jsonl", 3, 0)
    row = {"prompt": "say a", "chosen": "bz"}
    train.write_text(train.read_text() + json.dumps(row) + "\n")
    recipe = tmp_path / "recipe.py"
    recipe.write_text(RECIPE.format(train=str(train)))
    words = [f"--config={recipe}", f"--workdir={tmp_path / 'run'}"]
    done = subprocess.run(
        [sys.executable, "-m", "rl_jax.train", *words],
        env=tiny_run.environment() | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "train.jsonl" in done.stderr and "'rejected'" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 3, done.stderr
    assert not (tmp_path / "run").exists()
