"""Ends a process that makes no progress, with the stacks of all its threads."""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable

# After the limit: for code that holds Python's lock, so that no Python thread can act.
_GRACE_SECS = 30.0


class Watchdog:
    """A context that ends the process, exit code 1, if `beat` does not come in time.

    One at a time: the part of it that needs no Python is one for the process.

    Attributes:
        limit_secs: between two beats, at most; 0: no limit.

    Args:
        minutes: between two beats, or the start and the first one, at most; compiling
            is part of the first step. 0: no limit.
        what: should have finished, for the message.
        tell: is given the message before the process ends.
        ask: what else is known, for the message.
    """

    def __init__(
        self,
        minutes: float,
        what: str = "step",
        *,
        tell: Callable[[str], None] = lambda text: None,
        ask: Callable[[], str] = lambda: "",
    ):
        self.limit_secs, self._what = 60 * minutes, what
        self._tell, self._ask = tell, ask
        self._last, self._after = time.monotonic(), ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="watchdog")

    def __enter__(self) -> "Watchdog":
        if self.limit_secs:
            self._last = time.monotonic()
            self._arm()
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.limit_secs:
            self._stopped.set()
            self._thread.join()
            faulthandler.cancel_dump_traceback_later()

    def beat(self, step: int) -> None:
        """Step `step` has finished: the time begins anew."""
        if self.limit_secs and not self._stopped.is_set():
            self._last, self._after = time.monotonic(), f" after step {step}"
            self._arm()

    def _arm(self) -> None:
        # A thread of C, which needs no lock of Python's.
        faulthandler.dump_traceback_later(
            self.limit_secs + _GRACE_SECS, exit=True, file=2
        )

    def _run(self) -> None:
        while not self._stopped.wait(max(self._left(), 0.01)):
            if self._left() <= 0:
                return self._end()

    def _left(self) -> float:
        return self._last + self.limit_secs - time.monotonic()

    def _end(self) -> None:
        text = (
            f"no {self._what} has finished within {self.limit_secs / 60:g} minutes"
            f"{self._after}"
        )
        known = self._ask()
        print(
            f"error: {text}{f'; {known}' if known else ''}.\n"
            "What each thread is doing:",
            file=sys.stderr,
            flush=True,
        )
        faulthandler.dump_traceback(file=2, all_threads=True)
        self._tell(text)
        os._exit(1)
