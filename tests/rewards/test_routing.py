import pytest

from rl_jax.errors import ConfigError
from rl_jax.rewards import registry, routing
from rl_jax.rewards.routing import find, parse


def functions(routes, source):
    route = find(routes, source)
    return route and dict(zip(route.functions, route.weights, strict=True))


def test_an_exact_name_wins_over_a_prefix_and_a_long_prefix_over_a_short_one():
    routes = parse(["*=number", "deep*=format", "deepmath*=maths", "deepmath-1=exact"])
    assert functions(routes, "deepmath-1") == {"exact": 1.0}
    assert functions(routes, "deepmath-2") == {"maths": 1.0}
    assert functions(routes, "deeper") == {"format": 1.0}
    assert functions(routes, "") == {"number": 1.0}


def test_several_functions_have_a_weight_each():
    routes = parse(["a=maths+format@0.1+my/file.py:fn@0"])
    weights = {"maths": 1.0, "format": 0.1, "my/file.py:fn": 0.0}
    assert functions(routes, "a") == weights
    assert routing.functions_of(parse(["a=maths", "b=maths+exact"])) == (
        "maths",
        "exact",
    )


def test_ones_own_entry_may_go_before_the_built_in_table():
    routes = parse(["gsm8k=maths", "built_in"])
    assert functions(routes, "gsm8k") == {"maths": 1.0}
    for source in ("math", "multiple_choice", "exact", "code", "aime24"):
        assert find(routes, source) is not None
    assert find(routes, "poems") is None


def test_every_built_in_source_has_a_function_that_exists():
    assert set(routing.BUILT_IN.values()) <= set(registry.BUILT_IN)


def test_an_unknown_source_is_refused_with_its_row_and_the_nearest():
    routes = parse(["built_in"])
    with pytest.raises(ConfigError) as caught:
        routing.check_source(routes, "gsm8", where="row 3 of train.jsonl")
    message = str(caught.value)
    assert "row 3 of train.jsonl" in message and "did you mean 'gsm8k'" in message
    assert len(message.splitlines()) <= 3
    routing.check_source(routes, "gsm8k", where="")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("gsm8k", "SOURCE=FUNCTION"),
        ("=maths", "SOURCE=FUNCTION"),
        ("a*b=maths", "SOURCE=FUNCTION"),
        ("a=", "no function"),
        ("a=maths@x", "no function"),
        ("a=maths@nan", "no function"),
        ("a=maths+maths@2", "twice"),
        ("a=mathz", "did you mean 'maths'"),
    ],
)
def test_an_entry_that_cannot_be_read_is_refused(entry, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse([entry])
    assert len(str(caught.value).splitlines()) <= 3
