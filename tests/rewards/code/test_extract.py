import time

import pytest

from rl_jax.rewards.code import extract

PROGRAM = "n = int(input())\nprint(n + 1)\n"


def found(completion, **kwargs):
    program = extract.program(completion, **kwargs)
    return None if program is None else program.text


@pytest.mark.parametrize(
    "reply",
    [
        f"```python\n{PROGRAM}```",
        f"Sure.\n\n```py\n{PROGRAM}```\nDone.",
        f"```Python3\n{PROGRAM}```",
        f"```\n{PROGRAM}```\nDone.",
        f"~~~python\n{PROGRAM}~~~\n",
        f"```python title='main.py'\n{PROGRAM}```",
        f"````python\n{PROGRAM}````",
        f"Answer: ```python\n{PROGRAM}```",
        f"```python\n{PROGRAM.rstrip()}```",
        f"```solution\n{PROGRAM}```",
        f"```python\n{PROGRAM}```".replace("\n", "\r\n"),
        "1. Program:\n\n   ```python\n   n = int(input())\n   print(n + 1)\n   ```\n",
        "- ```python\n  n = int(input())\n  print(n + 1)\n  ```\n",
        f"<think>```python\nprint(1)\n```</think>\n```python\n{PROGRAM}```",
        f"<answer>\n```python\n{PROGRAM}```\n</answer>",
        f"<answer>{PROGRAM}</answer>",
        f"```python\n{PROGRAM}```\n<answer>see above</answer>",
        f"```python\n{PROGRAM}```<|im_end|>\n```python\nprint(2)\n```",
        f"```python\n{PROGRAM}```\nRun it with\n```bash\npython main.py\n```",
        f"```python\n{PROGRAM}```\nOutput:\n```\n9\n```",
        f"Sketch:\n```python\nprint(0)\n```\nFull:\n```python\n{PROGRAM}```",
        f"```python\nprint(0)\n\nNo, better:\n```python\n{PROGRAM}```",
        f"```python\n{PROGRAM}```\nShorter, perhaps:\n```python\nprint(",
        f"Here it is.\n```python\n{PROGRAM}",
    ],
)
def test_a_reply_has_its_program_in_the_last_complete_block(reply):
    assert str(found(reply)).strip() == PROGRAM.strip()


@pytest.mark.parametrize(
    "reply",
    [
        "<think>```python\nprint(1)\n```",
        f"<think>```python\n{PROGRAM}```</think>",
        "",
        "```python\n```",
        "<answer> </answer>",
    ],
)
def test_unfinished_thinking_and_empty_replies_have_no_program(reply):
    assert found(reply) is None


@pytest.mark.parametrize(
    ("reply", "is_prose"),
    [
        ("Take the largest and print it.", True),
        (f"```\n{PROGRAM}```", False),
        ("It adds:\ndef f(x): return x +", False),
    ],
)
def test_a_reply_without_any_code_is_known_as_prose(reply, is_prose):
    program = extract.program(reply)
    assert program is not None and program.is_prose is is_prose


@pytest.mark.parametrize(
    "reply",
    [
        f"It counts on.\n\nimport sys\n{PROGRAM}",
        f"import sys\n{PROGRAM}\n\nThat counts on.",
        f"So:\n\nimport sys\n{PROGRAM}\nThat counts on.\n\nDone: now.\n",
    ],
)
def test_unfenced_code_may_stand_among_prose(reply):
    program = extract.program(reply)
    assert program is not None and not program.is_prose
    assert f"import sys\n{PROGRAM}" in program.variants


def test_a_block_that_defines_what_is_tested_comes_before_a_demonstration():
    reply = "```python\ndef f(x):\n    return x\n```\nUse:\n```python\nprint(f(3))\n```"
    assert found(reply, names=["f"]) == "def f(x):\n    return x\n"
    assert found(reply) == "print(f(3))\n"
    untagged = reply.replace("```python", "```", 1)
    assert found(untagged, names=["f"]) == "def f(x):\n    return x\n"


def test_a_block_that_reads_its_input_comes_before_a_demonstration():
    reply = f"```python\n{PROGRAM}```\nFor example\n```python\nprint(3 + 1)\n```"
    assert found(reply, reads=True) == PROGRAM


def test_the_lines_between_the_marks_of_mbpp_are_the_program():
    reply = "[BEGIN]\nx = [DONE]\n[DONE]\nYou are an expert"
    assert found(reply) == "x = [DONE]\n"


def test_a_prompt_may_end_inside_a_block():
    prompt = "<|im_start|>assistant\n```python\n"
    assert found(f"{PROGRAM}```\nDone", prompt=prompt) == PROGRAM
    assert found(f"{PROGRAM}```") == PROGRAM


def test_a_prompt_that_ends_in_an_open_think_leaves_no_program():
    assert found(f"```python\n{PROGRAM}```", prompt="<|assistant|><think>\n") is None


def test_a_hostile_reply_is_searched_in_linear_time():
    start = time.perf_counter()
    for text in ("`" * 60_000, "<answer>" * 8_000, "```py " * 9_000, "```\n" * 16_000):
        extract.program(text, names=["f"], prompt="def f(x):\n")
        extract.program(f"x = {text}\n", names=["f"])
    assert time.perf_counter() - start < 3.0
