"""What `data.train` names: one source or several, with weights or without."""

import pytest

from rl_jax.data.sources import BUILT_IN, Mixture, Part, Source, exists, parse
from rl_jax.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a.jsonl", "b.parquet", "c,d.jsonl", "e@2", "f@x.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("", []),
        ("a.jsonl", [("a.jsonl", None)]),
        ("arithmetic", [("arithmetic", None)]),
        ("a.jsonl,b.parquet", [("a.jsonl", None), ("b.parquet", None)]),
        ("a.jsonl, folder", [("a.jsonl", None), ("folder", None)]),
        ("a.jsonl@0.7,*.parquet@0.3", [("a.jsonl", 0.7), ("*.parquet", 0.3)]),
        ("a.jsonl@1e-3,arithmetic@2", [("a.jsonl", 0.001), ("arithmetic", 2.0)]),
        ("a.jsonl@3", [("a.jsonl", 3.0)]),
        ("a.jsonl,a.jsonl", [("a.jsonl", None), ("a.jsonl", None)]),
        # Names with a comma or an @ in them, where they exist.
        ("c,d.jsonl", [("c,d.jsonl", None)]),
        ("[c],*.jsonl", [("[c],*.jsonl", None)]),
        ("e@2", [("e@2", None)]),
        ("e@2,a.jsonl", [("e@2", None), ("a.jsonl", None)]),
        ("e@2@5,a.jsonl@1", [("e@2", 5.0), ("a.jsonl", 1.0)]),
        ("f@x.jsonl", [("f@x.jsonl", None)]),
        # Whether it is there is for others to say.
        ("gone.jsonl", [("gone.jsonl", None)]),
        ("gone@home.jsonl", [("gone@home.jsonl", None)]),
        ("gone.jsonl@2", [("gone.jsonl", 2.0)]),
    ],
)
def test_sources_and_their_weights(text, sources):
    assert parse(text) == tuple(Source(*source) for source in sources)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.jsonl@0,b.parquet@1", "the share '0' for 'a.jsonl'"),
        ("a.jsonl@-1", "the share '-1'"),
        ("a.jsonl@nan", "the share 'nan'"),
        ("a.jsonl@inf", "the share 'inf'"),
        ("a.jsonl@half", "the share 'half'"),
        ("a.jsonl@", "the share ''"),
        ("a.jsonl,", "a source without a path: ''"),
        ("@0.5,a.jsonl@1", "a source without a path: '@0.5'"),
        ("a.jsonl@0.5,b.parquet", "none to 'b.parquet'"),
    ],
)
def test_a_fault_is_told_in_one_message(text, words):
    with pytest.raises(ConfigError) as error:
        parse(text, "rl.data.train")
    assert words in str(error.value) and len(str(error.value).splitlines()) <= 3
    assert str(error.value).startswith("config.rl.data.train ")


def test_what_exists():
    for path in (*BUILT_IN, "a.jsonl", "folder", "*.parquet", "~/a.jsonl", "e@2"):
        assert exists(path), path
    for path in ("gone.jsonl", "*.csv", "", "arithmetics"):
        assert not exists(path), path


def test_a_mixture_is_all_its_items_and_shares_add_up_to_one():
    parts = (Part(Source("a", 3.0), [1, 2]), Part(Source("b", 1.0), [3]))
    assert (len(Mixture(parts)), list(Mixture(parts))) == (3, [1, 2, 3])
    assert Mixture(parts).weights == [0.75, 0.25]
    assert Mixture((Part(Source("a"), [1]),)).weights is None
