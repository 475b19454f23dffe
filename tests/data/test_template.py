"""Golden renderings, derived by hand from the formats' descriptions."""

import pathlib

import pytest

from rl_jax.data.template import render
from rl_jax.errors import ConfigError

FILES = pathlib.Path(__file__).parent / "files"
CHATML = (FILES / "chatml.jinja").read_text()
LLAMA3 = (FILES / "llama3.jinja").read_text()
TALK = [
    {"role": "user", "content": " What is 1+1? "},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And <2+2>?"},
]


def rendered(template, messages=(), prompt=False, **variables):
    return render(template, messages, add_generation_prompt=prompt, **variables)


def test_chatml_gets_the_default_system_message_and_the_generation_prompt():
    assert rendered(CHATML, TALK, prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
        "Hugging Face<|im_end|>\n"
        "<|im_start|>user\n What is 1+1? <|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\nAnd <2+2>?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_chatml_keeps_a_system_message_of_the_row():
    messages = [{"role": "system", "content": "Be brief."}, TALK[0]]
    assert rendered(CHATML, messages) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n What is 1+1? <|im_end|>\n"
    )


def test_llama3_trims_contents_and_writes_bos_once():
    text = rendered(LLAMA3, TALK, prompt=True, bos_token="<|begin_of_text|>")
    assert text == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n"
        "What is 1+1?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n2<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nAnd <2+2>?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.parametrize(
    ("template", "text"),
    [
        # Loop controls.
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),  # noqa: E501
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),  # noqa: E501
        # The generation tag leaves no trace.
        ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
        # tojson keeps what a web page could not hold.
        ("{{ {'b': '<é&\\'>', 'a': 1} | tojson }}", '{"b": "<é&\'>", "a": 1}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        # trim_blocks drops the newline after a block, lstrip_blocks the space before.
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        # tools and documents are none, not undefined.
        ("{{ tools is none }}{{ documents is none }}", "TrueTrue"),
        # A clock that stands still.
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
    ],
)  # fmt: skip
def test_what_templates_use_beyond_plain_jinja_works(template, text):
    assert rendered(template) == text


def test_variables_reach_the_template():
    assert rendered("{{ enable_thinking }}", enable_thinking=False) == "False"


def test_the_messages_of_the_caller_cannot_be_changed():
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(ConfigError):
        rendered("{{ messages.append(1) }}", messages)
    assert messages == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        ("{{ raise_exception('no system turns') }}", TALK, ["no system turns", "['user', 'assistant', 'user']"]),  # noqa: E501
        ("a\n{% if %}", [], ["not valid Jinja", "line 2"]),
        ("{{ messages[0].content + 1 }}", TALK, ["refused"]),
        ("{{ messages[5].content.strip() }}", TALK, ["refused"]),
        ("{{ ''.__class__.__mro__ }}", [], ["refused", "unsafe"]),
        ("{{ [1] | nosuchfilter }}", [], ["nosuchfilter"]),
    ],
)  # fmt: skip
def test_a_template_that_fails_says_why(template, messages, words):
    with pytest.raises(ConfigError) as error:
        rendered(template, messages)
    for word in words:
        assert word in str(error.value)
    assert len(str(error.value).splitlines()) <= 3
