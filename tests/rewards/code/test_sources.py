import ast
import subprocess
import sys

import pytest

from rl_jax.rewards.code import channel, sources
from rl_jax.rewards.sandbox import limits


@pytest.mark.parametrize("side", ["program", "tests", "checker"])
def test_a_side_is_one_text_that_needs_the_standard_library_only(side):
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(sources.source(side)))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported - {"numpy"} <= sys.stdlib_module_names
    assert not imported & {"pickle", "marshal", "subprocess", "rl_jax"}


def test_the_channel_has_the_descriptors_of_a_session():
    assert (channel.REQUEST_FD, channel.REPLY_FD) == (
        limits.REQUEST_FD,
        limits.REPLY_FD,
    )


def run(*texts, preamble=""):
    done = subprocess.run(
        [sys.executable, "-c", sources.whole_program(preamble, texts)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_the_first_text_that_compiles_is_the_program():
    assert run("print(1", "print(2)", "print(3)") == "2"
    assert run("print(__name__, 'x' in globals())", preamble="x = 1") == "__main__ True"
    assert run("print('\U0001f600', \"'\")") == "\U0001f600 '"
    assert run("print(len(str(10 ** 5000)))") == "5001"
    assert run("print(1", "  print(2)").startswith("SyntaxError")
