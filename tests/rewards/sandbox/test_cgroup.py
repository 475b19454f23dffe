import os
import pathlib
import subprocess
import sys

import pytest

from rl_jax.rewards.sandbox import cgroup


@pytest.fixture
def group():
    group = cgroup.create()
    if group is None:
        pytest.skip("no control group can be made here")
    yield group
    group.close()


def test_a_process_over_the_limit_of_its_group_is_killed_and_counted(group):
    program = "input(); x = bytearray(64 << 20); x[::4096] = bytes(len(x[::4096]))"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
    group.add(process.pid)
    group.allow(32 << 20)
    assert group.num_killed() == 0
    process.communicate(b"\n", timeout=20)
    assert process.returncode == -9 and group.num_killed() >= 1


def test_the_limit_is_above_what_the_sandbox_itself_needs(group):
    group.base_bytes = 10 << 20
    group.allow(1 << 20)
    limit = group._path / cgroup._FILES[group.version][0]
    assert int(limit.read_text()) == 11 << 20


def test_closing_removes_the_group(group):
    assert group._path.is_dir()
    group.close()
    assert not group._path.exists()
    group.close()


def test_groups_of_the_dead_are_removed_and_those_of_the_living_kept(group):
    parent = group._path.parent
    dead = parent / "rl_jax-999999999-1-1"
    reused = parent / f"rl_jax-{os.getpid()}-1-1"  # this number, another start
    dead.mkdir()
    reused.mkdir()
    other = cgroup.create()
    assert other is not None
    assert not dead.exists() and not reused.exists()
    assert group._path.is_dir()
    other.close()


@pytest.mark.parametrize(
    ("version", "own", "mounts"),
    [
        (2, "0::/user.slice/a.scope", "cgroup2 cgroup2 rw"),
        (1, "5:cpu:/x\n4:memory:/user.slice/a.scope\n0::/", "cgroup cgroup rw,memory"),
    ],
)
def test_the_own_group_comes_first_and_the_mount_last(
    tmp_path, monkeypatch, version, own, mounts
):
    mount = tmp_path / "mount"
    (mount / "user.slice" / "a.scope").mkdir(parents=True)
    texts = {
        "/proc/self/cgroup": own,
        "/proc/self/mountinfo": f"1 2 0:3 / {mount} rw shared:1 - {mounts}",
    }
    monkeypatch.setattr(pathlib.Path, "read_text", lambda path: texts[str(path)])
    folders = [folder for found, folder in cgroup._folders() if found == version]
    assert folders == [
        mount / "user.slice" / "a.scope",
        mount / "user.slice",
        mount,
    ]


def test_without_a_writable_hierarchy_there_is_no_group(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup, "_folders", lambda: [(2, tmp_path / "missing")])
    assert cgroup.create() is None
    monkeypatch.setattr(cgroup, "_folders", lambda: [(2, tmp_path)])
    assert cgroup.create() is None  # a folder without the memory controller's files
    assert list(tmp_path.iterdir()) == []
