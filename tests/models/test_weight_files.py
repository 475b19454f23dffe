import contextlib
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from rl_jax.errors import ConfigError
from rl_jax.models.weight_files import open_tensors

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.float16)


def opened(folder):
    """Name -> values of all tensors of a folder."""
    with contextlib.ExitStack() as stack:
        tensors = open_tensors(folder, stack)
        return {n: t.handle.get_slice(n)[:] for n, t in tensors.items()}


def write_two_files(folder, weight_map):
    save_file({"a": A}, folder / "one.safetensors")
    save_file({"b": B}, folder / "two.safetensors")
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index)


def test_tensors_of_one_file_and_of_indexed_files_are_found(tmp_path):
    write_two_files(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    found = opened(tmp_path)
    np.testing.assert_array_equal(found["a"], A)
    np.testing.assert_array_equal(found["b"], B)
    save_file({"c": A}, tmp_path / "model.safetensors")
    assert set(opened(tmp_path)) == {"c"}


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors", "b": "three.safetensors"}, "three.* does not exist"),
        ({"a": "two.safetensors", "b": "two.safetensors"}, "does not hold a"),
        (
            {
                "a": "one.safetensors",
                "b": "two.safetensors",
                "c": "two.safetensors",
            },
            "two.safetensors does not hold c",
        ),
        ({"b": "one.safetensors"}, "one.safetensors holds a .*places in None"),
        ({}, "no names in its weight_map"),
        (None, "no names in its weight_map"),
    ],
)
def test_an_index_that_disagrees_with_the_files_is_refused(
    tmp_path, weight_map, message
):
    write_two_files(tmp_path, weight_map)
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path)


def test_pickled_weights_are_refused_with_the_way_to_convert_them(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match="pytorch_model.bin.*\n.*save_pretrained"):
        opened(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="neither model.safetensors nor"):
        opened(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "pointer", "empty"])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "model.safetensors"
    save_file({"a": A}, path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-4])
    elif damage == "pointer":
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    else:
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match="model.safetensors .* is not a whole") as e:
        opened(tmp_path)
    assert len(str(e.value).splitlines()) <= 3
