"""The reference solutions of HumanEval and MBPP pass, and empty ones do not.

The files are those of openai/human-eval (data/HumanEval.jsonl.gz, unpacked) and of
google-research (mbpp/sanitized-mbpp.json). Where they are is said by HUMANEVAL_JSONL
and MBPP_JSON. A minute each.
"""

import ast
import json
import os
import pathlib

import pytest

from rl_jax.rewards.code.judge import judge_job
from rl_jax.rewards.code.options import CodeOptions
from rl_jax.rewards.sandbox import Sandbox

pytestmark = pytest.mark.slow


def file(variable):
    path = os.environ.get(variable, "")
    if not path:
        pytest.skip(f"{variable} does not name the file")
    return pathlib.Path(path)


def passed(rows, reply, *, hidden):
    """Names of the rows whose reply passes; `hidden` columns are not in the job."""
    found = set()
    with Sandbox("none") as sandbox:
        for row in rows:
            shown = {key: value for key, value in row.items() if key not in hidden}
            job = {"completion": reply(row), "prompt": row["prompt"], "row": shown}
            if judge_job(job, CodeOptions(), sandbox).value == 1.0:
                found.add(row["task_id"])
    return found


def without_bodies(text):
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = [ast.Pass()]
    return f"```python\n{ast.unparse(tree)}\n```"


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        (lambda row: row["canonical_solution"], True),
        (lambda row: row["canonical_solution"].lstrip(), True),
        (lambda row: f"```py\n{row['prompt']}{row['canonical_solution']}```", True),
        (lambda row: "    pass\n", False),
        (lambda row: f"```python\n{row['prompt']}    pass\n```", False),
    ],
    ids=["body", "body without its indentation", "block", "pass", "block with pass"],
)
def test_humaneval(reply, right):
    lines = file("HUMANEVAL_JSONL").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 164
    names = {row["task_id"] for row in rows}
    found = passed(rows, reply, hidden={"canonical_solution", "prompt"})
    assert found == (names if right else set())


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        (lambda row: row["code"], True),
        (lambda row: without_bodies(row["code"]), False),
    ],
    ids=["code", "pass"],
)
def test_mbpp(reply, right):
    rows = json.loads(file("MBPP_JSON").read_text())
    assert len(rows) == 427
    names = {row["task_id"] for row in rows}
    found = passed(rows, reply, hidden={"code", "prompt"})
    assert found == (names if right else set())
