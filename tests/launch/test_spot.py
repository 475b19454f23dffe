"""tpu_spot.sh watch against a queue that gives, takes and fails."""

import json
import os
import re
import signal
import subprocess
import time

import pytest

TRAINING = ["--", "--config=configs/x.py", "--workdir=/mnt/share/it's x"]
WORDS = ["my-tpu", "--zone=z", "--type=v5litepod-16", "--num_processes=4"]
WORDS += ["--bucket=gs://b/f/", "--setup=mount 'a b' /mnt/share"]
MARK = "bucket/b/f/my-tpu/exit_code"


def verbs(calls):
    """Calls in short: "queued-resources create", "storage cp", ..."""
    return [" ".join(c[2:4] if c[0] == "compute" else c[:2]) for c in calls]


def watched(launcher, states, over_after=None, code="0", secs=30):
    """Watches while the queue says `states`; the run is over at the last but k."""
    (launcher.home / "states").write_text("\n".join(states))
    process = launcher.start("tpu_spot.sh", "watch", *WORDS, *TRAINING)
    until = time.monotonic() + secs
    while process.poll() is None and time.monotonic() < until:
        left = (launcher.home / "states").read_text().split()
        mark = launcher.home / MARK
        if over_after is not None and left == states[-1:] and mark.exists():
            mark.write_text(code + "\n")
        time.sleep(0.05)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    out, err = process.communicate()
    print(out, err, sep="\n--- stderr\n")
    return process.returncode, out, err


def test_it_asks_once_and_deletes_the_machines_when_the_run_is_over(launcher):
    states = ["ABSENT", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    code, out, _ = watched(launcher, states, over_after=True)
    assert code == 0 and "the run is over, with exit code 0" in out
    calls = launcher.calls()
    short = verbs(calls)
    assert short.count("queued-resources create") == 1
    assert short[-1] == "queued-resources delete"
    assert calls[-1][4:] == ["my-tpu", "--force", "--quiet", "--zone=z"]
    for state in states[1:3]:
        assert f"my-tpu: {state}\n" in out


@pytest.mark.parametrize("lost", ["SUSPENDED", "PREEMPTED"])
def test_machines_that_are_lost_are_asked_for_again_with_the_same_words(launcher, lost):
    states = ["ABSENT", "ACTIVE", lost, "PROVISIONING", "ACTIVE"]
    code, _, _ = watched(launcher, states, over_after=True)
    assert code == 0
    calls = launcher.calls()
    asked = [c for c in calls if c[2:4] == ["queued-resources", "create"]]
    assert len(asked) == 2 and asked[0] == asked[1]
    assert "--spot" in asked[0] and "--node-id=my-tpu" in asked[0]
    short = verbs(calls)
    again = len(short) - 1 - short[::-1].index("queued-resources create")
    assert short[again - 1] == "queued-resources delete"
    # The code is that of the first time: nothing is packed or copied again.
    assert short.count("storage cp") == 2


def test_a_watch_that_begins_later_takes_up_what_is_there(launcher):
    mark = launcher.home / MARK
    mark.parent.mkdir(parents=True)
    mark.write_text("running\n")
    code, _, _ = watched(launcher, ["ACTIVE", "ACTIVE", "ACTIVE"], over_after=True)
    assert code == 0
    assert "queued-resources create" not in verbs(launcher.calls())


def test_the_exit_code_of_a_run_that_failed_is_the_watchs(launcher):
    code, _, _ = watched(launcher, ["ABSENT", "ACTIVE"], over_after=True, code="2")
    assert code == 2 and verbs(launcher.calls())[-1] == "queued-resources delete"


def test_a_request_that_fails_is_not_repeated_for_ever(launcher):
    code, _, err = watched(launcher, ["ABSENT", "FAILED"])
    assert code == 1 and "the request failed" in err
    assert verbs(launcher.calls()).count("queued-resources create") == 1


def test_a_gcloud_that_cannot_be_reached_at_first_is_the_end(launcher):
    code, _, err = watched(launcher, ["OFFLINE"])
    assert code == 1 and "ConnectionError" in err
    assert "queued-resources create" not in verbs(launcher.calls())


def test_a_gcloud_that_cannot_be_reached_for_a_while_is_waited_for(launcher):
    states = ["ABSENT", "ACTIVE", "OFFLINE", "OFFLINE", "ACTIVE"]
    code, _, _ = watched(launcher, states, over_after=True)
    assert code == 0
    assert verbs(launcher.calls()).count("queued-resources create") == 1


def test_the_dry_run_shows_the_whole_script_that_machines_get(launcher):
    code, out, _ = launcher.run("tpu_spot.sh", "--dry-run", "watch", *WORDS, *TRAINING)
    assert code == 0 and launcher.calls() == []
    shown = re.findall(r"<<'END OF FILE'\n(.*?)END OF FILE\n", out, re.DOTALL)
    script = shown[0]
    body = (launcher.checkout / "launch/startup.sh").read_text()
    assert script.endswith(body.partition("\n")[2])
    head = script.removesuffix(body.partition("\n")[2]).splitlines()
    assert head[0] == "#!/usr/bin/env bash"
    say = 'printf "<%s>" "$CODE" "$DONE" "$SETUP" "$RESTARTS" "$@"'
    done = subprocess.run(
        ["bash", "-c", "\n".join([*head, say])], capture_output=True, text=True
    )
    assert done.stdout == (
        "<gs://b/f/my-tpu/code.tar.gz><gs://b/f/my-tpu/exit_code>"
        "<mount 'a b' /mnt/share><10><--config.runtime.num_processes=4>"
        "<--config.runtime.platform=tpu><--config=configs/x.py>"
        "<--workdir=/mnt/share/it's x>"
    )
    for line in ("# If there is no", "# Then, every 0 s:", "# When the state is"):
        assert line in out


def test_the_script_of_the_request_is_the_one_that_was_shown(launcher):
    launcher.run("tpu_spot.sh", "create", *WORDS, *TRAINING)
    calls = launcher.calls()
    assert verbs(calls) == ["storage cp", "storage cp", "queued-resources create"]
    _, out, _ = launcher.run("tpu_spot.sh", "--dry-run", "create", *WORDS, *TRAINING)
    assert (launcher.home / "startup.sh").read_text() in out
    assert (launcher.home / MARK).read_text() == "running\n"
    assert json.dumps(calls[2]).count("--metadata-from-file=startup-script=") == 1
