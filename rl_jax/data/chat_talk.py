"""A conversation made ready for its chat template.

Checked, its content in the form that the template reads, and cut so that the text of a
message cannot become a special token, even where it spells one. Ids are made in
chat.py.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_jax.data.template import names_read, reads_parts, render
from rl_jax.data.tokenizer import Tokenizer
from rl_jax.errors import ConfigError

# Put inside the spelling of a special token that a message holds, and to be taken out
# again when the rendered text is tokenised. A Unicode noncharacter, which no text
# should hold; where one does, it is read as U+FFFD.
CUT = "\ufdd0"

Messages = Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Talk:
    """A conversation that can be rendered, and whose text holds no special token.

    Attributes:
        learnt: indices of the messages to learn from.
        names: what the template is given beside the messages.
    """

    tokenizer: Tokenizer
    messages: Messages
    learnt: tuple[int, ...]
    names: Mapping[str, Any]

    def render(self, count: int, *, prompt: bool = False) -> str:
        """Text of the first `count` messages; with `prompt`, the next reply begun."""
        return render(
            self.tokenizer.chat_template,
            self.messages[:count],
            add_generation_prompt=prompt,
            **self.names,
        )


def make_ready(
    tokenizer: Tokenizer,
    messages: Messages,
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any] | None,
) -> Talk:
    """Makes a conversation ready; the arguments are those of chat.prompt_ids.

    Raises:
        ConfigError: if the tokenizer has no chat template, a message is not of the
            form that it should have, or the template has no use for the tools or a
            variable.
    """
    template = tokenizer.chat_template
    if not template:
        raise ConfigError(
            "The model's folder has no chat template, so a conversation cannot be "
            "written as its tokens.\nPut the template it was trained with, or one of "
            "your own, into chat_template.jinja in that folder. One for plain text is\n"
            "{% for m in messages %}{{ m.content }}"
            "{{ eos_token if m.role == 'assistant' }}{% endfor %}"
        )
    names = dict(variables or {})
    unread = sorted({*names, *(["tools"] if tools else [])} - names_read(template))
    if unread or {"messages", "tools", "add_generation_prompt"} & names.keys():
        raise ConfigError(
            f"The chat template has no use for {unread or sorted(names)}.\n"
            f"What it reads is {sorted(names_read(template))}."
        )
    if tools:
        names["tools"] = list(tools)
    parts = reads_parts(template)
    learnt = tuple(i for i, message in enumerate(messages) if _is_learnt(message))
    shown = [
        {
            name: _content(message, parts) if name == "content" else value
            for name, value in message.items()
            if name != "loss"
        }
        for message in messages
    ]

    def cut(text: str) -> str:
        text = text.replace(CUT, "\ufffd")
        return tokenizer.model.special_pattern.sub(
            lambda found: found[0][:1] + CUT + found[0][1:], text
        )

    names = {**tokenizer.named_texts, **_map_strings(names, cut)}
    return Talk(tokenizer, _map_strings(shown, cut), learnt, names)


def _is_learnt(message: Mapping[str, Any]) -> bool:
    is_assistant = message.get("role") == "assistant"
    loss = message.get("loss")
    if loss not in (None, False, True) or (loss and not is_assistant):
        raise ConfigError(
            f"A message of role {message.get('role')!r} has loss={loss!r}.\n"
            "Expected true or false, and true for the assistant's messages only."
        )
    return is_assistant and loss in (None, True)


def _content(message: Mapping[str, Any], reads_parts: bool) -> Any:
    """A content as the template takes it: parts are joined where it knows no parts."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, (list, tuple)) and all(map(_is_text_part, content)):
        return content if reads_parts else "".join(part["text"] for part in content)
    if message.get("role") == "tool":  # What a function gave; templates write it out.
        return content
    raise ConfigError(
        f"A message has the content {str(content)[:120]!r}.\nExpected text, or a "
        'list of text parts such as {"type": "text", "text": "..."}.'
    )


def _is_text_part(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every string in it, at any depth, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            _map_strings(name, change): _map_strings(entry, change)
            for name, entry in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_map_strings(entry, change) for entry in value]
    return value
