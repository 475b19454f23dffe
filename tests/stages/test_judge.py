"""A trained reward model that scores replies for other stages."""

import contextlib
import dataclasses
import json
import shutil
from typing import Any

import jax
import numpy as np
import pytest
import tiny_rewards
from tiny_rewards import toy_pairs

import tiny_stage as tiny
from rl_jax import reward_learner, reward_marker
from rl_jax.errors import ConfigError
from rl_jax.mesh import make_mesh, sharding
from rl_jax.models import reward_head
from rl_jax.reward_marker import Marker
from rl_jax.stages import rankings
from rl_jax.stages.judge import Judge, open_judge

KEY = "rl.reward.model"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(context, last weights) of a reward model that took two steps."""
    folder = tmp_path_factory.mktemp("judge")
    changes: dict[str, Any] = {"steps": 2, "eval__every": 2, "checkpoint__every": 1}
    rows = (toy_pairs(32, 0), toy_pairs(4, 1))
    with tiny_rewards.built(folder, *rows, **changes) as context:
        yield context, tiny_rewards.train(context)


@pytest.fixture(scope="module")
def judge(trained):
    return open_judge(trained[0], "rm", KEY)


def replies(context, count=40, seed=3):
    rng = np.random.default_rng(seed)
    high = context.tokenizer.vocab_size
    sizes = rng.integers(2, 40, count)
    return [rng.integers(0, high, n).astype(np.int32) for n in sizes]


def test_scores_are_those_of_the_stage_shifted_and_scaled(trained, judge):
    context, params = trained
    stage = context.run.stages[0]
    marker = reward_marker.read(context.workdir / "rm", KEY)
    judged = list(rankings.candidates(stage, context.tokenizer, "train"))
    pieces = [ids for item in judged for ids in item.ids]
    assert marker.num_replies == len(pieces)
    # One reply alone in a row, by the model itself.
    scores = jax.jit(reward_head.scores, static_argnames="model")
    rows = sharding(context.mesh, "batch", "time")
    found = judge.score(pieces)
    for piece, score in list(zip(pieces, found, strict=True))[:4]:
        arrays = np.zeros((3, 1, 64), np.int32)
        n = len(piece)
        arrays[:, 0, :n] = piece, np.arange(n), np.ones(n)
        placed = (jax.device_put(x, rows) for x in arrays)
        raw = float(scores(params, *placed, model=context.model)[0, len(piece) - 1])
        assert score == pytest.approx((raw - marker.mean) / marker.std, abs=1e-4)
    # Over what it was trained on: as far from 0 as float32 sums are.
    assert np.mean(found) == pytest.approx(0, abs=1e-4)
    assert np.std(found) == pytest.approx(1, abs=1e-4)


def test_a_score_does_not_depend_on_what_is_judged_with_it(trained, judge):
    pieces = replies(trained[0])
    together = judge.score(pieces)
    order = np.random.default_rng(0).permutation(len(pieces))
    shuffled = judge.score([pieces[i] for i in order])
    np.testing.assert_allclose(
        shuffled, np.array(together)[order], rtol=0, atol=1e-4 / judge.marker.std
    )
    assert judge.score(pieces[:1])[0] == pytest.approx(together[0], abs=1e-3)
    assert judge.score([]) == []


def test_judging_again_compiles_nothing(trained):
    context, _ = trained
    reward_learner.make_reward_learner.cache_clear()
    found = [open_judge(context, "rm", KEY, row_tokens=40) for _ in range(2)]
    for one in found:
        for seed in range(3):
            one.score(replies(context, count=5 + 30 * seed, seed=seed))
    [program] = {one._learner.score for one in found}
    assert program._cache_size() == 1
    # Without the longest length there is one for each power of two.
    free = open_judge(context, "rm", KEY)
    free.score([np.ones(9, np.int32)])
    free.score([np.ones(60, np.int32)])
    assert program._cache_size() == 2


def test_a_piece_must_fit_the_rows_that_were_asked_for(trained):
    judge = open_judge(trained[0], "rm", KEY, row_tokens=8)
    with pytest.raises(ValueError, match="do not fit"):
        judge.score([np.ones(9, np.int32)])
    with pytest.raises(ValueError, match="without a token"):
        judge.score([np.ones(0, np.int32)])


def test_many_devices_give_the_scores_of_one():
    model = dataclasses.replace(
        tiny.MODEL, width=16, num_heads=4, num_kv_heads=2, vocab_size=34
    )
    marker = Marker("ranking", 0.2, 2.0, 9)
    pieces = [np.arange(3, 3 + n, dtype=np.int32) for n in range(1, 20)]

    def weights(mesh):
        rng = np.random.default_rng(1)

        def one(leaf):
            x = rng.normal(size=leaf.shape) * (leaf.fan_in or 9) ** -0.5
            x = np.asarray(x + (leaf.fan_in == 0), np.float32)
            return jax.device_put(x, sharding(mesh, *leaf.axes))

        return reward_head.map_layout(one, model)

    found = []
    for sizes in ((1, 1, 1), (2, 2, 2)):
        mesh = make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
        with jax.set_mesh(mesh):
            judge = Judge("made up", weights(mesh), model, mesh, marker)
            found.append(judge.score(pieces))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-5)
    assert np.std(found[0]) > 0.1


# Where it comes from.


def test_a_checkpoint_of_a_stage_and_its_folder_are_judges_too(trained, judge):
    context, _ = trained
    pieces = replies(context, count=3)
    by_path = open_judge(context, str(context.workdir / "rm"), KEY)
    assert by_path.score(pieces) == judge.score(pieces)
    earlier = open_judge(context, "rm@1", KEY)
    assert earlier.score(pieces) != judge.score(pieces)


def test_a_reward_model_of_another_run_must_have_the_same_tokens(trained, tmp_path):
    context, _ = trained
    other = tmp_path / "other"
    shutil.copytree(context.workdir, other)
    pieces = replies(context, count=3)
    found = open_judge(context, str(other / "rm"), KEY).score(pieces)
    np.testing.assert_allclose(found, open_judge(context, "rm", KEY).score(pieces))
    (other / "tokenizer" / "tokenizer.json").write_text(json.dumps({"other": 1}))
    with pytest.raises(ConfigError, match="whose tokenizer is not that of this run"):
        open_judge(context, str(other / "rm"), KEY)


def test_what_is_no_reward_model_is_refused_before_anything_is_read(trained, tmp_path):
    context, _ = trained
    policy = tmp_path / "policy"
    (policy / "checkpoints").mkdir(parents=True)
    for name, words in (
        (str(policy), "has no reward_model.json: there is no reward model with a head"),
        ("nowhere", "is neither an earlier stage nor a folder"),
    ):
        with contextlib.ExitStack() as stack:
            caught = stack.enter_context(pytest.raises(ConfigError, match=words))
            open_judge(context, name, KEY)
        text = str(caught.value)
        assert f"config.{KEY}" in text and text.count("\n") <= 2
