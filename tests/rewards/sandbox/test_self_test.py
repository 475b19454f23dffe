import json
import os
import pathlib
import subprocess
import sys

import pytest

from rl_jax.errors import ConfigError
from rl_jax.rewards.sandbox import Finding, Report, self_test

ROOT = pathlib.Path(__file__).resolve().parents[3]
NOBODY = 65534
CANARIES = [
    "file",
    "environment",
    "descriptors",
    "network",
    "processes",
    "signal",
    "memory",
    "kernel",
    "execute",
    "family memory",
    "disk",
]


def test_every_level_holds_what_it_promises(each):
    report = self_test(each)
    report.check()
    assert [finding.canary for finding in report.findings] == CANARIES
    assert report.escapes == ()
    if each.level != "none":
        assert all(finding.contained for finding in report.findings)


def test_namespaces_hold_where_nothing_bounds_a_family(one_process):
    report = self_test(one_process)
    assert all(finding.contained for finding in report.findings), str(report)


def test_the_canaries_do_get_out_where_nothing_holds_them():
    """As the user of this test, without namespaces and Landlock."""
    from rl_jax.rewards.sandbox import Sandbox

    with Sandbox("none", without=frozenset({"namespaces", "landlock"})) as sandbox:
        report = self_test(sandbox)
    open_to_all = {f.canary for f in report.findings if not f.contained}
    assert "file" in open_to_all
    assert not any(f.promised for f in report.findings if f.canary in open_to_all)


def test_an_escape_is_an_error_that_names_the_canary():
    findings = (
        Finding("file", True, "FileNotFoundError"),
        Finding("signal", False, "x"),
    )
    report = Report("namespaces", "all of them", findings)
    assert [finding.canary for finding in report.escapes] == ["signal"]
    with pytest.raises(ConfigError, match="signal: x"):
        report.check()


def test_the_report_is_a_table():
    findings = (
        Finding("file", False, "read it", promised=False),
        Finding("signal", False, "reached"),
        Finding("network", True, "PermissionError"),
    )
    assert str(Report("none", "seccomp", findings)) == (
        "isolation: none (seccomp)\n"
        "  file     open       read it\n"
        "  signal   ESCAPED    reached\n"
        "  network  contained  PermissionError"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
@pytest.mark.parametrize("without", [[], ["namespaces"]])
def test_an_ordinary_user_gets_the_same_levels(sandbox, without):
    program = f"""
import json
from rl_jax.rewards.sandbox import Sandbox, self_test
with Sandbox("none", without=frozenset({without!r})) as sandbox:
    report = self_test(sandbox)
    contained = [finding.canary for finding in report.findings if finding.contained]
    print(json.dumps([sandbox.level, contained]))
"""
    done = subprocess.run(
        [interpreter(), "-B", "-c", program],
        capture_output=True,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    level, contained = json.loads(done.stdout)
    assert contained == CANARIES
    if not without and sandbox.level == "namespaces":
        assert level in ("namespaces", "landlock")
        if user_namespaces_are_open():
            assert level == "namespaces"


def user_namespaces_are_open():
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "true"],
        user=NOBODY,
        group=NOBODY,
        capture_output=True,
        cwd="/",
    )
    return done.returncode == 0


def interpreter():
    """A Python that an ordinary user can run, with this checkout in their reach."""
    program = f"import sys; sys.path[:0] = [{str(ROOT)!r}]; import rl_jax.rewards"
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            done = subprocess.run(
                [path, "-B", "-c", program],
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                capture_output=True,
                cwd="/",
            )
        except OSError:
            continue
        if done.returncode == 0:
            return path
    pytest.skip("no interpreter or checkout that an ordinary user may read")
