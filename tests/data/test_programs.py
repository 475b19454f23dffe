"""The built-in programs: tests that are right, and demonstrations of two kinds."""

import json

import pytest

from rl_jax.data import programs
from rl_jax.data.generated import split_of


def run(source, x):
    names = {}
    exec(source, names)  # noqa: S102 (our own text)
    return names["f"](x)


def passes(source, tests):
    pairs = zip(tests["inputs"], tests["outputs"], strict=True)
    return [run(source, *given) == wanted for given, wanted in pairs]


@pytest.mark.parametrize("split", ["rl", "eval"])
def test_the_written_program_passes_the_hidden_tests(split):
    found = programs.problems(split, 200, seed=0)
    rows = programs.rows(split, 200, seed=0)
    for (text, steps), row in zip(found, rows, strict=True):
        assert row.messages == ({"role": "user", "content": text},)
        assert split_of(text) == split
        tests = json.loads(row.answer)
        assert len(tests["inputs"]) >= 5 and len(set(tests["outputs"])) > 2
        assert all(passes(programs.program(steps), tests))


def test_a_step_left_out_fails_and_one_demonstration_in_four_passes():
    talks = programs.demonstrations(200, seed=0)
    found = programs.problems("sft", 200, seed=0)
    right = []
    for talk, (text, steps) in zip(talks, found, strict=True):
        user, assistant = talk.messages
        assert user["content"] == text and split_of(text) == "sft"
        tests = {
            "inputs": [[x] for x in range(-20, 60)],
            "outputs": [run(programs.program(steps), x) for x in range(-20, 60)],
        }
        right.append(all(passes(assistant["content"], tests)))
    assert sum(right) == 50
