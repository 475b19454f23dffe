"""The published recipes as they are shipped, at tiny scale and with their own numbers.

Quick: each resolves, in both variants. Slow: each passes its gates with every seed, and
misses one when any of its training stages does not train.
"""

import json
import pathlib
import re
import shutil
from typing import Any

import pytest

import tiny_run as tiny
from rl_jax import config as configs
from rl_jax import dag, recipe

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECIPES = sorted(path.stem for path in (ROOT / "configs/recipes").glob("*.py"))
SEEDS = (0, 1, 2)


def path_of(name):
    return f"configs/recipes/{name}.py"


def trained_stages(name):
    """The stages of a tiny recipe that train."""
    run = configs.resolve(recipe.load(str(ROOT / path_of(name))))
    return [stage.name for stage in run.stages if stage.steps]


TRAINED = [(name, stage) for name in RECIPES for stage in trained_stages(name)]


def test_there_are_recipes():
    assert {"deepseek_r1", "llama3", "olmo3", "tulu3"} <= {*RECIPES}


@pytest.mark.parametrize("name", RECIPES)
def test_every_training_stage_of_a_tiny_recipe_has_a_gate(name):
    run = configs.resolve(recipe.load(str(ROOT / path_of(name))))
    assert [s.name for s in run.stages if s.steps and not s.gate.metric] == []


@pytest.mark.parametrize("name", RECIPES)
def test_the_published_numbers_resolve_and_say_what_is_not_published(
    name, tmp_path, monkeypatch
):
    config = recipe.load(f"{ROOT / path_of(name)}:paper")
    monkeypatch.chdir(tmp_path)
    for folder in ("MODEL", "STUDENT", "data"):
        pathlib.Path(folder).mkdir()
    pathlib.Path("MODEL/config.json").write_text("{}")
    for stage in config.stages:
        node = config[stage]
        texts = [node.data.train] if "train" in node.data else []
        texts += [node.select.also] if node.kind == "select" else []
        for path in ",".join(texts).split(","):
            if path.endswith(".jsonl"):
                pathlib.Path(path).write_text("{}\n")
    run = configs.resolve(config)
    assert run.notes
    used = {need.name for stage in run.stages for need in dag.needs(run, stage)}
    made = {s.name for s in run.stages if s.kind in ("select", "reward_model")}
    assert made <= used, "a stage whose output nobody takes"


def test_the_chain_of_the_readme_resolves():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    chains = [block for block in blocks if "configs.chain" in block]
    assert len(chains) == 1
    names: dict[str, Any] = {}
    exec(compile(chains[0], "README.md", "exec"), names)
    run = configs.resolve(names["get_config"]())
    kinds = [(stage.name, stage.kind) for stage in run.stages]
    rounds = [("pick_1", "select"), ("sft_1", "sft"), ("pick_2", "select")]
    assert kinds == [("cold", "sft"), *rounds, ("sft_2", "sft")]
    assert run.stages[0].gate.at_least == 0.3


@pytest.fixture(scope="module")
def workdir_of(tmp_path_factory):
    """(recipe, seed) -> workdir of its finished run; each is run once."""
    found = {}

    def make(name, seed):
        if (name, seed) not in found:
            workdir = tmp_path_factory.mktemp(f"{name}_{seed}")
            tiny.train_shipped(path_of(name), workdir, f"--config.seed={seed}")
            found[name, seed] = workdir
        return found[name, seed]

    return make


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", RECIPES)
def test_a_tiny_recipe_passes_its_gates(workdir_of, name, seed):
    workdir = workdir_of(name, seed)
    summary = (workdir / "summary.txt").read_text()
    assert "missed" not in summary and "passed" in summary
    for stage in configs.resolve(recipe.load(str(ROOT / path_of(name)))).stages:
        result = json.loads((workdir / stage.name / "result.json").read_text())
        assert result["finished"], stage.name


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "stage"), TRAINED)
def test_a_stage_that_does_not_train_misses_a_gate(workdir_of, tmp_path, name, stage):
    workdir = tmp_path / "run"
    shutil.copytree(workdir_of(name, 0), workdir)
    stages = [s.name for s in configs.resolve(recipe.load(path_of(name))).stages]
    for later in stages[stages.index(stage) :]:
        shutil.rmtree(workdir / later)
    words = (f"--config.{stage}.optim.lr=0", f"--from={stage}")
    done = tiny.run_shipped(path_of(name), workdir, *words)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "missed its gate" in done.stderr
