import json

import pytest

from rl_jax.errors import ConfigError
from rl_jax.rewards import code as package
from rl_jax.rewards.code import reward

TESTS = {"inputs": ["2\n"], "outputs": ["3\n"]}
OPTIONS = {"answer_format": "boxed", "code": {"isolation": "none"}}


@pytest.fixture(autouse=True, scope="module")
def closed():
    yield
    for sandbox in reward._sandboxes.values():
        sandbox.close()
    reward._sandboxes.clear()


def test_a_job_is_scored_and_the_sandbox_kept():
    package.warm_up()
    assert not reward._sandboxes
    package.warm_up(OPTIONS)
    job = {"completion": "print(int(input()) + 1)", "answer": json.dumps(TESTS)}
    assert package.code(job, OPTIONS).value == 1.0
    kept = dict(reward._sandboxes)
    job = {"completion": "print(0)", "answer": "", "row": {"input_output": TESTS}}
    assert package.code(job, OPTIONS).value == 0.0
    assert reward._sandboxes == kept and list(kept) == ["none"]


def test_an_option_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="isolation"):
        package.code({"completion": ""}, {"code": {"isolation": "some"}})


def test_the_row_and_the_time_of_a_job_can_be_looked_at_before():
    assert package.gold_fault({"answer": json.dumps(TESTS)}, OPTIONS) == ""
    assert "no tests" in package.gold_fault({"answer": "12", "row": {}}, OPTIONS)
    assert package.limit_secs({"code": {"total_secs": 30}}) >= 31
