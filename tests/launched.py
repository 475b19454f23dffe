"""Runs of one or several real processes, started as a launcher does, over loopback."""

import contextlib
import json
import socket
import subprocess
import sys
import time

import numpy as np

import tiny_run


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


class Run:
    """A run of `count` processes with `devices` each; `end` gives code and output.

    Args:
        recipe: the text of its config.
        words: more of the command line.
    """

    def __init__(self, recipe, workdir, *words, count=1, devices=1):
        self.workdir = workdir
        path = workdir.parent / "recipe.py"
        path.write_text(recipe)
        environment = tiny_run.environment(workdir.parent / "cache") | {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} "
            "--xla_backend_optimization_level=0"
        }
        if count > 1:
            address = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}"}
            environment |= address | {"JAX_NUM_PROCESSES": str(count)}
        command = [sys.executable, "-u", "-m", "rl_jax.train"]
        command += [f"--config={path}", f"--workdir={workdir}", *words]
        self.logs, self.processes = [], []
        for i in range(count):
            self.logs.append(workdir.parent / f"log_{time.monotonic_ns()}_{i}")
            with open(self.logs[-1], "w") as log:
                one = subprocess.Popen(
                    command,
                    env=environment | ({"JAX_PROCESS_ID": str(i)} if count > 1 else {}),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            self.processes.append(one)

    def until(self, step, timeout_secs=240):
        """Waits until a step is written."""
        deadline = time.monotonic() + timeout_secs
        while not any(line["step"] >= step for line in lines(self.workdir)):
            codes = [process.poll() for process in self.processes]
            assert codes.count(None) == len(codes), self.end()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self, timeout_secs=240):
        """(exit codes, outputs) of all processes, when the last has ended."""
        deadline = time.monotonic() + timeout_secs
        try:
            for process in self.processes:
                process.wait(max(deadline - time.monotonic(), 0.1))
        finally:
            for process in self.processes:
                process.kill()
        outs = [log.read_text() for log in self.logs]
        print("\n".join(out[-1500:] for out in outs))
        return [process.wait() for process in self.processes], outs


def lines(workdir):
    path = workdir / "metrics.jsonl"
    found = path.read_text().splitlines() if path.exists() else []
    with contextlib.suppress(ValueError):  # the last one may be half written
        return [json.loads(line) for line in found]
    return [json.loads(line) for line in found[:-1]]


# The clock's, and the machine's.
_OWN = ("time/", "perf/", "wall_time")


def assert_same_metrics(workdir, whole):
    """Line by line within 1e-5 of a number, or 1e-6 near 0; integers and text alike."""
    found, wanted = lines(workdir), lines(whole)
    assert [line["step"] for line in found] == [line["step"] for line in wanted]
    worst = 0.0
    for got, want in zip(found, wanted, strict=True):
        got, want = (
            {key: x for key, x in line.items() if not key.startswith(_OWN)}
            for line in (got, want)
        )
        assert got.keys() == want.keys()
        for key, y in want.items():
            note = f"{key} of step {want['step']}"
            if isinstance(y, float):
                np.testing.assert_allclose(got[key], y, 1e-5, 1e-6, err_msg=note)
                worst = max(worst, abs(got[key] - y) / max(abs(y), 0.1))
            else:
                assert got[key] == y, note
    print(f"{workdir.name}: {len(found)} lines of metrics within {worst:.1e}")
