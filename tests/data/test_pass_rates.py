"""Pass rates of columns and of graded samples."""

import json
import pathlib

import pytest

from rl_jax.data.files import Record
from rl_jax.data.pass_rates import from_column, from_samples, rate_of
from rl_jax.errors import ConfigError


def record(**values):
    return Record(values, pathlib.Path("data.jsonl"), 7)


@pytest.fixture
def samples(tmp_path):
    def write(*lines):
        file = tmp_path / "samples.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(file)

    return write


def test_samples_that_name_prompts_give_the_share_of_right_ones(samples):
    file = samples(
        {"prompt": "p", "verdict": "correct", "score": 1.0},
        {"prompt": "p", "verdict": "wrong", "score": 0.5},
        {"prompt": "p", "verdict": "timeout", "score": 0.0},
        {"prompt": "p", "verdict": "infrastructure", "score": None},
        {"prompt": "q", "verdict": "unparsable_reply", "score": 0.0},
        {"model": "m", "pass@1": [0.5, 0.4, 0.6]},
    )
    rates = from_samples(file)
    assert rates == {("prompt", "p"): pytest.approx(1 / 3), ("prompt", "q"): 0.0}


def test_an_instruction_that_the_run_added_is_taken_off(samples):
    file = samples({"prompt": "p\n\nBox it.", "verdict": "correct"})
    assert from_samples(file, instruction="Box it.") == {("prompt", "p"): 1.0}
    assert from_samples(file) == {("prompt", "p\n\nBox it."): 1.0}


def test_samples_that_name_ids_are_found_by_them(samples):
    file = samples(
        {"id": 3, "score": 0.2}, {"id": 3, "score": 0.0}, {"id": "x", "score": 1}
    )
    rates = from_samples(file)
    assert rates == {("id", "3"): 0.5, ("id", "x"): 1.0}
    assert rate_of(record(prompt="p", id=3), "p", rates) == 0.5
    assert rate_of(record(prompt="p", id="x"), "p", rates) == 1.0
    assert rate_of(record(prompt="p"), "p", rates) is None
    # A grading names rows by their number where they have no id.
    assert rate_of(record(prompt="p"), "p", {("id", "7"): 0.25}) == 0.25


def test_the_prompt_counts_before_the_id():
    rates = {("prompt", "p"): 0.1, ("id", "7"): 0.9}
    assert rate_of(record(id=7), "p", rates) == 0.1


def test_a_file_of_something_else_is_refused(samples):
    with pytest.raises(ConfigError, match="is no graded sample: it has prompt, answer"):
        from_samples(samples({"prompt": "p", "answer": "4"}))


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (0.25, 0.25),
        (1, 1.0),
        (0, 0.0),
        ([1, 0, 0, 1], 0.5),
        ("[1, 0]", 0.5),
        (None, None),
    ],
)
def test_a_column_holds_a_share_or_a_list(value, want):
    assert from_column(record(rate=value), "rate") == want


def test_a_column_inside_an_object_is_found_and_an_absent_one_is_unknown():
    assert from_column(record(extra={"rate": 0.5}), "extra.rate") == 0.5
    assert from_column(record(extra={}), "extra.rate") is None
    assert from_column(record(), "rate") is None


@pytest.mark.parametrize("value", [1.5, -0.1, "half", True, [], [2], ["x"], {"a": 1}])
def test_a_column_of_something_else_is_refused(value):
    with pytest.raises(ConfigError, match="Expected a share from 0 to 1"):
        from_column(record(rate=value), "rate")
