"""Answers, tools, template variables and names of data sets, as files write them."""

import decimal
import json
import pathlib

import pyarrow
import pyarrow.parquet
import pytest

from rl_jax.data import fields
from rl_jax.data.files import Record, records
from rl_jax.errors import ConfigError

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"properties": {"a": {"default": None}}}},
}


def record(**values):
    return Record(values, pathlib.Path("rows.jsonl"), 7)


def complaint(function, values, *args, **options):
    with pytest.raises(ConfigError) as error:
        function(record(**values), *args, **options)
    assert len(str(error.value).splitlines()) <= 3
    assert str(error.value).startswith("rows.jsonl, row 7: ")
    return str(error.value)


# Answers.


@pytest.mark.parametrize(
    ("values", "column"),
    [
        ({"answer": "8", "solution": "long", "label": "no"}, "answer"),
        ({"solution": "8"}, "solution"),
        ({"label": 8}, "label"),
        ({"ground_truth": "8", "answer": "no"}, "ground_truth"),
        ({"answer": None, "label": "8"}, "label"),
    ],
)
def test_the_answer_is_found(values, column):
    assert fields.answers(record(**values), needed=True) == (("8",), (column,))


@pytest.mark.parametrize("as_json", [False, True])
def test_the_answer_of_verl_lies_inside_a_column(as_json):
    inner = {"style": "rule", "ground_truth": "8"}
    values = {
        "reward_model": json.dumps(inner) if as_json else inner,
        "answer": "not this one",
    }
    found, used = fields.answers(record(**values))
    assert (found, used) == (("8",), ("reward_model.ground_truth",))


@pytest.mark.parametrize(
    ("value", "golds"),
    [
        (["8", " 8.0 "], ("8", "8.0")),
        ([8, 8.5, decimal.Decimal("1.10")], ("8", "8.5", "1.10")),
        ('["8", "8.0"]', ("8", "8.0")),
        ('["8"]', ("8",)),
        (["", "8"], ("8",)),
        ([""], ("",)),
        # Intervals, sets and prose are answers and no lists of them.
        ("[0, 1]", ("[0, 1]",)),
        ('["unclosed', ('["unclosed',)),
        ("[]", ("[]",)),
        # What tests and constraints need is kept whole.
        ({"inputs": ["1\n"]}, ('{"inputs": ["1\\n"]}',)),
        ([{"input": "ä"}], ('[{"input": "ä"}]',)),
        ('{"func": "any"}', ('{"func": "any"}',)),
    ],
)
def test_a_row_may_have_several_answers(value, golds):
    found, used = fields.answers(record(ground_truth=value), needed=True)
    assert found == golds
    # Lists and objects are also handed to reward functions as they are.
    assert used == (() if isinstance(value, list | dict) else ("ground_truth",))


def test_each_answer_is_cut_at_its_mark():
    values = {"answer": ["so\n#### 8", "#### no #### 9 "]}
    assert fields.answers(record(**values), after="####")[0] == ("8", "9")
    values = {"answer": ["#### 8", "nine"]}
    assert "nothing after '####'" in complaint(fields.answers, values, after="####")


def test_a_named_column_wins_and_must_be_there():
    values = {"answer": "no", "gold": "8"}
    assert fields.answers(record(**values), "gold")[0] == ("8",)
    assert "no column 'x' for the answer" in complaint(fields.answers, values, "x")


def test_without_need_a_row_may_lack_an_answer():
    for values in ({}, {"answer": None}, {"label": True}, {"answer": []}):
        assert fields.answers(record(**values)) == ((), ())
        complaint(fields.answers, values, needed=True)
    for value in (None, True, []):  # a column that is named is needed
        complaint(fields.answers, {"answer": value}, "answer")


# Tools and template variables.


def test_tools_are_a_list_or_its_json_or_a_list_of_json():
    for value in ([TOOL], json.dumps([TOOL]), [json.dumps(TOOL)]):
        assert fields.tools(record(tools=value)) == [TOOL]
    for value in (None, "", [], "[]"):
        assert fields.tools(record(tools=value)) is None
    assert fields.tools(record()) is None


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, "holds a number"),
        ({"name": "add"}, "holds an object"),
        ("add", "holds a string"),
        (["add"], "holds a list with a string"),
        ([TOOL, None], "holds a list with null"),
    ],
)
def test_tools_of_another_kind_are_refused(value, words):
    assert f"column 'tools' {words}" in complaint(fields.tools, {"tools": value})


def test_what_parquet_fills_into_tools_is_taken_out(tmp_path):
    tools = [
        {"name": "f", "parameters": {"a": 1}},
        {"name": "g", "parameters": {"b": 2}},
    ]
    file = tmp_path / "rows.parquet"
    table = pyarrow.Table.from_pylist([{"tools": tools}, {"tools": None}])
    pyarrow.parquet.write_table(table, file)
    assert [fields.tools(r) for r in records(file)] == [tools, None]


def test_template_variables_of_a_row():
    kwargs = {"enable_thinking": True, "effort": "low"}
    for value in (kwargs, json.dumps(kwargs)):
        assert fields.variables(record(chat_template_kwargs=value)) == kwargs
    values = {"chat_template_kwargs": kwargs, "enable_thinking": False}
    assert fields.variables(record(**values)) == kwargs | {"enable_thinking": False}
    values = {"chat_template_kwargs": None, "enable_thinking": None}
    assert fields.variables(record(**values)) == {}
    assert "'chat_template_kwargs' holds a list" in complaint(
        fields.variables, {"chat_template_kwargs": ["a"]}
    )
    assert "'enable_thinking' holds a string" in complaint(
        fields.variables, {"enable_thinking": "no"}
    )


# The name of the data set.


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"data_source": "openai/gsm8k", "dataset": "no"}, "openai/gsm8k"),
        ({"dataset": "gsm8k", "ground_truth": "8"}, "gsm8k"),
        ({"dataset": ["gsm8k"], "ground_truth": ["8"]}, "gsm8k"),
        ({"dataset": '["gsm8k"]', "ground_truth": "8"}, "gsm8k"),
        ({"dataset": "any column of that name"}, ""),
        ({"data_source": None}, ""),
        ({"data_source": 3}, "3"),
        ({}, ""),
    ],
)
def test_the_name_of_the_data_set(values, name):
    assert fields.source(record(**values)) == name


def test_several_verifiers_for_one_row_are_refused():
    values = {"dataset": ["gsm8k", "ifeval"], "ground_truth": ["8", "{}"]}
    assert "names a list as its data set" in complaint(fields.source, values)
    assert "an object" in complaint(fields.source, {"data_source": {"a": 1}})
