import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from rl_jax.errors import ConfigError
from rl_jax.models.weight_files import (
    Outline,
    divide,
    open_tensors,
    read_back,
    rows_of_blocks,
    stored_order,
    write_tensors,
)

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.float16)


def opened(folder):
    """Name -> values of all tensors of a folder."""
    return {n: t.handle.get_slice(n)[:] for n, t in open_tensors(folder).items()}


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


# Written.


def outline(shape, dtype):
    return Outline(np.dtype(dtype), shape)


@pytest.mark.parametrize(
    ("sizes", "want"),
    [
        ([4, 4], {"model.safetensors": "ab"}),
        (
            [4, 5, 4],
            {
                "model-00001-of-00002.safetensors": "ab",
                "model-00002-of-00002.safetensors": "c",
            },
        ),
        (
            [2, 30, 2],
            {
                "model-00001-of-00003.safetensors": "a",
                "model-00002-of-00003.safetensors": "b",
                "model-00003-of-00003.safetensors": "c",
            },
        ),
    ],
)
def test_tensors_fill_files_in_order_and_a_large_one_has_its_own(sizes, want):
    outlines = {n: outline([s], "int8") for n, s in zip("abc", sizes, strict=False)}
    found = divide(outlines, 10)
    assert {file: "".join(names) for file, names in found.items()} == want


def test_a_file_is_the_one_that_the_library_writes(tmp_path):
    rng = np.random.default_rng(0)
    kinds = {"b": np.float16, "d": ml_dtypes.bfloat16, "a": np.float32, "c": np.float16}
    tensors = {n: rng.normal(size=(3, 5)).astype(t) for n, t in kinds.items()}
    outlines = {n: Outline(x.dtype, x.shape) for n, x in tensors.items()}
    outlines = {n: outlines[n] for n in stored_order(outlines)}
    assert list(outlines) == ["a", "d", "b", "c"]
    blocks = ([tensors[n][:2], tensors[n][2:]] for n in outlines)
    sums = write_tensors(tmp_path / "ours", outlines, blocks)
    save_file(tensors, tmp_path / "theirs", metadata={"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    read_back(tmp_path / "ours", outlines, sums)


def test_a_tensor_of_another_type_or_shape_is_not_what_was_written(tmp_path):
    outlines = {"a": Outline(A.dtype, A.shape)}
    sums = write_tensors(tmp_path / "file", outlines, [[A]])
    for wrong in (A.reshape(3, 2), A.view(np.int32), A + 1):
        save_file({"a": wrong}, tmp_path / "file")
        with pytest.raises(OSError, match="file: a read back"):
            read_back(tmp_path / "file", outlines, sums)


def test_blocks_of_rows_cover_a_tensor_and_are_bounded():
    for shape, itemsize in (((7, 3), 4), ((1,), 2), ((5, 2**25), 4), ((2**26,), 2)):
        rows = list(rows_of_blocks(shape, itemsize))
        assert [i.start for i in rows] == [0, *(i.stop for i in rows[:-1])]
        assert rows[-1].stop == shape[0]
        row_bytes = itemsize * int(np.prod(shape[1:]))
        for i in rows:
            assert (i.stop - i.start) * row_bytes <= max(2**25, row_bytes)
