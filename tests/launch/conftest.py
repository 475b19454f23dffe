"""A checkout to launch from, a false gcloud, a Python whose pip installs nothing."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent

# An interpreter as launch/python.sh looks for one. What it makes with -m venv is a copy
# of itself; -m rl_jax.train shows its words if STUB_CODES has a code to end with.
PYTHON = """#!/usr/bin/env bash
case "${1:-} ${2:-}" in
    "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && exit ;;
    "-m pip") echo "$*" >>"$FAKE_GCLOUD/pip.txt" && exit ;;
    "-m rl_jax.train" | "-u -m")
        if [ -n "${STUB_CODES:-}" ]; then
            [ "$1" != -u ] || shift
            shift 2
            words=("$@")
            set -- $STUB_CODES
            tries=$(cat "$FAKE_GCLOUD/tries" 2>/dev/null || echo 0)
            echo $((tries + 1)) >"$FAKE_GCLOUD/tries"
            shift "$tries"
            # Before it says that it runs: a test may stop it the moment it does.
            [ "$1" != wait ] || trap 'kill $!; echo saved; exit 143' TERM
            printf '<%s>' "${JAX_PROCESS_ID:-}" "${words[@]}" && echo
            if [ "$1" = wait ]; then
                sleep 60 &
                wait $!
            fi
            exit "$1"
        fi
        ;;
esac
exec @PYTHON@ "$@"
"""


class Launcher:
    """Runs the scripts of a copy of launch/ in a folder of its own.

    Attributes:
        checkout: the copy; `home`: what the fake gcloud acts on.
    """

    def __init__(self, folder: pathlib.Path):
        self.checkout, self.home = folder / "check out", folder / "gcloud"
        for path in (self.checkout, self.home, folder / "bin"):
            path.mkdir()
        shutil.copytree(ROOT / "launch", self.checkout / "launch")
        shutil.copy(ROOT / "pyproject.toml", self.checkout)
        (self.checkout / ".git").mkdir()
        self.python = folder / "bin" / "python"
        self._script(self.python, PYTHON.replace("@PYTHON@", sys.executable))
        fake = f'#!/bin/sh\nexec {sys.executable} {HERE}/fake_gcloud.py "$@"\n'
        self._script(folder / "bin" / "gcloud", fake)
        self.environ = os.environ | {
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "FAKE_GCLOUD": str(self.home),
            "PYTHON": str(self.python),
            "PAUSE": "0",
            "WATCH_SECS": "0",
        }

    @staticmethod
    def _script(path, text):
        path.write_text(text)
        path.chmod(0o755)

    def start(self, *words, **environ):
        """A running script: its name in launch/, then its arguments."""
        return subprocess.Popen(
            [self.checkout / "launch" / words[0], *words[1:]],
            cwd=self.home,
            env=self.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *words, timeout=60, **environ):
        """(exit code, stdout, stderr) of a script."""
        process = self.start(*words, **environ)
        out, err = process.communicate(timeout=timeout)
        print(out, err, sep="\n--- stderr\n")
        return process.returncode, out, err

    def shell(self, text, **environ):
        """(exit code, stdout, stderr) of what a person pastes into a terminal."""
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self.home,
            env=self.environ | environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout, done.stderr

    def calls(self):
        """The arguments of every call of gcloud since the last time."""
        log = self.home / "log.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [json.loads(line) for line in lines]


@pytest.fixture
def launcher(tmp_path):
    return Launcher(tmp_path)
