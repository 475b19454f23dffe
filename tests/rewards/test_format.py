import pytest

from rl_jax.rewards.format import format_reward


def value_of(completion, pattern=None, **job):
    options = {"format_pattern": pattern} if pattern else {}
    return format_reward({"completion": completion, "prompt": "", **job}, options).value


@pytest.mark.parametrize(
    ("completion", "value"),
    [
        (r"so \boxed{5}", 1.0),
        (r"<think>maybe \boxed{4}</think>\boxed{5}", 1.0),
        (r"\boxed{4}, \boxed{5}", 0.0),
        (r"<think>\boxed{5}", 0.0),
        (r"\boxed{5", 0.0),
        ("5", 0.0),
        ("", 0.0),
    ],
)
def test_exactly_one_box_outside_of_the_thinking_is_asked_for(completion, value):
    assert value_of(completion) == value


def test_a_reply_that_was_cut_off_is_never_in_format():
    assert value_of(r"\boxed{5}", truncated=True) == 0.0
    assert value_of("<a>5</a>", r"<a>\d</a>", truncated=True) == 0.0


def test_a_pattern_stands_in_for_the_box():
    assert value_of("<a>5</a>", r"<a>\d</a>") == 1.0
    assert value_of(r"\boxed{5}", r"<a>\d</a>") == 0.0


def test_a_pattern_is_not_run_on_a_runaway_reply():
    assert value_of("5" + " " * 100_000, "5") == 0.0


@pytest.mark.parametrize(
    ("style", "completion", "value"),
    [
        ("think", "<think>so</think>5", 1.0),
        ("think", "[THINK]so[/THINK] 5", 1.0),
        ("think", "<reasoning>so</reasoning>5", 1.0),
        ("think", "5", 0.0),
        ("think", "<think></think>5", 0.0),
        ("think", "<think>so</think>", 0.0),
        ("think", "<think>so", 0.0),
        ("think", "5 <think>so</think>5", 0.0),
        ("think", "<think>a</think>5<think>b</think>6", 0.0),
        ("think_boxed", r"<think>so</think>\boxed{5}", 1.0),
        ("think_boxed", r"<think>\boxed{5}</think>5", 0.0),
        ("think_boxed", r"\boxed{5}", 0.0),
        ("answer", "Well, <answer>5</answer>.", 1.0),
        ("answer", "<answer>4</answer><answer>5</answer>", 0.0),
        ("answer", "<answer></answer>", 0.0),
        ("answer", "<think><answer>5</answer></think>", 0.0),
        ("answer", "</answer>5<answer>", 0.0),
        ("think_answer", "<think>so</think>\n<answer>5</answer>", 1.0),
        ("think_answer", "<think>so</think> hm <answer>5</answer>", 0.0),
        ("think_answer", "<answer>5</answer>", 0.0),
        ("think_answer", "<think>a</think><answer>5</answer>" * 2, 0.0),
    ],
)
def test_each_style_wants_its_tags_once_and_in_order(style, completion, value):
    job = {"completion": completion, "prompt": ""}
    assert format_reward(job, {"format": {"style": style}}).value == value


def test_a_template_that_opens_the_thinking_counts_as_its_tag():
    job = {"completion": "so</think>5", "prompt": "user: 2+3?\n<think>\n"}
    options = {"format": {"style": "think"}}
    assert format_reward(job, options).value == 1.0
    assert format_reward({**job, "completion": "5"}, options).value == 0.0
