"""What distillation is for: a student as good as its teacher, or one that is not."""

import json

import pytest

import tiny_run
from rl_jax.data import arithmetic

pytestmark = pytest.mark.slow
STAGES = ("teacher", "weak", "opd", "soft", "still_opd", "still_soft")


def demonstrations(path):
    """A file of problems that are worked out step by step."""
    rows = []
    for problem, steps, answer in arithmetic.problems("sft", 4096, 0):
        reply = f"{steps}\n\\boxed{{{answer}}}"
        rows.append(
            {
                "messages": [
                    {"role": "user", "content": problem},
                    {"role": "assistant", "content": reply},
                ]
            }
        )
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The evaluations of each stage, in order."""
    folder = tmp_path_factory.mktemp("learns")
    data = demonstrations(folder / "worked.jsonl")
    tiny_run.train_shipped(f"tests/distill_recipe.py:{data}", folder / "run")
    found = {}
    for name in STAGES:
        text = (folder / "run" / name / "metrics.jsonl").read_text()
        lines = map(json.loads, text.splitlines())
        found[name] = [line for line in lines if "eval/accuracy" in line]
        for line in found[name]:
            print(name, line["step"], line["eval/accuracy"], line.get("eval/kl"))
    return found


def accuracy(evaluated, name):
    return evaluated[name][-1]["eval/accuracy"]


def test_the_teacher_is_good_and_the_student_poor(evaluated):
    assert accuracy(evaluated, "teacher") > 0.85
    assert accuracy(evaluated, "weak") < 0.5
    assert evaluated["opd"][0]["eval/accuracy"] == accuracy(evaluated, "weak")


@pytest.mark.parametrize("name", ["opd", "soft"])
def test_the_student_recovers_the_accuracy_of_its_teacher(name, evaluated):
    assert accuracy(evaluated, name) > accuracy(evaluated, "teacher") - 0.05
    first, last = (evaluated[name][i]["eval/kl"] for i in (0, -1))
    assert last < 0.3 * first


@pytest.mark.parametrize("name", ["still_opd", "still_soft"])
def test_without_a_learning_rate_it_does_not(name, evaluated):
    assert accuracy(evaluated, name) < accuracy(evaluated, "teacher") - 0.3
    first, last = (evaluated[name][i]["eval/kl"] for i in (0, -1))
    assert last == first
