"""Starts the zygote: a fresh interpreter with an empty environment, by exec."""

import pathlib
import socket
import subprocess
import sys

from rl_jax.rewards.sandbox import cgroup, wire
from rl_jax.rewards.sandbox.layers import Layers
from rl_jax.rewards.sandbox.limits import SandboxError

_ROOT = pathlib.Path(__file__).resolve().parents[3]
# Only what runs in the zygote is imported: not rl_jax, nor what its packages import.
_BOOT = """
import sys, types
root = sys.argv[2]
for name in ("rl_jax", "rl_jax.rewards", "rl_jax.rewards.sandbox"):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [root + "/" + name.replace(".", "/")]
from rl_jax.rewards.sandbox import zygote
zygote.main()
"""
_ANSWER_SECS = 60.0  # of a zygote that is alive, on a machine with too much to do
_LEAVE_SECS = 5.0
# For monitors, and for what the kernel keeps of each process.
_SPARE_BYTES = 32 << 20


class Zygote:
    """The process that starts programs, seen from outside. Close it.

    Args:
        without: layers to leave out: "namespaces", "landlock", "cgroup", "watch".

    Raises:
        SandboxError: it does not start, or the kernel refuses a layer.
    """

    def __init__(self, without: frozenset[str]):
        self.group = None if "cgroup" in without else cgroup.create()
        self._process: subprocess.Popen[bytes] | None = None
        self.control, theirs = wire.pair()
        self.control.settimeout(_ANSWER_SECS)
        try:
            with theirs:
                self._process = _spawn(theirs)
            self._enter_group()
            wire.send(self.control, {"without": sorted(without)})
            answer, _ = wire.receive(self.control)
        except (OSError, EOFError) as error:
            self.close()
            raise SandboxError(
                f"the sandbox's interpreter does not start: {error!r}"
            ) from error
        if "error" in answer:
            self.close()
            raise SandboxError(answer["error"])
        self.layers = Layers(**answer["ready"])
        if self.group is not None:
            self.group.base_bytes = self.group.used_bytes() + _SPARE_BYTES

    def _enter_group(self) -> None:
        """Before it has started anything, so that all of its children are in it."""
        assert self._process is not None
        if self.group is not None:
            try:
                self.group.add(self._process.pid)
            except OSError:  # made, but not ours to fill: the monitors watch instead
                self.group.close()
                self.group = None

    def close(self) -> None:
        """Ends it with all that runs in it. May be repeated."""
        self.control.close()
        if self._process is not None:
            try:
                self._process.wait(_LEAVE_SECS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self.group is not None:
            self.group.close()


def _spawn(control: socket.socket) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [
            # The one below a virtual environment, whose packages are not for programs.
            getattr(sys, "_base_executable", None) or sys.executable,
            # No packages, no working directory, no user's folder, UTF-8 throughout.
            *("-S", "-s", "-P", "-X", "utf8", "-c", _BOOT),
            str(control.fileno()),
            str(_ROOT),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[control.fileno()],
        cwd="/",
        # The order of sets: same program, same output.
        env={"PYTHONHASHSEED": "0"},
    )
