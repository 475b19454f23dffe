"""The merge command: averages of folders and checkpoints, and what it refuses."""

import json
import shutil
import subprocess
import sys
import tracemalloc
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tiny_families
import tiny_stage as tiny
from rl_jax import checkpoint, command_line, convert, merge
from rl_jax.load import find, load
from rl_jax.models import decoder, weight_files
from rl_jax.models.params import abstract_params
from rl_jax.stages.run_state import CHECKPOINTS

FAMILY = "qwen2"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tiny.trained(tmp_path_factory.getbasetemp())[0]


@pytest.fixture(scope="module")
def pair(workdir, tmp_path_factory):
    """Two folders of one family with a tokenizer, and other weights."""
    base = tmp_path_factory.mktemp("pair")
    return tuple(folder(base / name, workdir, seed) for seed, name in enumerate("ab"))


def folder(path, workdir, seed=0, family=FAMILY, dtype: Any = np.float32):
    tiny_families.write(family, path)
    tensors = load_file(path / "model.safetensors")
    rng = np.random.default_rng(seed)
    for name in tensors:
        noise = 0.1 * seed * rng.normal(size=tensors[name].shape)
        tensors[name] = (tensors[name] + noise).astype(dtype)
    save_file(tensors, path / "model.safetensors")
    for file in (workdir / "tokenizer").iterdir():
        if file.name != "config.json":
            shutil.copyfile(file, path / file.name)
    return path


def tensors_of(path):
    found = {}
    for file in path.glob("*.safetensors"):
        found |= load_file(file)
    return found


def slow_average(folders, weights):
    stored = [tensors_of(path) for path in folders]
    return {
        name: sum(w * t[name].astype(np.float64) for w, t in zip(weights, stored))
        for name in stored[0]
    }


def merged(out, *words):
    assert merge.main([*map(str, words), f"--out={out}"]) == 0
    return out


def assert_close(found, want, atol=1e-6):
    assert found.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=atol, err_msg=name)


# Hugging Face folders.


@pytest.mark.parametrize(
    ("words", "weights"),
    [
        ([], (0.5, 0.5)),
        (["--weights=3,1"], (0.75, 0.25)),
        (["--ema=0.9"], (0.9, 0.1)),
        (["--weights=0,1"], (0.0, 1.0)),
    ],
)
def test_folders_are_averaged_by_their_weights(pair, tmp_path, words, weights, capsys):
    out = merged(tmp_path / "out", *pair, *words)
    assert_close(tensors_of(out), slow_average(pair, weights))
    told = capsys.readouterr().out
    assert f"read        {weights[0]:.4f} x {pair[0]}" in told
    for name in ("config.json", "tokenizer.model", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (pair[0] / name).read_bytes()


def test_merged_logits_are_those_of_averaged_weights(pair, tmp_path):
    out = merged(tmp_path / "out", *pair, "--weights=3,1")
    mesh = tiny.one_device()
    token_BT = tiny_families.expected(FAMILY)[0]
    position_BT = np.broadcast_to(np.arange(token_BT.shape[1]), token_BT.shape)
    on = jax.sharding.NamedSharding(mesh, jax.P(("replica", "fsdp")))
    token_BT, position_BT, segment_BT = (
        jax.device_put(np.asarray(x, np.int32), on)
        for x in (token_BT, position_BT, np.ones_like(token_BT))
    )

    def logits(params, model):
        hidden_BTD = decoder.hidden_states(
            params, token_BT, position_BT, segment_BT, model
        )
        head_VD = decoder.gather_head(params, model)
        return jnp.einsum("BTD,VD->BTV", hidden_BTD, head_VD)

    with jax.set_mesh(mesh):
        a, b, found = (load(path, mesh) for path in (*pair, out))
        by_hand = jax.tree.map(lambda x, y: 0.75 * x + 0.25 * y, a.params, b.params)
        run = jax.jit(logits, static_argnames="model")
        want_BTV, found_BTV, a_BTV = (
            np.asarray(run(params, model=a.model))
            for params in (by_hand, found.params, a.params)
        )
    # Logits of these models are of size 10; float32 sums in another order.
    np.testing.assert_allclose(found_BTV, want_BTV, rtol=0, atol=1e-4)
    assert np.abs(found_BTV - a_BTV).max() > 0.1


def test_a_folder_merged_with_itself_is_itself_to_the_bit(workdir, tmp_path):
    for dtype in (ml_dtypes.bfloat16, np.float16, np.float32):
        name = np.dtype(dtype).name
        one = folder(tmp_path / name, workdir, 1, dtype=dtype)
        out = merged(tmp_path / f"{name}_out", one, one)
        theirs = tensors_of(one)
        for key, value in tensors_of(out).items():
            assert value.dtype == dtype and value.tobytes() == theirs[key].tobytes()


def test_the_types_are_those_of_the_first(workdir, pair, tmp_path):
    other = folder(tmp_path / "half", workdir, 1, dtype=ml_dtypes.bfloat16)
    found = tensors_of(merged(tmp_path / "x", pair[0], other))
    assert {value.dtype for value in found.values()} == {np.dtype(np.float32)}
    found = tensors_of(merged(tmp_path / "y", other, pair[0]))
    assert {value.dtype for value in found.values()} == {np.dtype(ml_dtypes.bfloat16)}


def test_a_model_in_several_files_becomes_several_files(
    pair, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(weight_files, "SHARD_BYTES", 20_000)
    many = merged(tmp_path / "many", *pair)
    assert len(list(many.glob("*.safetensors"))) > 1
    assert (many / weight_files.INDEX).is_file()
    again = merged(tmp_path / "again", many, many)
    assert_close(tensors_of(again), slow_average(pair, (0.5, 0.5)))
    with jax.set_mesh(tiny.one_device()):
        load(many, tiny.one_device())


def test_a_merge_of_folders_holds_a_block_of_each_and_no_more(
    pair, tmp_path, monkeypatch
):
    shape, block = (4096, 256), 2**18
    monkeypatch.setattr(weight_files, "_BLOCK_BYTES", block)
    files = []
    for i in range(3):
        path = tmp_path / f"{i}.safetensors"
        save_file({"w": np.full(shape, float(i), np.float32)}, path)
        handle = weight_files.OneFile(path)
        files.append({"w": weight_files.Stored(path, handle, list(shape), "F32")})
    outline = weight_files.Outline(np.dtype(np.float32), shape)
    tracemalloc.start()
    for part in merge._blocks("w", outline, files, (0.5, 0.25, 0.25)):
        assert part.nbytes <= block and (part == 0.75).all()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Values, what they were read as, their product, the sum and the block to write.
    assert peak < 8 * block < outline.num_bytes


def test_an_average_beyond_the_range_of_the_first_type_is_refused(
    workdir, pair, tmp_path, capsys
):
    one = folder(tmp_path / "half", workdir, dtype=np.float16)
    large = shutil.copytree(pair[1], tmp_path / "large")
    tensors = load_file(large / "model.safetensors")
    tensors["model.norm.weight"][:] = 1e6
    save_file(tensors, large / "model.safetensors")
    refused(capsys, [one, large, f"--out={tmp_path / 'out'}"], "beyond the range")
    assert not (tmp_path / "out").exists()


# Checkpoints.


def test_checkpoints_of_a_run_are_averaged_by_step(workdir, tmp_path):
    source = tmp_path / "run"
    shutil.copytree(workdir, source)
    words = [f"{source / 'sft'}@2", f"{source / 'rl'}@1"]
    out = merged(tmp_path / "out", *words, "--weights=1,3")
    mesh = tiny.one_device()
    with jax.set_mesh(mesh):
        a = read(source / "sft", 2, mesh)
        b = read(source / "rl", 1, mesh)
        found = load(out, mesh)
    want = jax.tree.map(lambda x, y: 0.25 * x + 0.75 * y, a, b)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=1e-6),
        found.params,
        want,
    )
    origin = json.loads((out / convert.ORIGIN).read_text())
    assert [weight for weight, _ in origin["model"]] == [0.25, 0.75]
    assert "sft at step 2" in origin["model"][0][1]
    # It serves like any other: the other form has the same weights.
    assert convert.main([f"--model={out}", f"--out={tmp_path / 'hf'}"]) == 0


def read(stage, step, mesh):
    abstract = abstract_params(find(stage, step).model, mesh)
    return checkpoint.load_params(stage / CHECKPOINTS, abstract, step=step)


def test_a_checkpoint_and_a_folder_are_averaged_to_either_form(workdir, tmp_path):
    mesh = tiny.one_device()
    with jax.set_mesh(mesh):
        other = tiny.exported(workdir, tmp_path / "folder")
    tensors = load_file(other / "model.safetensors")
    tensors = {name: value + np.float32(1) for name, value in tensors.items()}
    save_file(tensors, other / "model.safetensors")
    kept = merged(tmp_path / "kept", workdir, other)
    sent = merged(tmp_path / "sent", workdir, other, "--to=huggingface")
    with jax.set_mesh(mesh):
        first, one, two = (load(path, mesh) for path in (workdir, kept, sent))
    for found in (one, two):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y + 0.5, rtol=0, atol=1e-6),
            found.params,
            first.params,
        )


# Faults: exit code 2, three lines at most, nothing written.


def refused(capsys, words, told):
    words = [str(word) for word in words]
    assert command_line.exit_on_config_error(merge.main, words) == 2
    message = capsys.readouterr().err
    assert told in message and len(message.splitlines()) <= 3, message


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["{a}"], "Expected two or more"),
        (["{a}", "{b}", "--weights=1"], "e.g. --weights=2,1"),
        (["{a}", "{b}", "--weights=1,x"], "Expected a number for each"),
        (["{a}", "{b}", "--weights=1,-1"], "none below 0"),
        (["{a}", "{b}", "--weights=0,0"], "not all 0"),
        (["{a}", "{b}", "--ema=1"], "--ema=0.9"),
        (["{a}", "{b}", "--ema=0.5", "--weights=1,1"], "Expected one of them"),
        (["{a}", "{b}@3"], "is a Hugging Face folder, which has no"),
        (["{a}", "{a}/nothing"], "holds no model"),
        (["{a}", "{b}", "--out={a}"], "is not empty"),
        (["{a}", "{other}"], "is another architecture than"),
    ],
)
def test_a_wrong_argument_is_told_and_nothing_is_written(
    workdir, pair, tmp_path, capsys, words, told
):
    other = folder(tmp_path / "other", workdir, family="llama")
    places = {"a": pair[0], "b": pair[1], "other": other}
    before = sorted(tmp_path.rglob("*"))
    words = [word.format(**places) for word in words]
    refused(capsys, [f"--out={tmp_path / 'out'}", *words], told)
    assert sorted(tmp_path.rglob("*")) == before


def test_other_sizes_are_named(workdir, pair, tmp_path, capsys):
    config = tiny_families.config_of(FAMILY)
    other = shutil.copytree(pair[1], tmp_path / "other")
    width = config["intermediate_size"]
    text = json.dumps(config | {"intermediate_size": width + 1})
    (other / "config.json").write_text(text)
    told = f"ffn_width is {width + 1}, not {width}."
    refused(capsys, [pair[0], other, f"--out={tmp_path / 'out'}"], told)


def test_other_tokens_are_named(pair, tmp_path, capsys):
    other = shutil.copytree(pair[1], tmp_path / "other")
    config = json.loads((other / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"]["900"] = {"content": "<new>", "special": True}
    (other / "tokenizer_config.json").write_text(json.dumps(config))
    told = "has another tokenizer than"
    refused(capsys, [pair[0], other, f"--out={tmp_path / 'out'}"], told)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_tokenizer_has_that_of_the_others(pair, tmp_path):
    bare = shutil.copytree(pair[1], tmp_path / "bare")
    for name in ("tokenizer.model", "tokenizer_config.json"):
        (bare / name).unlink()
    out = merged(tmp_path / "out", pair[0], bare)
    assert (out / "tokenizer.model").is_file()


def test_a_tensor_that_is_missing_is_told_before_anything_is_written(
    pair, tmp_path, capsys
):
    other = shutil.copytree(pair[1], tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, other / "model.safetensors")
    told = "model.norm.weight is missing"
    refused(capsys, [pair[0], other, f"--out={tmp_path / 'out'}"], told)
    assert not list(tmp_path.glob("out*"))


def test_a_folder_that_is_taken_is_told_before_jax_is_imported(tmp_path):
    (tmp_path / "file").write_text("")
    code = (
        "import sys\nfrom rl_jax import command_line, merge\n"
        f"argv = ['a', 'b', '--out={tmp_path}']\n"
        "code = command_line.exit_on_config_error(merge.main, argv)\n"
        "print(code, 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "False"], done.stderr
