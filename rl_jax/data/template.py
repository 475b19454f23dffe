"""Renders a chat template: a Jinja program that came with somebody's model.

The environment is the one that Hugging Face renders with, so that a template gives
the same text here as there: blocks trimmed, `break` and `continue`, the
`{% generation %}` tag, `raise_exception`, `strftime_now`, and a `tojson` that leaves
characters as they are. Templates run in Jinja's sandbox, as they are other people's
code. Tokens are not here: see chat.py.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from rl_jax.errors import ConfigError

# What `strftime_now` tells a template. A real clock would change the prompts at
# midnight, and a resumed run would not be the run that was stopped. The day is the
# one that Llama's templates write when they are given no clock.
TODAY = datetime.datetime(2024, 7, 26)


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
        messages: turns, each with `role` and `content`.
        add_generation_prompt: ends the text where the assistant is to go on.
        **variables: what else the template may name: `bos_token`, `eos_token`,
            `tools`, `enable_thinking`, ...

    Raises:
        ConfigError: if the template is not Jinja, or refuses these messages.
    """
    # A template tests `tools is not none`, and an undefined name is not none.
    names = {"tools": None, "documents": None, **variables}
    try:
        return _compiled(template).render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            **names,
        )
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"The chat template is not valid Jinja: line {error.lineno}: "
            f"{error.message}.\nIt begins with {template[:60]!r}."
        ) from error
    # What a template does to a value of the wrong type is Python's to refuse.
    except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
        roles = [message.get("role") for message in messages]
        raise ConfigError(
            f"The chat template refused a conversation: {error}\n"
            f"The roles were {roles}."
        ) from error


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
    return environment.from_string(template)


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


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` renders what stands inside.

    Some templates mark with it what an assistant wrote. Most do not, so the mask of
    assistant tokens is found in another way (chat.py), and the tag is only allowed.
    """

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
