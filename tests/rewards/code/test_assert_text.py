import pytest

from rl_jax.rewards.code import assert_text


def is_test(texts, entry=""):
    return [unit.tests for unit in assert_text.units(texts, entry)]


@pytest.mark.parametrize(
    ("texts", "tests"),
    [
        (["assert f(1)", "x = 2", "assert f(2)"], [True, False, True]),
        (["x = 2\nassert f(x)\nassert f(3)"], [False, True, True]),
        (["for x in y:\n    assert f(x)"], [True]),
        (["if f(1) != 2:\n    raise ValueError"], [True]),
        (["print(f(1))"], [False]),
        (["def same(a):\n    assert a\n\n\nsame(f(1))"], [False, False]),
        (["def assert_same(a):\n    assert a\n\n\nassert_same(f(1))"], [False, True]),
        (["def test_f():\n    assert f(1)"], [False, True]),
        (["def test_f():\n    assert f(1)\n\n\ntest_f()"], [False, True]),
        (["def test_f(fixture):\n    assert f(1)"], [False]),
        (["import unittest\n\n\nclass T(unittest.TestCase):\n    x = 1"],
         [False, False, True]),
    ],
)  # fmt: skip
def test_a_text_is_taken_apart_into_tests_and_what_prepares_them(texts, tests):
    assert is_test(texts) == tests


def test_check_is_called_once():
    text = "def check(candidate):\n    assert candidate(1)\n"
    assert is_test([text], "f") == [False, True]
    assert is_test([text + "\n\ncheck(f)"], "f") == [False, True]


def test_names_of_the_program_are_those_that_nothing_else_explains():
    text = (
        "import math\nfrom os import *\nlimit = 3\n\n\n"
        "def check(candidate):\n"
        "    inner = helper(limit)\n"
        "    assert candidate(inner) == math.sqrt(other.value) + len([x for x in y])\n"
    )
    assert assert_text.free_names([text], {"y": 1}) == {"helper", "other"}
    assert assert_text.free_names(["assert f(1) ==="], {}) == set()


def test_a_name_bound_in_a_function_is_still_one_of_the_program_elsewhere():
    text = "def g():\n    f = 1\n    return f\n\n\nassert f(2) == g()\n"
    assert assert_text.free_names([text], {}) == {"f"}


def test_builtins_are_asked_for_only_if_every_text_calls_them():
    texts = ["assert sum(1, 2) == 3", "assert sum(2, 2) == abs(-4)"]
    assert assert_text.called_builtins(texts) == {"sum"}


def test_what_is_taken_from_the_module_solution_is_known():
    text = "from solution import f, g\nimport solution\nassert f(g) == solution.h\n"
    assert assert_text.solution_names([text, "from solution import *"]) == {
        "f",
        "g",
        "h",
    }


def test_helpers_of_a_prompt_are_what_has_a_body():
    head = (
        "import math\nLIMIT = 3\n\n\n"
        "def helper(x):\n    return x + LIMIT\n\n\n"
        "def other(x):\n    'To be written.'\n    raise NotImplementedError\n\n\n"
        "def later(x): ...\n\n\n"
        "class Node:\n    x = 1\n\n\n"
        "def f(x):\n    'To be written.'\n"
    )
    names = {}
    for code in assert_text.helpers(head, "f"):
        exec(code, names)
    assert names["helper"](4) == 7
    assert {"math", "LIMIT", "helper"} == names.keys() - {"__builtins__"}
    assert assert_text.helpers("def f(x:\n", "f") == []
