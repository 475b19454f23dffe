import subprocess
import sys
import textwrap
import time

from rl_jax.watchdog import Watchdog


def run(body, timeout=20):
    """Runs lines under `import time, rl_jax.watchdog as w`; the finished process."""
    code = "import sys, time\nfrom rl_jax import watchdog as w\n" + textwrap.dedent(
        body
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout
    )


def test_a_step_that_does_not_finish_ends_the_process_with_all_stacks():
    done = run(
        """
        import threading
        def stuck():
            time.sleep(60)
        threading.Thread(target=stuck, daemon=True).start()
        with w.Watchdog(0.3 / 60, tell=lambda text: print("told:", text, flush=True),
                        ask=lambda: "process 1 is at step 6"):
            time.sleep(60)
        """
    )
    assert done.returncode == 1
    first = done.stderr.splitlines()[0]
    assert first == (
        "error: no step has finished within 0.005 minutes; process 1 is at step 6."
    )
    assert "in stuck" in done.stderr and "most recent call first" in done.stderr
    assert "Current thread" in done.stderr
    assert done.stdout == "told: no step has finished within 0.005 minutes\n"


def test_beats_begin_the_time_anew_and_the_message_tells_the_last_one():
    done = run(
        """
        with w.Watchdog(0.5 / 60) as watchdog:
            for step in range(4):
                time.sleep(0.25)
                watchdog.beat(step)
            print("lived", flush=True)
            time.sleep(60)
        """
    )
    assert (done.returncode, done.stdout) == (1, "lived\n")
    assert "within 0.00833333 minutes after step 3" in done.stderr


def test_code_that_holds_the_lock_of_python_is_ended_too():
    # A slow regular expression runs in C and lets no other thread in.
    done = run(
        """
        import re
        w._GRACE_SECS = 0.3
        with w.Watchdog(0.2 / 60):
            re.match(r"(a+)+$", "a" * 40 + "b")
        """
    )
    assert done.returncode == 1
    assert "most recent call first" in done.stderr


def test_leaving_the_context_calls_it_off():
    done = run(
        """
        w._GRACE_SECS = 0.0
        with w.Watchdog(0.3 / 60) as watchdog:
            pass
        watchdog.beat(1)
        time.sleep(0.8)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_minutes_mean_no_watchdog():
    began = time.monotonic()
    with Watchdog(0) as watchdog:
        watchdog.beat(1)
        assert not watchdog._thread.is_alive()
    assert time.monotonic() - began < 0.1
