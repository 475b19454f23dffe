"""Averages of stages: against NumPy, on the disk, and as the init of another stage."""

import dataclasses
import functools
import json
import shutil
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

import data_stages
import tiny_stage as tiny
from rl_jax import checkpoint, reward_marker
from rl_jax.checkpoint import Checkpointer
from rl_jax.errors import ConfigError
from rl_jax.load import load
from rl_jax.mesh import make_mesh
from rl_jax.models import export, reward_head
from rl_jax.models.params import abstract_params, init_params
from rl_jax.reward_marker import Marker
from rl_jax.stages import merge, weights

KINDS = {"a": "sft", "b": "sft", "c": "sft", "mix": "merge", "last": "sft"}


@functools.cache
def weights_of(model, mesh, seed):
    return init_params(model, mesh, seed)


def save(context, name, params, step=5):
    with Checkpointer(context.workdir / name / "checkpoints", keep=3) as saver:
        saver.save(step, {"params": params}, {})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A work folder with a tokenizer and the stages a, b, c, of weights 1, 2, 3."""
    folder = tmp_path_factory.mktemp("merge")
    config = data_stages.run_of(KINDS, mix__merge__models=("a", "b"))
    with data_stages.built(folder, config) as context:
        for name, seed in zip("abc", (1, 2, 3), strict=True):
            save(context, name, weights_of(context.model, context.mesh, seed))
    return folder


@pytest.fixture
def run(prepared, tmp_path):
    """A function that merges stages a, b, c: (context, average, their weights)."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)

    def merged(*, prepare=None, models=("a", "b"), **keys):
        keys = {f"mix__{k}": v for k, v in keys.items()} | {
            "mix__merge__models": models
        }
        config = data_stages.run_of(KINDS, **keys)
        with data_stages.built(tmp_path, config) as context:
            if prepare:
                prepare(context)
            (stage,) = (s for s in config.stages if s.name == "mix")
            (unread,) = tiny.anything(None)
            average = merge.run(context, stage, unread)
            model, mesh = context.model, context.mesh
            return context, average, [weights_of(model, mesh, n) for n in (1, 2, 3)]

    return merged


def assert_close(found, want, atol=1e-6):
    for a, b in zip(jax.tree.leaves(found), want, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), b, rtol=0, atol=atol)


def slow_sum(trees, parts):
    """Leaf by leaf, in float64."""
    leaves = [
        [np.asarray(x, np.float64) for x in jax.tree.leaves(tree)] for tree in trees
    ]
    return [sum(p * x for p, x in zip(parts, row)) for row in zip(*leaves)]


def test_the_merge_of_two_is_their_mean(run):
    _, average, found = run()
    assert_close(average, slow_sum(found[:2], (0.5, 0.5)))


def test_weights_are_parts_of_their_sum(run):
    _, average, found = run(models=("a", "b", "c"), merge__weights=(2.0, 1.0, 1.0))
    assert_close(average, slow_sum(found, (0.5, 0.25, 0.25)))


def test_a_moving_average_goes_from_the_oldest_to_the_newest(run):
    _, average, found = run(models=("a", "b", "c"), merge__ema=0.75)
    leaves = [[np.asarray(x, np.float64) for x in jax.tree.leaves(t)] for t in found]
    moving = leaves[0]
    for newer in leaves[1:]:
        moving = [0.75 * old + 0.25 * new for old, new in zip(moving, newer)]
    assert_close(average, moving)


def test_a_checkpoint_of_a_stage_a_folder_and_the_base_may_be_merged(run, tmp_path):
    other = tmp_path / "folder"

    def prepare(context):
        save(context, "a", weights_of(context.model, context.mesh, 7), step=3)
        params = weights_of(context.model, context.mesh, 8)
        export.save_params(params, context.model, other)

    other.mkdir()
    context, average, _ = run(models=("a@3", str(other), "base"), prepare=prepare)
    with jax.set_mesh(context.mesh):
        trees = [weights_of(context.model, context.mesh, seed) for seed in (7, 8, 0)]
    assert_close(average, slow_sum(trees, (1 / 3,) * 3))


def test_small_types_are_summed_in_float32(run):
    _, average, found = run()
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, "bfloat16"), average)
    small = [jax.tree.map(lambda x: x.astype("bfloat16"), tree) for tree in found]
    readers = [lambda tree=tree: tree for tree in small]
    got = merge.average(readers, (1 / 3,) * 3, like)
    for x, want in zip(
        jax.tree.leaves(got), slow_sum(small, (1 / 3,) * 3), strict=True
    ):
        assert x.dtype == ml_dtypes.bfloat16
        # Rounded once, at the end: half a unit in the last of 8 bits.
        unit = 2.0 ** (np.floor(np.log2(np.abs(want) + 1e-30)) - 7)
        error = np.abs(np.asarray(x, np.float64) - want)
        assert (
            error <= 0.501 * unit + 1e-7
        ).all()  # 1e-7: of float32, where they cancel


def test_divided_weights_stay_divided():
    mesh = make_mesh()
    model = dataclasses.replace(tiny.MODEL, width=16, head_dim=8)
    with jax.set_mesh(mesh):
        found = [init_params(model, mesh, seed) for seed in (1, 2)]
        readers = [lambda tree=tree: tree for tree in found]
        average = merge.average(readers, (0.25, 0.75), abstract_params(model, mesh))
    assert_close(average, slow_sum(found, (0.25, 0.75)))
    for x, like in zip(jax.tree.leaves(average), jax.tree.leaves(found[0])):
        assert x.sharding.is_equivalent_to(like.sharding, x.ndim)
    assert any(not x.sharding.is_fully_replicated for x in jax.tree.leaves(average))


def test_other_stages_and_commands_begin_from_it(run, tmp_path):
    context, average, _ = run()
    with jax.set_mesh(context.mesh):
        begun = weights.policy(context, "mix", "last.init")()
        same = checkpoint.load_params(
            tmp_path / "mix" / "checkpoints",
            abstract_params(context.model, context.mesh),
            step=0,
        )
        (tmp_path / "config.json").write_text(
            json.dumps({"stages": ["a", "mix"], "mix": {"kind": "merge"}, "a": {}})
        )
        loaded = load(tmp_path / "mix", context.mesh)
        last = load(tmp_path, context.mesh)
    want = [np.asarray(x) for x in jax.tree.leaves(average)]
    for found in (begun, same, loaded.params, last.params):
        assert_close(found, want, atol=0)
    assert loaded.config == {"kind": "merge"} and "at step 0" in last.name


def test_it_is_merged_once_and_again_when_a_model_changed(run, capsys, tmp_path):
    run()
    manifest = tmp_path / "mix" / "checkpoints" / "0" / "manifest.json"
    before = manifest.stat().st_mtime_ns
    _, average, found = run()
    assert manifest.stat().st_mtime_ns == before
    assert "merged before" in capsys.readouterr().out
    assert_close(average, slow_sum(found[:2], (0.5, 0.5)))
    _, average, _ = run(merge__weights=(1.0, 3.0))
    assert "merged again: it was made by another config" in capsys.readouterr().out
    assert_close(average, slow_sum(found[:2], (0.25, 0.75)))

    def prepare(context):
        save(context, "a", found[2], step=6)

    _, average, _ = run(prepare=prepare)
    assert_close(average, slow_sum([found[2], found[1]], (0.5, 0.5)))
    record = json.loads((tmp_path / "mix" / merge.RECORD).read_text())
    assert record["models"] == [[0.5, "a"], [0.5, "b"]]


def test_a_damaged_or_unfinished_merge_is_made_again(run, tmp_path):
    _, first, _ = run()
    step = tmp_path / "mix" / "checkpoints" / "0"
    (step / "manifest.json").unlink()
    _, again, _ = run()
    assert_close(again, [np.asarray(x) for x in jax.tree.leaves(first)], atol=0)
    (tmp_path / "mix" / merge.RECORD).unlink()  # killed before it was written
    run()
    assert (step / "manifest.json").is_file()


def test_it_is_evaluated_once_if_there_is_something_to_evaluate_on(
    run, tmp_path, monkeypatch
):
    seen = []

    def evaluate(engine, pool, text, params, prompts, stage, stop):
        seen.append(len(prompts))
        return {"eval/accuracy_greedy": 0.25, "eval/num_prompts": len(prompts)}

    monkeypatch.setattr(merge, "evaluate", evaluate)
    monkeypatch.setattr(merge, "make_engine", lambda *_: None)
    keys = {"data__eval": "arithmetic", "eval__num_prompts": 5}
    run(**keys)
    run(**keys)
    assert seen == [5]
    (line,) = data_stages.lines(tmp_path / "mix" / "metrics.jsonl")
    assert (line["step"], line["eval/accuracy_greedy"]) == (0, 0.25)


def test_models_of_another_size_or_tokenizer_are_refused(run, tmp_path):
    other = tmp_path / "other"

    def prepare(context):
        small = dataclasses.replace(context.model, ffn_width=32)
        (other / "checkpoints").mkdir(parents=True)
        with Checkpointer(other / "checkpoints", keep=1) as saver:
            params = init_params(small, context.mesh, 0)
            saver.save(0, {"params": params}, {})

    with pytest.raises(ConfigError) as error:
        run(models=("a", str(other)), prepare=prepare)
    assert len(str(error.value).splitlines()) <= 3
    run_of = data_stages.run_of({"sft": "sft"}, sft__data__train="programs")
    elsewhere = tmp_path / "elsewhere"
    with data_stages.built(elsewhere, run_of) as context:
        save(context, "sft", weights_of(context.model, context.mesh, 0))
    with pytest.raises(ConfigError, match="has another tokenizer than this run"):
        run(models=("a", str(elsewhere / "sft")))


def test_reward_models_are_averaged_with_what_their_scores_are_like(tmp_path):
    rows = [{"prompt": "What is it?", "chosen": "This.", "rejected": "No."}] * 4
    pairs = data_stages.write(tmp_path / "pairs.jsonl", rows)
    kinds = {"r": "reward_model", "s": "reward_model", "mix": "merge"}
    config = data_stages.run_of(
        kinds,
        mix__merge__models=("r", "s"),
        r__data__train=str(pairs),
        s__data__train=str(pairs),
    )
    with data_stages.built(tmp_path, config) as context:
        found = []
        for seed, name in enumerate("rs"):
            policy = weights_of(context.model, context.mesh, seed)
            one = reward_head.from_policy(policy, context.model)
            found.append(dataclasses.replace(one, bias=one.bias + seed))
            save(context, name, found[-1])
            marker = Marker("ranking", float(seed), 1.0 + seed, 10)
            reward_marker.write(tmp_path / name, marker)
        (unread,) = tiny.anything(None)
        average: Any = merge.run(context, config.stages[-1], unread)
    assert_close(average, slow_sum(found, (0.5, 0.5)))
    assert float(average.bias) == 0.5
    told = reward_marker.read(tmp_path / "mix", "merge.models")
    assert told == Marker("ranking", 0.5, 1.5, 20)
