"""Renders a chat template: a Jinja program that came with somebody's model.

The environment and what a template is shown are those of Hugging Face's transformers,
so that a template gives the same text here as there: blocks trimmed, `break` and
`continue`, the `{% generation %}` tag, `raise_exception`, `strftime_now`, a `tojson`
that leaves characters as they are, names of the messages' fields. Templates run in
Jinja's sandbox and see plain JSON values only, as they are other people's code. Tokens
are not here: see chat.py.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from rl_jax.errors import ConfigError

# What `strftime_now` tells a template. A real clock would change the prompts at
# midnight, and a resumed run would not be the run that was stopped. The day is the
# one that Llama's templates write when they are given no clock.
TODAY = datetime.datetime(2024, 7, 26)

# What datasets call the thoughts of an assistant; templates read the first.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    **variables: Any,
) -> str:
    """The text that `template` makes of a conversation.

    Args:
        template: Jinja source.
        messages: turns, each with `role` and mostly `content`. A field that is None
            is left out, as a template tests whether it is there. Thoughts under the
            name `thinking` or `reasoning` are also shown as `reasoning_content`.
        add_generation_prompt: ends the text where the assistant is to go on.
        **variables: what else the template may name: `bos_token`, `eos_token`,
            `tools`, `enable_thinking`, ...

    Raises:
        ConfigError: if the template is not Jinja, or refuses these messages.
    """
    # A template tests `tools is not none`, and an undefined name is not none.
    names = {"tools": None, "documents": None, **variables}
    compiled = _compiled(template)
    try:
        return compiled.render(
            messages=[_message(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            **{name: _plain(value) for name, value in names.items()},
        )
    # What a template does to a value of the wrong type is Python's to refuse.
    except (
        *(jinja2.TemplateError, ArithmeticError, AttributeError),
        *(LookupError, TypeError, ValueError),
    ) as error:
        roles = [message.get("role") for message in messages]
        raise ConfigError(
            f"The chat template refused a conversation: {' '.join(str(error).split())}"
            f"\nThe roles were {roles}."
        ) from error


@functools.lru_cache(maxsize=16)
def names_read(template: str) -> frozenset[str]:
    """The variables that a template may read: `messages`, `tools`, ..."""
    source = _compiled(template).environment.parse(template)
    return frozenset(jinja2.meta.find_undeclared_variables(source))


@functools.lru_cache(maxsize=16)
def reads_parts(template: str) -> bool:
    """Whether a template takes a list of parts for a content as it takes a string."""
    texts = []
    for content in ("qwerty", [{"type": "text", "text": "qwerty"}]):
        messages = [{"role": r, "content": content} for r in ("user", "assistant")]
        try:
            texts.append(render(template, messages, add_generation_prompt=False))
        except ConfigError:
            return False
    return texts[0] == texts[1]


@functools.lru_cache(maxsize=16)
def _compiled(template: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = TODAY.strftime
    environment.globals["namespace"] = _Namespace
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"The chat template is not valid Jinja: line {error.lineno}: "
            f"{error.message}.\nIt begins with {template[:60]!r}."
        ) from error


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: _plain(value) for name, value in message.items()}
    shown = {name: value for name, value in shown.items() if value is not None}
    thoughts = next((shown[name] for name in _REASONING if name in shown), None)
    if thoughts is not None:
        shown = {"thinking": thoughts, **shown, "reasoning_content": thoughts}
    return shown


def _plain(value: Any) -> Any:
    """`value` rebuilt of JSON's types: a template must not get at other objects."""
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, Mapping):
        return {_plain(name): _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    raise ConfigError(
        f"A conversation holds {value!r}, a {type(value).__name__}, "
        "which a chat template cannot read.\nWrite JSON's types only."
    )


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter writes < as \u003c, which is right for web pages only.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's `namespace`, without names by which Python's insides are reached."""

    def __init__(*args: Any, **attributes: Any) -> None:  # a template may name `self`
        for name in dict(*args[1:], **attributes):
            _check_name(name)
        jinja2.utils.Namespace.__init__(*args, **attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def _check_name(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"A namespace cannot hold {name!r}.")


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` renders what stands inside.

    Some templates mark with it what an assistant wrote. Most do not, so the mask of
    assistant tokens is found in another way (chat.py), and the tag is only allowed.
    """

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
