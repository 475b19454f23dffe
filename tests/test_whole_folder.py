"""A folder that appears whole or not at all."""

import pytest

from rl_jax.errors import ConfigError
from rl_jax.whole_folder import check_free, written_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_under_its_name_when_it_is_whole(tmp_path):
    out = tmp_path / "deep" / "out"
    with written_whole(out) as folder:
        (folder / "a").write_text("1")
        assert not out.exists() and names(out.parent) == ["out.unfinished"]
    assert names(out.parent) == ["out"] and names(out) == ["a"]


def test_an_error_leaves_nothing_and_an_old_folder_as_it_was(tmp_path):
    out = tmp_path / "out"
    for replace in (False, True):
        with pytest.raises(KeyboardInterrupt):
            with written_whole(out, replace=replace) as folder:
                (folder / "a").write_text("1")
                raise KeyboardInterrupt
        assert names(tmp_path) == (["out"] if replace else [])
        out.mkdir(exist_ok=True)
        (out / "old").write_text("2")
    assert names(out) == ["old"]


def test_what_a_killed_call_left_is_cleared(tmp_path):
    for name in ("out.unfinished", "out.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_text("")
    with written_whole(tmp_path / "out") as folder:
        assert names(folder) == []
    assert names(tmp_path) == ["out"]


def test_an_old_folder_is_replaced_as_a_whole_where_that_is_asked_for(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("2")
    with written_whole(out, replace=True) as folder:
        (folder / "new").write_text("1")
        assert names(out) == ["old"]
    assert names(tmp_path) == ["out"] and names(out) == ["new"]


def test_what_holds_something_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("")
    for name, told in (("file", "is a file"), ("full", "is not empty")):
        with pytest.raises(ConfigError, match=told) as error:
            with written_whole(tmp_path / name):
                raise AssertionError("it began")
        assert len(str(error.value).splitlines()) <= 3
    assert names(tmp_path) == ["file", "full"]
    (tmp_path / "empty").mkdir()
    check_free(tmp_path / "empty")
    check_free(tmp_path / "none")
    with written_whole(tmp_path / "empty") as folder:
        (folder / "a").write_text("")
    assert names(tmp_path / "empty") == ["a"]


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "out")
    with written_whole(tmp_path / "link") as folder:
        assert folder.parent == tmp_path / "disk"
        (folder / "a").write_text("")
    assert (tmp_path / "link").is_symlink() and names(tmp_path / "link") == ["a"]
