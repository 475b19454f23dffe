"""From one form to the other and back: nothing may be lost on the way."""

import json
import shutil
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tiny_families
import tiny_stage as tiny
from rl_jax import command_line, convert, generate
from rl_jax.load import load
from rl_jax.models import export
from rl_jax.stages import chain, weights

TIED, UNTIED = "qwen2", "llama"


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tiny.trained(tmp_path_factory.getbasetemp())[0]


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory):
    """Programs are compiled once, although each command makes an engine."""
    with tiny.compilation_cache(tmp_path_factory.mktemp("compiled")):
        yield


def downloaded(folder, family, files, dtype=ml_dtypes.bfloat16):
    """A folder as people download it: two files, bfloat16, a tokenizer, odd spacing."""
    tiny_families.write(family, folder)
    config = {**tiny_families.config_of(family), "torch_dtype": "bfloat16"}
    config.pop("dtype", None)
    (folder / "config.json").write_text(json.dumps(config, indent=7))
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: value.astype(dtype) for name, value in tensors.items()}
    (folder / "model.safetensors").unlink()
    names, where = sorted(tensors), {}
    for i, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        where |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in files.iterdir():
        if path.name != "config.json":
            shutil.copyfile(path, folder / path.name)
    (folder / "chat_template.jinja").write_bytes(
        b"{% for m in messages %}<|user|>{{ m.content }}\r\n{% endfor %}"
    )
    return folder


def tensors_of(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


def assert_same_model(found, want):
    """Two Hugging Face folders: the same bits, the same files beside them."""
    ours, theirs = tensors_of(found), tensors_of(want)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (value.dtype, value.shape)
        assert ours[name].tobytes() == value.tobytes(), name
    beside = {"config.json", *export.SIDE_FILES}
    texts = {p.name: p.read_bytes() for p in want.iterdir() if p.name in beside}
    assert {p.name: p.read_bytes() for p in found.iterdir() if p.name in beside} == (
        texts
    )
    assert "config.json" in texts and "tokenizer_config.json" in texts


def converted(source, out, *words):
    assert convert.main([f"--model={source}", f"--out={out}", *words]) == 0
    return out


@pytest.mark.parametrize("family", [TIED, UNTIED])
def test_there_and_back_is_the_same_to_the_bit(workdir, tmp_path, family, capsys):
    source = downloaded(tmp_path / "in", family, workdir / "tokenizer")
    kept = converted(source, tmp_path / "kept")
    assert_same_model(converted(kept, tmp_path / "out"), source)
    out = capsys.readouterr().out
    assert f"{tmp_path / 'kept'} at step 0" in out and "in bfloat16" in out
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert f"model.safetensors, {size:,} bytes" in out and "peak" in out


@pytest.mark.parametrize("family", [TIED, UNTIED])
def test_the_same_form_again_is_the_same_to_the_bit(workdir, tmp_path, family):
    source = downloaded(tmp_path / "in", family, workdir / "tokenizer")
    out = converted(source, tmp_path / "out", "--to=huggingface")
    assert_same_model(out, source)
    kept = converted(source, tmp_path / "kept")
    again = converted(kept, tmp_path / "again", "--to=checkpoint")
    assert_same_model(converted(again, tmp_path / "last"), source)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_types_are_those_of_the_tensors_even_where_the_config_says_another(
    workdir, tmp_path, dtype
):
    # config.json says bfloat16, and one norm is float32 in any case.
    source = downloaded(tmp_path / "in", TIED, workdir / "tokenizer", dtype)
    path = source / "model-00002-of-00002.safetensors"
    tensors, name = load_file(path), "model.norm.weight"
    tensors[name] = tensors[name].astype(np.float32) + np.float32(1e-6)
    save_file(tensors, path)
    assert_same_model(converted(source, tmp_path / "a", "--to=huggingface"), source)
    kept = converted(source, tmp_path / "kept")
    assert_same_model(converted(kept, tmp_path / "out"), source)


def test_another_type_may_be_asked_for(workdir, tmp_path):
    source = downloaded(tmp_path / "in", TIED, workdir / "tokenizer")
    words = ("--to=huggingface", "--dtype=float32")
    out = converted(source, tmp_path / "out", *words)
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "float32"
    for name, value in tensors_of(source).items():
        found = tensors_of(out)[name]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, value.astype(np.float32))
    kept = converted(out, tmp_path / "kept", "--dtype=bfloat16")
    assert json.loads((kept / "model.json").read_text())["param_dtype"] == "bfloat16"
    # Of which the folder that it came from is float32.
    assert_same_model(converted(kept, tmp_path / "back"), out)


# A run's model.


def test_a_run_becomes_the_folder_that_it_exported(workdir, tmp_path):
    assert_same_model(converted(workdir, tmp_path / "out"), workdir / chain.EXPORT)


def test_a_stage_and_a_step_may_be_chosen(workdir, tmp_path, capsys):
    source = tmp_path / "run"
    shutil.copytree(workdir, source)
    converted(source / "sft", tmp_path / "a", "--step=2")
    converted(source, tmp_path / "b", "--step=2")  # which only that stage has
    capsys.readouterr()
    assert_same_model(tmp_path / "a", tmp_path / "b")
    argv = [f"--model={source}", f"--out={tmp_path / 'c'}", "--step=7"]
    assert command_line.exit_on_config_error(convert.main, argv) == 2
    assert "no checkpoint of step 7.\nThere are these: 1, 2" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_converted_folder_serves_wherever_a_work_folder_does(
    workdir, tmp_path, capsys
):
    kept = converted(workdir / chain.EXPORT, tmp_path / "kept")
    capsys.readouterr()
    # The last stage's weights: of load, of init, and of generate.
    with jax.set_mesh(tiny.one_device()):
        want, found = (load(path, tiny.one_device()) for path in (workdir, kept))
    assert found.config is None
    jax.tree.map(np.testing.assert_array_equal, found.params, want.params)
    with tiny.built(workdir, rl__init=kept) as context:
        params = weights.policy(context, context.run.stages[1].init, "rl.init")()
    jax.tree.map(np.testing.assert_array_equal, params, want.params)
    said = []
    for path in (workdir, kept):
        words = ["--prompt=Start with 9, minus 4.", "--max_new_tokens=4"]
        assert generate.main([f"--model={path}", *words]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_a_run_that_trains_in_float32_goes_back_in_the_type_it_came_in(
    workdir, tmp_path
):
    source = downloaded(tmp_path / "in", UNTIED, workdir / "tokenizer")
    kept = converted(source, tmp_path / "kept", "--dtype=float32")
    # As a run leaves it: a config of its own, and no origin.
    (kept / convert.ORIGIN).unlink()
    (kept / "config.json").write_text(json.dumps({"kind": "sft"}))
    assert_same_model(converted(kept, tmp_path / "out"), source)
    again = converted(kept, tmp_path / "again", "--to=checkpoint")
    assert_same_model(converted(again, tmp_path / "last"), source)


# Faults: exit code 2, three lines at most, nothing written.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model={none}"], "none holds no model"),
        (["--model={source}", "--step=3"], "is a Hugging Face folder, which has no"),
        (["--model={source}", "--dtype=float16"], "no model is trained in it"),
        (["--model={source}", "--out={source}"], "is not empty"),
        (["--model={source}", "--out={source}/config.json"], "is a file"),
        (["--model={bare}"], "neither tokenizer.json nor tokenizer.model"),
        (["--model={cut}"], "is not a whole safetensors file"),
        (["--model={source}/tokenizer.model"], "holds no model"),
    ],
)
def test_a_wrong_argument_exits_with_2_and_writes_nothing(
    workdir, tmp_path, capsys, words, told
):
    source = downloaded(tmp_path / "in", TIED, workdir / "tokenizer")
    bare = tiny_families.write(TIED, tmp_path / "bare")
    cut = tmp_path / "cut"
    shutil.copytree(source, cut)
    path = cut / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    before = sorted(tmp_path.rglob("*"))
    places = {"source": source, "bare": bare, "cut": cut, "none": tmp_path / "none"}
    argv = [f"--out={tmp_path / 'out'}", *(word.format(**places) for word in words)]
    assert command_line.exit_on_config_error(convert.main, argv) == 2
    message = capsys.readouterr().err
    assert told in message and len(message.splitlines()) <= 3
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_is_taken_is_told_before_jax_is_imported(tmp_path):
    code = (
        "import sys\nfrom rl_jax import command_line, convert\n"
        f"argv = ['--model=m', '--out={tmp_path}']\n"
        "code = command_line.exit_on_config_error(convert.main, argv)\n"
        "print(code, 'jax' in sys.modules, 'numpy' in sys.modules)"
    )
    (tmp_path / "file").write_text("")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "False", "False"], done.stderr
    assert "is not empty" in done.stderr
