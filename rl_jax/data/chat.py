"""Conversations to token ids, with a mask of what the assistant wrote.

One place renders and one tokenises. A conversation's ids are those of its prompt, then
those of the reply, and so on, so that what is trained on is what a policy sees when it
samples. Nothing is decoded and encoded again.

The text of a message never becomes a special token, even where it spells one: only the
template writes those.

Some templates write an assistant's turn in another way once more turns follow; those of
reasoning models drop its thoughts. A policy never samples the shortened turn, so it is
learnt where it stands last, as the policy samples it, and only read where others
follow: `training_sequences` gives one sequence for each such turn.
"""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.data.chat_talk import CUT, Messages, Talk, make_ready
from rl_jax.data.template import render
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError

__all__ = ["conversation_ids", "prompt_ids", "render", "training_sequences"]


def prompt_ids(
    tokenizer: Tokenizer,
    messages: Messages,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> list[int]:
    """Ids of a conversation up to where the assistant is to go on.

    Args:
        messages: each with `role` and `content`: text, a list of parts such as
            {"type": "text", "text": "..."}, or None beside `tool_calls`. `loss` is for
            conversation_ids; what else there is goes to the template.
        tools: JSON schemas of the functions that may be called; empty is as None.
        variables: further names of the template, such as {"enable_thinking": False}.

    Raises:
        ConfigError: if the tokenizer has no chat template; the template refuses the
            messages or has no use for the tools or a variable; or it writes the
            beginning-of-sequence token twice.
    """
    talk = make_ready(tokenizer, messages, tools, variables)
    text = talk.render(len(messages), prompt=True)
    return [*_bos(tokenizer, text), *_encode(tokenizer, text)]


def conversation_ids(
    tokenizer: Tokenizer,
    messages: Messages,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> tuple[list[int], list[bool]]:
    """Ids of a whole conversation, and which of them the assistant wrote.

    An assistant's message with `loss` False is in the ids and not in the mask. If the
    last turn ends with the token that the next would begin with, the ids end with it.

    Args: as prompt_ids.

    Returns:
        ids, and a mask of the same length: True on each assistant turn's text and on
        its end-of-turn token; False on what the template writes around them, such as
        a newline after the end-of-turn token. All False without an assistant turn.

    Raises:
        ConfigError: as prompt_ids; or if the template writes a turn that is to be
            learnt, once others follow, unlike it wrote it before; or ends it without
            a token that stops the sampler.
    """
    talk = make_ready(tokenizer, messages, tools, variables)
    text, spans, rewritten = _spans(talk, len(messages), talk.learnt)
    if rewritten:
        raise rewritten[min(rewritten)]
    return _masked(tokenizer, text, spans)


def training_sequences(
    tokenizer: Tokenizer,
    messages: Messages,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> list[tuple[list[int], list[bool]]]:
    """The sequences from which each assistant turn is learnt as it is sampled.

    One, that of conversation_ids, where the template leaves turns as they were. Else
    a turn that the template rewrites has a sequence of its own, which ends with it.

    Args: as prompt_ids.

    Returns:
        ids and mask of each sequence, in the order of the turns. Each assistant turn
        (but those with `loss` False) is in the mask of one sequence.

    Raises:
        ConfigError: as conversation_ids, where even the last turn of a conversation
            does not begin with its prompt.
    """
    talk = make_ready(tokenizer, messages, tools, variables)
    sequences, count, left = [], len(messages), talk.learnt
    while True:
        text, spans, rewritten = _spans(talk, count, left)
        if count - 1 in rewritten:
            raise rewritten[count - 1]
        if spans or not rewritten:
            sequences.append(_masked(tokenizer, text, spans))
        left = tuple(rewritten)
        if not left:
            return sequences[::-1]
        count = left[-1] + 1


class _RewrittenError(ConfigError):
    """A turn does not stand in a text as it stands after its own prompt."""


def _spans(
    talk: Talk, count: int, turns: Sequence[int]
) -> tuple[str, list[tuple[int, int]], dict[int, _RewrittenError]]:
    """Where those of `turns` that are among the first `count` messages stand.

    Returns:
        The text of the messages; start and end in it of each turn that stands there
        as the policy would sample it; and what is wrong with each that does not.
    """
    text = talk.render(count)
    spans, rewritten = [], {}
    for turn in turns:
        try:
            start, end, missing = _span(talk, text, turn)
        except _RewrittenError as error:
            rewritten[turn] = error
            continue
        text += missing
        spans.append((start, end + len(missing)))
    return text, spans, rewritten


def _span(talk: Talk, text: str, turn: int) -> tuple[int, int, str]:
    """Start and end of a turn in `text`, and the token that `text` lacks at its end."""
    stops = [talk.tokenizer.token_text(i) for i in talk.tokenizer.stop_ids]
    stop = re.compile("|".join(re.escape(name) for name in stops if name) or "(?!)")
    prompt = talk.render(turn, prompt=True)
    _check_prefix(prompt, text, turn)
    # With the turn last, to see where its text ends and its stop token begins.
    replied = talk.render(turn + 1)
    _check_prefix(prompt, replied, turn)
    found = list(stop.finditer(replied, len(prompt)))
    body = replied[: found[-1].start()] if found else replied
    _check_prefix(body, text, turn)
    if end := stop.match(text, len(body)):
        return len(prompt), end.end(), ""
    if found:  # Only the last turn ends with it.
        _check_prefix(replied[: found[-1].end()], text, turn)
    # Templates whose turns have no end of their own: the sampler stops at the token
    # that begins the next turn, so that is learnt.
    if len(body) == len(text):
        if missing := stop.match(_after_reply(talk, turn)):
            return len(prompt), len(body), missing[0]
    raise ConfigError(
        f"The chat template ends an assistant's turn without any of {stops}: "
        f"{text[len(prompt) :][:60]!r}.\nA model trained on that would not learn to "
        "stop; put the token into chat_template.jinja."
    )


def _after_reply(talk: Talk, turn: int) -> str:
    """What the template writes after some reply in place of a turn, and one more."""
    called = talk.messages[turn].get("tool_calls")
    reply = {"role": "assistant", "content": "qwertyuiop"}
    after = {"role": "tool" if called else "user", "content": "a"}
    messages = [*talk.messages[:turn], reply, after]
    try:
        text = dataclasses.replace(talk, messages=messages).render(turn + 2)
    except ConfigError:  # A template that lets no turn follow.
        return ""
    return text.rpartition(reply["content"])[2].lstrip()


def _check_prefix(prefix: str, text: str, turn: int) -> None:
    if text.startswith(prefix):
        return
    pairs = enumerate(zip(prefix, text, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(prefix), len(text)))
    around = slice(max(0, at - 30), at + 30)
    raise _RewrittenError(
        f"The chat template rewrites the conversation around turn {turn + 1}, so the "
        "reply's tokens cannot be told from the prompt's: use a template that keeps "
        'what it wrote, or give that turn "loss": false.\n'
        f"Up to that turn it writes ...{prefix[around]!r}...\n"
        f"The whole conversation has ...{text[around]!r}..."
    )


def _masked(
    tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]]
) -> tuple[list[int], list[bool]]:
    """Ids of a text, and a mask that is True on those of `spans`."""
    cuts = [0, *itertools.chain(*spans), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(cuts)]
    bos = _bos(tokenizer, text)
    ids, mask = [*bos], [False] * len(bos)
    for number, piece in enumerate(_encode_pieces(tokenizer, pieces)):
        ids += piece
        mask += [number % 2 == 1] * len(piece)
    return ids, mask


def _encode_pieces(tokenizer: Tokenizer, pieces: Sequence[str]) -> list[list[int]]:
    """Ids of each piece, so that the ids of all begin with the ids of the first few."""
    whole = _encode(tokenizer, "".join(pieces))
    ends = [0]
    for count in range(1, len(pieces)):
        prefix = _encode(tokenizer, "".join(pieces[:count]))
        if whole[: len(prefix)] != prefix:
            break
        ends.append(len(prefix))
    else:
        ends.append(len(whole))
        return [whole[start:end] for start, end in itertools.pairwise(ends)]
    # Some token reaches over a cut, such as one for two newlines where a prompt ends
    # in a newline and the reply begins with one. When a policy samples, the prompt's
    # ids are there first, so the pieces are tokenised each by itself.
    apart = [
        _encode(tokenizer, piece, continues=number > 0)
        for number, piece in enumerate(pieces)
    ]
    joined = tokenizer.decode(list(itertools.chain(*apart)), specials=True)
    expected = tokenizer.decode(whole, specials=True)
    if joined != expected:
        raise ConfigError(
            "The tokenizer cannot take a prompt and its reply one after the other.\n"
            f"Apart they read {joined[-120:]!r}\ntogether {expected[-120:]!r}."
        )
    return apart


def _bos(tokenizer: Tokenizer, text: str) -> list[int]:
    """The token to put before `text`: none if the template wrote it, or none is due."""
    bos = tokenizer.bos_text
    if bos and text.startswith(bos + bos):
        raise ConfigError(
            f"The chat template writes the beginning of sequence twice: {text[:60]!r}."
        )
    if not tokenizer.add_bos or tokenizer.bos_id is None or text.startswith(bos):
        return []
    return [tokenizer.bos_id]


def _encode(tokenizer: Tokenizer, text: str, continues: bool = False) -> list[int]:
    ids: list[int] = []
    for part in text.split(CUT):
        ids += tokenizer.encode(part, specials=True, continues=continues)
        continues = True
    return ids
