"""Checkpoints: bit for bit, on other meshes, past broken steps, through a kill."""

import errno
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils import epath
from jax.sharding import AxisType, NamedSharding

from rl_jax import checkpoint, manifest, step_folders
from rl_jax.checkpoint import Checkpointer
from rl_jax.errors import ConfigError


@flax.struct.dataclass
class Weights:
    embed: jax.Array
    layers: dict
    bias: jax.Array
    nothing: jax.Array


@flax.struct.dataclass
class TrainState:
    step: jax.Array
    params: Any
    opt_state: optax.OptState
    key: jax.Array
    keys: jax.Array
    by_slot: dict
    unused: None = None
    label: str = flax.struct.field(pytree_node=False, default="static")


SPECS = {2: jax.P("fsdp", "tensor"), 1: jax.P("fsdp"), 0: jax.P()}


def explicit_mesh(fsdp, tensor):
    return jax.make_mesh(
        (fsdp, tensor), ("fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 2
    )


def new_state(mesh, seed=0) -> TrainState:
    rng = np.random.default_rng(seed)

    def draw(*shape, dtype=np.float32):
        array = rng.normal(size=shape).astype(dtype)
        return jax.device_put(array, NamedSharding(mesh, SPECS[len(shape)]))

    params: Any = Weights(
        embed=draw(16, 8, dtype=jnp.bfloat16),
        layers={0: draw(8, 4), 11: draw(8, 4)},
        bias=draw(8),
        nothing=jax.device_put(
            np.zeros((0, 3), np.float32), NamedSharding(mesh, jax.P())
        ),
    )
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    # Moments that are not zero, so that a forgotten leaf shows.
    opt_state = jax.tree.map(
        lambda x: (x + rng.integers(1, 9)).astype(x.dtype), tx.init(params)
    )
    sharded = NamedSharding(mesh, jax.P("fsdp"))
    return TrainState(
        step=jax.device_put(np.int32(7), NamedSharding(mesh, jax.P())),
        params=params,
        opt_state=opt_state,
        key=jax.random.key(seed, impl="rbg"),
        keys=jax.device_put(jax.random.split(jax.random.key(seed), 8), sharded),
        by_slot={3: draw(8), 20: {}},
    )


def abstract(state, mesh=None):
    """The state's shapes, with its own shardings or those it would have on `mesh`."""

    def one(x):
        sharding = x.sharding
        if mesh is not None:
            sharding = NamedSharding(mesh, SPECS[x.ndim] if x.size else jax.P())
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(one, state)


def plain(x):
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    return np.asarray(x)


def assert_same_bits(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert plain(x).tobytes() == plain(y).tobytes()


def assert_same_shardings(found, expected):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.sharding == y.sharding


def restored(checkpointer, target):
    found = checkpointer.restore(target)
    assert found is not None
    return found


def small_state(value):
    return {"params": {"w": jnp.full((4, 3), value, jnp.float32)}}


def save_small(directory, *steps, keep=9):
    with Checkpointer(directory, keep=keep) as checkpointer:
        for step in steps:
            checkpointer.save(step, small_state(step), {"next": step})


def restored_step(directory):
    with Checkpointer(directory, keep=9) as checkpointer:
        found = checkpointer.restore(abstract(small_state(0)))
    if found is None:
        return None
    step, state, position = found
    assert position == {"next": step}
    np.testing.assert_array_equal(state["params"]["w"], float(step))
    return step


def largest_file(step_dir):
    files = [path for path in pathlib.Path(step_dir, "state").rglob("*")]
    return max(files, key=lambda path: path.stat().st_size if path.is_file() else -1)


def test_a_state_comes_back_bit_for_bit_with_its_position(tmp_path):
    state = new_state(explicit_mesh(8, 1))
    position = {"next_row": 5, "refills": [1, 2], "note": "ü"}
    with Checkpointer(str(tmp_path / "checkpoints"), keep=1) as checkpointer:
        checkpointer.save(7, state, position)
        step, found, found_position = restored(checkpointer, abstract(state))
    assert (step, found_position) == (7, position)
    assert_same_bits(found, state)
    assert found.label == "static"
    assert_same_shardings(found, state)


def test_a_state_moves_between_meshes(tmp_path):
    state = new_state(explicit_mesh(8, 1))
    with Checkpointer(str(tmp_path), keep=3) as checkpointer:
        checkpointer.save(1, state, {})
        for step, shape in enumerate([(4, 2), (1, 1)], start=2):
            target = abstract(state, explicit_mesh(*shape))
            last, found, _ = restored(checkpointer, target)
            assert last == step - 1
            assert_same_bits(found, state)
            assert_same_shardings(found, target)
            checkpointer.save(step, found, {})


def test_a_saved_state_may_be_donated_at_once(tmp_path):
    double = jax.jit(
        lambda state: jax.tree.map(lambda x: 2 * x, state), donate_argnums=0
    )
    state = {"w": jnp.arange(1 << 20, dtype=jnp.float32)}
    target = abstract(state)
    with Checkpointer(str(tmp_path), keep=1) as checkpointer:
        checkpointer.save(1, state, {})
        for _ in range(3):
            state = double(state)
        _, found, _ = restored(checkpointer, target)
    np.testing.assert_array_equal(found["w"], np.arange(1 << 20, dtype=np.float32))


def test_saving_returns_while_the_disk_still_hangs(tmp_path):
    state = {"w": jnp.arange(1 << 16, dtype=jnp.float32)}
    target = abstract(state)
    may_go_on, hangs = threading.Event(), threading.Event()
    with Checkpointer(str(tmp_path), keep=1) as checkpointer:
        finalize = checkpointer._orbax.handler.finalize

        def slow(*args, **kwargs):
            hangs.set()
            assert may_go_on.wait(30), "save() waits for the disk"
            return finalize(*args, **kwargs)

        checkpointer._orbax.handler.finalize = slow
        checkpointer.save(1, state, {})
        # Training goes on, and writes over the arrays that are being saved.
        state = jax.jit(lambda s: {"w": -s["w"]}, donate_argnums=0)(state)
        assert hangs.wait(30)
        assert not checkpointer.poll() and not (tmp_path / "1").exists()
        may_go_on.set()
        checkpointer.wait()
        assert (tmp_path / "1" / "manifest.json").exists()
        _, found, _ = restored(checkpointer, target)
    np.testing.assert_array_equal(found["w"], np.arange(1 << 16, dtype=np.float32))


def test_an_empty_folder_restores_nothing(tmp_path):
    assert restored_step(str(tmp_path / "new")) is None
    assert checkpoint.latest_step(str(tmp_path / "absent")) is None


def empty_folder(step_dir):
    step_dir.with_name("3").mkdir()


def truncated_file(step_dir):
    path = largest_file(step_dir)
    path.write_bytes(path.read_bytes()[:-1])


def garbage_byte(step_dir):
    path = largest_file(step_dir)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def missing_file(step_dir):
    largest_file(step_dir).unlink()


def missing_manifest(step_dir):
    (step_dir / "manifest.json").unlink()


def left_over(step_dir):
    shutil.copytree(step_dir, step_dir.with_name("3.orbax-checkpoint-tmp"))
    (step_dir.with_name("3.orbax-checkpoint-tmp") / "manifest.json").unlink()


def copied_by_hand(step_dir):
    shutil.copytree(step_dir, step_dir.with_name("2 copy"))


def renamed(step_dir):
    step_dir.rename(step_dir.with_name("2 copy"))


def copied_as_another_step(step_dir):
    shutil.copytree(step_dir, step_dir.with_name("3"))


def folder_in_place_of_a_file(step_dir):
    path = largest_file(step_dir)
    path.unlink()
    path.mkdir()


def folder_in_place_of_the_manifest(step_dir):
    missing_manifest(step_dir)
    (step_dir / "manifest.json").mkdir()


def file_in_place_of_the_step(step_dir):
    shutil.rmtree(step_dir)
    step_dir.write_text("")


SKIPPED = "checkpoint {} in .* skipped: "
BROKEN = {
    empty_folder: (2, SKIPPED.format(3) + "an empty folder"),
    left_over: (2, r"removed unfinished checkpoint 3: .* was left by a save that was"),
    truncated_file: (1, SKIPPED.format(2) + r"state/\S+ has \d+ bytes instead of \d+"),
    garbage_byte: (1, SKIPPED.format(2) + r"state/\S+ was changed"),
    missing_file: (1, SKIPPED.format(2) + r"state/\S+ is missing"),
    missing_manifest: (1, SKIPPED.format(2) + "it has no manifest"),
    copied_by_hand: (2, SKIPPED.format("'2 copy'") + "not the name of a step"),
    renamed: (1, SKIPPED.format("'2 copy'") + "not the name of a step"),
    copied_as_another_step: (2, SKIPPED.format(3) + "its manifest is that of step 2"),
    folder_in_place_of_a_file: (1, SKIPPED.format(2) + r"state/\S+ is missing"),
    folder_in_place_of_the_manifest: (1, SKIPPED.format(2) + "it cannot be read"),
    file_in_place_of_the_step: (1, SKIPPED.format("'2'") + "a file, not a folder"),
}


@pytest.mark.parametrize("damage", BROKEN, ids=lambda one: one.__name__)
def test_a_broken_newest_step_is_one_warning_and_is_replaced(tmp_path, capfd, damage):
    good, reason = BROKEN[damage]
    save_small(str(tmp_path), 1, 2)
    damage(tmp_path / "2")
    assert restored_step(str(tmp_path)) == good
    out = capfd.readouterr().out
    assert len(out.splitlines()) == 1, out
    assert re.search(reason, out)
    assert checkpoint.latest_step(str(tmp_path)) == good

    save_small(str(tmp_path), good + 1)
    assert restored_step(str(tmp_path)) == good + 1


def refused(path, mode="r", *args, **kwargs):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))


def test_a_step_that_may_not_be_read_is_one_warning(tmp_path, capfd, monkeypatch):
    save_small(str(tmp_path), 1, 2)
    crc_of = manifest._file_crc

    def one_refused(path):
        return refused(path) if "/2/state/" in os.fspath(path) else crc_of(path)

    monkeypatch.setattr(manifest, "_file_crc", one_refused)
    assert restored_step(str(tmp_path)) == 1
    (line,) = capfd.readouterr().out.splitlines()
    assert re.search(SKIPPED.format(2) + r"state/\S+ cannot be read \(Permission", line)


def test_a_manifest_that_may_not_be_read_is_one_warning(tmp_path, capfd, monkeypatch):
    save_small(str(tmp_path), 1, 2)
    read_text = type(epath.Path(tmp_path)).read_text

    def one_refused(path, *args, **kwargs):
        if os.fspath(path).endswith("/2/manifest.json"):
            return refused(path)
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(type(epath.Path(tmp_path)), "read_text", one_refused)
    assert restored_step(str(tmp_path)) == 1
    (line,) = capfd.readouterr().out.splitlines()
    assert re.search(SKIPPED.format(2) + r"it cannot be read \(Permission", line)


def test_several_broken_steps_are_a_line_each(tmp_path, capfd):
    save_small(str(tmp_path), 1, 2, 3)
    missing_manifest(tmp_path / "2")
    truncated_file(tmp_path / "3")
    assert restored_step(str(tmp_path)) == 1
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["3", "2"]


def test_an_old_copy_below_the_newest_step_is_not_worth_a_line(tmp_path, capfd):
    save_small(str(tmp_path), 1, 2)
    shutil.copytree(tmp_path / "1", tmp_path / "1 copy")
    assert restored_step(str(tmp_path)) == 2
    assert capfd.readouterr().out == ""


def test_somebodys_copy_under_another_number_is_moved_aside_not_deleted(
    tmp_path, capfd
):
    save_small(str(tmp_path), 1)
    (tmp_path / "1").rename(tmp_path / "2")
    save_small(str(tmp_path), 2)
    assert "moved what was there" in capfd.readouterr().out
    assert (tmp_path / "2.aside1" / "manifest.json").exists()
    assert restored_step(str(tmp_path)) == 2


def test_what_we_did_not_create_is_moved_aside_and_never_deleted(tmp_path, capfd):
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "notes.txt").write_text("mine")
    (tmp_path / "0").mkdir()
    (tmp_path / "keepsake").mkdir()
    save_small(str(tmp_path), 1, 2, 3, keep=1)
    assert (tmp_path / "2.aside1" / "notes.txt").read_text() == "mine"
    assert "2.aside1" in capfd.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0",
        "2.aside1",
        "3",
        "keepsake",
    ]


def test_a_good_step_is_not_written_again(tmp_path):
    save_small(str(tmp_path), 1)
    before = (tmp_path / "1" / "manifest.json").stat().st_mtime_ns
    save_small(str(tmp_path), 1)
    assert (tmp_path / "1" / "manifest.json").stat().st_mtime_ns == before


def test_only_the_newest_verified_steps_are_kept(tmp_path):
    save_small(str(tmp_path), 1, 2, 3, 4, keep=2)
    assert sorted(os.listdir(tmp_path)) == ["3", "4"]
    missing_manifest(tmp_path / "4")
    save_small(str(tmp_path), 5, keep=2)
    # 4 does not count among the two, and is younger than the oldest that does.
    assert sorted(os.listdir(tmp_path)) == ["3", "4", "5"]


def test_a_broken_later_step_never_counts_among_the_kept(tmp_path):
    save_small(str(tmp_path), 1, 9)
    garbage_byte(tmp_path / "9")
    assert restored_step(str(tmp_path)) == 1
    save_small(str(tmp_path), 2, 3, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["3", "9"]
    assert restored_step(str(tmp_path)) == 3


def test_the_only_good_step_stays_until_the_next_one_is_verified(tmp_path, monkeypatch):
    save_small(str(tmp_path), 1)

    def full_disk(*args):
        raise OSError("No space left on device")

    monkeypatch.setattr(manifest, "write", full_disk)
    checkpointer = Checkpointer(str(tmp_path), keep=1)
    checkpointer.save(2, small_state(2), {})
    with pytest.raises(OSError, match="No space left"):
        checkpointer.wait()
    assert checkpointer.poll()
    checkpointer.close()
    assert restored_step(str(tmp_path)) == 1


def test_stale_temporary_folders_are_removed_at_the_start(tmp_path, capfd):
    for name in ["5.orbax-checkpoint-tmp", "6.orbax-checkpoint-tmp-123", "5.other"]:
        (tmp_path / name / "state").mkdir(parents=True)
    Checkpointer(str(tmp_path), keep=1).close()
    assert os.listdir(tmp_path) == ["5.other"]
    assert capfd.readouterr().out.count("removed unfinished checkpoint") == 2


def test_the_reports_go_to_the_given_log(tmp_path, capfd):
    (tmp_path / "5.orbax-checkpoint-tmp").mkdir()
    lines = []
    Checkpointer(str(tmp_path), keep=1, log=lines.append).close()
    assert len(lines) == 1 and "5.orbax-checkpoint-tmp" in lines[0]
    assert capfd.readouterr().out == ""


def test_a_relative_folder_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_small("run/checkpoints", 1)
    assert (tmp_path / "run" / "checkpoints" / "1" / "manifest.json").exists()
    assert step_folders.absolute("gs://bucket/run").as_posix() == "gs://bucket/run"


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda p: p | {"w": jnp.zeros((4, 5))},
            ["params/w", "float32[4, 3]", "[4, 5]"],
        ),
        (
            lambda p: p | {"w": jnp.zeros((4, 3), jnp.bfloat16)},
            ["params/w", "bfloat16"],
        ),
        (lambda p: p | {"extra": jnp.zeros(2)}, ["params/extra", "absent"]),
        (lambda p: {"other": p["w"]}, ["params/other", "absent", "1 more"]),
    ],
)
def test_a_state_that_does_not_fit_names_the_leaf(tmp_path, change, words):
    save_small(str(tmp_path), 1)
    target = abstract({"params": change(small_state(0)["params"])})
    with Checkpointer(str(tmp_path), keep=1) as checkpointer:
        with pytest.raises(ConfigError) as caught:
            checkpointer.restore(target)
    message = str(caught.value)
    assert all(word in message for word in words)
    assert len(message.splitlines()) <= 3


def test_a_target_without_a_sharding_is_refused(tmp_path):
    save_small(str(tmp_path), 1)
    target = {"params": {"w": jax.ShapeDtypeStruct((4, 3), jnp.float32)}}
    with Checkpointer(str(tmp_path), keep=1) as checkpointer:
        with pytest.raises(ValueError, match="params/w needs a sharding"):
            checkpointer.restore(target)


def test_a_leaf_that_is_no_array_and_a_position_that_is_no_json_are_refused(tmp_path):
    with Checkpointer(str(tmp_path), keep=1) as checkpointer:
        with pytest.raises(TypeError, match="opt/lr is a float"):
            checkpointer.save(1, {"opt": {"lr": 0.1}}, {})
        with pytest.raises(TypeError, match="JSON"):
            checkpointer.save(1, small_state(1), {"key": jax.random.key(0)})
    assert os.listdir(tmp_path) == []


def test_keeping_no_checkpoint_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="checkpoint.keep"):
        Checkpointer(str(tmp_path), keep=0)


def test_params_are_loaded_without_the_optimiser(tmp_path):
    state = new_state(explicit_mesh(8, 1))
    with Checkpointer(str(tmp_path), keep=2) as checkpointer:
        checkpointer.save(1, state, {})
        checkpointer.save(2, new_state(explicit_mesh(8, 1), seed=1), {})
    mesh = explicit_mesh(2, 4)
    params = checkpoint.load_params(str(tmp_path), abstract(state.params, mesh), step=1)
    assert_same_bits(params, state.params)
    assert params.embed.sharding == NamedSharding(mesh, jax.P("fsdp", "tensor"))
    newest = checkpoint.load_params(str(tmp_path), abstract(state.params))
    assert plain(newest.bias).tobytes() != plain(state.params.bias).tobytes()


def test_params_are_loaded_in_the_dtype_that_is_asked_for(tmp_path):
    save_small(str(tmp_path), 3)
    target = abstract({"w": jnp.zeros((4, 3), jnp.bfloat16)})
    params = checkpoint.load_params(str(tmp_path), target)
    assert params["w"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(params["w"].astype(jnp.float32), 3.0)


def test_loading_params_from_nothing_says_what_was_found(tmp_path, capfd):
    save_small(str(tmp_path), 1)
    missing_manifest(tmp_path / "1")
    with pytest.raises(ConfigError, match=r"found: 1\)"):
        checkpoint.load_params(str(tmp_path), abstract(small_state(0)["params"]))
    assert "no manifest" in capfd.readouterr().out
    with pytest.raises(ConfigError, match="No checkpoint 4"):
        checkpoint.load_params(
            str(tmp_path), abstract(small_state(0)["params"]), step=4
        )


def test_polling_turns_true_once_the_manifest_is_there(tmp_path):
    with Checkpointer(str(tmp_path), keep=1) as checkpointer:
        assert checkpointer.poll()
        checkpointer.save(1, small_state(1), {})
        while not checkpointer.poll():
            pass
        assert (tmp_path / "1" / "manifest.json").exists()


KILLED = """
    import os, signal, sys
    import jax, jax.numpy as jnp
    from rl_jax import checkpoint, manifest

    directory, moment = sys.argv[1:]
    def die(*args):
        os.kill(os.getpid(), signal.SIGKILL)

    checkpointer = checkpoint.Checkpointer(directory, keep=1)
    state = lambda x: {"params": {"w": jnp.full((4, 3), x, jnp.float32)}}
    checkpointer.save(1, state(1), {"next": 1})
    checkpointer.wait()
    if moment == "before the commit":
        checkpointer._orbax.handler.finalize = die
    else:
        manifest.write = die
    checkpointer.save(2, state(2), {"next": 2})
    checkpointer.wait()
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the commit", "before the manifest"])
def test_a_run_killed_while_saving_restores_the_step_before(tmp_path, moment):
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path), moment],
        cwd=pathlib.Path(__file__).parents[1],
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    left = sorted(os.listdir(tmp_path))
    expected = "2.orbax-checkpoint-tmp" if "commit" in moment else "2"
    assert left == ["1", expected]
    assert restored_step(str(tmp_path)) == 1
    save_small(str(tmp_path), 2, keep=1)
    assert sorted(os.listdir(tmp_path)) == ["2"]
