"""One process of a small job, for `test_processes.py`: how it goes is the first word.

Where to meet and who this is come from the environment, as a launcher sets them.
"""

import os
import signal
import sys
import time

from rl_jax import processes
from rl_jax.command_line import exit_on_config_error
from rl_jax.config import Runtime
from rl_jax.errors import ConfigError


def sum_over_all(value):
    """A number of each process, added up on the devices."""
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    return float(multihost_utils.process_allgather(jnp.float32(value)).sum())


def together(i, n):
    found = processes.gather("number", {"i": i}, 30)
    assert found == [{"i": k} for k in range(n)], found
    processes.wait("here", 30)
    print("sum", sum_over_all(i + 1), flush=True)


def late(i, n):
    if i == 1:
        processes.beat(7, "grading")
        time.sleep(60)
    time.sleep(6)  # until the beat of the other has come
    processes.wait("saved", 1)


def agree(i, n):
    """What it costs to ask, before every step, whether one of them is to stop."""
    times = []
    for k in range(500):
        began = time.perf_counter()
        assert processes.gather("stop", 0, 30) == [0] * n
        times.append(time.perf_counter() - began)
    for k in range(200):  # the last one is told by all
        found = processes.gather("stop", 15 if (i, k) == (n - 1, 150) else 0, 30)
        if any(found):
            break
    print(f"agreed at {k}: {found}")
    times.sort()
    print(f"median {1e3 * times[250]:.3f} ms, slowest {1e3 * times[-1]:.1f} ms")


def steps(i, n):
    """Until one of them is killed, or for a minute."""
    for step in range(600):
        sum_over_all(step)
        processes.beat(step)
        print("step", step, flush=True)
        time.sleep(0.1)


def killed(i, n):
    processes.beat(3)
    if i == int(os.environ["VICTIM"]):
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # in no collective: nothing of jax's tells


def crash(i, n):
    if i == 1:
        raise RuntimeError("the disk is full")
    sum_over_all(1)  # breaks when the other is gone


def wrong(i, n):
    if i == 1:
        raise ConfigError("config.data.train is not there.\nWrite another.")
    time.sleep(60)


def hang(i, n):
    with processes.watchdog(3 / 60):
        processes.beat(4)
        if i == 0:
            time.sleep(60)
        for _ in range(100):
            processes.beat(5)
            time.sleep(0.5)


def main(argv):
    settings = Runtime(start_secs=float(os.environ.get("START_SECS", "60")))
    with processes.start(settings, {"config": os.environ.get("CONFIG", "")}) as job:
        globals()[argv[0]](job.process_id, job.num_processes)
    return 0


if __name__ == "__main__":
    sys.exit(exit_on_config_error(main, sys.argv[1:]))
