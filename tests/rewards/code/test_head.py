import pytest

from rl_jax.rewards.code import extract, head

HEAD = 'from typing import List\n\n\ndef f(xs: List[int]) -> int:\n    """Sum."""\n'
BODY = "    total = 0\n    for x in xs:\n        total += x\n    return total\n"
PROMPTS = [
    HEAD,
    f"<|im_start|>user\nComplete it.\n\n{HEAD}<|im_end|>\n<|im_start|>assistant\n",
    f"Complete this:\n```python\n{HEAD}```\n",
]


def variants(reply, prompt, names=("f",)):
    program = extract.program(reply, prompt=prompt, names=names)
    assert program is not None
    return program.variants


def function(reply, prompt):
    """f of the first variant that compiles: what the sandbox does, here by hand."""
    for text in variants(reply, prompt):
        try:
            code = compile(text, "reply", "exec")
        except SyntaxError:
            continue
        names = {}
        exec(code, names)
        return names["f"]
    raise AssertionError("no variant compiles")


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(
    "reply",
    [
        BODY,
        HEAD + BODY,
        "def f(xs: List[int]):\n" + BODY,
        f"```python\n{HEAD}{BODY}```",
        f"```python\n{BODY}```",
        BODY.lstrip(),
        BODY.replace("\n    ", "\n").lstrip(),
        BODY + "\n\nThat is how it works.\n",
        BODY + "\n\ndef g(:\n",
        "f = sum",
    ],
)
def test_a_body_and_a_whole_function_are_the_same_program(prompt, reply):
    assert function(reply, prompt)([1, 2, 4]) == 7


def test_a_body_may_go_on_with_a_helper():
    reply = "    return g(xs)\n\n\ndef g(xs):\n    return sum(xs)\n"
    assert function(reply, HEAD)([1, 2]) == 3


def test_the_helpers_of_a_prompt_come_with_a_whole_function():
    prompt = "def g(x):\n    return x + 1\n\n\ndef f(x):\n    'Calls g.'\n"
    assert function("def f(x):\n    return g(x)", prompt)(2) == 3


def test_a_prompt_may_end_within_the_indentation_of_the_body():
    prompt = "def f(x):\n\t"
    assert function("y = x\n\treturn y + 1\n", prompt)(2) == 3


def test_a_prompt_without_the_function_adds_nothing():
    assert head.head_of("Write f(x).", "f") is None
    assert variants("x = 1", "Write f.") == ("x = 1",)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("def f(x): pass", True),
        ("async def f(x): pass", True),
        ("x = 1\nclass f: pass", True),
        ("f: Callable = len", True),
        ("f = len", True),
        ("f == len", False),
        ("def ff(x): pass", False),
        ("    def f(x): pass", False),
        ("print(f(3))", False),
    ],
)
def test_only_a_definition_at_the_margin_defines(text, answer):
    assert head.defines(text, ["f"]) is answer
