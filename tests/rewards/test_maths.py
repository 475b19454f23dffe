r"""Each case is (gold, answer, right), the answer standing in a box."""

import builtins
import time

import pytest

from rl_jax.rewards import maths
from rl_jax.rewards.score import Verdict

RIGHT = [
    ("72", "72"),
    ("72", r"\$72.00"),
    ("1,234", "1234"),
    ("18", r"18\text{ dollars}"),
    ("18", "18 eggs"),
    ("5000000", r"5\text{ million}"),
    (r"\frac{5}{9}", r"\dfrac{10}{18}"),
    (r"\frac{11}{4}", r"2\frac{3}{4}"),
    ("0.75", ".75"),
    (r"62.5\%", r"\frac{5}{8}"),
    (r"7\text{ km}", "7 kilometers"),
    (r"60^\circ", "60"),
    ("-13", "−13"),
    ("(3,4)", "（3，4）"),
    (r"\boxed{42}", "42"),
    ("17", "n=17"),
    ("x=5", "5"),
    ("5", "x=2+3=5"),
    ("5", "5=x"),
    (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k"),
    (r"(x,y)=(1,8)", "(1,8)"),
    ("f(x)=2x+1", "2x+1"),
    (r"\text{isosceles}", r"\text{Isosceles}"),
    ("yes", r"\text{Yes}"),
    ("B", r"\textbf{(B)}"),
    ("B", r"\text{(B) } 42"),
    ("3:2", "6:4"),
    (r"2 - \frac{1}{\mathrm{e}}", r"2 - \frac{1}{e}"),
    (r"\binom{6}{2}", "15"),
    ("5!", "120"),
    ("8^{8^{8^{8}}}", "8^{8^{8^{8}}}"),
]
WRONG = [
    ("18", "-18"),
    ("5", r"5\text{ million}"),
    (r"7\text{ kg}", r"7\text{ g}"),
    (r"36\text{ cm}^2", r"36\text{ cm}^3"),
    ("5", "5h"),
    ("33", "3**3"),
    ("23/4", "2 3/4"),
    ("987654321098765432", "987654321098765433"),
    ("5!", "5"),
    ("1011", "1011_2"),
    ("12:00", "1:00"),
    ("5,200", "52,000"),
    ("15", "14=15"),
    ("6", "1=2=3=4=5=6"),
    ("1", r"2\sum_{k=1}^{n}"),
    ("15", r"14\approx 15"),
    ("x=5", "y=5"),
    ("10", r"10\text{ or }12"),
    ("10", "10, 12"),
    ("10", r"10 \pm 2"),
    (r"x=1\text{ or }x=2", "1"),
    ("8", "[1,100]"),
    ("8", r"x\in\mathbb{R}"),
    ("8", r"\infty"),
    ("42", r"42\text{ if }x>0, 17\text{ otherwise}"),
    (r"1,2,\ldots,n", r"1,3,\ldots,2n-1"),
    ("2", r"\frac{0}{0}"),
    ("3", "8^{8^{8^{8}}}"),
    ("3", "(((12!)!)!)!"),
    ("3", "(10^{9})!"),
    ("3", "10^{1000000}"),
    ("3", "{" * 500 + "3" + "}" * 500),
    ("3", "1" * 5000),
    ("B", "A, B"),
    ("B", r"\text{B and C}"),
    (r"\text{listen}", r"\text{silent}"),
    (r"1-\frac{1}{e}", r"1+\frac{1}{e}"),
    ("3", ""),
    ("31", r"__import__(\text{os})"),
]
REPLIES = [
    # (gold, whole reply, answer format, verdict)
    ("14", r"<think>maybe \boxed{12}?</think> Final: \boxed{14}", "boxed", "correct"),
    ("12", r"<think>I keep getting \boxed{12}", "boxed", "unparsable_reply"),
    ("30", r"I thought \boxed{24}, but no: \boxed{30}", "boxed", "correct"),
    ("24", r"I thought \boxed{24}, but no: \boxed{30}", "boxed", "wrong"),
    (r"\{5,8\}", r"The roots are \boxed{5} and \boxed{8}.", "boxed", "correct"),
    ("C", r"\boxed{A}, \boxed{B}, \boxed{C}", "boxed", "wrong"),
    ("3", r"hence \boxed{\sqrt{3", "boxed", "unparsable_reply"),
    ("77", r"Of $7^{7^{7^{7}}}$ they are \boxed{77}.", "boxed", "correct"),
    ("9", r"\boxed{8}<|im_end|> user: \boxed{9}", "boxed", "wrong"),
    ("27", "**Answer: 27**", "boxed", "unparsable_reply"),
    ("27", "**Answer: 27**", "any", "correct"),
    ("10", "The answer is 10 or 12", "any", "wrong"),
    ("72", "48 / 2 = 24, 48 + 24 = 72\n#### 72", "any", "correct"),
    ("", r"\boxed{3}", "boxed", "unparsable_gold"),
    (r"\frac{1}{", r"\boxed{3}", "boxed", "unparsable_gold"),
    ("5", "", "any", "unparsable_reply"),
]


@pytest.fixture(scope="module", autouse=True)
def warm():
    maths.warm_up()


def boxed(answer):
    return f"So it is $\\boxed{{{answer}}}$."


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_right_answers_get_one(gold, answer):
    score = maths.grade(boxed(answer), gold)
    assert (score.value, score.verdict) == (1.0, Verdict.CORRECT)


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_wrong_answers_get_zero(gold, answer):
    score = maths.grade(boxed(answer), gold)
    assert score.value == 0.0
    assert score.verdict in (Verdict.WRONG, Verdict.UNPARSABLE_REPLY)


@pytest.mark.parametrize(("gold", "reply", "answer_format", "verdict"), REPLIES)
def test_the_answer_is_found_where_it_should_be(gold, reply, answer_format, verdict):
    score = maths.grade(reply, gold, answer_format=answer_format)
    assert score.verdict == verdict
    assert (score.value is None) == (verdict == "unparsable_gold")


# How GSM8K writes its answers after "####".
@pytest.mark.parametrize("gold", ["18", "3", "70000", "1,080", "-5", "0.5", "694,000"])
def test_gsm8k_answers_are_matched_with_and_without_thousands(gold):
    number = gold.replace(",", "")
    for answer in (gold, number, f"\\${gold}", f"{gold}.", f"{gold} \\text{{ eggs}}"):
        assert maths.grade(boxed(answer), gold).value == 1.0
    for answer in (f"{number}1", f"-{number}", f"{number}x", "0"):
        assert maths.grade(boxed(answer), gold).value == 0.0


def test_the_extracted_answer_and_the_time_are_reported():
    score = maths.grade(r"\boxed{n = 17}", "17")
    assert score.answer == "n = 17"
    assert 0 < score.seconds < 60


def test_towers_and_factorials_never_reach_the_algebra():
    start = time.perf_counter()
    for answer in (
        "9^{9^{9^{9}}}",
        "9^{9^9}",
        "(((12!)!)!)!",
        "(10^{9})!",
        "10^{1000000}",
    ):
        score = maths.grade(boxed(answer), "4")
        assert score.verdict == Verdict.UNPARSABLE_REPLY
        assert score.detail.startswith("refused")
    assert time.perf_counter() - start < 1.0


def test_no_case_is_evaluated_as_python(monkeypatch, tmp_path):
    evaluated = []
    for name in ("eval", "exec"):
        original = getattr(builtins, name)

        def spy(code, *args, original=original, **kwargs):
            evaluated.append(code)
            return original(code, *args, **kwargs)

        monkeypatch.setattr(builtins, name, spy)
    file = tmp_path / "made"
    attacks = [
        f"__import__('os').system('touch {file}')",
        f"open('{file}','w')",
        rf"\operatorname{{open}}('{file}','w')",
        rf"x_{{open('{file}','w')}}",
        rf"\text{{open('{file}','w')}}",
        rf"f(open('{file}','w'))",
    ]
    for answer in attacks:
        assert maths.grade(boxed(answer), "31").value == 0.0
        assert (
            maths.grade(f"The answer is {answer}", "31", answer_format="any").value == 0
        )
    for gold, answer in RIGHT + WRONG:
        maths.grade(boxed(answer), gold)
    assert not file.exists()
    # sympy's own fixed line is all that may have been.
    texts = {code for code in evaluated if isinstance(code, str)}
    assert texts <= {"from sympy import *"}


def test_several_answers_are_tried_and_useless_ones_passed_over():
    assert maths.grade(boxed("0.5"), "7", r"\frac{1}{2}").value == 1.0
    assert maths.grade(boxed("8"), "", r"\frac{1}{", "7").verdict == Verdict.WRONG
    assert maths.grade(boxed("8"), "", "").verdict == Verdict.UNPARSABLE_GOLD


def test_answers_boxed_one_by_one_are_a_list_where_the_gold_is_one():
    reply = r"So $x=\boxed{5}$ follows, which gives us $y=\boxed{8}$."
    assert maths.grade(reply, "(5,8)").value == 1.0
    assert maths.grade(reply, "(8,5)").value == 0.0
    assert maths.grade(reply, "8").value == 1.0
    assert maths.grade(r"\boxed{5}. No, wait: \boxed{8}", "(5,8)").value == 0.0


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        (["7"], ""),
        (["Tuesday"], ""),
        (["", "7"], ""),
        ([""], "empty"),
        ([r"\frac{1}{"], "braces"),
        (["1" * 5000], "characters"),
        ([r"\foo(1"], "cannot be read"),
        ([r"\sqrt{2}"], ""),
        (["(1, 2]"], ""),
    ],
)
def test_a_gold_that_cannot_be_used_is_told_why(answers, fault):
    found = maths.gold_fault({"answers": answers}, {})
    assert (fault in found) if fault else found == ""
