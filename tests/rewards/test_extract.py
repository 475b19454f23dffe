import time

import pytest

from rl_jax.rewards import extract


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("a</think>b</think>c", "c"),
        ("<think>a", None),
        ("a</think>b<think>c", None),
        ("one<|im_end|>\nuser two", "one"),
        ("a[/THINK]b", "b"),
        ("[THINK]a", None),
        ("<thinking>a</thinking>b", "b"),
        ("<seed:think>a</seed:think>b", "b"),
        ("◁think▷a◁/think▷b", "b"),
        ("<|begin_of_thought|>a", None),
        (
            "<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b",
            "<|message|>b",
        ),
        ("<|channel|>analysis<|message|>a<|end|>", None),
        ("a<｜end▁of▁sentence｜>b", "a"),
        ("x < 3 and [1, 2]", "x < 3 and [1, 2]"),
        ("\\boxed{8}\n\nUser: 4+5?\n\\boxed{9}", "\\boxed{8}"),
        ("Question: 4+5?\n\\boxed{9}", "Question: 4+5?\n\\boxed{9}"),
    ],
)
def test_the_final_text_is_what_follows_the_thinking(completion, text):
    assert extract.final_text(completion) == text


def test_a_template_that_opens_the_thinking_is_taken_into_account():
    prompt = "user: 1+1?\nassistant: <think>\n"
    assert extract.final_text("still at it \\boxed{2}", prompt=prompt) is None
    assert extract.final_text("so 2</think>It is 2.", prompt=prompt) == "It is 2."


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (r"\boxed{5}", ["5"]),
        (r"\boxed {5} and \fbox{6}", ["5", "6"]),
        (r"\boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"\boxed{\{1, 2\}}", [r"\{1, 2\}"]),
        (r"\boxed{\boxed{5}}", [r"\boxed{5}"]),
        (r"put it in \boxed{}, so \boxed{5}", ["5"]),
        (r"a stray { and } \boxed{5}", ["5"]),
        (r"\boxed{ never closed, but \boxed{5}", ["5"]),
        (r"\boxed{5} or rather \boxed{\sqrt{3", None),
        ("none", []),
    ],
)
def test_boxes_are_balanced_and_outermost(text, contents):
    found = extract.boxes(text)
    assert (found and [box.content for box in found]) == (contents or found)
    assert (found is None) == (contents is None)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{4}, no: \boxed{5}", "5"),
        (r"The roots are \boxed{5} and \boxed{8}.", "5, 8"),
        (r"$\boxed{1}$, $\boxed{2}$, $\boxed{3}$", "1, 2, 3"),
        (r"\boxed{7}\n\n".replace(r"\n", "\n") + r"\boxed{7}", "7"),
        (r"\boxed{5", None),
        ("Answer: 5", None),
    ],
)
def test_boxes_are_one_answer_only_where_nothing_parts_them(text, answer):
    assert extract.answer(text, "boxed") == answer


@pytest.mark.parametrize(
    "gap",
    [", ", " or maybe ", " / ", " | ", "<br>", "\n- ", " no ", "\nTry 7: ", "\\\\ "],
)
def test_a_list_of_candidates_is_taken_whole(gap):
    text = gap.join(rf"\boxed{{{n}}}" for n in range(3, 6))
    assert extract.answer(text, "boxed") == "3, 4, 5"


def test_too_many_boxes_are_guesses_whatever_is_between():
    words = [
        "so",
        "thus",
        "then we",
        "hence",
        "we get",
        "now",
        "again",
        "at last",
        "yes",
    ]
    text = "".join(rf"\boxed{{{n}}} {word} " for n, word in enumerate(words))
    assert (extract.answer(text + r"\boxed{99}", "boxed") or "")[:6] == "0, 1, "
    assert extract.answer(text[:60] + r"\boxed{99}", "boxed") == "99"


@pytest.mark.parametrize(
    ("tail", "answer"),
    [
        (" Scratch that.", None),
        (" That is wrong.", None),
        (" I made a mistake above, I don't know.", None),
        (" That is wrong, one might think; but it is correct.", "30"),
        (" I hope that is right.", "30"),
        (" A common slip gives 24.", "30"),
    ],
)
def test_an_answer_that_is_taken_back_is_none(tail, answer):
    assert extract.answer(r"\boxed{30}." + tail, "boxed") == answer


def test_all_boxes_are_one_list_unless_one_is_taken_back():
    joined = extract.all_boxes(r"$x=\boxed{5}$ gives $y=\boxed{8}$")
    assert joined is not None and (joined.count, joined.joined) == (2, "5, 8")
    assert extract.all_boxes(r"\boxed{5}. No, wait: \boxed{8}") is None
    assert extract.all_boxes(r"\boxed{5}") is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("#### 72", "72"),
        ("Adding up, **Answer: 27**", "27"),
        ("**Answer:** $\\frac{1}{2}$.", "\\frac{1}{2}"),
        ("The answer is -1,234.5. I hope the answer is right.", "-1,234.5"),
        ("the final answer is \\(x^2\\)", "x^2"),
        ("So the answer is $25.", "$25"),
        ("Answer: 10 or 12", "10 or 12"),
        ("Answer: 3, 4 and 5", "3, 4 and 5"),
        ("answer is 3x", None),
        ("answer is 2^5", None),
        ("I get 72.", None),
        (r"Answer: 5 \boxed{6}", "6"),
        (r"Answer: 5 \boxed{6", None),
    ],
)
def test_without_a_box_an_anchor_is_asked_for(text, answer):
    assert extract.answer(text, "any") == answer


@pytest.mark.parametrize(
    "unit",
    [
        "\\boxed{",
        "}",
        "{",
        "\\boxed{1}",
        "answer is ",
        " ",
        "<think>",
        "\\",
        "<",
        "[",
        "\nUser:",
        "\n",
        "\\boxed{1} no ",
        "\\boxed{1} x ",
        "1 ",
        "</think>",
    ],
)
def test_extraction_is_linear_in_a_hostile_reply(unit):
    text = unit * 20_000
    start = time.perf_counter()
    extract.final_text(text)
    extract.answer(text, "any")
    assert time.perf_counter() - start < 5.0  # quadratic would be minutes
