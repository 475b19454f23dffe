"""A function that somebody wrote, as the worker calls it."""

import pytest

from rl_jax.errors import ConfigError
from rl_jax.rewards import loading
from rl_jax.rewards.score import Score, Verdict

JOB = {
    "prompt": "1+1?",
    "completion": "two",
    "answer": "2",
    "row": {"level": 3, "answer": "of the row"},
    "num_tokens": 1,
    "truncated": False,
    "data_source": "gsm8k",
}


def function_from(folder, source, name="fn"):
    path = folder / "mine.py"
    path.write_text(source)
    loaded = loading.load(f"{path}:{name}", {})

    def call(job):
        (outcome,) = loaded.judge([job])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return call


def loaded_from(folder, source, name="fn"):
    path = folder / "mine.py"
    path.write_text(source)
    return loading.load(f"{path}:{name}", {})


def test_a_function_gets_the_arguments_it_names(tmp_path):
    fn = function_from(tmp_path, "def fn(completion, level): return len(completion)")
    assert fn(JOB).value == 3.0


def test_a_function_with_kwargs_gets_every_column_and_the_jobs_own_answer(tmp_path):
    source = """
def fn(prompt, completion, answer, **row):
    keys = sorted(row)
    return {"value": row["level"], "answer": answer, "detail": ",".join(keys)}
"""
    score = function_from(tmp_path, source)(JOB)
    assert (score.value, score.answer) == (3.0, "2")
    assert score.detail == "data_source,level,num_tokens,truncated"


def test_the_batch_form_is_called_with_lists_of_one(tmp_path):
    source = """
def fn(prompts, completions, level, **kwargs):
    assert kwargs["answer"] == ["2"] and "prompt" not in kwargs
    return [float(len(c) + l) for c, l in zip(completions, level, strict=True)]
"""
    assert function_from(tmp_path, source)(JOB).value == 6.0


def test_a_coroutine_function_is_run_to_its_end(tmp_path):
    source = """
import asyncio
async def fn(completions, **kwargs):
    await asyncio.sleep(0)
    return [None]
"""
    assert function_from(tmp_path, source)(JOB).value is None


def test_a_function_may_return_a_score_or_a_dict(tmp_path):
    source = """
from rl_jax.rewards.score import Score, Verdict
def fn(completion): return Score(0.25, Verdict.BLOCKED)
def other(completion): return {"value": 0.0, "verdict": "blocked"}
"""
    assert function_from(tmp_path, source)(JOB).verdict == Verdict.BLOCKED
    assert function_from(tmp_path, source, "other")(JOB).verdict == Verdict.BLOCKED


@pytest.mark.parametrize(
    "body",
    ["return [1.0, 2.0]", "return 1.0", "return [float('nan')]", "return ['good']"],
)
def test_a_batch_form_that_answers_nonsense_raises(tmp_path, body):
    fn = function_from(tmp_path, f"def fn(completions, **kwargs): {body}")
    with pytest.raises((ValueError, TypeError)):
        fn(JOB)


def test_a_column_that_is_not_there_is_named(tmp_path):
    fn = function_from(tmp_path, "def fn(completion, tests): return 1.0")
    with pytest.raises(TypeError, match="asks for tests.*level"):
        fn(JOB)


def test_a_file_may_import_its_neighbour(tmp_path):
    (tmp_path / "reward_neighbour.py").write_text("BONUS = 0.5")
    source = "import reward_neighbour\ndef fn(answer): return reward_neighbour.BONUS"
    assert function_from(tmp_path, source)(JOB).value == 0.5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package.module:fn", "no_such_package"),
        ("no/such/file.py:fn", "not there"),
        ("rl_jax.rewards.format:format_rewrad", "did you mean 'format_reward'"),
    ],
)
def test_what_cannot_be_imported_is_a_config_error(name, message):
    with pytest.raises(ConfigError, match=message) as caught:
        loading.load(name, {})
    assert len(str(caught.value).splitlines()) <= 3


def test_a_module_that_fails_when_imported_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        function_from(tmp_path, "1 / 0")
    with pytest.raises(ConfigError, match="SystemExit"):
        function_from(tmp_path, "raise SystemExit(0)")


def test_a_batch_function_gets_all_samples_at_once(tmp_path):
    source = """
def fn(completions, level, **kwargs):
    return [len(completions) + (n or 0) for n in level]
"""
    loaded = loaded_from(tmp_path, source)
    assert loaded.takes_batches
    without = {**JOB, "row": {}}
    found = loaded.judge([JOB, without, JOB])
    assert [s.value for s in found if isinstance(s, Score)] == [6.0, 3.0, 6.0]


def test_a_batch_that_raises_raises_for_each(tmp_path):
    loaded = loaded_from(tmp_path, "def fn(completions, **kwargs): 1 / 0")
    found = loaded.judge([JOB, JOB])
    assert [type(fault) for fault in found] == [ZeroDivisionError] * 2


def test_coroutines_of_several_samples_run_together(tmp_path):
    source = """
import asyncio
running, most = 0, 0
async def fn(completion):
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.05)
    running -= 1
    if completion == "bad": raise ValueError(completion)
    return most
"""
    loaded = loaded_from(tmp_path, source)
    found = loaded.judge([JOB, {**JOB, "completion": "bad"}, JOB])
    assert isinstance(found[1], ValueError)
    assert isinstance(found[0], Score) and found[0].value == 3.0


def test_token_ids_are_asked_for_by_name_only(tmp_path):
    source = "def fn(completion_ids): return 1.0\ndef other(**kwargs): return 1.0"
    assert loaded_from(tmp_path, source).asks == ("completion_ids",)
    assert loaded_from(tmp_path, source, "other").asks == ()


def test_a_function_may_name_the_components_of_its_score(tmp_path):
    source = "def fn(completion): return 0.5, {'style': 1.0, 'length': None}"
    score = function_from(tmp_path, source)(JOB)
    assert (score.value, score.parts) == (0.5, {"style": 1.0, "length": None})


def test_a_built_in_says_why_a_reference_cannot_be_used():
    loaded = loading.load("maths", {})
    assert loaded.gold_fault({"answer": "7"}) == ""
    assert "braces" in loaded.gold_fault({"answer": "\\frac{1}{"})
    assert loaded.gold_fault({"answers": ["", "7"]}) == ""
