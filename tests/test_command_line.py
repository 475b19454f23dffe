import pathlib
from typing import Any

import pytest
from absl import flags

from rl_jax import command_line, config_keys, reward_marker, schema
from rl_jax import config as defaults
from rl_jax.errors import ConfigError

FLAT = '''
"""A flat recipe."""
from rl_jax import config as defaults

def get_config(kind="rl"):
    config = defaults.stage(kind)
    config.data.train = config.data.eval = "arithmetic"
    config.steps = 7
    return config
'''
CHAIN = '''
"""A chain of two."""
from rl_jax import config as defaults

def get_config():
    config = defaults.chain({"sft": "sft", "rl": "rl"})
    for stage in (config.sft, config.rl):
        stage.data.train = stage.data.eval = "arithmetic"
    return config
'''
# Another value of a key, where the one next to the default would break a rule.
OTHER = {
    "data.held_out": "arithmetic",
    "model.width": "256",
    "model.num_heads": "8",
    "model.num_kv_heads": "1",
    "model.head_dim": "16",
    "mesh.fsdp": "2",
    "mesh.replica": "2",
    "mesh.tensor": "2",
    "batch.updates_per_step": "2",
    "batch.micro_rows": "4",
    "batch.rows_per_step": "16",
    "batch.row_tokens": "1024",
    "reward.functions": "format",
    "reward.weights": "2",
    "model.path": "model",
    "data.train": "rows.jsonl",
    "data.eval": "rows.jsonl",
    "data.template_variables": "enable_thinking=false",
    "reward.routes": "gsm8k=gsm8k,*=maths+format@0.1",
    "reward.options": "repetition.ngram=4",
    "init": "model",
    "stages": "sft",
    "reward.model": "judge",
    "reward.steps": "maths=1-3,format=2",
    "reward.hidden": "exact",
}
# Keys that mean something only beside others.
BESIDE = {
    "data.wrong_share": ["data.train=sums"],
    "reward.model_weight": ["reward.model=judge"],
    "reward.steps": ["reward.functions=maths,format", "reward.weights=1,1"],
    "reward.hidden_gap": ["reward.hidden=exact"],
    "objective.reference_every": ["objective.kl_coef=0.1"],
    "objective.reference_host": ["objective.kl_coef=0.1"],
    "curriculum.retire_after": ["curriculum.retire_at=0.9"],
    "curriculum.reenter_after": ["curriculum.retire_at=0.9"],
    "curriculum.floor": ["curriculum.draw=hard"],
    "gate.metric": ["gate.at_least=1"],
    **{
        f"gate.{bound}": ["gate.metric=eval/loss"]
        for bound in ("at_least", "at_most", "rise", "fall")
    },
    "data.held_out": ["eval.every=5"],
}


@pytest.fixture(autouse=True)
def recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("configs", "model", "judge/checkpoints"):
        pathlib.Path(folder).mkdir(parents=True)
    reward_marker.write("judge", reward_marker.Marker("ranking", 0.0, 1.0, 1))
    pathlib.Path("configs/flat.py").write_text(FLAT.lstrip())
    pathlib.Path("configs/chain.py").write_text(CHAIN.lstrip())
    pathlib.Path("model/config.json").write_text("{}")
    pathlib.Path("rows.jsonl").write_text("{}\n")


def parse(*words: str, recipe: str = "flat") -> command_line.CommandLine:
    argv = [f"--config=configs/{recipe}.py", "--workdir=run", *words]
    return command_line.parse(argv)


def fault(*argv: str) -> str:
    with pytest.raises(ConfigError) as error:
        command_line.parse(argv)
    assert len(str(error.value).splitlines()) <= 3
    return str(error.value)


def fault_of(*words: str, recipe: str = "flat") -> str:
    return fault(f"--config=configs/{recipe}.py", "--workdir=run", *words)


def test_without_overrides_the_recipe_is_taken_as_it_is(tmp_path):
    given = parse()
    assert (given.config.steps, given.config.kind) == (7, "rl")
    assert given.workdir == str(tmp_path / "run")
    assert given.overrides == []


def test_an_argument_of_the_recipe_follows_a_colon():
    config = command_line.parse(["--config=configs/flat.py:sft", "--workdir=x"]).config
    assert config.kind == "sft"


@pytest.mark.parametrize(
    "argv",
    [
        ["--config=configs/flat.py", "--workdir=x", "--config.steps=10"],
        ["--config.steps=10", "--config=configs/flat.py", "--workdir=x"],
        ["--workdir", "x", "--config.steps", "10", "--config", "configs/flat.py"],
        ["-config=configs/flat.py", "-workdir=x", "-config.steps=10"],
        ["--config.steps=3", "--workdir=x", "--config=configs/flat.py"]
        + ["--config.steps=10"],
    ],
    ids=["plain", "before --config", "two words", "one dash", "the last one wins"],
)
def test_all_these_set_the_steps(argv):
    given = command_line.parse(argv)
    assert given.config.steps == 10
    assert given.overrides == ["steps=10"]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (kind, key)
        for kind in ("rl", "sft")
        for key in defaults.tree_keys(kind)
        if key != "kind"
    ],
)
def test_every_key_can_be_overridden_with_another_valid_value(kind, key):
    argv = [f"--config=configs/flat.py:{kind}", "--workdir=run"]
    argv += [f"--config.{word}" for word in BESIDE.get(key, [])]
    before = schema.leaves(command_line.parse(argv).config)
    text = another(key, defaults.tree_keys(kind)[key], before[key])
    config = command_line.parse([*argv, f"--config.{key}={text}"]).config
    after = schema.leaves(config)
    assert {name for name in after if after[name] != before[name]} == {key}
    assert type(after[key]) is defaults.tree_keys(kind)[key].value_type
    defaults.resolve(config)


@pytest.mark.parametrize("two_words", [False, True])
def test_every_key_of_a_chain_can_be_overridden_at_once(two_words):
    before = schema.leaves(parse(recipe="chain").config)
    words, expected = [], {}
    for key, entry in defaults.tree_keys({"sft": "sft", "rl": "rl"}).items():
        if key.endswith("kind") or key == "model.path":
            continue
        bare = key.removeprefix("sft.").removeprefix("rl.")
        text = another(bare, entry, before[key])
        expected[key] = command_line.parsed(entry, text)
        flag = f"--config.{key}"
        words += [flag, text] if two_words else [f"{flag}={text}"]
    given = parse(*words, recipe="chain")
    assert {key: schema.leaves(given.config)[key] for key in expected} == expected
    assert all(before[key] != expected[key] for key in expected)
    assert [word.partition("=")[0] for word in given.overrides] == list(expected)


def another(path: str, key: schema.Key, value: Any) -> str:
    """A value next to `value`, written as on the command line."""
    if path in OTHER:
        return OTHER[path]
    if key.choices:
        return next(c for c in key.choices if c and c != value)
    if key.value_type is bool:
        return "no" if value else "yes"
    if key.value_type is float:
        return str(value / 2 if value else 0.5)
    return str(value + 1) if key.value_type is int else "words of two"


@pytest.mark.parametrize("text", ["true", "yes", "1", "True", "on"])
@pytest.mark.parametrize("key", ["reward.shuffle", "objective.dynamic_sampling"])
def test_many_words_mean_true(key, text):
    assert schema.leaves(parse(f"--config.{key}={text}").config)[key] is True
    assert schema.leaves(parse(f"--config.{key}", text).config)[key] is True


@pytest.mark.parametrize("text", ["false", "no", "0", "False", "off"])
def test_many_words_mean_false(text):
    assert parse(f"--config.eval.greedy={text}").config.eval.greedy is False


def test_a_bare_boolean_is_true_and_no_in_front_makes_it_false():
    assert parse("--config.reward.shuffle").config.reward.shuffle is True
    assert parse("--noconfig.eval.greedy").config.eval.greedy is False
    assert "expected true or false" in fault_of("--config.eval.greedy=maybe")


@pytest.mark.parametrize(
    "text",
    ["maths,format", "('maths','format')", '("maths", "format")', "maths, format"],
)
def test_a_list_is_written_with_commas(text):
    config = parse(f"--config.reward.functions={text}").config
    assert config.reward.functions == ("maths", "format")


def test_lists_of_numbers_and_of_one_element():
    assert parse("--config.reward.weights=1,0.5").config.reward.weights == (1.0, 0.5)
    assert parse("--config.reward.weights=(2,)").config.reward.weights == (2.0,)
    assert parse("--config.reward.functions=").config.reward.functions == ()
    assert "each a number" in fault_of("--config.reward.weights=one,two")


def test_an_optional_value_can_be_taken_back_and_a_text_emptied():
    given = parse("--config.objective.clip_high=0.3", "--config.objective.kl=k2")
    assert (given.config.objective.clip_high, given.config.objective.kl) == (0.3, "k2")
    given = parse("--config.objective.kl=k2", "--config.objective.kl=none")
    assert given.config.objective.kl is None
    assert given.overrides == ["objective.kl=none"]
    given = parse("--config.objective.scale=none", "--config.objective.centre=null")
    assert given.config.objective.scale == "none"  # which is a scale of that name
    assert given.config.objective.centre is None
    assert parse("--config.data.train=").config.data.train == ""


def test_negative_numbers_and_odd_texts_are_values():
    assert parse("--config.mesh.fsdp", "-1").config.mesh.fsdp == -1
    assert parse("--config.objective.entropy_coef=-1e-3").config.objective[
        "entropy_coef"
    ] == pytest.approx(-1e-3)
    for text in ("a = 'b', (c)", "--x=1", "none", "1", "# {} \\boxed{}\n"):
        assert parse(f"--config.data.system={text}").config.data.system == text


def test_a_home_folder_is_found_behind_the_equals_sign(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    given = parse("--config.data.train=~/rows.jsonl", "--workdir=~/run")
    assert given.config.data.train == "/home/someone/rows.jsonl"
    assert given.workdir == "/home/someone/run"


def test_neither_an_address_nor_a_file_is_a_workdir():
    assert "Mount the bucket" in fault_of("--workdir=gs://bucket/run")
    assert "which is a file" in fault_of("--workdir=rows.jsonl")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--config.optim.lrr=1", "`--config.optim.lr=1`"),
        ("--config.lr=1", "`--config.optim.lr=1`"),
        ("--config.model.lr=1", "`--config.optim.lr=1`"),
        ("--config.stpes=10", "`--config.steps=10`"),
        ("--config.rollout.groupsize=4", "`--config.rollout.group_size=4`"),
        ("--config.data.sytem=a b", "`--config.data.system='a b'`"),
        ("--config.optim=1", "`--config.optim.lr=1`"),
        ("--config.optim.lr.x=1", "`--config.optim.lr=1`"),
        ("--config.optim.b3=1", "`--config.optim.b1=1` or `--config.optim.b2=1`"),
        ("--optim.lr=1", "`--config.optim.lr=1`"),
        ("--lr=1", "`--config.optim.lr=1`"),
        ("--steps=1", "`--config.steps=1`"),
        ("--conifg.steps=1", "`--config.steps=1`"),
        ("--workdri=x", "`--workdir=x`"),
        ("--confg=x.py", "`--config=x.py`"),
        ("config.steps=10", "`--config.steps=10`"),
        ("steps=10", "`--config.steps=10`"),
        ("optim.lr=1", "`--config.optim.lr=1`"),
        ("workdir=x", "`--workdir=x`"),
        ("\N{EN DASH}config.steps=10", "`--config.steps=10`"),
        ("\N{EM DASH}config.steps=10", "`--config.steps=10`"),
        ("configs/flat.py", "`--config=configs/flat.py`"),
        ("format", "quotes"),
        ("--", "two dashes"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(word, meant):
    text = fault_of(word)
    assert meant in text
    assert word.partition("=")[0].lstrip("-") in text


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("--config.rl.optim.lrr=1", ["--config.rl.optim.lr=1"]),
        ("--config.rollout.group_size=4", ["--config.rl.rollout.group_size=4"]),
        ("--config.optim.lr=1", ["--config.sft.optim.lr=1", "--config.rl.optim.lr=1"]),
        ("--rl.steps=1", ["--config.rl.steps=1"]),
        ("--config.rl.seed=1", ["--config.seed=1"]),
    ],
)
def test_in_a_chain_the_stage_is_part_of_what_was_meant(word, meant):
    text = fault_of(word, recipe="chain")
    for flag in meant:
        assert f"`{flag}`" in text


def test_a_key_like_no_other_is_refused_too():
    assert "--help lists all" in fault_of("--config.xyzzy=1")
    assert "--help lists all" in fault_of("--xyzzy=1")


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("--config.steps=1e3", ["'1e3'", "(int)", "`--config.steps=1000`"]),
        ("--config.steps=8.5", ["'8.5'", "(int)", "`--config.steps=7`"]),
        ("--config.steps=abc", ["'abc'", "(int)", "`--config.steps=7`"]),
        ("--config.steps=inf", ["'inf'", "`--config.steps=7`"]),
        ("--config.steps=", ["''", "(int)"]),
        ("--config.steps", ["has no value", "`--config.steps=7`"]),
        ("--config.optim.lr=fast", ["'fast'", "(float)", "`--config.optim.lr=1e-06`"]),
        ("--config.objective.kl_coef=x", ["(float) (or none)"]),
    ],
)
def test_a_value_of_the_wrong_type_is_answered_with_a_right_one(word, parts):
    text = fault_of(word)
    for part in parts:
        assert part in text


def test_a_wrong_choice_is_found_when_the_config_is_resolved():
    config = parse("--config.objective.name=grop").config
    with pytest.raises(ConfigError, match="`--config.objective.name=grpo`"):
        defaults.resolve(config)


def test_the_kind_cannot_be_overridden():
    assert "--config.kind" in fault_of("--config.kind=sft")
    assert "--config.rl.kind" in fault_of("--config.rl.kind=sft", recipe="chain")


def test_a_size_without_effect_is_refused():
    text = fault_of("--config.model.path=model", "--config.model.width=64")
    assert "--config.model.width has no effect" in text
    assert "'model'" in text
    given = parse("--config.model.path=model", "--config.model.dtype=bfloat16")
    assert given.config.model.dtype == "bfloat16"


def test_sizes_without_effect_are_those_that_a_model_folder_brings():
    models = pytest.importorskip("rl_jax.models.spec")
    spec = set(models.ModelSpec.__dataclass_fields__)
    ours = {key.partition(".")[2] for key in defaults.MODEL_SIZES}
    chosen = {"dtype", "param_dtype", "float32_head", "remat"}
    assert ours == (spec & {*config_keys.Model.__dataclass_fields__}) - chosen | {
        "rope_theta"  # of all layers; the spec has one for each
    }


def test_a_missing_config_lists_the_recipes_here():
    for argv in ([], ["--workdir=x"], ["--config", "--workdir=x"], ["--config="]):
        text = fault(*argv)
        assert text.startswith("--config is missing")
        assert "configs/flat.py (A flat recipe.)" in text
        assert "configs/chain.py (A chain of two.)" in text


def test_a_missing_config_where_no_recipes_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "model")
    assert "no folder configs/ here" in fault("--workdir=x")


def test_a_missing_workdir_is_told_with_the_whole_command():
    text = fault("--config=configs/flat.py")
    assert text.startswith("--workdir is missing")
    assert "python -m rl_jax.train --config=configs/flat.py --workdir=DIR" in text


@pytest.mark.parametrize("first", [[], ["--config=configs/flat.py"]])
def test_help_shows_flags_recipes_and_every_key_with_value_and_comment(first, capsys):
    with pytest.raises(SystemExit) as exit_:
        command_line.parse([*first, "--help"])
    assert exit_.value.code == 0
    page = capsys.readouterr().out
    assert page.startswith("Usage: python -m rl_jax.train --config=")
    joined = " ".join(page.split())
    for path, key in defaults.tree_keys("rl").items():
        assert f"--config.{path}=" in page
        assert key.comment in joined
    assert ("--config.steps=7 " in page) == bool(first)
    assert ("--config.batch.rows_per_step=8" in page) != bool(first)
    assert "configs/chain.py" in page
    assert max(map(len, page.splitlines())) <= 88


@pytest.mark.parametrize("place", [0, 1, 2])
def test_data_can_be_inspected_without_a_workdir(place):
    words = ["--config=configs/flat.py", "--config.steps=3"]
    words.insert(place, "--inspect_data")
    given = command_line.parse(words)
    assert given.inspect_data and given.workdir == ""
    assert (given.config.steps, given.overrides) == (3, ["steps=3"])
    assert not parse().inspect_data


def test_inspecting_data_is_a_switch_that_takes_no_next_word(tmp_path):
    given = parse("--inspect_data", "--config.steps=3")
    assert given.inspect_data and given.workdir == str(tmp_path / "run")
    assert parse("--inspect_data=yes").inspect_data
    assert not parse("--inspect_data=false").inspect_data
    assert "'10' belongs to no flag" in fault_of("--inspect_data", "10")
    assert "expected true or false" in fault_of("--inspect_data=maybe")
    assert "`--inspect_data`" in fault_of("--inspect-data")
    assert "`--inspect_data=true`" in fault_of("inspect_data=true")
    text = fault("--config=configs/flat.py", "--inspect_data=no")
    assert text.startswith("--workdir is missing")


def test_nothing_is_left_in_the_flags_of_the_process():
    before = set(flags.FLAGS)
    parse("--config.steps=3")
    parse("--config.seed=4", recipe="chain")
    assert set(flags.FLAGS) == before


def test_parsing_twice_gives_two_configs():
    one, two = parse("--config.steps=3").config, parse().config
    assert (one.steps, two.steps) == (3, 7)
    with pytest.raises(AttributeError):
        one.stepz = 1


def test_a_config_error_is_exit_code_2_and_at_most_three_lines(
    capsys, tmp_path, monkeypatch
):
    log = tmp_path / "termination-log"
    log.write_text("")
    monkeypatch.setattr(command_line, "TERMINATION_LOG", str(log))

    def fn(argv):
        raise ConfigError("\n".join(argv))

    code = command_line.exit_on_config_error(fn, ["one", "two", "three", "four"])
    assert code == 2
    assert capsys.readouterr().err == "error: one\ntwo\nthree\n"
    assert log.read_text() == "error: one\ntwo\nthree\n"


def test_no_termination_log_is_made_where_none_is(tmp_path, monkeypatch):
    def fn(argv):
        command_line.parse(argv)

    log = tmp_path / "none"
    monkeypatch.setattr(command_line, "TERMINATION_LOG", str(log))
    assert command_line.exit_on_config_error(fn, ["--x=1"]) == 2
    assert not log.exists()
    monkeypatch.setattr(command_line, "TERMINATION_LOG", str(tmp_path))  # not writable
    assert command_line.exit_on_config_error(fn, ["--x=1"]) == 2


def test_other_results_and_errors_pass_through():
    assert command_line.exit_on_config_error(lambda argv: None, []) == 0
    assert command_line.exit_on_config_error(lambda argv: 143, []) == 143
    with pytest.raises(ZeroDivisionError):
        command_line.exit_on_config_error(lambda argv: 1 // 0, [])
