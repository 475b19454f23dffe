"""Columns to rows: every accepted shape, and every complaint."""

import json

import hypothesis
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from rl_jax.data.rows import Row, read_conversations, read_rows
from rl_jax.errors import ConfigError

USER = {"role": "user", "content": "1+1?"}
SYSTEM = {"role": "system", "content": "Be brief."}
REPLY = {"role": "assistant", "content": "2"}
GSM8K = {
    "question": "Natalia sold 1,000 clips in April and 80 in May. How many?",
    "answer": "1000+80=<<1000+80=1080>>1080, not #### 7.\n#### 1,080 \n",
}


def written(tmp_path, *values, name="data.jsonl"):
    file = tmp_path / name
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(values)), file)
    else:
        file.write_text("".join(json.dumps(value) + "\n" for value in values))
    return file


def rows(path, prompt_column="prompt", answer_column="answer", **options):
    return read_rows(
        path, prompt_column=prompt_column, answer_column=answer_column, **options
    )


def complaint(path, read=rows, **options):
    with pytest.raises(ConfigError) as error:
        read(path, **options)
    assert len(str(error.value).splitlines()) <= 3
    return str(error.value)


def test_a_string_prompt_is_one_user_turn_and_other_columns_are_kept(tmp_path):
    file = written(
        tmp_path,
        {"prompt": "1+1?", "answer": " 2\n", "level": 3},
        {"prompt": "2+2?", "answer": "4"},
        name="sums.train.jsonl",
    )
    assert rows(file) == [
        Row((USER,), "2", "sums", 0, {"level": 3}),
        Row(({"role": "user", "content": "2+2?"},), "4", "sums", 1, {}),
    ]


def test_gsm8k_gives_what_follows_its_last_mark(tmp_path):
    (row,) = rows(
        written(tmp_path, GSM8K), prompt_column="question", answer_after="####"
    )
    assert row.answer == "1,080"
    assert row.messages[0]["content"] == GSM8K["question"]


@pytest.mark.parametrize("name", ["data.jsonl", "data.parquet"])
def test_messages_may_be_a_list_or_its_json_and_lose_their_last_reply(tmp_path, name):
    talk = [SYSTEM, USER, REPLY, USER]
    tool = {"role": "tool", "content": "2", "name": "sum"}
    for messages, expected in [
        (talk, talk),
        ([*talk, REPLY], talk),
        ([*talk, REPLY, REPLY], talk),
        ([USER, tool], [USER, tool]),
    ]:
        for value in (messages, json.dumps(messages)):
            file = written(tmp_path, {"messages": value, "answer": 2}, name=name)
            (row,) = rows(file, prompt_column="messages")
            assert list(row.messages) == expected


def test_a_prompt_that_only_looks_like_a_list_stays_text(tmp_path):
    for text in ("[3, 1, 2]", '[{"a": 1}]', "[] is empty", "[unclosed", '{"a": 1}'):
        (row,) = rows(written(tmp_path, {"prompt": text, "answer": "x"}))
        assert row.messages == ({"role": "user", "content": text},)


def test_a_string_is_not_text_in_a_column_called_messages(tmp_path):
    file = written(tmp_path, {"messages": '[{"role": "user", ', "answer": "x"})
    assert "column 'messages' holds a string" in complaint(
        file, prompt_column="messages"
    )


@pytest.mark.parametrize(
    ("value", "answer"), [("7", "7"), (7, "7"), (-2.5, "-2.5"), (" x\n", "x"), ("", "")]
)
def test_answers_are_strings_or_numbers(tmp_path, value, answer):
    (row,) = rows(written(tmp_path, {"prompt": "p", "answer": value}))
    assert row.answer == answer


def test_no_answer_column_means_no_answer(tmp_path):
    (row,) = rows(written(tmp_path, {"prompt": "p", "answer": "7"}), answer_column="")
    assert row.answer == "" and row.extra == {"answer": "7"}


@pytest.mark.parametrize("name", ["data.jsonl", "data.parquet"])
@pytest.mark.parametrize("as_json", [False, True])
def test_columns_inside_objects_and_the_data_source_of_the_row(tmp_path, name, as_json):
    gold = {"style": "rule", "ground_truth": "34"}
    value = {
        "data_source": "dapo",
        "prompt": [USER],
        "reward_model": json.dumps(gold) if as_json else gold,
    }
    file = written(tmp_path, value, name=name)
    (row,) = rows(file, answer_column="reward_model.ground_truth")
    assert (row.answer, row.data_source) == ("34", "dapo")
    assert row.extra["reward_model"] == value["reward_model"]
    (row,) = rows(file, answer_column="", data_source="mine")
    assert row.data_source == "mine"


def test_a_system_message_goes_first_and_replaces_the_rows_own(tmp_path):
    mine = {"role": "system", "content": "Think."}
    for messages in ([USER], [SYSTEM, USER]):
        file = written(tmp_path, {"prompt": messages, "answer": "2"})
        (row,) = rows(file, system="Think.")
        assert row.messages == (mine, USER)
        assert rows(file)[0].messages == tuple(messages)


def test_an_instruction_follows_the_last_user_message(tmp_path):
    file = written(tmp_path, {"prompt": [USER, REPLY, USER], "answer": "2"})
    (row,) = rows(file, instruction="Box it.")
    asked = {"role": "user", "content": "1+1?\n\nBox it."}
    assert row.messages == (USER, REPLY, asked)
    file = written(tmp_path, {"prompt": [SYSTEM], "answer": "2"})
    assert "no user turn" in complaint(file, instruction="Box it.")


def test_rows_of_several_files_are_numbered_through(tmp_path):
    for name in ("b.jsonl", "a.jsonl"):
        values = [{"prompt": f"{name} {i}", "answer": i} for i in range(2)]
        written(tmp_path, *values, name=name)
    found = rows(tmp_path)
    assert [row.index for row in found] == [0, 1, 2, 3]
    assert [row.data_source for row in found] == ["a", "a", "b", "b"]
    assert found[2].messages[0]["content"] == "b.jsonl 0"


@pytest.mark.parametrize(
    ("value", "override"),
    [
        (GSM8K, "--config.data.prompt_column=question"),
        ({"problem": "p", "answer": "a"}, "--config.data.prompt_column=problem"),
        ({"prompts": "p", "answer": "a"}, "--config.data.prompt_column=prompts"),
        ({"messages": [USER], "answer": "a"}, "--config.data.prompt_column=messages"),
        ({"xyz": "p", "answer": "a"}, "--config.data.prompt_column=NAME"),
        ({"prompt": "p", "solution": "a"}, "--config.data.answer_column=solution"),
        ({"prompt": "p", "final": "a"}, "--config.data.answer_column=NAME"),
    ],
)
def test_a_missing_column_names_what_is_there_and_what_to_write(
    tmp_path, value, override
):
    file = written(tmp_path, value)
    text = complaint(file)
    assert f"{file}, row 1: there is no column" in text
    assert f"Columns found: {', '.join(value)}." in text
    assert text.endswith(f"Write {override}")


def test_a_column_that_goes_missing_later_names_its_row(tmp_path):
    file = written(tmp_path, {"prompt": "p", "answer": "a"}, {"prompt": "q"})
    assert f"{file}, row 2: there is no column 'answer'" in complaint(file)


def test_a_missing_inner_column_is_a_missing_column(tmp_path):
    file = written(tmp_path, {"prompt": "p", "reward_model": {"style": "rule"}})
    text = complaint(file, answer_column="reward_model.ground_truth")
    assert "no column 'reward_model.ground_truth' for the answer" in text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"prompt": 3, "answer": "a"}, "'prompt' holds a number"),
        ({"prompt": None, "answer": "a"}, "'prompt' holds null"),
        ({"prompt": {"a": 1}, "answer": "a"}, "'prompt' holds an object"),
        ({"prompt": " \n", "answer": "a"}, "'prompt' is empty"),
        ({"prompt": [], "answer": "a"}, "'prompt' is empty"),
        ({"prompt": ["hi"], "answer": "a"}, "turn 1 of 'prompt' is a string"),
        ({"prompt": [USER, {"role": "user"}], "answer": "a"}, "turn 2 of 'prompt' has null as its content"),  # noqa: E501
        ({"prompt": [{"content": "a"}], "answer": "a"}, "turn 1 of 'prompt' has null as its role"),  # noqa: E501
        ({"prompt": [{"role": "user", "content": ["a"]}], "answer": "a"}, "has a list as its content"),  # noqa: E501
        ({"prompt": [REPLY], "answer": "a"}, "only assistant turns"),
        ({"prompt": "p", "answer": None}, "'answer' holds null"),
        ({"prompt": "p", "answer": True}, "'answer' holds a boolean"),
        ({"prompt": "p", "answer": ["a"]}, "'answer' holds a list"),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_kind_is_named(tmp_path, value, words):
    file = written(tmp_path, {"prompt": "fine", "answer": "fine"}, value)
    text = complaint(file)
    assert f"{file}, row 2: " in text and words in text


@pytest.mark.parametrize("answer", ["no mark", "empty ####  "])
def test_an_answer_without_its_mark_is_an_error(tmp_path, answer):
    file = written(tmp_path, {"prompt": "p", "answer": answer})
    text = complaint(file, answer_after="####")
    assert f"{file}, row 1" in text and "nothing after '####'" in text


def test_conversations_are_whole(tmp_path):
    talk = [SYSTEM, USER, REPLY]
    for value in (talk, json.dumps(talk)):
        file = written(tmp_path, {"messages": value, "prompt": "unread", "id": 5})
        (row,) = read_conversations(file)
        assert row == Row(tuple(talk), "", "data", 0, {"prompt": "unread", "id": 5})


def test_prompt_and_completion_make_a_conversation(tmp_path):
    for prompt in ("1+1?", [USER], json.dumps([USER])):
        for completion in ("2", [REPLY]):
            value = {"prompt": prompt, "completion": completion}
            (row,) = read_conversations(
                written(tmp_path, value), system="Be brief.", instruction="Box it."
            )
            asked = {"role": "user", "content": "1+1?\n\nBox it."}
            assert row.messages == (SYSTEM, asked, REPLY)
    (row,) = read_conversations(
        written(tmp_path, GSM8K), prompt_column="question", completion_column="answer"
    )
    assert row.messages[1] == {"role": "assistant", "content": GSM8K["answer"]}


def test_conversations_complain_of_what_is_missing(tmp_path):
    def text(value):
        return complaint(written(tmp_path, value), read_conversations)

    assert text(GSM8K).endswith("--config.data.prompt_column=question")
    assert text({"prompt": "p", "response": "r"}).endswith(
        "--config.data.completion_column=response"
    )
    assert "no assistant turn to learn from" in text({"messages": [SYSTEM, USER]})
    assert "Roles found: system, user." in text({"messages": [SYSTEM, USER]})
    assert "holds a string" in text({"messages": "hello"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rows")


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    st.lists(
        st.tuples(st.text(min_size=1).filter(str.strip), st.text() | st.integers()),
        min_size=1,
        max_size=5,
    )
)
def test_any_prompt_and_answer_come_through(folder, pairs):
    values = [{"prompt": prompt, "answer": answer} for prompt, answer in pairs]
    found = rows(written(folder, *values))
    assert [row.messages[0]["content"] for row in found] == [p for p, _ in pairs]
    assert [row.answer for row in found] == [str(a).strip() for _, a in pairs]
