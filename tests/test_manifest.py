"""The manifest notices every change to a step folder, without Orbax."""

import json

import pytest
from etils import epath

from rl_jax import manifest


@pytest.fixture
def step_dir(tmp_path):
    path = epath.Path(tmp_path / "5")
    (path / "state" / "d").mkdir(parents=True)
    (path / "state" / "d" / "big").write_bytes(bytes(range(256)) * 40)
    (path / "position").mkdir()
    (path / "position" / "metadata").write_text("{}")
    manifest.write(path, 5, {"params/w": ["float32", [4, 3]]})
    return path


def test_an_untouched_folder_verifies(step_dir):
    assert manifest.flaw(step_dir) == ""
    assert manifest.read_leaves(step_dir) == {"params/w": ["float32", [4, 3]]}


def test_the_manifest_lists_every_file_with_its_size(step_dir):
    files = json.loads((step_dir / "manifest.json").read_text())["body"]["files"]
    sizes = {name: size for name, (size, _) in files.items()}
    assert sizes == {"state/d/big": 256 * 40, "position/metadata": 2}
    assert not (step_dir / "manifest.json.tmp").exists()


@pytest.mark.parametrize("place", [0, 5000, 256 * 40 - 1])
def test_one_flipped_bit_is_found_by_its_checksum_only(step_dir, place):
    data = bytearray((step_dir / "state/d/big").read_bytes())
    data[place] ^= 1
    (step_dir / "state/d/big").write_bytes(bytes(data))
    assert "state/d/big was changed" in manifest.flaw(step_dir)
    assert manifest.flaw(step_dir, checksums=False) == ""


def test_a_file_of_another_length_is_found_without_reading_it(step_dir):
    (step_dir / "position" / "metadata").write_text("{} ")
    expected = "position/metadata has 3 bytes instead of 2"
    assert manifest.flaw(step_dir, checksums=False) == expected


def test_a_missing_file_is_found(step_dir):
    (step_dir / "state/d/big").unlink()
    assert manifest.flaw(step_dir) == "state/d/big is missing"


def test_a_folder_under_another_number_does_not_verify(step_dir):
    moved = step_dir.rename(step_dir.parent / "6")
    assert "that of step 5" in manifest.flaw(epath.Path(moved))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "\x00\xff", '{"body": 3}'])
def test_a_broken_manifest_is_not_readable(step_dir, text):
    (step_dir / "manifest.json").write_bytes(text.encode("latin-1"))
    assert manifest.flaw(step_dir) == "its manifest is not readable"


def test_a_manifest_with_one_changed_digit_does_not_verify(step_dir):
    text = (step_dir / "manifest.json").read_text()
    (step_dir / "manifest.json").write_text(text.replace("float32", "float16"))
    assert manifest.flaw(step_dir) == "its manifest was changed"


def test_absent_empty_and_unfinished_folders_are_told_apart(step_dir):
    assert manifest.flaw(step_dir.parent / "8") == "no such folder"
    (step_dir.parent / "9").mkdir()
    assert manifest.flaw(step_dir.parent / "9") == "an empty folder"
    (step_dir / "manifest.json").unlink()
    assert "did not finish" in manifest.flaw(step_dir)
