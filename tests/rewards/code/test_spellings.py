import base64
import io
import json
import pickle
import zlib

import pytest

from rl_jax.rewards.code import spellings
from rl_jax.rewards.code.tests import CallCase, InputCase, UnusableTestsError

CHECK = "def check(candidate):\n    assert candidate(1) == 2\n"


def of_row(**row):
    return spellings.from_job({"answer": "", "row": row})


def of_answer(answer, **row):
    return spellings.from_job({"answer": answer, "row": row})


STDIN = {"inputs": ["1\n", "2\n"], "outputs": ["2\n", "3\n"]}
CASES = [{"input": "1\n", "output": "2\n"}, {"input": "2\n", "output": "3\n"}]
STDIN_CASES = (InputCase("1\n", "2\n"), InputCase("2\n", "3\n"))


@pytest.mark.parametrize(
    "row",
    [
        {"input_output": json.dumps(STDIN)},
        {"input_output": json.dumps(STDIN | {"fn_name": None})},
        {"tests": STDIN},
        {
            "tests": [
                {"input": "1\n", "output": "2\n"},
                {"input": "2\n", "output": "3\n"},
            ]
        },
        {"reward_model": {"style": "rule", "ground_truth": json.dumps(STDIN)}},
        {"reward_model": json.dumps({"ground_truth": STDIN})},
        {
            "public_tests": {"input": ["1\n"], "output": ["2\n"]},
            "private_tests": {"input": [], "output": []},
            "generated_tests": {"input": ["2\n"], "output": ["3\n"]},
        },
        {
            "public_test_cases": json.dumps(
                [{"input": "1\n", "output": "2\n", "testtype": "stdin"}]
            ),
            "private_test_cases": json.dumps(
                [{"input": "2\n", "output": "3\n", "testtype": "stdin"}]
            ),
            "metadata": "{}",
        },
        {
            "verification_info": {
                "language": "python",
                "test_cases": [
                    {"input": "1\n", "output": "2\n", "type": "stdin_stdout"},
                    {"input": "2\n", "output": "3\n", "type": "stdin_stdout"},
                ],
            }
        },
        {"tests": {"type": "stdin", "cases": CASES}},
        {"input_output": {"inputs": [["1"], ["2"]], "outputs": [["2"], ["3"]]}},
    ],
)
def test_programs_that_read_and_print(row):
    tests = of_row(**row)
    assert (tests.kind, tests.cases) == ("stdin", STDIN_CASES)
    assert of_answer(json.dumps(row)).cases == STDIN_CASES


CALLS = (CallCase((1, [2]), (3,)), CallCase((4, [5]), (9,)))


@pytest.mark.parametrize(
    "row",
    [
        {
            "input_output": json.dumps(
                {"inputs": [[1, [2]], [4, [5]]], "outputs": [3, 9], "fn_name": "f"}
            )
        },
        {
            "public_test_cases": [
                {"input": "1\n[2]", "output": "3", "testtype": "functional"},
                {"input": "4\n[5]\n", "output": "9", "testtype": "functional"},
            ],
            "metadata": '{"func_name": "f"}',
        },
        {
            "tests": [
                {
                    "input": "1\n[2]",
                    "output": "3",
                    "testtype": "functional",
                    "metadata": {"func_name": "f"},
                },
                {
                    "input": "4\n[5]",
                    "output": "9",
                    "testtype": "functional",
                    "metadata": {"func_name": "f"},
                },
            ]
        },
        {
            "tests": {
                "type": "functional",
                "entry_point": "f",
                "cases": [
                    {"args": [1, [2]], "expected": 3},
                    {"args": [4, [5]], "expected": 9},
                ],
            }
        },
        {
            "tests": [
                {"args": [1, [2]], "expected": 3},
                {"args": [4, [5]], "expected": 9},
            ],
            "entry_point": "f",
        },
    ],
)
def test_functions_that_are_called(row):
    tests = of_row(**row)
    assert (tests.kind, tests.entry_point, tests.cases) == ("call", "f", CALLS)
    assert tests.names == ("f", "Solution")


def test_a_value_in_a_list_of_one_may_be_returned_bare_if_all_are_so():
    spec = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[3], [4]]}
    assert [case.accepts for case in of_row(tests=spec).cases] == [([3], 3), ([4], 4)]
    spec["outputs"][1] = [4, 5]
    assert [case.accepts for case in of_row(tests=spec).cases] == [([3],), ([4, 5],)]


def test_text_among_the_values_of_apps_stays_text():
    spec = {"fn_name": "f", "inputs": [["12"]], "outputs": ["12"]}
    assert of_row(tests=spec).cases == (CallCase(("12",), ("12",)),)


def test_the_keys_of_a_first_argument_become_numbers_again():
    spec = {"fn_name": "f", "inputs": [[{"1": "a"}, {"2": 3}]], "outputs": [1]}
    assert of_row(tests=spec).cases[0].args == ({1: "a"}, {"2": 3})


@pytest.mark.parametrize(
    ("row", "texts", "setup", "names"),
    [
        (
            {"test": CHECK, "entry_point": "f", "prompt": "def f(x):\n"},
            (CHECK,),
            "",
            ("f", "Solution"),
        ),
        (
            {
                "test_list": ["assert f(1) == len([2])", "assert f(g(2)) == 3"],
                "test_imports": ["import math"],
                "test_setup_code": "x = 1",
                "code": "def f(): pass",
            },
            ("assert f(1) == len([2])", "assert f(g(2)) == 3"),
            "import math\nx = 1",
            ("f", "g"),
        ),
        (
            {"test_cases": ["assert f(1) == 2"]},
            ("assert f(1) == 2",),
            "",
            ("f",),
        ),
        (
            {
                "tests": {
                    "type": "assert",
                    "entry_point": "f",
                    "code": CHECK + "check(f)\n",
                    "setup": "import re",
                }
            },
            (CHECK + "check(f)\n",),
            "import re",
            ("f", "Solution"),
        ),
    ],
)
def test_text_that_asserts(row, texts, setup, names):
    tests = of_row(**row)
    assert (tests.kind, tests.cases, tests.setup) == ("assert", texts, setup)
    assert tests.names == names
    assert of_answer(json.dumps(row)) == tests


def test_the_head_of_the_function_comes_with_the_tests():
    row = {"test": CHECK, "entry_point": "f"}
    assert of_row(**row, prompt="def f(x):\n").stub == "def f(x):\n"
    turns = [{"role": "user", "content": "def f(x):\n"}]
    assert of_row(**row, prompt=turns).stub == "def f(x):\n"


def test_an_answer_may_be_the_text_itself_but_columns_come_before_a_solution():
    assert of_answer("assert f(1) == 2\n").cases == ("assert f(1) == 2\n",)
    solution = "def f(x):\n    assert x\n    return x + 1\n"
    for text in (solution, f"{solution}\nassert f(1) == 2\n"):
        assert of_answer(text, tests=STDIN).cases == STDIN_CASES
    with pytest.raises(UnusableTestsError, match="no tests"):
        of_answer(solution)


def test_checkers_tolerances_and_limits_come_with_the_tests():
    spec = {
        "type": "stdin",
        "checker": "custom",
        "checker_code": "def check(given, out):\n    return True\n",
        "abs_tol": 0,
        "rel_tol": 0.1,
        "wall_secs": 2,
        "memory_bytes": 1 << 20,
        "cases": [{"input": "", "output": ""}],
    }
    tests = of_row(tests=spec)
    assert (tests.checker, tests.abs_tol, tests.rel_tol) == ("custom", 0.0, 0.1)
    assert (tests.wall_secs, tests.memory_bytes) == (2.0, 1 << 20)


@pytest.mark.parametrize(
    ("limit", "secs"),
    [
        (2, 2.0),
        ("2.0 seconds", 2.0),
        ("500 ms", 0.5),
        ("1500 milliseconds", 1.5),
        ("3", 3.0),
        ({"seconds": 1, "nanos": 500_000_000}, 1.5),
        (None, 0.0),
        ("unknown", 0.0),
    ],
)
def test_time_limits_of_data_sets_are_read(limit, secs):
    assert of_row(tests=STDIN, time_limit=limit).at_least_secs == secs


def packed(value, protocol=4):
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("padding", [0, 300, 70_000])
def test_private_tests_of_livecodebench_are_read_without_unpickling(protocol, padding):
    cases = [{"input": "1\n", "output": "2" + " " * padding, "testtype": "stdin"}]
    tests = of_row(
        public_test_cases="[]", private_test_cases=packed(json.dumps(cases), protocol)
    )
    assert tests.cases == (InputCase("1\n", "2" + " " * padding),)


class Hostile:
    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


@pytest.mark.parametrize(
    "value",
    [["[]"], {"a": "[]"}, Hostile(), ("[]", "[]"), b"[]", 3],
)
def test_any_other_pickle_is_refused(value):
    with pytest.raises(UnusableTestsError, match="private_test_cases.*never unpickled"):
        of_row(private_test_cases=packed(value))


def test_a_pickle_that_hides_more_behind_its_text_is_refused():
    out = io.BytesIO()
    pickle.Pickler(out, 4).dump("[]")
    data = out.getvalue()[:-1] + b"0" + pickle.dumps(Hostile(), 4)[2:]
    with pytest.raises(UnusableTestsError, match="never unpickled"):
        of_row(private_test_cases=base64.b64encode(zlib.compress(data)).decode())


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "no tests"),
        ({"question": "Why?", "tests": None}, "no tests"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, "1 inputs and 0 outputs"),
        ({"tests": {"inputs": [], "outputs": []}}, "empty"),
        ({"public_tests": {"input": ["1"], "output": []}}, "as many inputs"),
        ({"tests": [{"args": "abc", "expected": 1}], "entry_point": "f"}, "a list"),
        ({"tests": {**STDIN, "wall_secs": 0}}, "wall_secs is 0"),
        ({"input_output": '{"inputs": ["1"], '}, "no JSON"),
        ({"test": CHECK}, "name no entry_point"),
        ({"private_test_cases": "what?"}, "neither JSON nor base64"),
        ({"tests": [CASES[0] | {"testtype": "functional"}]}, "do not name the"),
        ({"tests": [{"args": [], "expected": 1}]}, "do not name the"),
        ({"tests": [{"args": []}], "entry_point": "f"}, "without 'expected'"),
        ({"tests": {"type": "stdin", "cases": [{"input": "1"}]}}, "output"),
        (
            {"tests": {**STDIN, "checker": "fuzzy"}},
            "no checker is called 'fuzzy'",
        ),
        ({"tests": {**STDIN, "checker": "custom"}}, "defines no check"),
        ({"tests": {**STDIN, "rel_tol": "small"}}, "tolerance"),
        (
            {"tests": {"inputs": [[1]], "outputs": [1], "fn_name": "f; import os"}},
            "names no function",
        ),
    ],
)  # fmt: skip
def test_unusable_tests_say_why(row, reason):
    with pytest.raises(UnusableTestsError, match=reason):
        of_row(**row)
    assert spellings.problem({"answer": "", "row": row})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"test_list": ["assert f(1) =="]}, "no Python"),
        ({"test_list": ["f(1)"]}, "assert nothing"),
        ({"test_list": ["assert f(1) == 2"], "test_imports": ["import"]}, "no Python"),
    ],
)
def test_a_closer_look_is_taken_when_data_is_loaded(row, reason):
    assert reason in spellings.problem({"answer": "", "row": row})


def test_good_tests_have_no_problem():
    assert spellings.problem({"answer": json.dumps(STDIN), "row": {}}) == ""
    assert spellings.problem({"row": {"test": CHECK, "entry_point": "f"}}) == ""
