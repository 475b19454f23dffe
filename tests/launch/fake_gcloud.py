"""Stands for gcloud: refuses what is not documented, and acts on local folders.

Folder $FAKE_GCLOUD holds `log.jsonl` (the arguments of every call), `bucket/` for
gs://, `machine/` for the home of every TPU worker, and `states`, what `queued-resources
describe` says, one a call, the last for ever.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import NoReturn

HOME = pathlib.Path(os.environ["FAKE_GCLOUD"])
TABLE = json.loads(pathlib.Path(__file__).with_name("gcloud_flags.json").read_text())


def refuse(text) -> NoReturn:
    sys.exit(f"ERROR: (gcloud) {text}")


def parse(words):
    """(command, positional, flags), all as documented."""
    command = next(
        (c for c in TABLE["commands"] if words[: len(c.split())] == c.split()), None
    )
    if command is None:
        refuse(f"Invalid choice: {' '.join(words)!r}")
    known = TABLE["gcloud_wide"] | TABLE["commands"][command]["flags"]
    positional, flags = [], {}
    for word in words[len(command.split()) :]:
        if not word.startswith("-"):
            positional.append(word)
            continue
        name, equals, value = word.partition("=")
        if name not in known:
            refuse(f"unrecognized arguments: {name}")
        if known[name] != bool(equals):
            refuse(f"argument {name}: {'expected' if known[name] else 'ignored'} value")
        flags[name] = value
    spec = TABLE["commands"][command]
    if not spec["least"] <= len(positional) <= spec["most"]:
        refuse(f"{command}: {len(positional)} positional arguments")
    return command, positional, flags


def path_of(url):
    if url.startswith("gs://"):
        return HOME / "bucket" / url.removeprefix("gs://")
    _, colon, path = url.partition(":")
    return HOME / "machine" / path if colon else pathlib.Path(url)


def copy(source, target):
    target = path_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path_of(source), target)


def next_state():
    """The next answer to `queued-resources describe`."""
    path = HOME / "states"
    states = path.read_text().split() if path.exists() else ["ABSENT"]
    if len(states) > 1:
        path.write_text("\n".join(states[1:]))
    return states[0]


def main():
    words = sys.argv[1:]
    with open(HOME / "log.jsonl", "a") as log:
        log.write(json.dumps(words) + "\n")
    command, positional, flags = parse(words)
    if command in ("storage cp", "compute tpus tpu-vm scp"):
        copy(*positional)
    elif command == "storage cat":
        print(path_of(positional[0]).read_text(), end="")
    elif command == "compute tpus tpu-vm ssh":
        machine = HOME / "machine"
        machine.mkdir(exist_ok=True)
        environ = os.environ | {"HOME": str(machine)}
        return subprocess.call(
            ["bash", "-c", flags["--command"]], cwd=machine, env=environ
        )
    elif command == "compute tpus queued-resources describe":
        state = next_state()
        if state == "ABSENT":
            refuse("NOT_FOUND: Resource was not found")
        if state == "OFFLINE":
            refuse("gcloud crashed (ConnectionError)")
        print("ACTIVE" if state == "PREEMPTED" else state)
        (HOME / "node").write_text(state)
    elif command == "compute tpus tpu-vm describe":
        print((HOME / "node").read_text())
    elif command == "compute tpus queued-resources create":
        script = flags["--metadata-from-file"].removeprefix("startup-script=")
        shutil.copy(script, HOME / "startup.sh")
    return 0


if __name__ == "__main__":
    sys.exit(main())
