import json
import os
import subprocess
import sys

import pytest

from rl_jax.rewards.sandbox import landlock

PROGRAM = """
import json, os, sys
from rl_jax.rewards.sandbox import kernel, landlock
readable, writable, outside, abi = json.loads(sys.argv[1])
rules = landlock.ruleset(
    {readable: landlock.READ, writable: landlock.READ | landlock.WRITE}, abi=abi
)
kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
landlock.restrict(rules)
def allowed(action):
    try:
        action()
        return True
    except PermissionError:
        return False
print(json.dumps([
    allowed(lambda: open(readable + "/a").close()),
    allowed(lambda: open(readable + "/a", "w").close()),
    allowed(lambda: open(readable + "/b", "w").close()),
    allowed(lambda: os.remove(readable + "/a")),
    allowed(lambda: open(writable + "/b", "w").close()),
    allowed(lambda: os.listdir(writable)),
    allowed(lambda: open(outside + "/a").close()),
    allowed(lambda: os.listdir(outside)),
    allowed(lambda: os.listdir("/")),
]))
"""


@pytest.mark.parametrize("abi", [1, 3, 4, 6])
def test_only_what_the_rules_name_can_be_touched(tmp_path, abi):
    if landlock.version() < abi:
        pytest.skip(f"Landlock {landlock.version()}")
    folders = [tmp_path / name for name in ("readable", "writable", "outside")]
    for folder in folders:
        folder.mkdir()
        (folder / "a").write_text("text")
    arguments = json.dumps([*map(str, folders), abi])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, arguments],
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    expected = [True, False, False, False, True, True, False, False, False]
    assert json.loads(done.stdout) == expected
    assert (folders[0] / "a").read_text() == "text"


def test_a_path_that_is_not_there_is_an_error():
    if not landlock.version():
        pytest.skip("no Landlock")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        landlock.ruleset({"/not/there": landlock.READ}, abi=1)
    assert len(os.listdir("/proc/self/fd")) == before
