import dataclasses
import pathlib
import re
from typing import Any

import pytest

from rl_jax import checks, config_keys, data_checks, schema
from rl_jax import config as defaults
from rl_jax.data import sources
from rl_jax.errors import ConfigError

# Kind, what is set, and what the message must hold.
FAULTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("rl", {"steps": -1}, ["steps is -1", "0 or more"]),
    ("rl", {"optim.schedule": "cosin"}, ["'cosin'", "optim.schedule=cosine"]),
    ("rl", {"objective.name": "grop"}, ["'grop'", "objective.name=grpo"]),
    ("rl", {"objective.kl": "k4"}, ["'k4'", "objective.kl=k"]),
    ("rl", {"objective.kl_coef": -0.1}, ["kl_coef is -0.1"]),
    ("rl", {"objective.overlong_buffer": 1.5}, ["from 0 to 1"]),
    ("rl", {"rollout.group_size": 1}, ["grpo", "rollout.group_size=8"]),
    (
        "rl",
        {"rollout.group_size": 1, "objective.name": "dr_grpo"},
        ["dr_grpo", "rollout.group_size=8"],
    ),
    ("rl", {"rollout.group_size": 0}, ["rollout.group_size=8"]),
    ("rl", {"rollout.slots": 0}, ["slots is 0", "rollout.slots=64"]),
    ("rl", {"rollout.top_p": 0.0}, ["top_p is 0.0", "rollout.top_p=1.0"]),
    ("rl", {"rollout.top_p": 1.1}, ["top_p is 1.1", "rollout.top_p=1.0"]),
    ("rl", {"rollout.top_k": -1}, ["rollout.top_k=0"]),
    ("rl", {"rollout.temperature": -1.0}, ["rollout.temperature=1.0"]),
    ("rl", {"rollout.temperature": 0.0}, ["same", "rollout.temperature=1.0"]),
    ("rl", {"optim.lr": float("nan")}, ["optim.lr is nan", "optim.lr=1e-06"]),
    ("rl", {"optim.b2": 1.0}, ["optim.b2=0.95"]),
    ("rl", {"optim.warmup_steps": -1}, ["optim.warmup_steps=0"]),
    ("rl", {"batch.row_tokens": 511}, ["512", "batch.row_tokens=512"]),
    (
        "rl",
        {"batch.updates_per_step": 3},
        ["rollout.prompts_per_step=8", "batch.updates_per_step=2"],
    ),
    ("sft", {"batch.rows_per_step": 12}, ["batch.micro_rows=6"]),
    ("sft", {"batch.micro_rows": 0}, ["batch.micro_rows=8"]),
    ("rl", {"checkpoint.keep": 0}, ["checkpoint.keep=2"]),
    (
        "rl",
        {"reward.functions": ("maths", "format")},
        ["2 names", "1 numbers", "reward.weights=1.0,1.0"],
    ),
    ("rl", {"reward.functions": ("math",)}, ["'math'", "reward.functions=maths"]),
    ("rl", {"reward.functions": ()}, ["reward.functions=maths"]),
    (
        "rl",
        {"reward.functions": ("maths", "maths"), "reward.weights": (1.0, 1.0)},
        ["twice", "reward.functions=maths"],
    ),
    ("rl", {"reward.functions": ("mine.py:score",)}, ["no file 'mine.py'"]),
    ("rl", {"reward.timeout_secs": 0.0}, ["reward.timeout_secs=5.0"]),
    ("rl", {"data.train": ""}, ["data.train is empty", "data.train=arithmetic"]),
    ("rl", {"data.train": "rows.json"}, ["does not exist", "nearest: 'rows.jsonl'"]),
    ("rl", {"data.train": "arithmetik"}, ["nearest: 'arithmetic'"]),
    ("rl", {"data.train": "empty"}, ["does not exist", "data.train=FILE"]),
    ("rl", {"data.train": "notes.txt"}, ["has no .jsonl"]),
    ("rl", {"data.train": "*.parquet"}, ["does not exist"]),
    ("rl", {"data.eval": "none.jsonl"}, ["data.eval is 'none.jsonl'"]),
    (
        "rl",
        {"data.train": "rows.jsonl,row.jsonl"},
        ["data.train names 'row.jsonl'", "nearest: 'rows.jsonl'"],
    ),
    ("rl", {"data.train": "rows.jsonl@1,none@2"}, ["data.train names 'none'"]),
    ("rl", {"data.train": "rows.jsonl@0"}, ["the share '0'", "above 0"]),
    ("rl", {"data.train": "rows.jsonl@1,arithmetic"}, ["none to 'arithmetic'"]),
    (
        "rl",
        {"data.eval": "rows.jsonl@1,arithmetic@2"},
        ["data.eval gives 'rows.jsonl' a share", "data.eval=rows.jsonl"],
    ),
    (
        "sft",
        {"data.train": "rows.jsonl,word_problems"},
        ["'word_problems', a task for reinf", "data.train=arithmetic"],
    ),
    (
        "rl",
        {"data.template_variables": ("enable_thinking",)},
        ["'enable_thinking', expected NAME=VALUE", "=enable_thinking=false"],
    ),
    ("rl", {"eval.every": 5}, ["data.eval is empty", "data.eval=arithmetic"]),
    (
        "rl",
        {"eval.every": 5, "data.train": "rows.jsonl"},
        ["data.eval is empty", "data.eval=FILE"],
    ),
    (
        "sft",
        {"eval.every": 5, "data.eval": "arithmetic", "eval.greedy": False},
        ["no replies", "eval.greedy=true", "eval.num_samples=4"],
    ),
    (
        "sft",
        {
            "eval.every": 5,
            "data.eval": "arithmetic",
            "eval.num_samples": 4,
            "rollout.temperature": 0.0,
        },
        ["rollout.temperature=1.0", "eval.num_samples=0"],
    ),
    ("rl", {"init": "sft"}, ["init is 'sft'", "init=base"]),
]
# Of what stages share: the same words in a chain.
SHARED_FAULTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"seed": -1}, ["seed=0"]),
    ({"runtime.platform": "cuda"}, ["'cuda'", "'gpu'"]),
    ({"model.dtype": "bf16"}, ["'bf16'", "'bfloat16'"]),
    ({"model.num_heads": 3}, ["model.num_kv_heads=1"]),
    ({"model.width": 130}, ["130", "model.width=132", "model.head_dim=32"]),
    ({"model.head_dim": 33}, ["head_dim is 33", "model.head_dim=34"]),
    ({"model.width": 12}, ["3 (width / num_heads)", "model.head_dim=4"]),
    ({"model.num_layers": 0}, ["model.num_layers=4"]),
    ({"model.path": "nowhere"}, ["not a folder", "hf download"]),
    ({"model.path": "empty"}, ["has no config.json", "--config.model.path=DIR"]),
    ({"mesh.replica": 0}, ["mesh.replica=1"]),
    ({"mesh.fsdp": 0}, ["mesh.fsdp=-1"]),
    ({"mesh.fsdp": -2}, ["mesh.fsdp=-1"]),
    ({"mesh.tensor": 3}, ["model.num_kv_heads=2", "mesh.tensor=1"]),
    ({"mesh.fsdp": 3}, ["batch.micro_rows=8", "batch.micro_rows=9"]),
]


def ids(fault: Any) -> str | None:
    return ",".join(f"{k}={v}" for k, v in fault.items()) if type(fault) is dict else ""


def place(config: schema.Tree, values: dict[str, Any]) -> None:
    for path, value in values.items():
        *groups, name = path.split(".")
        node = config
        for group in groups:
            node = node[group]
        node[name] = value


@pytest.fixture(autouse=True)
def folder_with_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("rows.jsonl").write_text("{}\n")
    pathlib.Path("notes.txt").write_text("")
    pathlib.Path("empty").mkdir()


def message(config: schema.Tree) -> str:
    with pytest.raises(ConfigError) as error:
        defaults.resolve(config)
    text = str(error.value)
    assert len(text.splitlines()) <= 3
    assert max(map(len, text.splitlines())) < 200
    return text


def test_the_unchanged_trees_pass():
    for config in (defaults.stage("rl"), defaults.stage("sft")):
        config.data.train = "arithmetic"
        assert defaults.resolve(config)


@pytest.mark.parametrize(("kind", "values", "words"), FAULTS, ids=ids)
def test_a_fault_of_a_stage_is_named_and_can_be_repaired(kind, values, words):
    config = defaults.stage(kind)
    place(config, {"data.train": "arithmetic"} | values)
    text = message(config)
    for word in words:
        assert word in text
    repair(config, text, "")


@pytest.mark.parametrize(("kind", "values", "words"), FAULTS, ids=ids)
def test_in_a_chain_overrides_begin_with_the_stage(kind, values, words):
    config = defaults.chain({"first": kind, "last": kind})
    place(config, {f"{s}.data.train": "arithmetic" for s in ("first", "last")})
    place(config, {f"last.{path}": value for path, value in values.items()})
    text = message(config)
    for word in words:
        assert word in text
    assert set(re.findall(r"config\.(\w+)\.", text)) == {"last"}
    repair(config, text, "last.")


@pytest.mark.parametrize(("values", "words"), SHARED_FAULTS, ids=ids)
def test_a_fault_of_the_shared_part_is_named_and_can_be_repaired(values, words):
    config = defaults.stage("rl")
    place(config, {"data.train": "arithmetic"} | values)
    text = message(config)
    for word in words:
        assert word in text
    repair(config, text, "")


def repair(config: schema.Tree, text: str, prefix: str) -> None:
    """Does what the message says, and finds the fault gone."""
    from rl_jax import command_line

    match = re.search(r"`--config\.([\w.]+)=(\S*)`", text)
    assert match, text
    path, written = match.groups()
    if written in ("DIR", "FILE", "PATH.py:FUNCTION"):
        return
    assert path.startswith(prefix)
    key = defaults.tree_keys(defaults.kinds_of(config))[path]
    place(config, {path: command_line.parsed(key, written)})
    try:
        defaults.resolve(config)
    except ConfigError as error:  # a second fault, of its own
        assert str(error).splitlines()[0] != text.splitlines()[0]


def test_template_variables_are_json_or_text():
    entries = (
        "enable_thinking=false",
        "effort=low",
        "n=3",
        'a={"b": 1}',
        "s=x=y",
        "t=",
    )
    assert data_checks.template_variables(entries, "data.template_variables") == {
        "enable_thinking": False,
        "effort": "low",
        "n": 3,
        "a": {"b": 1},
        "s": "x=y",
        "t": "",
    }
    for entry in ("a", "=1", "a-b=1"):
        with pytest.raises(ConfigError, match="expected NAME=VALUE"):
            data_checks.template_variables((entry,), "data.template_variables")


def test_every_number_has_bounds():
    for cls, bounds in (
        (defaults.Run, checks.RUN_BOUNDS),
        (defaults.StageConfig, checks.STAGE_BOUNDS),
    ):
        numbers = {
            path
            for path, key in schema.keys(cls).items()
            if key.value_type in (int, float)
        }
        assert numbers == set(bounds)


def test_data_may_be_a_file_a_glob_or_a_folder(tmp_path):
    for path in (
        "rows.jsonl",
        "r*.jsonl",
        ".",
        str(tmp_path),
        "**/*.jsonl",
        "rows.jsonl,arithmetic",
        "rows.jsonl@0.7, r*.jsonl@3,word_problems@1",
    ):
        config = defaults.stage("rl")
        config.data.train = path
        assert defaults.resolve(config).stages[0].data.train == path
    odd = tmp_path / "a[1]"
    odd.mkdir()
    (odd / "x[2].parquet").write_text("")
    for path in (odd, odd / "x[2].parquet"):
        config.data.train = str(path)
        assert defaults.resolve(config)


def test_a_model_folder_needs_its_config(tmp_path):
    config = defaults.stage("rl")
    config.data.train, config.model.path = "arithmetic", str(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    config.model.num_heads = 3  # not used, so not checked
    assert defaults.resolve(config).model.path == str(tmp_path)


def test_weights_may_come_from_a_folder_or_a_bucket(tmp_path):
    for init in (str(tmp_path), "gs://bucket/run"):
        config = defaults.stage("rl")
        config.data.train, config.init = "arithmetic", init
        assert defaults.resolve(config).stages[0].init == init


def test_rows_must_divide_over_the_mesh_when_it_is_given():
    config = defaults.stage("rl")
    config.data.train = "arithmetic"
    config.mesh.replica, config.mesh.fsdp = 2, 4
    assert defaults.resolve(config).mesh == config_keys.Mesh(replica=2, fsdp=4)
    config.rollout.slots = 12
    assert "rollout.slots=16" in message(config)


def test_a_users_own_reward_function_is_taken_as_it_is(tmp_path):
    (tmp_path / "mine.py").write_text("")
    for name in ("mine.py:score", "package.module:score"):
        config = defaults.stage("rl")
        config.data.train, config.reward.functions = "arithmetic", (name,)
        assert defaults.resolve(config).stages[0].reward.functions == (name,)


def test_names_are_those_of_the_code_that_takes_them():
    registry = pytest.importorskip("rl_jax.rewards.registry")
    files = pytest.importorskip("rl_jax.data.files")
    assert data_checks.DATA_SUFFIXES == files.SUFFIXES
    reading = pytest.importorskip("rl_jax.stages.reading")
    assert {*sources.BUILT_IN} == {*reading.PROBLEMS}
    problems_only = {*reading.PROBLEMS} - {*reading.DEMONSTRATIONS}
    assert {*data_checks.PROBLEMS_ONLY} == problems_only
    formats = schema.keys(config_keys.Reward)["answer_format"].choices
    assert set(formats) == set(registry.ANSWER_FORMATS)


def test_the_mesh_and_the_model_spec_are_made_of_our_keys():
    models = pytest.importorskip("rl_jax.models.spec")
    ours = {field.name for field in dataclasses.fields(config_keys.Model)}
    theirs = {field.name for field in dataclasses.fields(models.ModelSpec)}
    assert ours - theirs == {"path", "rope_theta"}
