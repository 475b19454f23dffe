"""What holds for every toy task, and for the example in the package's docstring."""

import functools
import inspect
import random
import textwrap
import time
import types

import pytest

from rl_jax.data import generated, toys
from rl_jax.data.toys.table import TOYS
from rl_jax.data.toys.task import MAX_REPLY_CHARS, Reply, Toy, read


def example() -> Toy:
    """The task that the docstring tells people to copy."""
    lines = inspect.cleandoc(toys.__doc__ or "").split("\n")
    begin = next(i for i, line in enumerate(lines) if line == "    import random")
    end = next(i for i, line in enumerate(lines) if line.startswith("1. "))
    module = types.ModuleType("endings")
    exec(textwrap.dedent("\n".join(lines[begin:end])), module.__dict__)  # noqa: S102
    return Toy(module.problem, module.judge)


TASKS = {**TOYS, "endings": example()}
every_task = pytest.mark.parametrize("name", TASKS)


def made(name, count):
    draw = random.Random(name)
    return [TASKS[name].problem(draw) for _ in range(count)]


@functools.cache
def all_drawn(name):
    return made(name, 300)


def drawn(name, count=300):
    return all_drawn(name)[:count]


def graded(name, text, answer):
    reply = read(text)
    assert reply is not None
    return TASKS[name].judge(reply, answer)


@every_task
def test_every_right_reply_is_right_and_no_wrong_one_is(name):
    for found in drawn(name):
        right = graded(name, found.right, found.answer)
        assert right is not None and right.correct, found
        wrong = graded(name, found.wrong, found.answer)
        assert wrong is not None and not wrong.correct, found
        assert 0.0 <= wrong.value < right.value <= 1.0, found


@every_task
def test_thinking_and_space_around_it_do_not_matter_to_what_is_right(name):
    for found in drawn(name, 50):
        text = found.right
        if not text.startswith("<think>"):
            text = f"<think> anything: 7 abc </think>\n{text}\n"
        grade = graded(name, text, found.answer)
        assert grade is not None and grade.correct, found


@every_task
def test_problems_are_short_and_their_first_word_is_the_tasks_own(name):
    firsts = {n: {found.text.split()[0] for found in drawn(n, 100)} for n in TASKS}
    others = set().union(*(words for n, words in firsts.items() if n != name))
    assert not firsts[name] & others
    for found in drawn(name, 100):
        assert len(found.text) <= 40 and len(found.right) <= 40
        assert found.text.isascii() and found.right.isascii()


@every_task
def test_there_are_enough_problems_for_the_defaults_of_a_run(name):
    task = TASKS[name].problem
    found = generated.distinct(task, name, "sft", 4096, seed=0)
    assert len({one.text for one in found}) == 4096


@every_task
def test_a_problem_depends_on_the_draw_alone(name):
    random.seed(1)
    once = made(name, 20)
    random.seed(2)
    assert made(name, 20) == once


HOSTILE = {
    "empty": "",
    "space": " \n\t ",
    "a long number": "9" * MAX_REPLY_CHARS,
    "long": "x" * MAX_REPLY_CHARS,
    "nested": "(" * 1000 + ")" * 1000,
    "squares": "x" + "xx*" * 600,
    "doubling": "dup " * 500,
    "powers": "9**9**9**9",
    "digits of another script": "١٢٣ ４５",
    "signs of every kind": "\x00\ud800\U0001f600\u202e\u0301ﬀ",
    "commas": "," * MAX_REPLY_CHARS,
    "chain": "3>" * 1000,
    "call": "max(" * 500,
    "code": "__import__('os').system('true')",
    "tags": "<think></think>",
    "a surrogate in tags": "<think>\ud800</think>\ud800",
}


@every_task
@pytest.mark.parametrize("kind", HOSTILE)
def test_no_reply_makes_a_judge_fail_or_take_long(name, kind):
    reply = read(HOSTILE[kind])
    began = time.process_time()
    for found in drawn(name, 20):
        for text in (reply, Reply(HOSTILE[kind], HOSTILE[kind] * 50)):
            assert text is not None
            grade = TASKS[name].judge(text, found.answer)
            assert grade is None or 0.0 <= grade.value <= 1.0
            fits = name == "safety" and "comply" in found.answer
            assert grade is None or not grade.correct or fits
    assert time.process_time() - began < 1.0


@every_task
def test_random_text_made_of_right_and_wrong_replies_never_makes_a_judge_fail(name):
    draw = random.Random(0)
    for found in drawn(name, 100):
        signs = found.right + found.wrong + found.text + "xA0-"
        text = "".join(draw.choice(signs) for _ in range(draw.randint(0, 30)))
        reply = read(text) or Reply("", text)
        grade = TASKS[name].judge(reply, found.answer)
        assert grade is None or 0.0 <= grade.value <= 1.0
        assert grade is None or grade.correct <= (grade.value > 0.5)


@every_task
@pytest.mark.parametrize("answer", ["", "\x00", "no such", "9" * 5000, "١"])
def test_an_answer_of_no_use_is_told_from_a_wrong_reply(name, answer):
    with pytest.raises(ValueError) as caught:
        TASKS[name].judge(Reply("", "0"), answer)
    assert len(str(caught.value)) < 200
