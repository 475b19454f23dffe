"""Columns to rows: every accepted shape, and every complaint."""

import json

import hypothesis
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from rl_jax.data.rows import (
    Framing,
    Preference,
    Row,
    framed,
    read_conversations,
    read_preferences,
    read_rows,
    read_texts,
)
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


def rows(path, **options):
    """Rows read; what is no option of the reader is one of its framing."""
    names = ("prompt_column", "answer_column", "answer_after", "needs_answer")
    own = {name: options.pop(name) for name in names if name in options}
    return read_rows(path, **own, framing=Framing(**options))


def complaint(path, read=rows, **options):
    with pytest.raises(ConfigError) as error:
        if read is rows:
            options = {"needs_answer": True, **options}
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


def test_a_row_may_have_no_answer_unless_one_is_needed(tmp_path):
    for value in ({"prompt": "p"}, {"prompt": "p", "answer": None}):
        file = written(tmp_path, value)
        (row,) = rows(file)
        assert (row.answer, row.answers, row.extra.get("answer")) == ("", (), None)
        assert f"{file}, row 1: " in complaint(file)


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
    (row,) = rows(file, answer_column="data_source", data_source="mine")
    assert (row.answer, row.data_source) == ("dapo", "mine")


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
        ({"xyz": "p", "answer": "a"}, "--config.data.prompt_column=NAME"),
        ({}, "--config.data.prompt_column=NAME"),
        ({"prompt": "p", "target": "a"}, "--config.data.answer_column=target"),
        ({"prompt": "p", "final": "a"}, "--config.data.answer_column=NAME"),
    ],
)
def test_an_unknown_row_names_its_columns_the_shapes_and_what_to_write(
    tmp_path, value, override
):
    file = written(tmp_path, value)
    text = complaint(file)
    assert f"{file}, row 1: cannot tell which column holds the" in text
    assert f"Columns found: {', '.join(value) or 'none'}." in text
    assert "Known are prompt; messages; conv" in text or "Known are reward_mo" in text
    assert text.endswith(f"Write {override}")


def test_only_some_of_many_columns_are_named(tmp_path):
    file = written(tmp_path, {f"column_{i}": i for i in range(30)})
    assert "column_11, and 18 more." in complaint(file)


@pytest.mark.parametrize(
    ("value", "column", "override"),
    [
        ({"prompts": "p", "answer": "a"}, "prompt", "prompt_column=prompts"),
        (GSM8K, "prompt", "prompt_column=question"),
        ({"messages": [USER], "answer": "a"}, "prompt", "prompt_column=messages"),
        ({"prompt": "p", "solution": "a"}, "answer", "answer_column=solution"),
        ({"prompt": "p", "final": "a"}, "answer", "answer_column=NAME"),
    ],
)
def test_a_column_that_was_named_must_be_there(tmp_path, value, column, override):
    file = written(tmp_path, value)
    text = complaint(file, **{f"{column}_column": column})
    assert f"{file}, row 1: there is no column {column!r} for the {column}." in text
    assert f"Columns found: {', '.join(value)}." in text
    assert text.endswith(f"Write --config.data.{override}")


def test_a_column_that_goes_missing_later_names_its_row(tmp_path):
    file = written(tmp_path, {"prompt": "p", "answer": "a"}, {"prompt": "q"})
    assert f"{file}, row 2: cannot tell which column holds the answer" in (
        complaint(file)
    )
    named = complaint(file, answer_column="answer")
    assert f"{file}, row 2: there is no column 'answer'" in named


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
        ({"prompt": [REPLY], "answer": "a"}, "only assistant turns"),
        ({"prompt": "p", "answer": None}, "'answer' holds null"),
        ({"prompt": "p", "answer": True}, "'answer' holds a boolean"),
        ({"prompt": "p", "answer": []}, "'answer' holds an empty list"),
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
                written(tmp_path, value), framing=Framing("Be brief.", "Box it.")
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


# Whole rows, as the trainers' own documents have them.

TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


@pytest.mark.parametrize("name", ["data.jsonl", "data.parquet"])
def test_a_row_of_verl(tmp_path, name):
    value = {
        "data_source": "openai/gsm8k",
        "prompt": [USER],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"split": "train", "index": 0},
    }
    (row,) = rows(written(tmp_path, value, name=name), needs_answer=True)
    assert (row.messages, row.answers) == ((USER,), ("2",))
    assert row.data_source == "openai/gsm8k"
    assert {*row.extra} == {"data_source", "ability", "reward_model", "extra_info"}
    assert row.extra["extra_info"] == {"split": "train", "index": 0}


@pytest.mark.parametrize("name", ["data.jsonl", "data.parquet"])
def test_a_row_of_open_instruct(tmp_path, name):
    value = {"messages": [USER, REPLY], "ground_truth": ["2", "2.0"], "dataset": "math"}
    (row,) = rows(written(tmp_path, value, name=name), needs_answer=True)
    assert (row.messages, row.data_source) == ((USER,), "math")
    assert (row.answer, row.answers) == ("2", ("2", "2.0"))
    assert row.extra == {"ground_truth": ["2", "2.0"], "dataset": "math"}


@pytest.mark.parametrize("name", ["data.jsonl", "data.parquet"])
def test_what_the_template_is_given_comes_from_the_row_and_from_the_run(tmp_path, name):
    value = {
        "messages": [USER, {**REPLY, "loss": 0}, USER, REPLY],
        "tools": json.dumps([TOOL]),
        "chat_template_kwargs": {"effort": "low"},
        "enable_thinking": False,
    }
    file = written(tmp_path, value, name=name)
    framing = Framing(variables={"effort": "high", "date": "today"})
    (row,) = read_conversations(file, framing=framing)
    assert [message.get("loss") for message in row.messages] == [
        None,
        False,
        None,
        None,
    ]
    assert row.tools == [TOOL]
    wanted = {"effort": "low", "date": "today", "enable_thinking": False}
    assert row.variables == wanted
    assert row.extra == {}


def test_an_instruction_can_follow_parts_of_text(tmp_path):
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]
    file = written(tmp_path, {"prompt": [{"role": "user", "content": parts}]})
    (row,) = rows(file, instruction="Box it.")
    added = {"type": "text", "text": "\n\nBox it."}
    assert row.messages[0]["content"] == [*parts, added]


def test_made_rows_are_framed_like_read_ones():
    row = Row((USER,), "2", "arithmetic", 4, {}, variables={"a": 1})
    done = framed(row, Framing("Be brief.", "Box it.", {"a": 2, "b": 3}))
    asked = {"role": "user", "content": "1+1?\n\nBox it."}
    assert done.messages == (SYSTEM, asked) and row.messages == (USER,)
    assert done.variables == {"a": 1, "b": 3}
    assert framed(row, Framing()) == row
    with pytest.raises(ConfigError, match="row 5: there is no user turn"):
        framed(Row((SYSTEM,), "", "", 4, {}), Framing(instruction="Box it."))


# Preferences.


@pytest.mark.parametrize("name", ["data.jsonl", "data.parquet"])
def test_preferences_are_read_with_all_that_belongs_to_them(tmp_path, name):
    values = [
        {"prompt": "1+1?", "chosen": "2", "rejected": "3", "margin": 1.5},
        {"prompt": "2+2?", "chosen": "4", "rejected": "5", "margin": None},
    ]
    file = written(tmp_path, *values, name=name)
    first, second = read_preferences(
        file, framing=Framing("Be brief.", "Box it.", {"a": 1}, "sums")
    )
    assert first == Preference(
        prompt=(SYSTEM, {"role": "user", "content": "1+1?\n\nBox it."}),
        chosen=(REPLY,),
        rejected=({"role": "assistant", "content": "3"},),
        data_source="sums",
        index=0,
        extra={"margin": 1.5},
        variables={"a": 1},
    )
    assert (second.index, second.chosen[0]["content"]) == (1, "4")


def test_a_preference_without_a_reply_names_file_and_row(tmp_path):
    file = written(
        tmp_path,
        {"prompt": "p", "chosen": "a", "rejected": "b"},
        {"prompt": "p", "chosen": "a"},
    )
    text = complaint(file, read_preferences)
    assert f"{file}, row 2: there is no column 'rejected'" in text


# Names made of the content.


def test_a_row_keeps_its_id_wherever_it_stands(tmp_path):
    values = [{"prompt": f"{i}+1?", "answer": i + 1, "n": i} for i in range(4)]
    before = rows(written(tmp_path, *values))
    moved = [{**value, "n": 9} for value in values[::-1]]
    after = rows(written(tmp_path, *moved, name="other.parquet"))
    assert [row.id for row in after[::-1]] == [row.id for row in before]
    assert len({row.id for row in before}) == 4
    # Pinned: what is saved under an id is to be found again.
    assert before[0].id == "7d73007f81b3d341"


def test_the_id_is_of_what_is_asked_and_of_what_is_right():
    row = Row((USER,), "2", "a", 0, {})
    others = [
        Row((REPLY,), "2", "a", 0, {}),
        Row((USER,), "3", "a", 0, {}),
        Row((USER,), "2", "a", 0, {}, other_answers=("two",)),
        Row((USER,), "2", "a", 0, {}, tools=[TOOL]),
        Row((USER,), "2", "a", 0, {}, variables={"enable_thinking": False}),
    ]
    assert len({row.id, *(other.id for other in others)}) == 6
    assert Row((USER,), "2", "b", 7, {"x": 1}).id == row.id
    pair = Preference((USER,), (REPLY,), (USER,), "a", 0, {})
    assert pair.id != Preference((USER,), (USER,), (REPLY,), "a", 0, {}).id


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


# Plain text, and weights.


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"text": "one"}, "one"),
        ({"content": " one\n"}, " one\n"),
        ({"text": "one", "content": "two", "url": "x"}, "one"),
        ({"text": None, "content": "two"}, "two"),
        ({"text": "one", "prompt": "1+1?", "completion": "2"}, "one"),
        ({"text": ""}, ""),
    ],
)
def test_a_column_of_text_is_a_text_as_it_stands(tmp_path, value, text):
    file = written(tmp_path, value)
    framing = Framing(system="Be brief.", instruction="Now.")
    (row,) = read_texts(file, framing=framing)
    assert (row.text, row.messages, row.answers) == (text, (), ())
    assert row.data_source == "data" and row.weight == 1.0
    others = {"content": "two", "url": "x"} if "url" in value else row.extra
    assert row.extra == others


def test_rows_that_are_no_texts_are_conversations(tmp_path):
    talk = [USER, REPLY]
    file = written(
        tmp_path,
        {"messages": talk, "text": "1+1? 2"},
        {"text": None, "messages": talk},
        {"prompt": "1+1?", "completion": "2"},
        {"text": "one", "messages": None},
    )
    found = read_texts(file)
    assert [row.text for row in found] == [None, None, None, "one"]
    assert [row.index for row in found] == [0, 1, 2, 3]
    assert all(list(row.messages) == talk for row in found[:3])


def test_a_named_column_is_the_text_whatever_else_there_is(tmp_path):
    file = written(tmp_path, {"messages": [USER, REPLY], "a": {"b": "one"}})
    (row,) = read_texts(file, text_column="a.b")
    assert row.text == "one"
    (row,) = read_texts(
        written(tmp_path, {"text": "x", "q": "1+1?", "completion": "2"}),
        prompt_column="q",
    )
    assert row.text is None and list(row.messages) == [USER, REPLY]


def test_texts_are_told_apart_by_their_ids(tmp_path):
    found = read_texts(written(tmp_path, *({"text": t} for t in ("a", "b", "a"))))
    one, two, again = (row.id for row in found)
    assert one == again != two


def test_what_is_neither_text_nor_conversation_is_refused(tmp_path):
    found = complaint(written(tmp_path, {"words": "one"}), read_texts)
    assert "which column holds the text" in found and "words" in found
    assert "--config.data.text_column=NAME" in found
    found = complaint(written(tmp_path, {"a": 3}), read_texts, text_column="a")
    assert "row 1: column 'a' holds a number" in found
    found = complaint(written(tmp_path, {"a": "x"}), read_texts, text_column="b")
    assert "--config.data.text_column=" in found


def weights(tmp_path, *values, read=read_conversations):
    made = [{"prompt": "1+1?", "completion": "2", "w": value} for value in values]
    return read(written(tmp_path, *made), weight_column="w")


@pytest.mark.parametrize("read", [read_conversations, read_texts])
def test_rows_have_the_weight_that_their_column_says(tmp_path, read):
    found = weights(tmp_path, 2, 0.5, 0, 1, read=read)
    assert [row.weight for row in found] == [2.0, 0.5, 0.0, 1.0]
    assert all(row.extra == {} for row in found)
    (text,) = read_texts(written(tmp_path, {"text": "a", "w": 3}), weight_column="w")
    assert text.weight == 3.0 and text.extra == {}


@pytest.mark.parametrize("value", [-1, -0.5, "2", None, True, [1], float("nan"), 1e999])
def test_a_weight_that_is_none_is_refused_with_row_and_column(tmp_path, value):
    with pytest.raises(ConfigError) as error:
        weights(tmp_path, 1, value)
    message = str(error.value)
    assert "row 2: column 'w' holds" in message and "0 or more" in message
    assert len(message.splitlines()) <= 3


def test_a_column_of_weights_that_is_not_there_is_named(tmp_path):
    file = written(tmp_path, {"prompt": "1+1?", "completion": "2", "weigth": 1})
    found = complaint(file, read_conversations, weight_column="weight")
    assert (
        "no column 'weight'" in found and "--config.data.weight_column=weigth" in found
    )
