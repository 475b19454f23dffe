"""The reward of the toy tasks, alone and in a pool of worker processes."""

import pytest

from rl_jax.data.toys import making
from rl_jax.data.toys.table import TOYS
from rl_jax.errors import ConfigError
from rl_jax.rewards import RewardPool, Verdict, registry
from rl_jax.rewards.toy import gold_fault, toy


def job(name, completion, answer, **more):
    return {
        "prompt": "",
        "completion": completion,
        "answer": answer,
        "answers": [answer],
        "row": {},
        "num_tokens": 1,
        "truncated": False,
        "data_source": name,
        **more,
    }


def test_the_task_is_found_by_the_data_source():
    assert toy(job("sums", "85", "85"), {}).verdict is Verdict.CORRECT
    assert toy(job("sorting", "85214", "12458"), {}).verdict is Verdict.WRONG
    score = toy(job("sums", "what", "85"), {})
    assert (score.value, score.verdict) == (0.0, Verdict.UNPARSABLE_REPLY)


def test_parts_of_the_value_are_given_or_not_as_the_option_says():
    half = job("calls", "max(47,38)=38", "max(47,38)")
    score = toy(half, {})
    assert (score.value, score.verdict) == (0.5, Verdict.WRONG)
    assert score.parts == {"call": 1.0, "result": 0.0}
    options = registry.parse_options(["toy.credit=binary"])
    assert toy(half, options).value == 0.0
    good = job("helpful", "bakoluau", "bakolu")
    assert 0.75 < (toy(good, {}).value or 0) < 1.0 and toy(good, options).value == 1.0


def test_an_unknown_credit_is_refused():
    options = registry.parse_options(["toy.credit=half"])
    with pytest.raises(ConfigError, match="share, binary"):
        registry.check(["toy"], [1.0], options)


def test_a_reply_that_was_cut_off_or_thinks_without_end_has_no_answer():
    for completion, truncated in (("85", True), ("<think>85", False)):
        score = toy(job("sums", completion, "85", truncated=truncated), {})
        assert (score.value, score.verdict) == (0.0, Verdict.UNPARSABLE_REPLY)
        assert score.detail


def test_a_prompt_that_opens_the_thinking_counts_as_its_beginning():
    opened = job("sums", "4+1=5</think>5", "5", prompt="sum 4+1<think>\n")
    assert toy(opened, {}).verdict is Verdict.CORRECT
    assert toy(opened | {"prompt": ""}, {}).verdict is Verdict.UNPARSABLE_REPLY


def test_any_of_several_answers_will_do():
    several = job("lookup", "B", "A", answers=["A", "B"])
    assert toy(several, {}).verdict is Verdict.CORRECT


@pytest.mark.parametrize(
    ("name", "answer", "words"),
    [
        ("sum", "5", "'sum' is no toy task; did you mean 'sums'?"),
        ("", "5", "no toy task"),
        ("sums", "five", "no whole number"),
        ("sums", "", "no whole number"),
        ("rpn", "1=x", "no test"),
        ("safety", "maybe", "'maybe'"),
    ],
)
def test_a_row_that_no_task_can_judge_is_told(name, answer, words):
    assert words in gold_fault(job(name, "", answer), {})
    score = toy(job(name, "5", answer), {})
    assert score.value is None and score.verdict is Verdict.UNPARSABLE_GOLD


def test_every_row_that_is_made_can_be_judged():
    for name in TOYS:
        for row in making.rows(name, "eval", 50, seed=0):
            assert gold_fault(job(name, "", row.answer), {}) == ""


def test_a_pool_scores_every_task_and_survives_what_is_hostile():
    asked, wanted = [], []
    for name in TOYS:
        for share in (0.0, 1.0):
            for row in making.demonstrations(name, 5, seed=0, wrong_share=share):
                asked.append(job(name, row.messages[1]["content"], row.answer))
                wanted.append(share == 0.0)
        asked.append(job(name, "9" * 1_000_000 + "**9" * 1000, row.answer))
        wanted.append(False)
    with RewardPool(["toy"], [1.0], num_workers=1, timeout_secs=20.0) as pool:
        faults = pool.check_golds(asked + [job("sums", "", "x")])
        for ticket, one in enumerate(asked):
            pool.submit(ticket, one)
        scores = {}
        while pool.pending:
            scores.update(pool.wait(60.0))
    assert [i for i, _ in faults] == [len(asked)]
    for ticket, right in enumerate(wanted):
        score = scores[ticket]
        assert (score.verdict is Verdict.CORRECT) is right, asked[ticket]
        assert score.value is not None and 0.0 <= score.value <= 1.0
