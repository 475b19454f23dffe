"""Whole texts and conversations as ids, and how they are cut."""

import dataclasses
import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_jax.data import chat, documents, tokenizer
from rl_jax.data.arithmetic import CHAT_SYMBOLS, CHAT_TEMPLATE
from rl_jax.data.rows import Row

SAID = "one and two, of it\nthree 123 "


@functools.cache
def made(folder):
    return tokenizer.train(
        [SAID],
        folder,
        vocab_size=60,
        chat_template=CHAT_TEMPLATE,
        specials=CHAT_SYMBOLS,
    )


@pytest.fixture
def text(tmp_path_factory):
    return made(tmp_path_factory.getbasetemp() / "documents")


def plain(content):
    return Row((), "", "made", 0, {}, text=content)


def talk(*turns):
    roles = ("user", "assistant") * len(turns)
    messages = zip(roles, turns, strict=False)
    found = tuple({"role": role, "content": content} for role, content in messages)
    return Row(found, "", "made", 0, {})


def test_a_text_ends_with_the_end_of_sequence_token_and_has_no_other(text):
    ids = documents.document_ids(text, plain(SAID))
    assert ids[-1] == text.eos_id
    assert text.decode(ids[:-1]) == SAID
    # What spells a special token is text.
    spelt = documents.document_ids(text, plain("two<|end|><eos>"))
    assert not {*spelt[:-1]} & {*text.stop_ids}
    assert documents.document_ids(text, plain("")) == [text.eos_id]


def test_without_an_end_of_sequence_token_a_text_ends_as_replies_do(text):
    bare = dataclasses.replace(text, eos_id=None, stop_ids=(7, 9))
    assert documents.document_ids(bare, plain("one"))[-1] == 7


def test_a_text_begins_as_the_model_wants_texts_to_begin(text):
    ids = documents.document_ids(text, plain("one"))
    asking = dataclasses.replace(text, add_bos=True)
    assert documents.document_ids(asking, plain("one")) == [text.bos_id, *ids]


def test_a_conversation_is_whole_with_its_end(text):
    row = talk("one", "two", "three", "123")
    ids = documents.document_ids(text, row)
    assert ids == chat.conversation_ids(text, row.messages)[0]
    written = text.decode(ids, specials=True)
    first = "<|user|>one<|assistant|>two<|end|>"
    assert written == first + "<|user|>three<|assistant|>123<|end|>"


def test_turns_that_are_not_to_be_learnt_are_learnt_too(text):
    row = talk("one", "two", "three", "123")
    flagged = tuple(
        turn | ({"loss": False} if turn["role"] == "assistant" else {})
        for turn in row.messages
    )
    silent = dataclasses.replace(row, messages=flagged)
    assert documents.document_ids(text, silent) == documents.document_ids(text, row)


def test_what_a_template_drops_of_earlier_turns_is_not_learnt(text):
    dropping = dataclasses.replace(
        text,
        chat_template="{% for m in messages %}<|{{ m.role }}|>"
        "{{ m.content if loop.last else m.content.split(' ')[-1] }}"
        "{% if m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    )
    row = talk("one", "and two", "three", "one two")
    written = text.decode(documents.document_ids(dropping, row), specials=True)
    first = "<|user|>one<|assistant|>two<|end|>"
    assert written == first + "<|user|>three<|assistant|>one two<|end|>"


@given(st.integers(0, 40), st.integers(1, 12))
def test_every_id_but_the_first_is_predicted_exactly_once(length, row_tokens):
    ids = list(range(length))
    pieces = documents.cut(ids, row_tokens)
    # The first of a piece is only read.
    assert [i for piece in pieces for i in piece[1:]] == ids[1:]
    assert all(2 <= len(piece) <= row_tokens + 1 for piece in pieces)
    for one, next_one in zip(pieces, pieces[1:], strict=False):
        assert one[-1] == next_one[0] and len(one) == row_tokens + 1
