import dataclasses
import importlib.util
import pathlib
import subprocess
import sys

import pytest

from rl_jax import config as defaults
from rl_jax import config_keys, kinds, schema
from rl_jax.errors import ConfigError
from rl_jax.policy_config import policy_loss_spec

REPOSITORY = pathlib.Path(__file__).parent.parent
RECIPES = sorted((REPOSITORY / "configs").glob("**/*.py"))


def flat(kind: str = "rl") -> schema.Tree:
    config = defaults.stage(kind)
    config.data.train = "arithmetic"
    return config


def two_stages() -> schema.Tree:
    config = defaults.chain({"warm": "sft", "rl": "rl"})
    config.warm.data.train = config.rl.data.train = "arithmetic"
    return config


@pytest.mark.parametrize("module", ["config", "command_line"])
def test_no_jax_is_imported_before_a_run_is_checked(module):
    code = (
        f"import sys, rl_jax.{module}, rl_jax.config as c; t = c.stage('rl'); "
        "t.data.train = 'arithmetic'; c.resolve(t); "
        "sys.exit(any(m in sys.modules for m in ('jax', 'flax', 'numpy.random')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_key_has_a_comment_that_fits_the_help_page(kind):
    for path, key in defaults.tree_keys(kind).items():
        assert 8 < len(key.comment) < 150, path


def test_a_flat_config_is_one_stage_named_as_its_kind():
    run = defaults.resolve(flat("sft"))
    (only,) = run.stages
    assert (only.name, only.kind, only.prefix, only.init) == ("sft", "sft", "", "base")


def test_a_chain_keeps_what_stages_share_at_the_top():
    config = two_stages()
    shared = {"model", "mesh", "seed", "runtime", "export", "notes"}
    assert set(config.keys()) == shared | {"stages", "warm", "rl"}
    assert not shared & set(config.rl.keys())
    run = defaults.resolve(config)
    assert [(s.name, s.kind, s.prefix, s.init) for s in run.stages] == [
        ("warm", "sft", "warm.", "base"),
        ("rl", "rl", "rl.", "warm"),
    ]


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_keys_that_mean_nothing_for_a_kind_are_left_out(kind):
    every = set(schema.keys(config_keys.StageConfig))
    own = set(defaults.kind_keys(kind))
    for out in kinds.KINDS[kind].left_out:
        gone = {key for key in every if f"{key}.".startswith(f"{out}.")}
        assert gone, f"{out} is no key"
        assert not gone & own
        every -= gone
    assert own == every
    assert set(kinds.KINDS[kind].otherwise) <= own


def test_only_kinds_that_train_have_an_optimiser():
    for kind, properties in kinds.KINDS.items():
        trains = properties.makes != "data" and kind != "merge"
        assert ("optim.lr" in defaults.kind_keys(kind)) == trains
        assert ("steps" in defaults.kind_keys(kind)) == trains
    assert "objective" in defaults.stage("rl")
    assert "objective" not in defaults.stage("sft")


def test_the_tree_and_the_dataclasses_have_the_same_defaults():
    config = flat()
    run = defaults.resolve(config)
    assert dataclasses.replace(run.stages[0].batch, row_tokens=0) == config_keys.Batch()
    assert run.stages[0].optim == config_keys.Optim()
    assert run.stages[0].rollout == config_keys.Rollout()
    assert defaults.stage("sft").optim.lr == 1e-5


def test_automatic_values_are_worked_out():
    config = flat()
    config.rollout.max_prompt_tokens, config.rollout.max_new_tokens = 30, 12
    config.model.width, config.model.num_heads = 96, 3
    config.model.num_kv_heads = 1
    run = defaults.resolve(config)
    assert run.stages[0].batch.row_tokens == 42
    assert run.model.head_dim == 32
    config.model.head_dim, config.batch.row_tokens = 64, 43
    run = defaults.resolve(config)
    assert (run.model.head_dim, run.stages[0].batch.row_tokens) == (64, 43)


def test_a_whole_number_may_stand_for_a_float():
    config = flat()
    config.rollout.temperature = 2
    config.reward.weights = (1,)
    stage = defaults.resolve(config).stages[0]
    assert type(stage.rollout.temperature) is float
    assert type(stage.reward.weights[0]) is float


def test_a_misspelt_key_fails_at_its_own_line():
    with pytest.raises(AttributeError, match="lr"):
        defaults.stage("rl").optim.lrr = 1.0
    with pytest.raises(TypeError):
        defaults.stage("rl").steps = "10"


def test_keys_too_many_or_too_few_are_refused():
    config = flat()
    with config.unlocked():
        config.optim.lrr = 1.0
    with pytest.raises(ConfigError, match=r"config.optim.lrr.*\n.*config.optim.lr\?"):
        defaults.resolve(config)
    config = flat()
    with config.unlocked():
        del config.optim.lr
    with pytest.raises(ConfigError, match="lacks optim.lr"):
        defaults.resolve(config)


def test_a_none_where_no_none_may_stand_is_refused():
    config = flat()
    config.steps = None
    with pytest.raises(ConfigError, match="config.steps is None"):
        defaults.resolve(config)


@pytest.mark.parametrize("thing", [None, {}, defaults.resolve(flat())])
def test_what_is_no_tree_of_ours_is_refused(thing):
    with pytest.raises(ConfigError, match=type(thing).__name__):
        defaults.resolve(thing)


def test_unknown_kinds_and_bad_names_of_stages_are_refused():
    with pytest.raises(ConfigError, match=r"'sfft'.*\n.*stage\('sft'\)"):
        defaults.stage("sfft")
    for name in ("model", "rl-2", "class", "items", "stages", "base", "arithmetic"):
        with pytest.raises(ConfigError, match=name):
            defaults.chain({name: "rl"})


def test_some_stages_of_a_chain_can_be_run():
    config = two_stages()
    config.stages = ("warm",)
    assert [stage.name for stage in defaults.resolve(config).stages] == ["warm"]
    config.stages = ("rl",)
    with pytest.raises(ConfigError, match="config.rl.init is 'warm'"):
        defaults.resolve(config)
    config.rl.init = "base"
    assert [stage.name for stage in defaults.resolve(config).stages] == ["rl"]
    for stages in ((), ("rl", "rl"), ("rll",)):
        config.stages = stages
        with pytest.raises(ConfigError, match="config.stages"):
            defaults.resolve(config)


def test_centre_and_scale_have_one_earlier_name():
    config = flat()
    config.objective.advantage = "batch_std"
    spec = policy_loss_spec(defaults.resolve(config).stages[0])
    assert (spec.centre, spec.scale) == ("group_mean", "varying_std")
    config.objective.scale = "none"
    spec = policy_loss_spec(defaults.resolve(config).stages[0])
    assert (spec.centre, spec.scale) == ("group_mean", "none")


def test_the_policy_loss_is_the_named_one_with_what_was_given():
    policy = pytest.importorskip("rl_jax.objectives.policy")
    config = flat()
    for name, spec in policy.PRESETS.items():
        config.objective.name = name
        assert policy_loss_spec(defaults.resolve(config).stages[0]) == spec
    config.objective.name = "dapo"
    config.objective.clip_high = 0.3
    config.objective.dynamic_sampling = False
    expected = dataclasses.replace(
        policy.PRESETS["dapo"], clip_high=0.3, dynamic_sampling=False
    )
    assert policy_loss_spec(defaults.resolve(config).stages[0]) == expected


def test_a_loss_may_be_that_of_another_trainer():
    policy = pytest.importorskip("rl_jax.objectives.policy")
    config = flat()
    for compat, losses in policy.COMPAT.items():
        for name, spec in losses.items():
            config.objective.compat, config.objective.name = compat, name
            stage = defaults.resolve(config).stages[0]
            assert policy_loss_spec(stage) == spec
    config.objective.compat, config.objective.name = "verl", "grpo"
    config.objective.ratio_cap = 10.0
    spec = policy_loss_spec(defaults.resolve(config).stages[0])
    assert spec == dataclasses.replace(policy.COMPAT["verl"]["grpo"], ratio_cap=10.0)


def test_a_loss_that_the_other_trainer_does_not_have_is_refused():
    pytest.importorskip("rl_jax.objectives.policy")
    config = two_stages()
    config.rl.objective.compat, config.rl.objective.name = "trl", "gspo_token"
    stage = defaults.resolve(config).stages[1]
    with pytest.raises(ConfigError) as caught:
        policy_loss_spec(stage)
    message = str(caught.value)
    assert "trl does not have" in message and len(message.splitlines()) <= 3
    assert "--config.rl.objective.name=" in message
    assert "--config.rl.objective.compat=none" in message


def test_a_kind_of_kl_without_weight_is_refused():
    pytest.importorskip("rl_jax.objectives.policy")
    config = two_stages()
    config.rl.objective.kl = "k2"
    stage = defaults.resolve(config).stages[1]
    with pytest.raises(ConfigError, match=r"--config.rl.objective.kl_coef=0.001"):
        policy_loss_spec(stage)
    config.rl.objective.kl_coef = 0.001
    spec = policy_loss_spec(defaults.resolve(config).stages[1])
    assert (spec.kl, spec.kl_coef) == ("k2", 0.001)
    config.rl.objective.kl, config.rl.objective.kl_coef = None, 0.0
    config.rl.objective.kl_place = "reward"
    with pytest.raises(ConfigError, match=r"--config.rl.objective.kl_place=none"):
        policy_loss_spec(defaults.resolve(config).stages[1])


def test_choices_are_those_of_the_code_that_takes_them():
    policy = pytest.importorskip("rl_jax.objectives.policy")
    policy_check = pytest.importorskip("rl_jax.objectives.policy_check")
    shaping = pytest.importorskip("rl_jax.objectives.shaping")
    table = defaults.tree_keys("rl")
    taken = {"name": policy.PRESETS, "compat": policy.COMPAT}
    taken |= {"overlong": shaping.OVERLONG, **policy_check.NAMES}
    for name, names in taken.items():
        assert set(table[f"objective.{name}"].choices) == set(names), name
    fields = {field.name for field in dataclasses.fields(policy.PolicyLoss)}
    ours = {field.name for field in dataclasses.fields(config_keys.Objective)}
    assert ours - fields == {
        "name",
        "advantage",
        "compat",
        "max_refills",
        "overlong",
        "overlong_factor",
        "length_coef",
        "length_from",
        "reference_every",
        "reference_host",
    }


def test_a_factor_that_the_overlong_penalty_does_not_have_is_refused():
    config = two_stages()
    config.rl.objective.overlong_factor = 0.5
    stage = defaults.resolve(config).stages[1]
    with pytest.raises(ConfigError, match=r"--config.rl.objective.overlong=openrlhf"):
        policy_loss_spec(stage)
    config.rl.objective.overlong = "verl"
    policy_loss_spec(defaults.resolve(config).stages[1])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_shipped_recipe_resolves_and_tells_how_to_run_it(path, tmp_path):
    spec = importlib.util.spec_from_file_location(f"recipe_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    if config.model.path:
        config.model.path = str(tmp_path)
    for node in [config] if "kind" in config else [config[n] for n in config.stages]:
        for name in ("train", "eval"):
            if node.data.get(name, "").endswith(".jsonl"):
                node.data[name] = str(tmp_path / "rows.jsonl")
    assert defaults.resolve(config).stages
    docstring = module.__doc__ or ""
    written = path.relative_to(REPOSITORY).as_posix()
    assert f"--config={written} --workdir=" in docstring
    assert "Expect:" in docstring
