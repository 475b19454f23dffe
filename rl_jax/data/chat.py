"""Conversations to token ids, with a mask of what the assistant wrote.

One place renders and one tokenises. A conversation's ids are those of its prompt, then
those of the reply, and so on, so that what is trained on is what a policy sees when it
samples. Nothing is decoded and encoded again.

The text of a message never becomes a special token, even where it spells one: only the
template writes those.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_jax.data.template import render
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError

__all__ = ["conversation_ids", "prompt_ids", "render"]

# Put inside the spelling of a special token that a message holds, and taken out again
# when the rendered text is tokenised. A Unicode noncharacter, which no text should
# hold; where one does, it is read as U+FFFD.
_CUT = "\ufdd0"


def prompt_ids(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Ids of a conversation up to where the assistant is to go on.

    Raises:
        ConfigError: if the tokenizer has no chat template, the template refuses the
            messages, or it writes the beginning-of-sequence token twice.
    """
    text = _render(tokenizer, _cut_spellings(tokenizer, messages), prompt=True)
    return [*_bos(tokenizer, text), *_encode(tokenizer, text)]


def conversation_ids(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]
) -> tuple[list[int], list[bool]]:
    """Ids of a whole conversation, and which of them the assistant wrote.

    Returns:
        ids, and a mask of the same length: True on each assistant turn's text and on
        its end-of-turn token; False on what the template writes around them, such as
        a newline after the end-of-turn token. All False without an assistant turn.

    Raises:
        ConfigError: as prompt_ids; or if the template writes a turn, once others
            follow, unlike it wrote it before; or ends an assistant turn without a
            token that stops the sampler.
    """
    pieces = _pieces(tokenizer, _cut_spellings(tokenizer, messages))
    bos = _bos(tokenizer, pieces[0])
    ids, mask = [*bos], [False] * len(bos)
    for number, piece in enumerate(_encode_pieces(tokenizer, pieces)):
        ids += piece
        mask += [number % 2 == 1] * len(piece)
    return ids, mask


def _pieces(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rendered text, cut so that every second piece is the assistant's."""
    text = _render(tokenizer, messages, prompt=False)
    cuts = [0]
    for turn, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        prompt = _render(tokenizer, messages[:turn], prompt=True)
        _check_prefix(prompt, text, turn)
        replied = _render(tokenizer, messages[: turn + 1], prompt=False)
        _check_prefix(replied, text, turn)
        cuts += [len(prompt), _turn_end(tokenizer, text, len(prompt), len(replied))]
    cuts.append(len(text))
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


def _turn_end(tokenizer: Tokenizer, text: str, start: int, end: int) -> int:
    """Where the last token that stops the sampler ends in text[start:end]."""
    stops = [tokenizer.token_text(stop_id) or "" for stop_id in tokenizer.stop_ids]
    found = [(text.rfind(stop, start, end), stop) for stop in stops if stop]
    ends = [at + len(stop) for at, stop in found if at >= 0]
    if not ends:
        raise ConfigError(
            f"The chat template ends an assistant's turn without any of {stops}: "
            f"{text[start:end][-60:]!r}.\n"
            "A model trained on that would not learn to stop; put the token into "
            "chat_template.jinja."
        )
    return max(ends)


def _check_prefix(prefix: str, text: str, turn: int) -> None:
    if text.startswith(prefix):
        return
    pairs = enumerate(zip(prefix, text, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(prefix), len(text)))
    around = slice(max(0, at - 30), at + 30)
    raise ConfigError(
        f"The chat template rewrites the conversation around turn {turn + 1}, so that "
        "the reply's tokens cannot be told from the prompt's.\n"
        f"Up to that turn it writes ...{prefix[around]!r}...\n"
        f"The whole conversation has ...{text[around]!r}..."
    )


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
    apart = [_encode(tokenizer, piece) for piece in pieces]
    joined = tokenizer.decode(list(itertools.chain(*apart)), specials=True)
    expected = tokenizer.decode(whole, specials=True)
    if joined != expected:  # A tokenizer that puts a space in front of every text.
        raise ConfigError(
            "The tokenizer cannot take a prompt and its reply one after the other.\n"
            f"Apart they read {joined[-120:]!r}\ntogether {expected[-120:]!r}."
        )
    return apart


def _render(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, prompt: bool
) -> str:
    if not tokenizer.chat_template:
        raise ConfigError(
            "The model's folder has no chat template, so a conversation cannot be "
            "written as its tokens.\nPut the template it was trained with, or one of "
            "your own, into chat_template.jinja in that folder."
        )
    return render(
        tokenizer.chat_template,
        messages,
        add_generation_prompt=prompt,
        bos_token=tokenizer.bos_text,
        eos_token=tokenizer.eos_text,
    )


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


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    parts = [tokenizer.encode(part, specials=True) for part in text.split(_CUT)]
    return list(itertools.chain(*parts))


def _cut_spellings(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The messages, with a mark inside whatever spells a special token."""

    def cut(text: str) -> str:
        text = text.replace(_CUT, "\ufffd")
        return tokenizer.model.special_pattern.sub(
            lambda found: found[0][:1] + _CUT + found[0][1:], text
        )

    return [
        {name: _map_strings(value, cut) for name, value in message.items()}
        for message in messages
    ]


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every string in it, at any depth, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _map_strings(entry, change) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_strings(entry, change) for entry in value]
    return value
