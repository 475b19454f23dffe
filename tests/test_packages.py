"""Each of the packages that rl_jax stands on does work in the quickstart.

A dependency that is imported and not used is a burden: it is installed, it breaks, and
nobody needs it. So the tiny quickstart chain is run with a profiler that records every
call from the body of one of our functions into a function of the package. A call at
import, such as a decorator, does not count, and neither does an import by someone else.
Where there is such a call, a run with the package blocked would stop at it.

`calls_into.py` is the profiler. To see all calls: its OUT.json.
"""

import importlib.metadata
import re
import tomllib

import pytest

import tiny_stage as tiny
from calls_into import PACKAGES, ROOT

# What each one is here for, as one of its calls at least.
WORK = {
    "jax": r"learner\.py .* -> value_and_grad$",
    "flax": r"step_arrays\.py .* -> (to_state_dict|from_state_dict)$",
    "optax": r"optimiser\.py apply -> apply_updates$",
    "orbax-checkpoint": r"checkpoint\.py save -> .*AsyncCheckpointer\.save$",
    "grain": r"pipeline\.py stream -> MapDataset\.shuffle$",
    "sentencepiece": r"tokenizer\.py train -> SentencePieceTrainer\.Train$",
    "ml-collections": r"(recipe|command_line)\.py .* -> DEFINE_config_(file|dict)$",
}


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Package -> calls into it, of one run of the tiny chain."""
    found = {}
    for package, call in tiny.trained(tmp_path_factory.getbasetemp())[1]:
        found.setdefault(package, []).append(call)
    return found


@pytest.mark.parametrize("package", WORK)
def test_the_quickstart_really_calls(calls, package):
    assert package in calls, f"no function of ours called {package}"
    shown = "\n".join(calls[package])
    print(f"{package}: {len(calls[package])} calls\n{shown}")
    assert re.search(WORK[package], shown, re.MULTILINE), shown


def test_the_packages_are_dependencies_of_the_plain_install():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^\w-]", spec)[0] for spec in project["dependencies"]}
    assert set(WORK) <= names and set(PACKAGES.values()) == set(WORK)
    for package in WORK:
        assert importlib.metadata.version(package)
