"""Renderings: golden ones by hand, and those of transformers for real templates."""

import json
import pathlib

import pytest

from rl_jax.data.template import names_read, reads_parts, render
from rl_jax.errors import ConfigError

FILES = pathlib.Path(__file__).parent / "files"
REAL = pathlib.Path(__file__).parent / "templates"
CONVERSATIONS = json.loads((REAL / "conversations.json").read_text("utf-8"))
CHATML = (FILES / "chatml.jinja").read_text()
LLAMA3 = (FILES / "llama3.jinja").read_text()
TALK = [
    {"role": "user", "content": " What is 1+1? "},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And <2+2>?"},
]


def real(name):
    return (REAL / f"{name}.jinja").read_text("utf-8")


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


@pytest.mark.parametrize("name", json.loads((REAL / "sources.json").read_text()))
def test_a_real_template_renders_as_in_transformers(name):
    expected = json.loads((REAL / f"{name}.json").read_text("utf-8"))
    found = {}
    for label, case in CONVERSATIONS["conversations"].items():
        tools = CONVERSATIONS["tools"] if case.get("tools") else None
        for prompt in (False, True):
            given = {**case.get("variables", {}), **expected["names"], "tools": tools}
            try:
                text = rendered(real(name), case["messages"], prompt, **given)
            except ConfigError as error:
                text = str(error)
            found[f"{label}, to go on" if prompt else label] = text
    assert found.keys() == expected["renderings"].keys() and len(found) == 36
    for label, text in expected["renderings"].items():
        if isinstance(text, str):
            assert found[label] == text
        elif text["refused"].startswith("TemplateError"):
            # In the template's own words.
            assert text["refused"].split(": ", 1)[1] in found[label]
        else:
            assert "refused a conversation" in found[label]


def test_the_real_templates_differ_where_they_should():
    # So that the comparison above is of something.
    def text(name, label):
        return json.loads((REAL / f"{name}.json").read_text())["renderings"][label]

    on, off = "thinking on, to go on", "thinking off, to go on"
    for name in ("qwen3", "smollm3_unsloth", "glm4_moe"):
        assert text(name, on) != text(name, off)
    assert text("llama3_1", on) == text("llama3_1", off)
    for name in ("llama3_1", "qwen2_5", "qwen3", "mistral_nemo", "glm4_moe"):
        assert "“a” + 'b' = é." in text(name, "tools")
    assert text("gemma2", "system") == {
        "refused": "TemplateError: System role not supported"
    }
    assert "1 Jan 2000" in text("llama3_2", "a date")


def test_fields_that_are_none_are_left_out():
    template = "{{ messages[0].content is defined }}{{ messages[0].a is defined }}"
    assert (
        rendered(template, [{"role": "user", "content": None, "a": 0}]) == "FalseTrue"
    )


@pytest.mark.parametrize("name", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_have_the_names_that_templates_read(name):
    template = "{{ messages[0].reasoning_content }} {{ messages[0].thinking }}"
    assert rendered(template, [{"role": "assistant", name: "hm"}]) == "hm hm"


def test_what_is_no_json_does_not_reach_a_template():
    with pytest.raises(ConfigError, match="a PosixPath, which a chat template cannot"):
        rendered("{{ messages[0].content.read_text() }}", [{"content": FILES}])
    with pytest.raises(ConfigError, match="a PosixPath"):
        rendered("", tools=[{"a": (FILES,)}])


def test_what_a_template_reads_is_known():
    names = names_read(real("qwen3"))
    assert {"messages", "tools", "enable_thinking", "add_generation_prompt"} <= names
    assert "namespace" not in names and "ns" not in names
    assert "tools" not in names_read(real("gemma2"))
    assert not reads_parts(real("llama3_1")) and not reads_parts(real("qwen3"))
    assert reads_parts(real("gemma3"))


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
        ("{{ range(10**9) | list }}", [], ["refused"]),
        ("{{ 1 / 0 }}", [], ["refused", "division"]),
        ("{% set ns = namespace(_a=1) %}", [], ["refused", "_a"]),
        ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", [], ["__class__"]),
        ("{{ raise_exception('one\ntwo\nthree') }}", [], ["one two three"]),
    ],
)  # fmt: skip
def test_a_template_that_fails_says_why(template, messages, words):
    with pytest.raises(ConfigError) as error:
        rendered(template, messages)
    for word in words:
        assert word in str(error.value)
    assert len(str(error.value).splitlines()) <= 3
