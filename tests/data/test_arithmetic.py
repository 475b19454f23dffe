"""The built-in task: problems are right, in bounds, repeatable, and never shared."""

import re

import jinja2
import pytest

from rl_jax.data import arithmetic
from rl_jax.data.generated import SPLITS, split_of
from rl_jax.errors import ConfigError


def slow_totals(problem: str) -> list[int]:
    """Running totals, read back from the problem's words."""
    first, *rest = problem.removesuffix(".").split(", ")
    totals = [int(first.removeprefix("Start with "))]
    for part in rest:
        word, operand = part.split(" ")
        totals.append(
            {
                "plus": totals[-1] + int(operand),
                "minus": totals[-1] - int(operand),
                "times": totals[-1] * int(operand),
            }[word]
        )
    return totals


@pytest.mark.parametrize("split", SPLITS)
def test_answers_and_worked_steps_are_right(split):
    for problem, steps, answer in arithmetic.problems(split, 300, seed=0):
        totals = slow_totals(problem)
        assert len(totals) == arithmetic.NUM_OPERATIONS + 1
        assert answer == totals[-1]
        assert all(0 <= total <= arithmetic.LARGEST for total in totals)
        for line, before, after in zip(
            steps.split("\n"), totals[:-1], totals[1:], strict=True
        ):
            total, operand = re.split(r"[+*-]", line.split("=")[0])
            assert (int(total), int(line.split("=")[1])) == (before, after)
            assert 2 <= int(operand) <= 9


def test_problems_are_distinct_and_repeat_with_the_seed():
    found = arithmetic.problems("rl", 200, seed=1)
    assert len({problem for problem, _, _ in found}) == 200
    assert arithmetic.problems("rl", 200, seed=1) == found
    assert arithmetic.problems("rl", 200, seed=2) != found
    # Asking for more begins with the same ones.
    assert arithmetic.problems("rl", 250, seed=1)[:200] == found


def test_splits_share_no_problem_for_any_seed():
    texts = {
        split: {
            problem
            for seed in range(3)
            for problem, _, _ in arithmetic.problems(split, 400, seed)
        }
        for split in SPLITS
    }
    assert not texts["sft"] & texts["rl"]
    assert not texts["rl"] & texts["eval"]
    assert not texts["sft"] & texts["eval"]
    for split, found in texts.items():
        assert {split_of(problem) for problem in found} == {split}


def test_the_split_of_a_text_does_not_move():
    # A change here would let a new version evaluate on what an old one trained on.
    for problem, split in [
        ("Start with 3, plus 4.", "rl"),
        ("Start with 4, plus 4.", "eval"),
        ("Start with 5, plus 4.", "sft"),
    ]:
        assert split_of(problem) == split


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="'test' is not one of sft, rl, eval"):
        arithmetic.problems("test", 1, seed=0)


def test_more_problems_than_there_are_is_an_error_and_no_endless_search(monkeypatch):
    monkeypatch.setattr(arithmetic, "NUM_OPERATIONS", 1)
    with pytest.raises(ConfigError, match="Ask for fewer") as error:
        arithmetic.problems("eval", 100_000, seed=0)
    message = str(error.value)
    assert message.count("\n") < 3
    numbers = re.search(r"no (\d+) .* (\d+) were found", message)
    assert numbers is not None and numbers[1] == "100000"
    found = arithmetic.problems("eval", int(numbers[2]), seed=0)
    assert len(found) == int(numbers[2]) > 0


def test_rows_ask_and_do_not_tell():
    for i, row in enumerate(arithmetic.rows("eval", 20, seed=0)):
        assert [m["role"] for m in row.messages] == ["user"]
        assert row.answer == str(slow_totals(row.messages[0]["content"])[-1])
        assert (row.index, row.data_source) == (i, "arithmetic")
        assert "=" not in row.messages[0]["content"]


def test_some_demonstrations_are_worked_out_and_the_others_are_bare_answers():
    kinds = set()
    for row in arithmetic.demonstrations(20, seed=0):
        user, assistant = row.messages
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        assert split_of(user["content"]) == "sft"
        *steps, last = assistant["content"].split("\n")
        assert last == f"\\boxed{{{row.answer}}}"
        totals = slow_totals(user["content"])
        assert [int(line.split("=")[1]) for line in steps] in ([], totals[1:])
        kinds.add(bool(steps))
    assert kinds == {True, False}


def test_the_chat_template_marks_turns_and_ends_those_of_the_assistant():
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    template = jinja2.Template(arithmetic.CHAT_TEMPLATE)
    text = template.render(messages=messages, add_generation_prompt=True)
    assert text == "<|user|>a<|assistant|>b<|end|><|user|>c<|assistant|>"
    assert all(
        symbol in arithmetic.CHAT_SYMBOLS for symbol in re.findall(r"<\|\w+\|>", text)
    )
