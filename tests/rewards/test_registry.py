import importlib

import pytest

from rl_jax.errors import ConfigError
from rl_jax.rewards import registry


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="'math'.*'maths'"):
        registry.check(["math"], [1.0], {})


@pytest.mark.parametrize(
    ("functions", "weights", "options"),
    [
        ([], [], {}),
        (["maths"], [1.0, 2.0], {}),
        (["maths", "maths"], [1.0, 1.0], {}),
        (["maths"], [1.0], {"answer_format": "box"}),
        (["format"], [1.0], {"format_pattern": "("}),
        (["format"], [1.0], {"format": {"style": "loose"}}),
        (["language"], [1.0], {"language": {"wanted": "xx"}}),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    functions, weights, options
):
    with pytest.raises(ConfigError) as caught:
        registry.check(functions, weights, options)
    assert len(str(caught.value).splitlines()) <= 3


def test_the_names_of_parts_are_short_and_unique():
    names = registry.part_names(["maths", "a.b:fn", "c.py:fn", "c.py:other"])
    assert names == ("maths", "a.b:fn", "c.py:fn", "other")


def test_options_of_single_functions_are_read_with_their_type():
    entries = [
        "repetition.ngram=4",
        "repetition.max_penalty=-0.5",
        "format.style=think",
    ]
    assert registry.parse_options(entries) == {
        "repetition": {"ngram": 4, "max_penalty": -0.5},
        "format": {"style": "think"},
    }
    assert registry.option_of({}, "repetition", "ngram") == 20


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("repetition.ngrams=4", "did you mean 'repetition.ngram'"),
        ("repetition.ngram", "FUNCTION.OPTION=VALUE"),
        ("maths.ngram=4", "FUNCTION.OPTION=VALUE"),
        ("repetition.ngram=many", "Expected int"),
    ],
)
def test_an_option_that_no_function_has_is_refused(entry, message):
    with pytest.raises(ConfigError, match=message) as caught:
        registry.parse_options([entry])
    assert len(str(caught.value).splitlines()) <= 3


def test_every_built_in_is_where_the_table_says():
    for name, path in registry.BUILT_IN.items():
        if name != "code":  # starts with the sandbox
            module, _, function = path.partition(":")
            assert callable(getattr(importlib.import_module(module), function))
