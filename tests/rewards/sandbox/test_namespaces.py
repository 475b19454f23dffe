"""Machines that give less than this one, made with `unshare`."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = """
import json, sys
from rl_jax.errors import ConfigError
from rl_jax.rewards.sandbox import Sandbox, self_test
try:
    with Sandbox(sys.argv[1]) as sandbox:
        report = self_test(sandbox)
        report.check()
        layers = sandbox.layers
        found = [sandbox.level, layers.user, sandbox.forks, layers.watched]
        print(json.dumps(found))
except ConfigError as error:
    print(json.dumps(str(error)))
"""


def inside(*, isolation, before=""):
    """Runs PROGRAM as root of a new user namespace, after some shell commands."""
    command = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"]).returncode:
        pytest.skip("no user namespaces here")
    shell = f'{before}\nexec "$@"'
    done = subprocess.run(
        [*command, "sh", "-ec", shell, "sh", sys.executable, "-c", PROGRAM, isolation],
        capture_output=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_root_of_a_container_without_other_users_is_as_an_ordinary_user():
    level, user, forks, watched = inside(isolation="namespaces")
    assert (level, user, watched) == ("namespaces", None, True)
    # Where it is the machine's root, its processes are not counted: it gets one.
    assert forks == (os.geteuid() != 0)


def test_where_namespaces_are_refused_the_reason_and_the_remedies_are_told():
    refuse = "echo 0 > /proc/sys/user/max_user_namespaces"
    message = inside(isolation="namespaces", before=refuse)
    assert isinstance(message, str) and "unshare: No space left" in message
    assert "sysctl" in message and "isolation='landlock'" in message
    assert len(message.splitlines()) == 3
    level, _, forks, watched = inside(isolation="landlock", before=refuse)
    assert level == "landlock" and not forks and not watched


def test_a_hidden_proc_means_that_no_family_can_be_watched():
    """A container covers parts of /proc; the kernel then gives no other."""
    level, _, _, watched = inside(
        isolation="namespaces", before="mount -t tmpfs none /proc/sys"
    )
    assert level == "namespaces" and not watched
