"""tpu_vm.sh and tpu_pod.sh, whose machine is a folder: on_machine.sh really runs."""

import os
import signal
import time

WHERE = ["my-tpu", "--zone=z"]
TRAINING = [
    "--",
    "--config=configs/x.py",
    "--workdir=runs/it's $HOME",
    "--config.a=b c",
]
PLATFORM = "--config.runtime.platform=tpu"


def start_run(launcher, *options, script="tpu_vm.sh", **environ):
    return launcher.run(script, "run", *WHERE, *options, *TRAINING, **environ)


def wait_for(condition, secs=20):
    until = time.monotonic() + secs
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def test_the_words_arrive_at_rl_jax_train_as_they_were_typed(launcher):
    code, out, _ = start_run(launcher, STUB_CODES="0")
    assert code == 0
    assert (
        f"<><{PLATFORM}><--config=configs/x.py><--workdir=runs/it's $HOME>"
        "<--config.a=b c>" in out
    )
    pip = (launcher.home / "pip.txt").read_text()
    assert pip.rstrip().endswith("-e .[tpu]")


def test_the_checkout_arrives_without_what_stays_at_home(launcher):
    for name in ("runs/old.txt", ".venv/big", "kernels/__pycache__/x.pyc", "mine.py"):
        path = launcher.checkout / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("here")
    machine = launcher.home / "machine" / "rl_jax"
    for name in ("runs/theirs.txt", "old_module.py"):
        path = machine / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("there")
    assert start_run(launcher, STUB_CODES="0")[0] == 0
    assert (machine / "mine.py").read_text() == "here"
    assert (machine / "runs/theirs.txt").read_text() == "there"
    gone = ("runs/old.txt", ".venv/big", "kernels/__pycache__", "old_module.py", ".git")
    assert not [name for name in gone if (machine / name).exists()]


def test_the_exit_code_is_that_of_the_training(launcher):
    assert start_run(launcher, STUB_CODES="2")[0] == 2


def test_the_setup_comes_first_and_its_failure_is_the_end(launcher):
    code, out, _ = start_run(launcher, "--setup=echo 'a b' >../set up.txt; false")
    assert code != 0 and "<" not in out
    assert (launcher.home / "machine" / "set").read_text() == "a b up.txt\n"


def test_a_pod_runs_on_all_workers_and_says_how_many_there_are(launcher):
    code, out, _ = start_run(
        launcher, "--num_processes=4", script="tpu_pod.sh", STUB_CODES="0"
    )
    assert code == 0
    assert f"<><--config.runtime.num_processes=4><{PLATFORM}><--config=" in out
    copying, training = launcher.calls()
    assert "--worker=all" in copying and "--worker=all" in training
    assert copying[3:5] == ["scp", "runs/launch/my-tpu/code.tar.gz"]


def test_a_second_run_is_refused_and_stop_ends_the_first_which_saves(launcher):
    first = launcher.start("tpu_vm.sh", "run", *WHERE, *TRAINING, STUB_CODES="wait")
    log = launcher.home / "machine/rl_jax/runs/on_machine/log.txt"
    wait_for(lambda: log.exists() and "<" in log.read_text())
    code, _, err = start_run(launcher, STUB_CODES="0")
    assert code == 2 and "is training already" in err
    code, out, _ = launcher.run("tpu_vm.sh", "stop", *WHERE)
    assert code == 0 and "to save and end" in out
    out, _ = first.communicate(timeout=20)
    assert first.returncode == 143 and "saved" in out


def test_a_broken_connection_leaves_the_run_alone(launcher):
    first = launcher.start("tpu_vm.sh", "run", *WHERE, *TRAINING, STUB_CODES="wait")
    log = launcher.home / "machine/rl_jax/runs/on_machine/log.txt"
    wait_for(lambda: log.exists() and "<" in log.read_text())
    os.killpg(first.pid, signal.SIGKILL)
    time.sleep(0.3)
    assert "saved" not in log.read_text()
    seen = launcher.start("tpu_vm.sh", "log", *WHERE)
    assert launcher.run("tpu_vm.sh", "stop", *WHERE)[0] == 0
    out, _ = seen.communicate(timeout=20)
    assert "--config=configs/x.py" in out and "saved" in out


def on_machine(launcher, *words, **environ):
    return launcher.run("on_machine.sh", *words, EXTRA="", **environ)


def test_a_crash_is_tried_again_until_it_works(launcher):
    code, out, _ = on_machine(
        launcher, "train", "--a", RESTARTS="3", STUB_CODES="1 134 137 0"
    )
    assert code == 0 and out.count("<><--a>") == 4
    assert "exit code 134: the same command again in 10 s (2 of 3)" in out


def test_a_wrong_configuration_is_not_tried_again(launcher):
    code, out, _ = on_machine(launcher, "train", RESTARTS="3", STUB_CODES="1 2 0")
    assert code == 2 and out.count("<>") == 2


def test_tries_end(launcher):
    code, out, _ = on_machine(launcher, "train", RESTARTS="1", STUB_CODES="1 1 0")
    assert code == 1 and out.count("<>") == 2
    (launcher.home / "tries").unlink()
    code, out, _ = on_machine(launcher, "train", STUB_CODES="1 0")
    assert code == 1 and out.count("<>") == 1


def test_a_stop_between_two_tries_is_the_end(launcher):
    process = launcher.start(
        "on_machine.sh", "train", EXTRA="", RESTARTS="9", STUB_CODES="1 0", PAUSE="2"
    )
    wait_for((launcher.home / "tries").exists)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 143 and out.count("<>") == 1
