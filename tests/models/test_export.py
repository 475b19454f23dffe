"""Weights out: as they came in, byte for byte, whatever happens in between."""

import json
import os
import pathlib
import tracemalloc

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tiny_families
from rl_jax.errors import ConfigError
from rl_jax.mesh import make_mesh
from rl_jax.models import export, weight_files
from rl_jax.models.huggingface import load_params, spec_from_config
from rl_jax.models.params import map_layout
from rl_jax.models.spec import ModelSpec

FILES = pathlib.Path(__file__).parent / "files"
# Name -> the type it is stored in, tied or not, one file or two.
STORED = {"untied": "float32", "scaled": "bfloat16", "wide_heads": "float16"}
MODEL = ModelSpec(
    # No two sizes alike, so that a transposed or merged axis cannot pass.
    num_layers=3,
    width=14,
    num_heads=10,
    num_kv_heads=5,
    head_dim=4,
    ffn_width=11,
    vocab_size=17,
    tie_embeddings=False,
)


def model_of(folder, param_dtype="float32"):
    choices = {"dtype": "float32", "float32_head": True, "remat": "none"}
    return spec_from_config(folder, param_dtype=param_dtype, **choices)


def one_device():
    return make_mesh(devices=jax.devices()[:1])


def eight_devices():
    return make_mesh(fsdp=4, tensor=2, devices=jax.devices()[:8])


def read(folder):
    """(model, weights) of a folder, on one device."""
    model = model_of(folder)
    return model, load_params(folder, model, one_device())


def random_params(model=MODEL, seed=0):
    rng = np.random.default_rng(seed)
    return map_layout(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), model
    )


def tensors_of(folder):
    """Every tensor of a folder by name."""
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


def assert_same_bits(found, want):
    assert found.keys() == want.keys()
    for name, value in want.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert found[name].tobytes() == value.tobytes(), name


# What goes out is what came in.


@pytest.mark.parametrize("mesh", [one_device, eight_devices])
@pytest.mark.parametrize("name", STORED)
def test_every_tensor_comes_out_bit_for_bit_after_float32(tmp_path, name, mesh):
    model = model_of(FILES / name)
    params = load_params(FILES / name, model, mesh())
    named = json.loads((FILES / name / "config.json").read_text())
    config = {**named, "torch_dtype": STORED[name]}
    done = export.save_params(
        params, model, tmp_path / "out", config=config, shard_bytes=20_000
    )
    found = tensors_of(tmp_path / "out")
    assert_same_bits(found, tensors_of(FILES / name))
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == config
    assert done.num_params == sum(x.size for x in found.values())
    assert done.dtype == STORED[name]
    assert done.files == {
        p.name: p.stat().st_size for p in (tmp_path / "out").iterdir()
    }


@pytest.mark.parametrize("name", tiny_families.NAMES)
def test_every_family_comes_out_with_the_names_it_came_in_with(tmp_path, name):
    folder = tiny_families.write(name, tmp_path / "in")
    model, params = read(folder)
    export.save_folder(params, model, tmp_path / "out", folder)
    assert_same_bits(tensors_of(tmp_path / "out"), tensors_of(folder))
    config = (folder / "config.json").read_bytes()
    assert (tmp_path / "out" / "config.json").read_bytes() == config
    # Without the source's config.json, one that means the same is made.
    export.save_params(params, model, tmp_path / "made")
    assert model_of(tmp_path / "made") == model


def test_every_axis_of_every_weight_goes_where_it_came_from(tmp_path):
    params = random_params()
    export.save_params(params, MODEL, tmp_path / "out")
    stored = tensors_of(tmp_path / "out")
    layers = jax.tree.map(np.asarray, params.layers)
    for i in range(3):
        pre = f"model.layers.{i}"
        for d, h, c in np.ndindex(14, 10, 4):
            q = stored[f"{pre}.self_attn.q_proj.weight"][h * 4 + c, d]
            o = stored[f"{pre}.self_attn.o_proj.weight"][d, h * 4 + c]
            assert q == layers.w_q_LDHC[i, d, h, c]
            assert o == layers.w_o_LHCD[i, h, c, d]
        down_DF = stored[f"{pre}.mlp.down_proj.weight"]
        np.testing.assert_array_equal(down_DF.T, layers.w_down_LFD[i])
    found = load_params(tmp_path / "out", MODEL, one_device())
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_a_tied_head_is_not_written(tmp_path):
    folder = tiny_families.write("qwen2", tmp_path / "in")
    assert model_of(folder).tie_embeddings
    tensors = load_file(folder / "model.safetensors")
    embed = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embed}, folder / "model.safetensors")
    model, params = read(folder)
    export.save_folder(params, model, tmp_path / "out", folder)
    assert_same_bits(tensors_of(tmp_path / "out"), tensors)


# Types.


def with_values(values, tmp_path):
    """A folder whose first norm has these float32 values; (model, weights)."""
    tensors = load_file(FILES / "untied" / "model.safetensors")
    tensors["model.norm.weight"][: len(values)] = values
    (tmp_path / "in").mkdir()
    save_file(tensors, tmp_path / "in" / "model.safetensors")
    config = (FILES / "untied" / "config.json").read_bytes()
    (tmp_path / "in" / "config.json").write_bytes(config)
    return read(tmp_path / "in")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_values_are_rounded_to_the_nearest_and_small_ones_are_kept(tmp_path, dtype):
    # Ties, and below the normal range of each type, which XLA on a CPU takes for zero.
    values = [1.00390625, 1.01171875, 1e-40, -1e-39, 6e-8, 1e-6, 0.1, -0.0]
    values = np.array(values, np.float32)
    model, params = with_values(values, tmp_path)
    export.save_params(params, model, tmp_path / "out", dtype=dtype)
    found = tensors_of(tmp_path / "out")["model.norm.weight"][:8]
    want = values.astype(jnp.dtype(dtype))
    assert found.tobytes() == want.tobytes()
    below = found[2:4] if dtype == "bfloat16" else found[4:6]
    assert (below != 0).all()


@pytest.mark.parametrize("values", [[1.0, -70_000.0], [np.inf, 1.0], [np.nan, 1.0]])
def test_a_value_beyond_the_range_of_a_type_is_told_by_name(tmp_path, values):
    model, params = with_values(np.float32(values), tmp_path)
    if np.isfinite(values).all():
        with pytest.raises(ConfigError, match="model.norm.weight .*70000.*float16"):
            export.save_params(params, model, tmp_path / "out", dtype="float16")
        assert {p.name for p in tmp_path.iterdir()} == {"in"}
    else:  # what was infinite before is no fault of the type
        export.save_params(params, model, tmp_path / "out", dtype="float16")


@pytest.mark.parametrize(
    ("keys", "asked", "written", "named"),
    [
        ({"torch_dtype": "bfloat16"}, "", "bfloat16", {"torch_dtype": "bfloat16"}),
        ({"dtype": "float16"}, "", "float16", {"dtype": "float16"}),
        ({"dtype": "bfloat16"}, "float32", "float32", {"dtype": "float32"}),
        ({}, "", "float32", {}),
        ({}, "bfloat16", "bfloat16", {"torch_dtype": "bfloat16"}),
        ({"torch_dtype": "float32"}, "float32", "float32", {"torch_dtype": "float32"}),
    ],
)
def test_the_type_is_the_one_asked_for_or_that_of_the_config(
    tmp_path, keys, asked, written, named
):
    config = tiny_families.config_of("llama")
    config = {k: v for k, v in config.items() if k not in ("dtype", "torch_dtype")}
    folder = tiny_families.write("llama", tmp_path / "in")
    text = json.dumps({**config, **keys}, indent=4)
    (folder / "config.json").write_text(text)
    model, params = read(folder)
    done = export.save_folder(params, model, tmp_path / "out", folder, dtype=asked)
    assert done.dtype == written
    assert {str(x.dtype) for x in tensors_of(tmp_path / "out").values()} == {written}
    found = (tmp_path / "out" / "config.json").read_text()
    assert json.loads(found) == {**config, **named}
    assert (found == text) == (keys == named)  # else as it is, to the byte


def test_each_tensor_may_have_its_own_type(tmp_path):
    folder = tiny_families.write("llama", tmp_path / "in")
    config = (folder / "config.json").read_bytes()
    model, params = read(folder)
    types = dict.fromkeys(export.tensor_names(model), "bfloat16")
    types["model.norm.weight"] = "float32"
    done = export.save_folder(params, model, tmp_path / "out", folder, dtype=types)
    assert done.dtype == "bfloat16, float32"
    for name, value in tensors_of(tmp_path / "out").items():
        assert str(value.dtype) == types[name]
    assert (tmp_path / "out" / "config.json").read_bytes() == config


@pytest.mark.parametrize("where", ["asked for", "in config.json"])
def test_an_unknown_type_is_refused(tmp_path, where):
    folder = tiny_families.write("llama", tmp_path / "in", dtype="float8_e4m3fn")
    model, params = read(folder)
    asked = "float64" if where == "asked for" else ""
    with pytest.raises(ConfigError, match="float(64|8_e4m3fn)") as error:
        export.save_folder(params, model, tmp_path / "out", folder, dtype=asked)
    assert "bfloat16" in str(error.value)
    assert not (tmp_path / "out").exists()


# Files.


@pytest.mark.parametrize("shard_bytes", [10**9, 2500, 1])
def test_files_are_those_that_the_library_writes_and_the_index_says_which(
    tmp_path, shard_bytes
):
    params = random_params()
    out = tmp_path / "out"
    export.save_params(params, MODEL, out, shard_bytes=shard_bytes)
    paths = sorted(out.glob("*.safetensors"))
    for path in paths:
        save_file(load_file(path), tmp_path / "again", metadata={"format": "pt"})
        assert path.read_bytes() == (tmp_path / "again").read_bytes()
    where = {name: path.name for path in paths for name in load_file(path)}
    total = sum(x.nbytes for x in tensors_of(out).values())
    if shard_bytes > total:
        assert [path.name for path in paths] == ["model.safetensors"]
        assert not (out / weight_files.INDEX).exists()
        return
    index = json.loads((out / weight_files.INDEX).read_text())
    assert index["weight_map"] == where
    assert index["metadata"] == {"total_size": total, "total_parameters": total // 4}
    number = len(paths)
    assert [path.name for path in paths] == [
        f"model-{i + 1:05}-of-{number:05}.safetensors" for i in range(number)
    ]
    for path in paths:
        sizes = [x.nbytes for x in load_file(path).values()]
        assert sum(sizes) <= shard_bytes or len(sizes) == 1
    assert load_params(out, MODEL, one_device()).embed_VD.shape == (17, 14)


def test_files_are_readable_as_the_umask_says(tmp_path):
    before = os.umask(0o027)
    try:
        export.save_params(random_params(), MODEL, tmp_path / "out")
    finally:
        os.umask(before)
    for path in (tmp_path / "out").iterdir():
        assert path.stat().st_mode & 0o777 == 0o640, path
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750


def test_what_stands_beside_the_weights_is_copied_byte_for_byte(tmp_path):
    folder = tiny_families.write("llama", tmp_path / "in")
    for name in export.SIDE_FILES:
        (folder / name).write_bytes(name.encode() + b"\r\n\xff")
    (folder / "README.md").write_text("not of the model")
    model, params = read(folder)
    more = {"tokenizer.json": b"another"}
    export.save_folder(params, model, tmp_path / "out", folder, more=more)
    for name in ("config.json", *export.SIDE_FILES):
        want = more.get(name, (folder / name).read_bytes())
        assert (tmp_path / "out" / name).read_bytes() == want
    assert not (tmp_path / "out" / "README.md").exists()


def test_a_new_models_config_has_the_ids_of_its_tokenizer(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    ids = {"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": 0}
    path = tmp_path / "tokenizer" / "generation_config.json"
    path.write_text(json.dumps({**ids, "temperature": 1.0}))
    params = random_params()
    export.save_folder(params, MODEL, tmp_path / "out", tmp_path / "tokenizer")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {key: config[key] for key in ids} == ids and "temperature" not in config
    assert config["torch_dtype"] == "float32" and model_of(tmp_path / "out") == MODEL


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("num_hidden_layers", 1, "num_layers is 1 there, 2"),
        ("rope_theta", 5.0, "attention is"),
        ("tie_word_embeddings", True, "tie_embeddings is True there, False"),
    ],
)
def test_the_config_of_another_model_is_refused(tmp_path, key, value, told):
    config = json.loads((FILES / "untied" / "config.json").read_text())
    model, params = read(FILES / "untied")
    export.check(model, config)
    with pytest.raises(ConfigError, match=told):
        export.save_params(
            params, model, tmp_path / "out", config={**config, key: value}
        )
    assert not any(tmp_path.iterdir())


# What can go wrong.


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    params = random_params()
    with pytest.raises(ConfigError, match="is not empty"):
        export.save_params(params, MODEL, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def flipped(write):
    def writing(path, outlines, tensors):
        sums = write(path, outlines, tensors)
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
        return sums

    return writing


def cut(write):
    def writing(path, outlines, tensors):
        sums = write(path, outlines, tensors)
        path.write_bytes(path.read_bytes()[:-8])
        return sums

    return writing


def transposed_by_the_library(write):
    """As safetensors 0.8 writes arrays that are not contiguous."""

    def writing(path, outlines, tensors):
        sums = write(path, outlines, tensors)
        wrong = {n: np.asfortranarray(x) for n, x in load_file(path).items()}
        wrong = {n: x.ravel("K").reshape(x.shape) for n, x in wrong.items()}
        save_file(wrong, path, metadata={"format": "pt"})
        return sums

    return writing


def without_one(write):
    def writing(path, outlines, tensors):
        sums = write(path, outlines, tensors)
        save_file(dict(list(load_file(path).items())[1:]), path)
        return sums

    return writing


@pytest.mark.parametrize(
    "fault", [flipped, cut, transposed_by_the_library, without_one]
)
def test_what_does_not_read_back_as_it_was_meant_is_never_given_out(
    tmp_path, monkeypatch, fault
):
    write = weight_files.write_tensors
    monkeypatch.setattr(weight_files, "write_tensors", fault(write))
    params = random_params()
    with pytest.raises(OSError, match="model.safetensors.*(differ|cannot be read)"):
        export.save_params(params, MODEL, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_the_host_holds_little_more_than_one_tensor(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_files, "_BLOCK_BYTES", 2**16)
    model = ModelSpec(
        num_layers=12,
        width=128,
        num_heads=4,
        num_kv_heads=4,
        head_dim=32,
        ffn_width=256,
        vocab_size=512,
        param_dtype="bfloat16",
    )
    params = map_layout(lambda leaf: jnp.ones(leaf.shape, jnp.bfloat16), model)
    largest = 512 * 128 * 4
    export.save_params(params, model, tmp_path / "first", shard_bytes=10**6)
    tracemalloc.start()
    try:
        export.save_params(params, model, tmp_path / "out", dtype="float32")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    stored = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert peak < largest + 4 * 2**16 < stored / 10
    assert tensors_of(tmp_path / "out")["model.norm.weight"].dtype == np.float32
    assert (
        ml_dtypes.bfloat16 == tensors_of(tmp_path / "first")["model.norm.weight"].dtype
    )
