import os
import re
import signal
import time

WORDS = ["--", "--config=a.py", "--workdir=runs/it's x"]


def test_each_process_gets_its_number_and_the_same_words(launcher):
    code, out, _ = launcher.run(
        "local.sh", "3", "--devices=2", *WORDS, STUB_CODES="0 0 0 0"
    )
    assert code == 0
    for i in range(3):
        assert f"[{i}] <{i}><--config=a.py><--workdir=runs/it's x>" in out


def test_the_dry_run_is_what_runs(launcher):
    code, printed, _ = launcher.run("local.sh", "--dry-run", "2", "--port=7000", *WORDS)
    assert code == 0 and not (launcher.checkout / ".venv").exists()
    lines = printed.splitlines()
    assert lines[0].startswith("cd ") and lines[-1] == "wait"
    for i, line in enumerate(lines[1:-1]):
        assert "JAX_COORDINATOR_ADDRESS=127.0.0.1:7000 JAX_NUM_PROCESSES=2 " in line
        assert f"JAX_PROCESS_ID={i} " in line and "JAX_PLATFORMS=cpu" in line
    launcher.run("local.sh", "2", *WORDS, STUB_CODES="0 0 0 0")  # makes .venv
    (launcher.home / "tries").unlink()
    code, out, _ = launcher.shell(printed + "sleep 0.3\n", STUB_CODES="0 0 0 0")
    assert code == 0
    assert sorted(out.splitlines()) == [
        f"[{i}] <{i}><--config=a.py><--workdir=runs/it's x>" for i in range(2)
    ]


def test_the_exit_code_is_that_of_a_process_that_failed(launcher):
    code, _, _ = launcher.run("local.sh", "2", *WORDS, STUB_CODES="3 3 3")
    assert code == 3


def test_a_signal_reaches_all_and_they_may_save(launcher):
    process = launcher.start("local.sh", "2", *WORDS, STUB_CODES="wait wait wait")
    tries = launcher.home / "tries"
    until = time.monotonic() + 20
    while not tries.exists() and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 143
    assert sorted(re.findall(r"\[(\d)\] saved", out)) == ["0", "1"]
