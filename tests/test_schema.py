import dataclasses
from typing import Literal

import pytest

from rl_jax import schema
from rl_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Inner:
    ratio: float = 0.5  # a ratio
    names: tuple[str, ...] = ("a",)  # some names
    # Written above,
    # on two lines.
    shape: Literal["round", "square"] | None = None


@dataclasses.dataclass(frozen=True)
class Outer:
    label: str
    count: int = 3  # how many
    inner: Inner = Inner()


def test_keys_are_dotted_and_fields_without_default_are_not_keys():
    assert list(schema.keys(Outer)) == [
        "count",
        "inner.ratio",
        "inner.names",
        "inner.shape",
    ]


def test_comments_come_from_behind_or_above_a_field():
    comments = {path: key.comment for path, key in schema.keys(Outer).items()}
    assert comments == {
        "count": "how many",
        "inner.ratio": "a ratio",
        "inner.names": "some names",
        "inner.shape": "Written above, on two lines.",
    }


def test_build_puts_values_in_their_places_and_keeps_other_defaults():
    built = schema.build(Outer, {"label": "x", "inner.ratio": 0.25, "other": 1})
    assert built == Outer(label="x", inner=Inner(ratio=0.25))


def test_a_tree_has_placeholders_of_the_right_type_and_is_locked():
    tree = schema.tree(schema.keys(Outer))
    assert schema.leaves(tree) == {
        "count": 3,
        "inner.ratio": 0.5,
        "inner.names": ("a",),
        "inner.shape": None,
    }
    assert tree.inner.get_type("shape") is str
    with pytest.raises(AttributeError):
        tree.inner.ration = 1.0


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("inner.ratio", 2, 2.0),
        ("inner.names", ["b", "c"], ("b", "c")),
        ("inner.shape", None, None),
        ("inner.shape", "square", "square"),
        ("count", 4, 4),
    ],
)
def test_right_values_pass_in_their_own_type(path, value, found):
    checked = schema.checked(path, schema.keys(Outer)[path], value)
    assert checked == found
    assert type(checked) is type(found)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("inner.ratio", float("nan")),
        ("inner.ratio", float("inf")),
        ("inner.ratio", "0.5"),
        ("inner.ratio", None),
        ("inner.ratio", True),
        ("inner.names", "a"),
        ("inner.names", (1,)),
        ("inner.shape", "oval"),
        ("count", 1.0),
        ("count", True),
    ],
)
def test_wrong_values_are_refused_with_what_is_expected(path, value):
    key = schema.keys(Outer)[path]
    with pytest.raises(ConfigError) as error:
        schema.checked(path, key, value)
    assert repr(value) in str(error.value)
    assert key.expected in str(error.value)
    assert f"--config.{path}=" in str(error.value)


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("lr", ["optim.lr"]),
        ("optim.lrr", ["optim.lr"]),
        ("model.lr", ["optim.lr"]),
        ("otpim.lr", ["optim.lr"]),
        ("stpes", ["steps"]),
        ("groupsize", ["rollout.group_size"]),
        ("every", ["eval.every", "checkpoint.every"]),
        ("xyzzy", []),
    ],
)
def test_nearest_looks_in_every_group(word, found):
    table = [
        "steps",
        "optim.lr",
        "rollout.group_size",
        "eval.every",
        "checkpoint.every",
    ]
    assert schema.nearest(word, table) == found


def test_values_are_written_as_on_the_command_line():
    texts = [schema.as_text(v) for v in (None, True, 1e-6, ("a", "b"), (1.0,), "x y")]
    assert texts == ["none", "true", "1e-06", "a,b", "1.0", "x y"]
    assert schema.override("a.b", "x y") == "`--config.a.b='x y'`"
    assert schema.override("a.b", "") == "`--config.a.b=`"
