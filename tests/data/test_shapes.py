"""Rows as the public data sets and trainers write them, read without being told."""

import json
import pathlib

import pytest

from rl_jax.data import shapes
from rl_jax.data.files import Record
from rl_jax.errors import ConfigError


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
TALK = [user("1+1?"), assistant("2")]
SHAREGPT = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]
ALPACA = {"instruction": "Add.", "input": "1 and 1", "output": "2"}


def record(**values):
    return Record(values, pathlib.Path("rows.jsonl"), 7)


def complaint(function, values, *columns):
    with pytest.raises(ConfigError) as error:
        function(record(**values), *columns)
    assert len(str(error.value).splitlines()) <= 3
    assert str(error.value).startswith("rows.jsonl, row 7: ")
    return str(error.value)


# Problems.


@pytest.mark.parametrize(
    ("values", "messages"),
    [
        ({"prompt": "1+1?"}, [user("1+1?")]),
        ({"prompt": [SYSTEM, user("1+1?")], "completion": "2"}, [SYSTEM, user("1+1?")]),
        ({"prompt": "1+1?", "messages": [user("unread")]}, [user("1+1?")]),
        ({"messages": TALK}, TALK[:1]),
        ({"messages": [*TALK, user("and 1?")]}, [*TALK, user("and 1?")]),
        ({"messages": json.dumps(TALK)}, TALK[:1]),
        ({"messages": None, "prompt": "1+1?"}, [user("1+1?")]),
        ({"prompt": None, "messages": TALK}, TALK[:1]),
        ({"conversations": SHAREGPT}, TALK[:1]),
        ({"conversations": TALK, "system": "Be brief."}, [SYSTEM, *TALK[:1]]),
        (ALPACA, [user("Add.\n\n1 and 1")]),
        ({**ALPACA, "input": "", "system": None}, [user("Add.")]),
        ({"instruction": "Add.", "system": "Be brief."}, [SYSTEM, user("Add.")]),
    ],
)
def test_the_prompt_of_each_shape(values, messages):
    found, used = shapes.prompt(record(**values))
    assert found == messages
    assert used[0] in values


def test_a_named_column_wins_over_the_usual_ones():
    values = {"prompt": "no", "messages": TALK, "question": "1+1?"}
    assert shapes.prompt(record(**values), "question") == (TALK[:1], ("question",))
    inner = {"extra_info": {"question": "1+1?"}, "prompt": "no"}
    assert shapes.prompt(record(**inner), "extra_info.question")[0] == TALK[:1]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"question": "1+1?"}, "cannot tell which column holds the prompt"),
        ({"prompt": 3}, "'prompt' holds a number"),
        ({"messages": None}, "'messages' holds null"),
        ({"messages": TALK[1:]}, "'messages' has only assistant turns"),
        ({"conversations": "hello"}, "'conversations' holds a string"),
        ({"instruction": ["a"]}, "'instruction' holds a list"),
        ({"instruction": "Add.", "input": 3}, "'input' holds a number"),
        ({"conversations": SHAREGPT, "system": 3}, "'system' holds a number"),
    ],
)
def test_a_row_without_a_prompt_says_what_is_wrong(values, words):
    assert words in complaint(shapes.prompt, values)


# Conversations.


@pytest.mark.parametrize(
    ("values", "messages"),
    [
        ({"messages": TALK, "prompt": "unread", "completion": "unread"}, TALK),
        ({"prompt": "1+1?", "completion": "2"}, TALK),
        ({"prompt": TALK[:1], "completion": TALK[1:]}, TALK),
        ({"prompt": json.dumps(TALK[:1]), "completion": "2"}, TALK),
        ({"conversations": SHAREGPT, "system": "Be brief."}, [SYSTEM, *TALK]),
        (ALPACA, [user("Add.\n\n1 and 1"), assistant("2")]),
        ({"prompt": TALK}, TALK),
        ({"messages": None, "prompt": "1+1?", "completion": "2"}, TALK),
    ],
)
def test_the_conversation_of_each_shape(values, messages):
    assert shapes.conversation(record(**values))[0] == messages


def test_named_columns_win_over_a_conversation_that_is_there_too():
    values = {"messages": [user("no"), assistant("no")], "q": "1+1?", "a": "2"}
    assert shapes.conversation(record(**values), "q", "a") == (TALK, ("q", "a"))
    values |= {"prompt": "1+1?"}
    assert shapes.conversation(record(**values), "", "a") == (TALK, ("prompt", "a"))
    values |= {"talk": TALK}
    assert shapes.conversation(record(**values), "talk") == (TALK, ("talk",))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"question": "1+1?", "answer": "2"}, "holds the prompt"),
        ({"prompt": "1+1?", "answer": "2"}, "--config.data.completion_column=answer"),
        ({"prompt": [*TALK, user("more")]}, "holds the completion"),
        ({"messages": TALK[:1]}, "no assistant turn to learn from"),
        ({"prompt": "1+1?", "completion": 2}, "'completion' holds a number"),
        ({"prompt": "1+1?", "completion": " "}, "'completion' is empty"),
        ({"instruction": "Add.", "output": None}, "'output' holds null"),
    ],
)
def test_a_row_without_a_conversation_says_what_is_wrong(values, words):
    assert words in complaint(shapes.conversation, values)


# Preferences.


@pytest.mark.parametrize(
    "values",
    [
        {"prompt": "1+1?", "chosen": "2", "rejected": "3"},
        {"prompt": TALK[:1], "chosen": TALK[1:], "rejected": [assistant("3")]},
        {"chosen": TALK, "rejected": [TALK[0], assistant("3")]},
        {"chosen": json.dumps(TALK), "rejected": json.dumps([TALK[0], assistant("3")])},
        # UltraFeedback: the prompt as text, and both replies with it in front.
        {"prompt": "1+1?", "chosen": TALK, "rejected": [TALK[0], assistant("3")]},
        {"prompt": None, "chosen": TALK, "rejected": [TALK[0], assistant("3")]},
        {"instruction": "1+1?", "chosen": "2", "rejected": "3"},
    ],
)
def test_the_pair_of_each_shape(values):
    prompt, chosen, rejected, _ = shapes.pair(record(**values))
    assert (prompt, chosen, rejected) == (TALK[:1], TALK[1:], [assistant("3")])


def test_the_prompt_that_is_not_written_is_what_both_begin_with():
    values = {"chosen": "The sky is blue.", "rejected": "The sky is green."}
    prompt, chosen, rejected, used = shapes.pair(record(**values))
    assert prompt == [user("The sky is")]
    assert (chosen, rejected) == ([assistant(" blue.")], [assistant(" green.")])
    assert used == ("chosen", "rejected")


def test_shared_turns_end_where_the_assistant_speaks():
    """Equal replies, and conversations that part at what the user says."""
    whole = [*TALK, user("and 1?"), assistant("3")]
    prompt, chosen, rejected, _ = shapes.pair(record(chosen=whole, rejected=whole))
    assert (prompt, chosen, rejected) == (whole[:3], whole[3:], whole[3:])
    other = [*TALK, user("and 2?"), assistant("4")]
    prompt, chosen, rejected, _ = shapes.pair(record(chosen=whole, rejected=other))
    assert (prompt, chosen, rejected) == (whole[:1], whole[1:], other[1:])


def test_named_columns_of_a_pair():
    values = {"q": "1+1?", "good": "2", "bad": "3", "prompt": "no"}
    prompt, chosen, rejected, used = shapes.pair(record(**values), "q", "good", "bad")
    assert (prompt, chosen, rejected) == (TALK[:1], TALK[1:], [assistant("3")])
    assert used == ("good", "bad", "q")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prompt": "p", "chosen": "c"}, "no column 'rejected' for the rejected"),
        ({"prompt": "p", "rejected": "c"}, "no column 'chosen' for the chosen"),
        ({"prompt": "p", "chosen": "c", "rejected": None}, "'rejected' holds null"),
        ({"prompt": "p", "chosen": "", "rejected": "r"}, "'chosen' is empty"),
        ({"prompt": 3, "chosen": "c", "rejected": "r"}, "'prompt' holds a number"),
        ({"chosen": "cat", "rejected": "dog"}, "share no prompt"),
        ({"chosen": "cat", "rejected": "cat"}, "share no prompt"),
        ({"chosen": TALK[1:], "rejected": "no"}, "share no prompt"),
        ({"chosen": TALK, "rejected": [user("2+2?"), TALK[1]]}, "share no prompt"),
        (
            {"prompt": "p", "chosen": TALK, "rejected": "no"},
            "'chosen' begins with a turn of 'user'",
        ),
    ],
)
def test_a_pair_that_lacks_something_says_what(values, words):
    assert words in complaint(shapes.pair, values)
