"""Trees of keys for recipes, and back; the keys themselves are in `config_keys.py`.

A recipe takes `stage(kind)` or `chain({...})`, a full default tree, and sets what
differs. `resolve` turns the tree back into those dataclasses with every check
done (`rl_jax.checks`); code below the command line is given these, or plain values.
Importing this file does not import jax.
"""

import dataclasses
import keyword
from collections.abc import Mapping

from ml_collections import config_dict

from rl_jax import checks, dag, schema, stage_checks
from rl_jax.config_keys import Run as Run
from rl_jax.config_keys import Runtime as Runtime
from rl_jax.config_keys import StageConfig as StageConfig
from rl_jax.dag import repeat as repeat
from rl_jax.data import sources
from rl_jax.errors import ConfigError
from rl_jax.kinds import KINDS

# What a folder given by model.path brings itself.
MODEL_SIZES = (
    "model.num_layers",
    "model.width",
    "model.num_heads",
    "model.num_kv_heads",
    "model.head_dim",
    "model.ffn_width",
    "model.vocab_size",
    "model.rope_theta",
    "model.tie_embeddings",
)


def stage(kind: str) -> schema.Tree:
    """Full default tree of a run with one stage of this kind (rl_jax/kinds.py).

    It is locked: a misspelt key fails at its own line of the recipe.
    """
    return schema.tree(tree_keys(kind))


def chain(stages: Mapping[str, str]) -> schema.Tree:
    """Full default tree of several stages in order: name -> kind.

    Each starts from the policy of the one before it that makes one, the first from the
    base.
    """
    taken = {field.name for field in dataclasses.fields(Run)} | {"kind"}
    taken |= {*keyword.kwlist, *dir(config_dict.ConfigDict)}
    taken |= {"base", "new", *sources.BUILT_IN}  # which say where things come from
    for name in stages:
        if not name.isidentifier() or name in taken:
            raise ConfigError(
                f"{name!r} cannot name a stage: it must be a Python name, and no "
                "keyword, method of ConfigDict, top key of the config, base, new or "
                "built-in task.\n"
                "Write e.g. rl_jax.config.chain({'sft': 'sft', 'rl': 'rl'})."
            )
    return schema.tree(tree_keys(dict(stages)))


def kind_keys(kind: str) -> dict[str, schema.Key]:
    """Keys of one stage, without what means nothing for its kind."""
    if kind not in KINDS:
        close = schema.nearest(str(kind), KINDS) or ["rl"]
        raise ConfigError(
            f"{kind!r} is no kind of stage, expected one of {', '.join(KINDS)}.\n"
            f"Write rl_jax.config.stage({close[0]!r}) in the recipe."
        )
    defaults = {"kind": kind} | KINDS[kind].otherwise
    return {
        path: dataclasses.replace(key, default=defaults.get(path, key.default))
        for path, key in schema.keys(StageConfig).items()
        if not any(f"{path}.".startswith(f"{out}.") for out in KINDS[kind].left_out)
    }


def tree_keys(kinds: str | dict[str, str]) -> dict[str, schema.Key]:
    """Every key of a flat config of one kind, or of a chain of name -> kind."""
    shared = dict(schema.keys(Run))
    if not isinstance(kinds, dict):
        table = kind_keys(kinds)
        return {"kind": table.pop("kind")} | shared | table
    comment = "stages to run, in this order"
    table = {"stages": schema.make_key(tuple[str, ...], tuple(kinds), comment)} | shared
    init = "base"
    for name, kind in kinds.items():
        keys = kind_keys(kind)
        if "init" in keys:
            keys["init"] = dataclasses.replace(keys["init"], default=init)
        table |= {f"{name}.{path}": key for path, key in keys.items()}
        if KINDS[kind].makes == "policy":
            init = name
    return table


def kinds_of(config: schema.Tree) -> str | dict[str, str]:
    """The kind of a flat config, or name -> kind of every stage of a chain.

    Raises:
        ConfigError: if it is no tree made by `stage` or `chain`.
    """
    if isinstance(config, config_dict.ConfigDict):
        values = schema.leaves(config)
        if "kind" in values and "stages" not in values:
            return values["kind"]
        kinds = {
            path.removesuffix(".kind"): kind
            for path, kind in values.items()
            if path.endswith(".kind") and path.count(".") == 1
        }
        if kinds and "stages" in values:
            first = [name for name in values["stages"] or () if name in kinds]
            return {name: kinds[name] for name in [*first, *kinds]}
    raise ConfigError(
        f"The config is a {type(config).__name__} that rl_jax.config did not make.\n"
        "get_config() must return rl_jax.config.stage('rl'), or chain({'rl': 'rl'}), "
        "with some keys set."
    )


def resolve(config: schema.Tree) -> Run:
    """The dataclasses of a config, checked, with automatic values (0) worked out.

    Raises:
        ConfigError: for the first thing that is wrong, at most three lines.
    """
    kinds = kinds_of(config)
    values = schema.checked_values(config, tree_keys(kinds))
    names = values["stages"] if isinstance(kinds, dict) else (kinds,)
    if unknown := [name for name in names if name not in kinds]:
        raise ConfigError(
            f"config.stages has {unknown[0]!r}, expected some of {', '.join(kinds)}.\n"
            f"Write {schema.override('stages', tuple(kinds))}."
        )
    stages = []
    for name in names:
        prefix = f"{name}." if isinstance(kinds, dict) else ""
        own = {"name": name, "prefix": prefix} | schema.below(values, prefix)
        stages.append(schema.build(StageConfig, own))
    run = schema.build(Run, values | {"stages": tuple(stages)})
    dag.check(run)
    checks.check_run(run)
    for one in run.stages:
        stage_checks.check(run, one)
    return _worked_out(run)


def _worked_out(run: Run) -> Run:
    """The run with each automatic value (0) replaced by the number it stands for."""
    head_dim = run.model.head_dim or run.model.width // run.model.num_heads
    stages = []
    for one in run.stages:
        longest = one.rollout.max_prompt_tokens + one.rollout.max_new_tokens
        row_tokens = one.batch.row_tokens or longest
        batch = dataclasses.replace(one.batch, row_tokens=row_tokens)
        steps = 0 if "steps" in KINDS[one.kind].left_out else one.steps
        stages.append(dataclasses.replace(one, batch=batch, steps=steps))
    model = dataclasses.replace(run.model, head_dim=head_dim)
    return dataclasses.replace(run, model=model, stages=tuple(stages))
