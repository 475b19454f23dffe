"""Jobs of two and four real processes over loopback, each with jax (gloo on the CPU).

What one process alone does is quick; the rest is slow, a few seconds a test.
"""

import os
import signal
import subprocess
import sys
import time

import pytest
from launched import free_port

from rl_jax import processes
from rl_jax.config import Runtime
from rl_jax.errors import ConfigError
from rl_jax.processes import ProcessTimeout

HERE = os.path.dirname(__file__)


# Alone.


def test_a_process_alone_waits_for_nobody_and_prints_nothing(capsys):
    with processes.start(Runtime()) as job:
        assert (job.process_id, job.num_processes) == (0, 1)
        assert processes.gather("a", {"x": 1}, 0.0) == [{"x": 1}]
        processes.wait("b", 0.0)
        processes.beat(3, "grading")
    assert capsys.readouterr() == ("", "")


def test_errors_pass_through_a_process_alone():
    with pytest.raises(RuntimeError, match="as it was"), processes.start(Runtime()):
        raise RuntimeError("as it was")


@pytest.mark.parametrize(
    "error, code",
    [
        (ConfigError("x"), 2),
        (ProcessTimeout("x"), 1),
        (RuntimeError("x"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(3), 3),
        (SystemExit("text"), 1),
        (SystemExit(None), 0),
    ],
)
def test_exit_codes_are_those_of_the_interpreter_and_2_for_a_wrong_config(error, code):
    assert processes.exit_code(error) == code


def test_what_must_be_alike_names_versions_and_a_sum_of_the_code():
    alike = processes._alike()
    assert alike["jax"][0].isdigit() and alike["python"].startswith("3.")
    assert len(alike["code"]) == 8 and alike == processes._alike()


def test_importing_it_does_not_import_jax():
    code = "import sys, rl_jax.processes; print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


# Two of them.

slow = pytest.mark.slow


class Job:
    """Processes of `process_worker.py`; `more[i]` is added to the environment of i."""

    def __init__(self, how, count=2, more=(), only=None, **environ):
        port = free_port()
        self.began = time.monotonic()
        self.running = {}
        for i in range(count) if only is None else only:
            environment = os.environ | {
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": "",
                "PYTHONPATH": os.pathsep.join([os.path.dirname(HERE), HERE]),
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                "JAX_NUM_PROCESSES": str(count),
                "JAX_PROCESS_ID": str(i),
            }
            environment |= environ | (dict(more).get(i) or {})
            self.running[i] = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "process_worker.py"), how],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    def end(self, secs=90):
        """(exit code, stdout, stderr) of each, when all have ended."""
        found = {}
        for i, process in self.running.items():
            left = max(self.began + secs - time.monotonic(), 0.1)
            try:
                out, err = process.communicate(timeout=left)
            except subprocess.TimeoutExpired:
                for one in self.running.values():
                    one.kill()
                raise
            print(f"--- process {i}: exit code {process.returncode}\n{out}{err}")
            found[i] = process.returncode, out, err
        return found


def test_a_process_that_misses_an_address_is_told_before_jax_is_imported():
    found = Job("together", only=[0], JAX_COORDINATOR_ADDRESS="").end()
    code, _, err = found[0]
    assert code == 2 and "but no coordinator" in err
    assert len(err.splitlines()) <= 3


@slow
@pytest.mark.parametrize("count", [2, 4])
def test_processes_meet_exchange_compute_and_leave(count):
    found = Job("together", count).end()
    for i, (code, out, err) in found.items():
        assert code == 0, err
        first, last = out.splitlines()[0], out.splitlines()[-1]
        assert first.startswith(f"processes: this is {i} of {count}, on ")
        assert "waiting up to 60 s for all at 127.0.0.1:" in first
        assert f"start the same command {count} times" in first
        assert last == f"sum {sum(range(count + 1))}.0"


@slow
@pytest.mark.parametrize("count", [2, 4])
def test_all_stop_at_the_same_step_and_asking_costs_little(count):
    found = Job("agree", count).end()
    for code, out, err in found.values():
        assert code == 0, err
        *_, agreed, cost = out.splitlines()
        assert agreed == f"agreed at 150: {[0] * (count - 1) + [15]}"
        assert float(cost.split()[1]) < 20.0  # ms; 0.1 on a machine that is idle


@slow
def test_one_that_does_not_come_is_named_in_time():
    found = Job("together", only=[0], START_SECS="3").end()
    code, _, err = found[0]
    assert code == 1
    assert "process 1 of 2 did not come within 3 s; here: process 0 (" in err


@slow
def test_process_0_that_does_not_come_is_named_in_time():
    found = Job("together", only=[1], START_SECS="3").end()
    code, _, err = found[1]
    assert code == 1 and "process 0 did not answer at 127.0.0.1:" in err


@slow
@pytest.mark.parametrize(
    "more, message",
    [
        ({1: {"JAX_NUM_PROCESSES": "3"}}, "process 0 as one of 2"),
        ({1: {"CONFIG": "another"}}, "has config another"),
    ],
)
def test_processes_started_otherwise_are_a_wrong_setting_for_all(more, message):
    found = Job("together", more=more).end()
    for code, _, err in found.values():
        assert code == 2 and message in err and "Traceback" not in err


@slow
def test_a_wait_names_the_missing_process_and_ends_both():
    found = Job("late").end()
    code, _, err = found[0]
    assert code == 1
    assert "waited 1 s at 'saved' for process 1 (" in err
    assert "after step 7, grading" in err
    code, _, err = found[1]
    assert code == 1 and "process 0 (" in err and "ended: waited 1 s at 'saved'" in err


@slow
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("how", ["killed", "steps"])
def test_a_killed_process_ends_the_other_within_a_minute_with_the_reason(victim, how):
    job = Job(how, VICTIM=str(victim))
    if how == "steps":  # in the midst of collectives
        for line in job.running[victim].stdout:
            if line == "step 5\n":
                break
        job.running[victim].send_signal(signal.SIGKILL)
    job.running[victim].wait()
    began = time.monotonic()
    code, _, err = job.end()[1 - victim]
    assert time.monotonic() - began < 60
    assert f"error: process {victim} " in err and "ended without a word" in err
    # jax aborts when process 0 is gone, by its own words; ours come first, mostly.
    assert code == 1 or (victim == 0 and code == -signal.SIGABRT)


@slow
def test_a_crash_of_one_is_the_reason_of_the_other():
    found = Job("crash").end()
    code, _, err = found[1]
    assert code == 1 and err.rstrip().endswith("RuntimeError: the disk is full")
    assert "in crash" in err  # its traceback, whole
    code, _, err = found[0]
    assert code == 1 and "ended: RuntimeError: the disk is full" in err


@slow
def test_a_wrong_config_on_one_machine_ends_all_with_code_2():
    found = Job("wrong").end()
    code, _, err = found[1]
    assert code == 2 and err.startswith("error: config.data.train is not there.")
    code, _, err = found[0]
    assert code == 2 and "ended: config.data.train is not there." in err


@slow
def test_a_process_that_hangs_ends_all_and_says_where_it_hung():
    found = Job("hang").end()
    code, _, err = found[0]
    assert code == 1
    assert "error: no step has finished within 0.05 minutes after step 4" in err
    assert "in hang" in err and "after step 4: process 0 (" in err
    code, _, err = found[1]
    assert code == 1 and "ended after step 4: no step has finished" in err
