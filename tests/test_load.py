"""One call for trained and downloaded models."""

import json
import shutil

import jax
import numpy as np
import pytest

import tiny_stage as tiny
from rl_jax.errors import ConfigError
from rl_jax.load import load
from rl_jax.models import export


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tiny.trained(tmp_path_factory.getbasetemp())[0]


@pytest.fixture(scope="module", autouse=True)
def mesh():
    mesh = tiny.one_device()
    with jax.set_mesh(mesh):
        yield mesh


def assert_same(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_chains_workdir_gives_its_last_stage(workdir, mesh):
    loaded = load(workdir, mesh)
    assert loaded.name == f"{workdir / 'rl'} at step 1"
    assert loaded.config is not None and loaded.config["kind"] == "rl"
    assert loaded.params.embed_VD.shape == (loaded.model.vocab_size, 32)
    assert (
        loaded.tokenizer.decode(loaded.tokenizer.encode("9, minus 4")) == "9, minus 4"
    )


def test_one_stage_of_a_chain_may_be_named(workdir, mesh):
    loaded = load(workdir / "sft", mesh)
    assert loaded.name == f"{workdir / 'sft'} at step 2"
    assert loaded.config is not None and loaded.config["kind"] == "sft"


def test_the_workdir_of_a_flat_config_is_its_stage(workdir, mesh, tmp_path):
    flat = tmp_path / "run"
    shutil.copytree(workdir, flat, ignore=shutil.ignore_patterns("sft", "rl"))
    shutil.copytree(workdir / "sft" / "checkpoints", flat / "checkpoints")
    config = json.loads((workdir / "config.json").read_text())["sft"]
    (flat / "config.json").write_text(json.dumps(config))
    loaded = load(flat, mesh)
    assert loaded.name == f"{flat} at step 2" and loaded.config == config
    assert_same(loaded.params, load(workdir / "sft", mesh).params)


def test_a_last_stage_without_a_checkpoint_is_passed_over(workdir, mesh, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(workdir, copy)
    shutil.rmtree(copy / "rl" / "checkpoints" / "1")
    assert load(copy, mesh).name == f"{copy / 'sft'} at step 2"


def test_a_checkpoint_that_does_not_verify_is_not_loaded(workdir, mesh, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(workdir, copy)
    for stage in ("sft", "rl"):
        for path in (copy / stage / "checkpoints").glob("*/manifest.json"):
            path.unlink()
    for path in (copy, copy / "rl"):
        with pytest.raises(ConfigError, match="no checkpoint yet") as error:
            load(path, mesh)
        assert str(copy / "rl" / "checkpoints") in str(error.value)


@pytest.mark.parametrize("place", ["elsewhere", "inside the workdir"])
def test_a_hugging_face_folder_gives_the_same_weights(workdir, mesh, tmp_path, place):
    trained = load(workdir, mesh)
    home = tmp_path
    if place == "inside the workdir":
        home = tmp_path / "run"
        home.mkdir()
        for name in ("model.json", "config.json"):
            shutil.copyfile(workdir / name, home / name)
    folder = home / "exported"
    export.save_params(trained.params, trained.model, folder)
    for path in (workdir / "tokenizer").iterdir():
        shutil.copyfile(path, folder / path.name)
    loaded = load(folder, mesh)
    assert_same(loaded.params, trained.params)
    assert loaded.config is None and loaded.name == str(folder)
    assert loaded.tokenizer.stop_ids == trained.tokenizer.stop_ids


@pytest.mark.parametrize("made", [True, False])
def test_a_folder_that_holds_no_model_is_told(mesh, tmp_path, made):
    folder = tmp_path / "nothing"
    if made:
        folder.mkdir()
    with pytest.raises(ConfigError, match="holds no model") as error:
        load(folder, mesh)
    assert str(folder) in str(error.value)
    assert len(str(error.value).splitlines()) <= 3
