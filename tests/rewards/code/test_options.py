import dataclasses

import pytest

from rl_jax.errors import ConfigError
from rl_jax.rewards import registry
from rl_jax.rewards.code.options import CodeOptions, from_options


def test_options_are_read_from_under_code():
    options = from_options({"answer_format": "boxed", "code": {"max_tests": 3}})
    assert options == CodeOptions(max_tests=3)
    assert from_options({}) == CodeOptions()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"isolation": "docker"}, "rewards.code.isolation is 'docker'"),
        ({"credit": "half"}, "rewards.code.credit is 'half'"),
        ({"test_secs": 0}, "rewards.code.test_secs is 0"),
        ({"max_tests": -1}, "rewards.code.max_tests is -1"),
        ({"threshold": 2}, "rewards.code.threshold is 2"),
        ({"timeout": 2}, "no option 'timeout'"),
    ],
)
def test_what_cannot_be_is_refused(given, reason):
    with pytest.raises(ConfigError, match=reason) as error:
        from_options({"code": given})
    assert len(str(error.value).splitlines()) <= 3


@pytest.mark.parametrize(
    ("given", "needed", "stops_early"),
    [
        ({}, 1.0, True),
        ({"threshold": 0.9}, 0.9, False),
        ({"credit": "pass_rate"}, 0.0, False),
        ({"credit": "pass_rate", "threshold": 1.0}, 1.0, False),
    ],
)
def test_one_failure_settles_only_all_or_nothing(given, needed, stops_early):
    options = CodeOptions(**given)
    assert (options.needed, options.stops_early) == (needed, stops_early)


def test_the_registry_knows_every_option_and_its_default():
    assert registry.OPTIONS["code"] == dataclasses.asdict(CodeOptions())
