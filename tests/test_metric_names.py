"""The table of metrics: what is in it, and which names fit a pattern."""

import pytest

from rl_jax.metric_names import METRICS, metric

GROUPS = {"train", "eval", "reward", "data", "select", "curate", "perf", "time"}
GROUPS |= {"health"}


def test_every_metric_has_a_group_a_unit_and_a_meaning():
    for name, (unit, meaning) in METRICS.items():
        assert name.split("/")[0] in GROUPS
        assert unit and meaning and not meaning.endswith(".")
    assert all(m.unit == "s" for n, m in METRICS.items() if n.startswith("time/"))


@pytest.mark.parametrize(
    "name, pattern",
    [
        ("train/rewards/maths/mean", "train/rewards/<function>/mean"),
        ("train/rewards/my/file.py:score/mean", "train/rewards/<function>/mean"),
        ("health/verdict/unparsable_reply", "health/verdict/<verdict>"),
        ("train/reward", "train/reward"),
    ],
)
def test_names_that_only_the_run_knows_fit_their_pattern(name, pattern):
    assert metric(name) == METRICS[pattern]


@pytest.mark.parametrize(
    "name", ["reward", "train/rewards//mean", "train/rewards/maths", "health/verdict/"]
)
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match="unknown metric"):
        metric(name)
