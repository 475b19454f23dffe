"""`python -m rl_jax.checkpoint` as people use it; none of it wants an accelerator."""

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from rl_jax import checkpoint, checkpoint_command, command_line, manifest
from rl_jax.checkpoint import Checkpointer

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEY = jax.random.key(3)


def params(step):
    rng = np.random.default_rng(step)
    return {
        "w": jnp.asarray(rng.normal(size=(4, 3)), jnp.float32),
        "layers": {"b": jnp.asarray(rng.normal(size=5), jnp.bfloat16)},
        "none": jnp.zeros((0, 2)),
        "key": KEY,
    }


def state(step):
    return {"params": params(step), "opt_state": {"m": jnp.full((4, 3), 1.0 * step)}}


def abstract(tree):
    def like(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

    return jax.tree.map(like, tree)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A work folder of two stages: steps 2 and 10, and 4."""
    workdir = tmp_path_factory.mktemp("saved")
    for stage, steps in (("sft", [2, 10]), ("rl", [4])):
        folder = workdir / stage / "checkpoints"
        with Checkpointer(folder, keep=9) as checkpointer:
            for step in steps:
                checkpointer.save(step, state(step), {"next_row": 7 * step})
    (workdir / "config.json").write_text(json.dumps({"stages": ["sft", "rl"]}))
    return workdir


@pytest.fixture
def workdir(saved, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(saved, tmp_path / "run")


def damage(step_dir):
    files = [path for path in (step_dir / "state").rglob("*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[-1] ^= 0xFF
    path.write_bytes(bytes(data))
    return path


@pytest.fixture
def ask(capsys):
    """(exit code, what was printed, what was printed as an error) of a command line."""

    def run(*words):
        argv = [str(word) for word in words]
        code = command_line.exit_on_config_error(checkpoint_command.main, argv)
        out, err = capsys.readouterr()
        assert len(err.splitlines()) <= 3, err
        return code, out, err

    return run


# List.


def test_the_list_shows_every_step_of_every_stage_in_their_order(saved, ask):
    code, out, _ = ask("list", saved)
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == list(checkpoint_command._HEADER)
    words = [line.split() for line in lines[1:-1]]
    assert [w[:2] for w in words] == [["sft", "2"], ["sft", "10"], ["rl", "4"]]
    assert [w[-2:] for w in words] == [[f"next_row={7 * n}", "yes"] for n in (2, 10, 4)]
    assert all(w[-3] == "5" for w in words)  # leaves
    assert "verify" in lines[-1]


@pytest.mark.parametrize(
    ("below", "steps"),
    [
        ("sft", ["2", "10"]),
        ("sft/checkpoints", ["2", "10"]),
        ("sft/checkpoints/10", ["10"]),
    ],
)
def test_a_stage_a_checkpoints_folder_and_a_step_may_be_named(saved, ask, below, steps):
    lines = ask("list", saved / below)[1].splitlines()[1:-1]
    assert [line.split()[:2] for line in lines] == [["sft", step] for step in steps]


def test_the_list_says_why_a_step_is_not_sound_and_what_else_is_there(workdir, ask):
    folder = workdir / "rl" / "checkpoints"
    (folder / "4" / "manifest.json").unlink()
    (folder / "9").mkdir()
    shutil.copytree(folder / "4", folder / "4 copy")
    (folder / "5.orbax-checkpoint-tmp").mkdir()
    code, out, _ = ask("list", workdir / "rl")
    assert code == 0
    assert "no: it has no manifest, so its save did not finish" in out
    assert "no: an empty folder" in out
    assert "note: '4 copy' in" in out and "its number alone" in out
    assert "note: '5.orbax-checkpoint-tmp' in" in out


def test_a_folder_without_checkpoints_yet_is_listed_as_empty(tmp_path, ask):
    (tmp_path / "sft" / "checkpoints").mkdir(parents=True)
    code, out, _ = ask("list", tmp_path)
    assert code == 0 and out.startswith("no checkpoints in")


# Verify.


def test_sound_checkpoints_are_said_to_be_sound(saved, ask):
    code, out, _ = ask("verify", saved)
    assert code == 0
    assert [x.partition(" (")[0] for x in out.splitlines()] == [
        "sft 2: sound",
        "sft 10: sound",
        "rl 4: sound",
        "3 sound, 0 broken",
    ]


def test_verify_finds_a_changed_byte_that_the_list_does_not(workdir, ask):
    path = damage(workdir / "sft" / "checkpoints" / "10")
    name = path.relative_to(workdir / "sft" / "checkpoints" / "10")
    assert "no:" not in ask("list", workdir)[1]
    code, out, _ = ask("verify", workdir)
    assert code == 1
    assert f"sft 10: BROKEN: {name} was changed (its checksum differs)\n" in out
    assert out.endswith("2 sound, 1 broken\n")
    assert ask("verify", workdir, "--step=2")[0] == 0
    assert ask("verify", workdir / "sft", "--step=10")[0] == 1


def test_verify_names_every_fault_of_a_checkpoint(workdir, ask):
    step_dir = workdir / "rl" / "checkpoints" / "4"
    damage(step_dir)
    (step_dir / "position" / "metadata").unlink()
    code, out, _ = ask("verify", workdir / "rl")
    assert code == 1 and out.count("rl 4: BROKEN: ") == 2
    assert "position/metadata is missing" in out


# Copy.


def loaded(folder, step):
    return checkpoint.load_params(folder, abstract(params(step)), step=step)


def assert_same(found, expected):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_a_copied_step_is_byte_for_byte_the_same_and_resumes(saved, tmp_path, ask):
    code, out, _ = ask("copy", saved / "sft", tmp_path / "kept")
    assert code == 0 and out.startswith("copied checkpoint 10 to ")
    source, target = saved / "sft" / "checkpoints" / "10", tmp_path / "kept" / "10"
    names = sorted(p.relative_to(source) for p in source.rglob("*"))
    assert names == sorted(p.relative_to(target) for p in target.rglob("*"))
    assert all(
        (source / n).read_bytes() == (target / n).read_bytes()
        for n in names
        if (source / n).is_file()
    )
    assert os.listdir(tmp_path / "kept") == ["10"]
    with Checkpointer(tmp_path / "kept", keep=1) as checkpointer:
        found = checkpointer.restore(abstract(state(10)))
    assert found is not None and found[0] == 10 and found[2] == {"next_row": 70}
    assert_same(found[1], state(10))


def test_a_chosen_step_goes_into_the_checkpoints_folder_of_a_stage(
    saved, tmp_path, ask
):
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    assert ask("copy", saved / "sft", tmp_path / "other", "--step=2")[0] == 0
    assert checkpoint.latest_step(tmp_path / "other" / "checkpoints") == 2


def test_a_copy_of_the_params_alone_loads_and_is_smaller(saved, tmp_path, ask):
    words = ("copy", saved / "rl", tmp_path / "kept", "--params_only")
    assert ask(*words)[0] == 0
    assert_same(loaded(tmp_path / "kept", 4), params(4))
    assert ask("verify", tmp_path / "kept")[0] == 0
    listed = manifest.read_leaves(epath.Path(tmp_path / "kept" / "4"))
    assert all(name.startswith("params/") for name in listed) and len(listed) == 4
    with Checkpointer(tmp_path / "kept", keep=1) as checkpointer:
        with pytest.raises(checkpoint.ConfigError, match="opt_state/m is absent"):
            checkpointer.restore(abstract(state(4)))


def test_nothing_is_overwritten(saved, tmp_path, ask):
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "mine").write_text("x")
    code, _, err = ask("copy", saved / "rl", tmp_path)
    assert code == 2 and "nothing is overwritten" in err
    assert os.listdir(tmp_path / "4") == ["mine"]
    code, _, err = ask("copy", saved / "rl", saved / "rl")
    assert code == 2 and "is what is to be copied" in err


def test_a_broken_step_is_not_copied_and_the_newest_sound_one_is_found(
    workdir, tmp_path, ask
):
    damage(workdir / "sft" / "checkpoints" / "10")
    code, _, err = ask("copy", workdir / "sft", tmp_path / "kept", "--step=10")
    assert code == 1 and "checkpoint 10 in" in err and "was changed" in err
    assert not (tmp_path / "kept").exists()
    code, out, _ = ask("copy", workdir / "sft", tmp_path / "kept")
    assert code == 0 and "checkpoint 10" in out and "copied checkpoint 2" in out


def test_a_copy_that_goes_wrong_on_its_way_never_gets_its_name(
    saved, tmp_path, ask, monkeypatch
):
    copy_files = checkpoint_command._copy_files

    def torn(source, unfinished):
        copy_files(source, unfinished)
        damage(unfinished)

    monkeypatch.setattr(checkpoint_command, "_copy_files", torn)
    code, _, err = ask("copy", saved / "rl", tmp_path / "kept")
    assert code == 1 and "does not verify" in err and "was changed" in err
    assert os.listdir(tmp_path / "kept") == []


def test_an_interrupted_copy_is_no_checkpoint_and_the_next_one_replaces_it(
    saved, tmp_path, ask
):
    left = tmp_path / "4.unfinished"
    shutil.copytree(saved / "rl" / "checkpoints" / "4", left)
    assert checkpoint.latest_step(tmp_path) is None
    assert "a copy that did not finish" in ask("list", tmp_path)[1]
    assert ask("copy", saved / "rl", tmp_path)[0] == 0
    assert os.listdir(tmp_path) == ["4"]


def test_a_manifest_that_names_a_file_elsewhere_is_not_followed(workdir, tmp_path, ask):
    path = workdir / "rl" / "checkpoints" / "4" / "manifest.json"
    body = json.loads(path.read_text())["body"]
    body["files"]["../../../secret"] = [0, 0]
    text = {"crc32": manifest._text_crc(body), "body": body}
    path.write_text(json.dumps(text))
    code, _, err = ask("copy", workdir / "rl", tmp_path / "kept", "--step=4")
    assert code == 1 and "names a file outside of its folder" in err


# Wrong arguments.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("list", "{}/nowhere"), "is no folder"),
        (("list", "gs://bucket/run"), "is an address"),
        (("verify", "{}", "--step=3"), "There are these: 2, 4, 10."),
        (("verify", "{}/rl/checkpoints/4", "--step=2"), "is step 4"),
        (("copy", "{}", "{}/kept"), "several stages: sft, rl"),
        (("copy", "{}/rl", "{}/kept", "--step=9"), "No checkpoint 9"),
        (("copy", "{}/rl", "gs://bucket/kept"), "is an address"),
    ],
)
def test_wrong_arguments_are_one_message_and_exit_code_2(saved, ask, words, told):
    code, out, err = ask(*(word.format(saved) for word in words))
    assert code == 2 and told in err and out == ""
    assert not (saved / "kept").exists()


def test_a_folder_of_something_else_is_told(tmp_path, ask):
    (tmp_path / "notes.txt").write_text("x")
    code, _, err = ask("verify", tmp_path)
    assert code == 2 and "holds no checkpoints" in err


# As a command.


def command(*words):
    # A platform that is not there: the command must not ask for it.
    environment = os.environ | {"JAX_PLATFORMS": "tpu", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rl_jax.checkpoint", *words],
        env=environment,
        capture_output=True,
        text=True,
    )


@functools.cache
def imported_by(what, folder):
    done = command(what, folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "sft" in done.stdout
    lines = [x for x in done.stderr.splitlines() if x.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize("what", ["list", "verify"])
def test_looking_imports_neither_jax_nor_pickle_readers(saved, what):
    names = imported_by(what, str(saved))
    assert "etils" in names
    assert not names & {"jax", "orbax", "flax", "optax", "torch"}


@pytest.mark.slow
def test_a_copy_of_the_params_needs_no_accelerator(saved, tmp_path):
    kept = tmp_path / "kept"
    done = command("copy", str(saved / "rl"), str(kept), "--params_only")
    assert done.returncode == 0, done.stderr[-2000:]
    assert_same(loaded(kept, 4), params(4))


def test_a_word_that_is_no_command_is_exit_code_2(capsys):
    with pytest.raises(SystemExit) as ended:
        checkpoint_command.main(["delete", "x"])
    assert ended.value.code == 2
