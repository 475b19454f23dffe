import pytest

from rl_jax.errors import ConfigError
from rl_jax.rewards import registry
from rl_jax.rewards.score import Verdict

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
    return registry.load(f"{path}:{name}", {})


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="'math'.*'maths'"):
        registry.check(["math"], [1.0], {})


@pytest.mark.parametrize(
    ("functions", "weights", "options"),
    [
        ([], [], {}),
        (["maths"], [1.0, 2.0], {}),
        (["maths", "maths"], [1.0, 1.0], {}),
        (["maths"], [1.0], {"answer_format": "box"}),
        (["format"], [1.0], {"format_pattern": "("}),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    functions, weights, options
):
    with pytest.raises(ConfigError) as caught:
        registry.check(functions, weights, options)
    assert len(str(caught.value).splitlines()) <= 3


def test_the_names_of_parts_are_short_and_unique():
    names = registry.part_names(["maths", "a.b:fn", "c.py:fn", "c.py:other"])
    assert names == ("maths", "a.b:fn", "c.py:fn", "other")


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
        registry.load(name, {})
    assert len(str(caught.value).splitlines()) <= 3


def test_a_module_that_fails_when_imported_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        function_from(tmp_path, "1 / 0")
    with pytest.raises(ConfigError, match="SystemExit"):
        function_from(tmp_path, "raise SystemExit(0)")
