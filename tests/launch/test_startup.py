"""The script that machines get from tpu_spot.sh, run in folders that stand for them."""

import os
import re
import shutil
import signal
import time

import pytest

import tiny_run as tiny

SPOT = ["my-tpu", "--zone=z", "--type=v5litepod-8", "--num_processes=1"]
SPOT += ["--bucket=gs://b", "--restarts=1"]


class Machine:
    """A folder that the script finds empty, in which it is booted."""

    def __init__(self, launcher, name, **environ):
        self.launcher, self.folder = launcher, launcher.home / name
        self.log = launcher.home / f"{name}.log"
        self._environ = environ | {
            "FOLDER": str(self.folder),
            "LOG": str(self.log),
            "EXTRA": "",
        }
        self._script = launcher.checkout / "launch" / "asked_for.sh"
        shutil.copy(launcher.home / "startup.sh", self._script)
        self._script.chmod(0o755)

    def start(self):
        return self.launcher.start("asked_for.sh", **self._environ)

    def boot(self):
        """(exit code, output) of the script."""
        process = self.start()
        out, err = process.communicate(timeout=300)
        print(out, err)
        return process.returncode, out


def ask(launcher, *training, setup="true"):
    """Asks for machines; returns the file with the exit code in the bucket."""
    setup = f"--setup={setup}"
    code, _, err = launcher.run("tpu_spot.sh", "create", *SPOT, setup, "--", *training)
    assert code == 0, err
    return launcher.home / "bucket/b/my-tpu/exit_code"


WORDS = ["--config=configs/x.py", "--workdir=/mnt/share/it's x"]


@pytest.mark.parametrize("codes, code", [("0", 0), ("2", 2), ("1 1 0", 1), ("1 0", 0)])
def test_the_exit_code_of_a_run_that_is_over_is_left_in_the_bucket(
    launcher, codes, code
):
    over = ask(launcher, *WORDS)
    machine = Machine(launcher, "machine", STUB_CODES=codes)
    assert machine.boot()[0] == code
    assert over.read_text() == f"{code}\n"
    assert "<--workdir=/mnt/share/it's x>" in machine.log.read_text()
    # When it boots again there is nothing to do.
    before = launcher.calls()
    again, out = machine.boot()
    assert again == 0 and out.endswith(f"the run is over, with exit code {code}\n")
    assert len(launcher.calls()) == 1 < len(before)


def test_a_machine_that_is_told_to_stop_leaves_the_run_open(launcher):
    over = ask(launcher, *WORDS)
    machine = Machine(launcher, "machine", STUB_CODES="wait 0")
    process = machine.start()
    wait_for(lambda: machine.log.exists() and "<" in machine.log.read_text())
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=20)
    assert over.read_text() == "running\n"
    again = Machine(launcher, "again", STUB_CODES="wait 0")
    assert again.boot()[0] == 0 and over.read_text() == "0\n"


def test_the_setup_comes_before_the_training(launcher):
    ask(launcher, *WORDS, setup="echo 'a  b' >mounted")
    machine = Machine(launcher, "machine", STUB_CODES="0")
    assert machine.boot()[0] == 0
    assert (machine.folder / "mounted").read_text() == "a  b\n"


def test_code_that_cannot_be_fetched_is_tried_for_some_times(launcher):
    ask(launcher, *WORDS)
    (launcher.home / "bucket/b/my-tpu/code.tar.gz").unlink()
    code, out = Machine(launcher, "machine", STUB_CODES="0").boot()
    assert code == 1 and "try 5 of 5 failed: copy gs://b/my-tpu/code.tar.gz" in out


def wait_for(condition, secs=20):
    until = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_run_on_a_machine_that_is_killed_goes_on_on_the_next_one(launcher, tmp_path):
    for name in ("rl_jax", "kernels", "configs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(tiny.ROOT / name, launcher.checkout / name, ignore=ignored)
    share = tmp_path / "a share"  # which outlives the machines
    words = tiny.arguments(share / "run", rl__steps=30, rl__eval__every=0)
    over = ask(
        launcher,
        "--config=configs/quickstart.py",
        *[word for word in words if not word.startswith("--config=")],
        "--config.runtime.platform=cpu",  # comes later than the script's, and counts
        "--config.export=false",
        setup=f"mkdir -p '{share}'",
    )
    environ = tiny.environment(tmp_path / "cache")
    kept = ("JAX_PLATFORMS", "JAX_COMPILATION_CACHE_DIR")
    kept += ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",)
    environ = {name: environ[name] for name in kept} | {"XLA_FLAGS": ""}

    first = Machine(launcher, "first", **environ)
    process = first.start()
    # Saved every two steps: when the fourth is there the second is whole.
    wait_for((share / "run" / "rl" / "checkpoints" / "4").exists, 240)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=20)
    assert over.read_text() == "running\n"
    shutil.rmtree(first.folder)

    code, out = Machine(launcher, "second", **environ).boot()
    assert code == 0 and over.read_text() == "0\n"
    resumed = re.search(r"rl: resuming from step (\d+)", out)
    assert resumed and 2 <= int(resumed[1]) < 30
    assert "sft: resuming from step 4" in out
    steps = [line["step"] for line in tiny.metrics(share / "run", "rl")]
    assert sorted(set(steps)) == [*range(1, 31)] and len(steps) == 30
