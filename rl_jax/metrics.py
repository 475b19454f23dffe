"""What a stage writes while it runs: numbers, samples, status, and lines to read.

    workdir/metrics.jsonl     one strict-JSON line a step
    workdir/tensorboard/      the same numbers as TensorBoard events
    workdir/samples/          step_000010.jsonl: what the policy wrote
    workdir/status.json       where the run stands
    workdir/log.txt           every line that went to the terminal through `log`

Also here: memory and compile counts. The names are in metric_names.py, the curves in
plots.py, the words in progress.py.
"""

import collections
import json
import math
import os
import pathlib
import re
import resource
import shutil
import sys
import time
from collections.abc import Mapping
from typing import IO, Any

import jax
import jax.monitoring
import numpy as np

from rl_jax import progress
from rl_jax.errors import ConfigError
from rl_jax.metric_names import metric
from rl_jax.plots import plot_chain as plot_chain
from rl_jax.plots import plot_run as plot_run

# Steps over which the time left is judged: long enough to smooth evaluations.
_RECENT_STEPS = 20
_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class Writer:
    """Writes one stage's numbers, samples and lines. Not for use by two threads."""

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        stage: str,
        total_steps: int,
        enabled: bool,
    ):
        """Opens `workdir`, creating it; drops a line that a kill left half-written.

        Args:
            workdir: a local folder; made absolute.
            stage: begins every progress line.
            total_steps: of the stage, for "10/400" and the time left.
            enabled: False makes every method do nothing; True on one process only.
        """
        if re.match(r"\w+:/", os.fspath(workdir)):
            raise ConfigError(
                f"--workdir={os.fspath(workdir)}: metrics, samples and logs are "
                "appended to, which a bucket cannot do.\n"
                "Write a local or mounted folder (gcsfuse mounts a bucket)."
            )
        self._root = pathlib.Path(os.path.abspath(workdir))
        self._stage = stage
        self._total_steps = total_steps
        self._enabled = enabled
        self._purge_step: int | None = None
        self._tensorboard: Any = None
        self._metrics: IO[str] | None = None
        self._log: IO[str] | None = None
        self._times: collections.deque[tuple[int, float]] = collections.deque(
            maxlen=_RECENT_STEPS + 1
        )
        if enabled:
            self._root.mkdir(parents=True, exist_ok=True)
            self._drop_lines(after=None)

    def resume(self, step: int) -> None:
        """Forgets what was written for steps later than `step`, to go on from there.

        A fresh start in a used folder is `resume(-1)`. Samples stay until they are
        written again. TensorBoard hides the dropped steps.
        """
        if not self._enabled:
            return
        self._close_files()
        dropped = self._drop_lines(after=step)
        if dropped:
            what = f"what came after step {step} ({dropped} lines)"
            self.log(f"metrics.jsonl: dropped {what}")
        # TensorBoard hides events from purge_step on, itself included.
        self._purge_step = step + 1

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends one line and the TensorBoard events.

        Args:
            metrics: by the names of `METRICS`; Python, numpy or jax scalars. NaN and
                infinities become null, and their names go in a "nonfinite" list.

        Raises:
            ValueError: for an unknown name.
            TypeError: for a value that is not one number.
        """
        if not self._enabled:
            return
        numbers = {name: _number(name, value) for name, value in metrics.items()}
        for name in numbers:
            metric(name)
        nonfinite = [n for n, value in numbers.items() if not math.isfinite(value)]
        line: dict[str, Any] = {"step": int(step)} | {
            name: None if name in nonfinite else value
            for name, value in numbers.items()
        }
        if nonfinite:
            line["nonfinite"] = nonfinite
        if self._metrics is None:
            self._metrics = open(self._root / "metrics.jsonl", "a", encoding="utf-8")
        self._metrics.write(json.dumps(line, allow_nan=False) + "\n")
        self._metrics.flush()
        events = self._events()
        for name, value in numbers.items():
            events.add_scalar(name, value, int(step))
        events.flush()

    def line(self, step: int, metrics: Mapping[str, Any]) -> str:
        """Prints and returns the progress line of a step: what of it is known."""
        parts = [
            f"{self._stage} {step}/{self._total_steps}",
            *progress.summary(metrics),
        ]
        if any(name.startswith("train/") for name in metrics):
            secs = self._secs_left(step, metrics.get("time/step"))
            if secs is not None:
                parts.append(f"{progress.duration(secs)} left")
        text = "  ".join(parts)
        self.log(text)
        return text

    def log(self, text: str) -> None:
        """Prints lines to the terminal and appends them to log.txt."""
        if not self._enabled:
            return
        # A terminal set to ASCII must not end a run over one letter.
        encoding = sys.stdout.encoding or "utf-8"
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
        if self._log is None:
            self._log = open(
                self._root / "log.txt", "a", encoding="utf-8", errors="backslashreplace"
            )
        self._log.write(text + "\n")
        self._log.flush()

    def samples(
        self, step: int, records: list[dict[str, Any]], *, show: int = 3
    ) -> None:
        """Writes samples/step_<step>.jsonl and prints the first of a few prompts.

        Args:
            records: JSON-like dicts; "prompt", "completion", "score" and "verdict"
                are the ones printed.
            show: how many to print, each of another prompt.
        """
        if not self._enabled:
            return
        path = self._root / "samples" / f"step_{step:06d}.jsonl"
        path.parent.mkdir(exist_ok=True)
        lines = [json.dumps(_strict(record), allow_nan=False) for record in records]
        _write_atomically(path, "".join(line + "\n" for line in lines))
        firsts: dict[Any, dict[str, Any]] = {}
        for record in records:
            firsts.setdefault(str(record.get("prompt")), record)
        self.log(f"samples of step {step} (all {len(records)}: {path})")
        width = shutil.get_terminal_size((100, 24)).columns
        for record in list(firsts.values())[:show]:
            self.log(progress.sample_text(record, width))

    def status(self, fields: dict[str, Any]) -> None:
        """Replaces status.json, which a reader sees whole or not at all."""
        if self._enabled:
            text = json.dumps(_strict(fields), indent=1, allow_nan=False)
            _write_atomically(self._root / "status.json", text + "\n")

    def close(self) -> None:
        """Closes the files. A later write opens them again."""
        self._close_files()
        if self._log is not None:
            self._log.close()
            self._log = None

    def _close_files(self) -> None:
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._tensorboard is not None:
            self._tensorboard.close()
            self._tensorboard = None

    def _events(self) -> Any:
        if self._tensorboard is None:
            from tensorboardX import SummaryWriter  # slow to import, and not needed

            self._tensorboard = SummaryWriter(
                str(self._root / "tensorboard"), purge_step=self._purge_step
            )
            self._purge_step = None
        return self._tensorboard

    def _drop_lines(self, *, after: int | None) -> int:
        """Rewrites metrics.jsonl without torn and later lines; how many they were."""
        path = self._root / "metrics.jsonl"
        if not path.exists():
            return 0
        lines = path.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if _is_kept(line, after)]
        if len(kept) < len(lines):
            _write_atomically(path, b"".join(kept).decode())
        return len(lines) - len(kept)

    def _secs_left(self, step: int, step_secs: float | None) -> float | None:
        """From the wall clock of recent steps, so that evaluations count too."""
        if not self._times or step > self._times[-1][0]:
            self._times.append((step, time.monotonic()))
        (first, began), (last, now) = self._times[0], self._times[-1]
        if last > first:
            step_secs = (now - began) / (last - first)
        if step_secs is None:
            return None
        return max(self._total_steps - step, 0) * float(step_secs)


class CompileCounter:
    """Counts what JAX compiles in this process from now on, and the seconds.

    A program that is read from the persistent cache counts too, with the seconds that
    reading took.
    """

    def __init__(self) -> None:
        self.count = 0
        self.secs = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def close(self) -> None:
        """Stops counting."""
        jax.monitoring.unregister_event_duration_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILE_EVENT:
            self.count += 1
            self.secs += duration_secs


def memory_bytes() -> int:
    """Host memory in use by this process (resident set); its peak outside Linux."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def device_memory_bytes() -> int | None:
    """Peak use of this process's fullest device; None where it does not say (CPU)."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [s["peak_bytes_in_use"] for s in stats if "peak_bytes_in_use" in s]
    return max(peaks, default=None)


def _number(name: str, value: Any) -> int | float:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind in "OSUc":
        raise TypeError(f"metric {name} must be one number, got {value!r}")
    scalar = array.reshape(-1)[0]
    if array.dtype.kind in "biu":
        return int(scalar)
    if array.dtype == np.float32:
        # The shortest digits that give the same float32: 0.1, not 0.10000000149.
        return float(str(scalar))
    return float(scalar)


def _strict(value: Any) -> Any:
    """The value as strict JSON: non-finite numbers as null, tuples as lists."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _strict(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _is_kept(line: bytes, after: int | None) -> bool:
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return False
    return line.endswith(b"\n") and (after is None or step <= after)


def _write_atomically(path: pathlib.Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
