"""Text that asserts, with the program in another process."""

import pytest

from rl_jax.rewards.code.judge import judge_job
from rl_jax.rewards.code.options import CodeOptions
from rl_jax.rewards.sandbox import Sandbox
from rl_jax.rewards.score import Verdict


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("none") as sandbox:  # as much as there is
        yield sandbox


def judged(sandbox, reply, row, prompt="", **options):
    job = {"completion": reply, "answer": "", "row": row, "prompt": prompt}
    return judge_job(job, CodeOptions(**options), sandbox)


def verdict_and_detail(score):
    value = {Verdict.CORRECT: 1.0, Verdict.UNPARSABLE_GOLD: None}
    assert score.value == value.get(score.verdict, 0.0)
    return f"{score.verdict} {score.detail}".strip()


# Written like HumanEval/32, /38 and /50: the test calls a helper that the prompt has.
SHIFT_PROMPT = '''
def encode(text: str):
    """Moves every letter on by five."""
    return "".join(chr((ord(c) + 5 - ord("a")) % 26 + ord("a")) for c in text)


def decode(text: str):
    """Takes what encode gave and returns the text."""
'''
SHIFT = {
    "entry_point": "decode",
    "test": "METADATA = {}\n\n\ndef check(candidate):\n"
    "    from random import randint\n    import copy\n"
    "    for _ in range(20):\n"
    "        text = ''.join(chr(randint(97, 122)) for _ in range(8))\n"
    "        encoded = encode(text)\n"
    "        assert candidate(copy.deepcopy(encoded)) == text\n",
}
SHIFT_BODY = (
    '    return "".join(chr((ord(c) - 5 - ord("a")) % 26 + ord("a")) for c in text)\n'
)


@pytest.mark.parametrize(
    "reply",
    [
        SHIFT_BODY,
        f"```python\n{SHIFT_PROMPT}{SHIFT_BODY}```",
        f"```python\ndef decode(text):\n{SHIFT_BODY}```",
    ],
)
def test_a_test_calls_a_helper_of_the_prompt(sandbox, reply):
    turn = f"<|im_start|>user\n{SHIFT_PROMPT}<|im_end|>\n<|im_start|>assistant\n"
    for prompt, row in ((turn, SHIFT), ("", {**SHIFT, "prompt": SHIFT_PROMPT})):
        assert judged(sandbox, reply, row, prompt).value == 1.0


def test_a_program_cannot_put_its_own_helper_in_the_place_of_the_prompts(sandbox):
    reply = "```python\ndef encode(text):\n    return text\n\n\ndecode = encode\n```"
    for prompt, row in ((SHIFT_PROMPT, SHIFT), ("", {**SHIFT, "prompt": SHIFT_PROMPT})):
        assert judged(sandbox, reply, row, prompt).verdict == Verdict.WRONG


def test_a_helper_that_only_the_program_has_is_called_there(sandbox):
    row = {"test_list": ["assert half(double(3)) == 3", "assert double(2) == 4"]}
    reply = "def double(x):\n    return 2 * x\ndef half(x):\n    return x // 2"
    assert judged(sandbox, reply, row).value == 1.0
    assert judged(sandbox, "def double(x):\n    return 2 * x", row).detail == (
        "test 1: the program defines no half"
    )


CASES = {
    "plain data of all kinds": (
        "def f(x):\n    return x",
        [
            "assert f((1, [2.5, None])) == (1, [2.5, None])",
            "assert f({1: {2, 3}, (4,): b'5'}) == {1: {2, 3}, (4,): b'5'}",
            "assert f(1 << 200) == 1 << 200 and f(1j) == 1j",
            "assert f(float('inf')) > 1e308 and f(float('nan')) != 0",
            "assert isinstance(f((1,)), tuple) and isinstance(f(True), bool)",
            "import collections\nassert f('aab') == 'aab'",
            "from fractions import Fraction\nassert f(Fraction(1, 3)) * 3 == 1",
            "assert f(x=range(3)) == range(3)",
        ],
    ),
    "objects": (
        "class Stack:\n    def __init__(self):\n        self.items = []\n"
        "    def push(self, x):\n        self.items.append(x)\n        return self\n"
        "    def __len__(self):\n        return len(self.items)\n"
        "    def __getitem__(self, i):\n        return self.items[i]\n"
        "    def __eq__(self, other):\n        return self.items == other.items\n"
        "    def __repr__(self):\n        return f'Stack({self.items})'\n",
        [
            "s = Stack()\ns.push(1).push([2])\n"
            "assert s.items == [1, [2]] and len(s) == 2 and s[0] == 1\n"
            "assert s == Stack().push(1).push([2]) and s != Stack()\n"
            "assert isinstance(s, Stack) and not isinstance([], Stack)\n"
            "assert list(s) == [1, [2]] and 1 in s and 3 not in s\n"
            "assert repr(s) == 'Stack([1, [2]])' and s != [1, [2]]\n"
            "s.items = [7]\nassert s[0] == 7\n",
        ],
    ),
    "iterators": (
        "def squares(n):\n    for i in range(n):\n        yield i * i\n"
        "def pairs(xs):\n    return zip(xs, xs[1:])\n",
        [
            "assert list(squares(4)) == [0, 1, 4, 9]",
            "it = squares(2)\nassert next(it) == 0 and next(it) == 1\n"
            "assert next(it, None) is None",
            "assert dict(pairs([1, 2, 3])) == {1: 2, 2: 3}",
        ],
    ),
    "exceptions": (
        "class Poor(ValueError):\n    pass\n"
        "def pay(x):\n    if x < 0:\n        raise ValueError('negative')\n"
        "    if x > 9:\n        raise Poor('poor')\n    return x\n",
        [
            "try:\n    pay(-1)\n    assert False\nexcept ValueError as error:\n"
            "    assert str(error) == 'negative'",
            "try:\n    pay(10)\n    raise AssertionError\nexcept Poor:\n    pass",
            "assert issubclass(Poor, ValueError)",
        ],
    ),
    "arguments that are changed in place": (
        "def turn(xs):\n    xs.reverse()\ndef put(d, k):\n    d[k] = 1\n",
        [
            "xs = [1, 2]\nturn(xs)\nassert xs == [2, 1]",
            "d = {}\nput(d, 'a')\nassert d == {'a': 1}",
        ],
    ),
    "values and modules of the program": (
        "import math\nLIMIT = [3]\ndef area(r):\n    return math.pi * r * r",
        ["assert math.isclose(area(1), 3.14159, rel_tol=1e-4)", "assert LIMIT == [3]"],
    ),
    "a function called as a builtin": (
        "def sum(a, b):\n    return a + b",
        ["assert sum(1, 2) == 3", "assert sum(2, 2) == 4"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_goes_between_the_tests_and_the_program(sandbox, name):
    reply, texts = CASES[name]
    assert verdict_and_detail(judged(sandbox, reply, {"test_list": texts})) == "correct"
    assert judged(
        sandbox, reply, {"tests": {"type": "assert", "code": "\n".join(texts)}}
    )


@pytest.mark.parametrize(
    "row",
    [
        {"test": "import unittest\n\n\nclass TestF(unittest.TestCase):\n"
                 "    def test_one(self):\n        self.assertEqual(f(1), 2)\n"},
        {"test": "from solution import f\n\n\ndef test_one():\n    assert f(1) == 2\n"},
        {"test": "from solution import *\nimport solution\n\n\ndef test_one():\n"
                 "    assert f(1) == 2 and solution.f(2) == 3\n"},
        {"test": "def check(candidate):\n    assert candidate(1) == 2\n",
         "entry_point": "f"},
        {"test": "def check(candidate):\n    assert candidate(1) == 2\n\n\ncheck(f)\n",
         "entry_point": "f"},
        {"test": "import numpy as np\n\n\ndef assertion(out, exp, atol):\n"
                 "    if atol == 0 and isinstance(exp, float):\n        atol = 1e-6\n"
                 "    if out != exp and atol != 0:\n"
                 "        assert np.allclose(out, exp, rtol=1e-07, atol=atol)\n"
                 "    else:\n        assert out == exp\n\n\n"
                 "def check(candidate):\n"
                 "    for inp, exp in zip([[1], [2]], [2.0000001, 3]):\n"
                 "        assertion(candidate(*inp), exp, 0)\n",
         "entry_point": "f"},
        {"test_list": ["assert f(1) == 2", "assert f(2) == 3"],
         "test_setup_code": "x = 1"},
        {"test": "assert f(1) == 2"},
        {"test": "for x in (1, 2):\n    assert f(x) == x + 1\n"},
    ],
)  # fmt: skip
def test_every_way_in_which_tests_are_written(sandbox, row):
    right = "def f(x):\n    return x + 1"
    assert verdict_and_detail(judged(sandbox, right, row)) == "correct"
    wrong = judged(sandbox, "def f(x):\n    return x", row)
    assert verdict_and_detail(wrong).startswith("wrong test 1: ")
    nothing = judged(sandbox, "def f(x):\n    pass", row)
    assert verdict_and_detail(nothing).startswith("wrong test 1: ")
    missing = verdict_and_detail(judged(sandbox, "g = 3", row))
    known_as = "an assertion failed" if "unittest" in str(row) else "defines no f"
    assert missing.startswith("wrong test 1: ") and missing.endswith(known_as)


def test_an_entry_point_may_be_a_method(sandbox):
    row = {
        "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n",
        "entry_point": "Solution().total",
    }
    reply = (
        "class Solution:\n    def total(self, xs: List[int]):\n        return sum(xs)"
    )
    assert judged(sandbox, reply, row).value == 1.0
    assert judged(sandbox, reply, {**row, "entry_point": "total"}).value == 1.0


CHECK = {
    "test": "def check(candidate):\n"
    "    assert abs(candidate(3) - 9) < 1e-6\n"
    "    assert candidate(4) in (16,)\n"
    "    assert set(candidate(x) for x in (1, 2)) == {1, 4}\n"
    "    assert sorted(map(candidate, [2, 1])) == [1, 4]\n"
    "    assert not all(candidate(x) == x for x in (1, 2, 3))\n",
    "entry_point": "square",
}
ANYTHING = (
    "class Any:\n"
    "    def yes(self, *args):\n        return True\n"
    "    def me(self, *args):\n        return self\n"
    "    __eq__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = yes\n"
    "    __sub__ = __rsub__ = __add__ = __abs__ = __iter__ = me\n"
    "    def __ne__(self, other):\n        return False\n"
    "    def __hash__(self):\n        return 0\n"
    "    def __next__(self):\n        raise StopIteration\n"
)


@pytest.mark.parametrize(
    "reply",
    [
        f"{ANYTHING}\ndef square(x):\n    return Any()",
        f"{ANYTHING}\nsquare = Any()",
        f"{ANYTHING}\nclass square(Any):\n  def __new__(cls, x):\n    return Any()",
        "def abs(x):\n    return 0\ndef set(x):\n    return {1, 4}\n"
        "def sorted(x):\n    return [1, 4]\ndef square(x):\n    return 16",
        "def square(x):\n    raise StopIteration",
        "def square(x):\n    raise SystemExit(0)",
        "def square(x):\n    raise GeneratorExit",
        "def square(x):\n    raise KeyboardInterrupt",
        "class SkipTest(Exception):\n    pass\ndef square(x):\n    raise SkipTest",
        "class float_(float):\n    def __sub__(self, other):\n        return 0\n"
        "def square(x):\n    return float_(x)",
        "import os\nos._exit(0)\ndef square(x): pass",
        "import sys\nsys.exit(0)\ndef square(x): pass",
        "def square(x):\n    import os\n    os._exit(0)",
        "def square(x):\n    return None\n@(lambda f: (lambda c: None))",
        "def check(candidate):\n    pass\ndef square(x):\n    return 0",
        "import builtins\nbuiltins.AssertionError = KeyError\n"
        "def square(x):\n    return 0",
        "def square(x):\n    return [[]]",
        "def square(x):\n    y = []\n    for _ in range(140):\n        y = [y]\n"
        "    return y",
        "def square(x):\n    y = []\n    y.append(y)\n    return y",
        "def square(x):\n    return '9' * (3 << 20)",
    ],
)
def test_tricks_that_pass_tests_elsewhere_fail(sandbox, reply):
    score = judged(sandbox, reply, CHECK, test_secs=2.0)
    assert score.value == 0.0
    assert score.verdict in (Verdict.WRONG, Verdict.CRASH)


def test_a_program_that_empties_its_argument_does_not_make_the_test_compare_that(
    sandbox,
):
    row = {"test": "xs = [3, 1]\nassert order(xs) == sorted(xs)\n"}
    reply = "def order(xs):\n    xs.clear()\n    return []"
    assert judged(sandbox, reply, row).verdict == Verdict.WRONG


def test_a_program_that_skips_a_unittest_does_not_pass_it(sandbox):
    row = {
        "test": "import unittest\n\n\nclass TestF(unittest.TestCase):\n"
        "    def test_one(self):\n        self.assertEqual(f(1), 2)\n"
    }
    reply = "from unittest import SkipTest\ndef f(x):\n    raise SkipTest('later')"
    assert judged(sandbox, reply, row).verdict == Verdict.WRONG


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"test": "assert f(1) ==="}, "no Python"),
        ({"test": "import nowhere\nassert f(1) == 2"}, "cannot import"),
        ({"test_list": ["assert f(1) == 2"], "test_imports": ["import nowhere"]},
         "cannot import"),
        ({"test": "def test_one(fixture):\n    assert f(fixture)"}, "assert nothing"),
        ({"test": "assert f(lambda x: x) == 2"}, "a value of type function"),
        ({"test": "import io\nassert f(io.StringIO()) == 2"}, "type StringIO"),
        ({"test": "assert True"}, "without the program"),
    ],
)  # fmt: skip
def test_tests_that_cannot_be_run_give_no_score(sandbox, row, reason):
    reply = "def f(x):\n    return 2"
    score = judged(sandbox, reply, row)
    assert (score.value, score.verdict) == (None, Verdict.UNPARSABLE_GOLD)
    assert reason in score.detail


@pytest.mark.parametrize("credit", ["binary", "pass_rate"])
def test_the_share_of_tests_counts_each_assertion(sandbox, credit):
    reply = "def f(x):\n    return 1 // (x - 2)"
    texts = [
        "assert f(3) == 1",
        "assert f(2) == 0",
        "assert f(4) == 1",
        "assert f(5) == 0",
    ]
    for row in ({"test_list": texts}, {"test": "\n".join(texts)}):
        score = judged(sandbox, reply, row, credit=credit)
        assert score.value == {"binary": 0.0, "pass_rate": 0.5}[credit]
        assert (score.verdict, score.detail) == ("crash", "test 2: ZeroDivisionError")


def test_a_test_that_ends_the_program_costs_only_itself(sandbox):
    reply = (
        "import os, time\ndef f(x):\n    if x == 2:\n        os._exit(0)\n"
        "    if x == 3:\n        time.sleep(9)\n    return x"
    )
    texts = [f"assert f({x}) == {x}" for x in range(1, 6)]
    for row in ({"test_list": texts}, {"test": "y = f(0)\n" + "\n".join(texts)}):
        score = judged(sandbox, reply, row, credit="pass_rate", test_secs=0.5)
        assert score.value == pytest.approx(3 / 5)
        assert score.verdict == Verdict.CRASH


def test_tests_that_use_one_object_after_another_share_it(sandbox):
    reply = "class Box:\n  n = 0\n  def up(self):\n    self.n += 1\n    return self.n"
    row = {"test": "box = Box()\nassert box.up() == 1\nassert box.up() == 2\n"}
    assert judged(sandbox, reply, row).value == 1.0


def test_a_test_that_does_not_end_is_the_programs_time(sandbox):
    row = {"test": "while not f(1):\n    pass\nassert f(1)\n"}
    score = judged(sandbox, "def f(x):\n    return 0", row, test_secs=0.4)
    assert (score.value, score.verdict) == (0.0, Verdict.TIMEOUT)
    endless = "def f(x):\n    while True:\n        yield x"
    row = {"test": "assert list(f(1)) == [1]\n"}
    assert judged(sandbox, endless, row, test_secs=0.4).verdict == Verdict.TIMEOUT
