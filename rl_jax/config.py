"""Every key of a run: its meaning, unit and default. The only place they live.

A recipe takes `stage(kind)` or `chain({...})`, a full default tree, and sets what
differs. `resolve` turns the tree back into the dataclasses below with every check
done (`rl_jax.checks`); code below the command line is given these, or plain values.
Importing this file does not import jax.
"""

import dataclasses
import keyword
from collections.abc import Mapping
from typing import Literal

from ml_collections import config_dict

from rl_jax import checks, schema
from rl_jax.errors import ConfigError
from rl_jax.objectives import names

Kind = Literal["sft", "rl"]
Float = Literal["float32", "bfloat16"]


@dataclasses.dataclass(frozen=True)
class Model:
    """The decoder: read from `path`, or a new one of the sizes that follow."""

    path: str = ""  # local Hugging Face folder; empty: a new model, sizes as below
    num_layers: int = 4  # decoder layers
    width: int = 128  # channels between layers
    num_heads: int = 4  # query heads
    num_kv_heads: int = 2  # key/value heads; divides num_heads
    head_dim: int = 0  # channels of a head, even; 0: width / num_heads
    ffn_width: int = 384  # channels inside the feed-forward part
    vocab_size: int = 256  # pieces of the built-in tokenizer, trained for the task
    rope_theta: float = 10_000.0  # base of the rotary wavelengths
    tie_embeddings: bool = True  # the embedding is also the output head
    dtype: Float = "float32"  # of activations and matrix products
    param_dtype: Float = "float32"  # of stored weights
    float32_head: bool = True  # the output head's product in float32, whatever dtype
    remat: Literal["none", "layer"] = "none"  # layer: recomputed in the backward pass


@dataclasses.dataclass(frozen=True)
class Mesh:
    """How the devices are divided; the product is their number."""

    replica: int = 1  # whole copies of the sharded model, across slices
    fsdp: int = -1  # parts that rows and weights are cut into; -1: all devices left
    tensor: int = 1  # parts that heads, feed-forward width and vocabulary are cut into


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Where the run takes place, and in which processes (rl_jax/coordinates.py)."""

    platform: Literal["", "cpu", "gpu", "tpu"] = ""  # refuse any other; empty: take any
    coordinator: str = ""  # HOST:PORT of process 0, where all meet; empty: found out
    num_processes: int = 0  # processes that there must be; 0: as many as are found
    process_id: int = -1  # which of them this one is, from 0; -1: found out
    start_secs: float = 300.0  # seconds for all processes to come, at most
    step_minutes: float = 0.0  # minutes without a finished step end the run; 0: never


@dataclasses.dataclass(frozen=True)
class Data:
    """Rows to train on and to evaluate on.

    A source is a file, a glob or a folder of .jsonl, .jsonl.gz and .parquet files, or a
    built-in task: arithmetic, programs or word_problems. Several are written with
    commas, and with @ their shares of what is drawn, as in
    `gsm8k.jsonl@0.7,math/*.parquet@0.3`. Rows are recognised by their columns
    (data/shapes.py, data/fields.py).
    """

    train: str = ""  # files, folders, built-in tasks; with shares: A@0.7,B@0.3
    eval: str = ""  # the same without shares, for evaluation; empty: none
    prompt_column: str = ""  # column with the prompt, text or messages; empty: found
    answer_column: str = ""  # column with the reference answer; empty: found
    completion_column: str = ""  # column with the reply to learn; empty: found
    answer_after: str = ""  # the answer is what follows the last of these; empty: all
    system: str = ""  # system message put before each prompt; empty: none
    instruction: str = ""  # text added at the end of each prompt; empty: none
    # For the chat template, e.g. enable_thinking=false; values are JSON.
    template_variables: tuple[str, ...] = ()
    num_problems: int = 4096  # problems of a generated task to train on
    num_eval_problems: int = 128  # other problems of it to evaluate on


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Sampling replies: for training (rl) and for evaluation (both kinds)."""

    prompts_per_step: int = 8  # prompts in a rollout batch
    group_size: int = 8  # samples of each prompt, at least 2: they are compared
    max_prompt_tokens: int = 256  # longer prompts are left out, and counted
    max_new_tokens: int = 256  # tokens of a reply, at most
    temperature: float = 1.0  # divides the logits; 0: always the likeliest token
    top_p: float = 1.0  # keep the likeliest tokens up to this probability; 1: all
    top_k: int = 0  # keep this many likeliest tokens; 0: all
    slots: int = 64  # replies being decoded at once
    decode_steps: int = 8  # tokens decoded in one dispatch to the device
    prefill_rows: int = 8  # prompts read in one dispatch to the device


@dataclasses.dataclass(frozen=True)
class Reward:
    """Scoring replies: for training (rl) and for evaluation (both kinds).

    With `routes` the data source of a row decides which functions judge it
    (rewards/routing.py): `gsm8k=gsm8k,math*=maths+format@0.1,*=maths`; built_in stands
    for the usual data sets. Then `functions` and `weights` are not used.
    """

    functions: tuple[str, ...] = ("maths",)  # names of reward functions, to be added up
    weights: tuple[float, ...] = (1.0,)  # factor of each; 0: a metric only
    routes: tuple[str, ...] = ()  # by data source; empty: functions, for every row
    timeout_secs: float = 5.0  # seconds for one reply before its worker is replaced
    workers: int = 2  # worker processes
    answer_format: Literal["boxed", "any"] = "boxed"  # where a reply's answer is sought
    # Pattern the format reward wants (regex); empty: one boxed answer.
    format_pattern: str = ""
    # Of single functions: repetition.ngram=4, code.isolation=landlock.
    options: tuple[str, ...] = ()
    # Share of replies that the graders' own faults may leave unscored.
    max_infrastructure_share: float = 0.2
    check_golds: bool = True  # at start, refuse rows whose reference is of no use
    shuffle: bool = False  # control: permute the rewards within each batch


@dataclasses.dataclass(frozen=True)
class Objective:
    """The policy loss: a named one, and what differs from it.

    What each choice means is in rl_jax/objectives: surrogate.py has the formulas.
    """

    name: names.Preset = "grpo"  # the named loss; none below: as the named loss has it
    compat: names.Compat | None = None  # that loss as this trainer has it
    centre: names.Centre | None = None  # what is taken from a reward
    scale: names.Scale | None = None  # what it is then divided by
    advantage: names.Advantage | None = None  # an earlier name for the two
    whiten: names.Whiten | None = None  # mean 0 and spread 1 over all tokens of a step
    surrogate: names.Surrogate | None = None  # what ratio and advantage make of a token
    denominator: names.Denominator | None = None  # whom the ratio is to
    ratio: names.Ratio | None = None  # of a token, or of a whole sample
    clip_low: float | None = None  # ratio bounded from below by 1 - this
    clip_high: float | None = None  # ratio bounded from above by 1 + this
    ratio_cap: float | None = None  # absolute cap: dual clip, ScaleRL, delta; 0: off
    tau: float | None = None  # what the paper of the surrogate calls tau
    tau_negative: float | None = None  # the same where the advantage is negative: sapo
    aggregate: names.Aggregate | None = None  # how token losses are averaged
    kl: names.Kl | None = None  # estimator of the KL to the reference
    kl_coef: float | None = None  # weight of that KL; 0: no reference model is kept
    # In the loss, in the reward of a sample, or in the return of a token.
    kl_place: names.KlPlace | None = None
    correction: names.Correction | None = None  # the weight made of exp(old - sampler)
    sampler_low: float | None = None  # lower bound of what the correction judges
    sampler_cap: float | None = None  # upper bound of it; 0: no correction
    # Bad samples that drifted so many nats are left out; 0: none is.
    off_policy_delta: float | None = None
    entropy_coef: float | None = None  # weight of the entropy bonus
    dynamic_sampling: bool | None = None  # replace prompts whose rewards all agree
    overlong_buffer: float | None = None  # last part of max_new_tokens to penalise
    overlong: names.Overlong = "dapo"  # whose such penalty
    overlong_factor: float = 1.0  # what a reply of max_new_tokens loses; not for dapo
    length_coef: float = 0.0  # weight of Kimi k1.5's reward for short answers; 0: off
    length_from: int = 1  # first step with that reward
    max_refills: int = 4  # times a rollout batch may be topped up by dynamic_sampling


@dataclasses.dataclass(frozen=True)
class Optim:
    """AdamW and its schedule, in optimiser steps."""

    lr: float = 1e-6  # peak learning rate
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # after the warm-up
    warmup_steps: int = 0  # steps of linear rise from 0, counted like `steps`
    final_lr_fraction: float = 0.0  # last rate over the peak (linear, cosine)
    weight_decay: float = 0.0  # decoupled, a fraction per unit of learning rate
    b1: float = 0.9  # decay of the mean of gradients
    b2: float = 0.95  # decay of the mean of squared gradients
    eps: float = 1e-8  # added to the root of the latter
    clip_norm: float = 1.0  # largest global norm of a gradient; 0: no clipping


@dataclasses.dataclass(frozen=True)
class Batch:
    """How samples become rows, and rows become optimiser steps."""

    row_tokens: int = 0  # tokens of a packed row; 0: max_prompt_tokens + max_new_tokens
    micro_rows: int = 8  # rows in one forward and backward pass
    rows_per_step: int = 8  # rows in an optimiser step; a multiple of micro_rows
    updates_per_step: int = 1  # optimiser steps a rollout batch is split into


@dataclasses.dataclass(frozen=True)
class Eval:
    """Scoring replies to held-out prompts."""

    every: int = 0  # steps between evaluations, also first and last; 0: never
    num_prompts: int = 64  # prompts each time, at most; always the same ones
    greedy: bool = True  # take the likeliest reply of each prompt
    num_samples: int = 0  # and this many at rollout.temperature


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """What is kept on disk; the end of a stage is always saved."""

    every: int = 50  # steps between checkpoints; 0: only at the end
    keep: int = 2  # newest checkpoints kept


@dataclasses.dataclass(frozen=True)
class Log:
    """What is shown of the replies."""

    samples_every: int = 10  # steps between printed replies; 0: never
    num_samples: int = 2  # replies printed each time


@dataclasses.dataclass(frozen=True)
class StageConfig:
    """One stage, resolved. A flat config is one stage, named as its kind.

    Keys that mean nothing for its kind (`LEFT_OUT`) hold their defaults.
    """

    name: str
    prefix: str  # of its keys on the command line: "" or "rl."
    kind: Kind = "rl"  # what the stage does; set by the recipe
    init: str = "base"  # where weights come from: base, an earlier stage, or a folder
    steps: int = 100  # rollout batches (rl) or optimiser steps (sft); 0: evaluate only
    data: Data = Data()
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
    objective: Objective = Objective()
    optim: Optim = Optim()
    batch: Batch = Batch()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    log: Log = Log()


@dataclasses.dataclass(frozen=True)
class Run:
    """A whole run, resolved: what its stages share, and the stages in order."""

    stages: tuple[StageConfig, ...]
    seed: int = 0  # of weights, data order and sampling
    model: Model = Model()
    mesh: Mesh = Mesh()
    runtime: Runtime = Runtime()
    export: bool = True  # at the end also write WORKDIR/huggingface, a model folder


# Keys, or groups of keys, that mean nothing for a kind.
LEFT_OUT = {
    "sft": (
        "rollout.prompts_per_step",
        "rollout.group_size",
        "reward.shuffle",
        "objective",
        "batch.updates_per_step",
    ),
    "rl": ("batch.rows_per_step", "data.completion_column"),
}
# Defaults that a kind has otherwise.
OTHERWISE = {"sft": {"optim.lr": 1e-5}, "rl": {}}
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
    """Full default tree of a run with one stage of this kind ("sft" or "rl").

    It is locked: a misspelt key fails at its own line of the recipe.
    """
    return schema.tree(tree_keys(kind))


def chain(stages: Mapping[str, str]) -> schema.Tree:
    """Full default tree of several stages in order: name -> kind.

    Each starts from the weights of the one before it, the first from the base.
    """
    taken = {field.name for field in dataclasses.fields(Run)} | {"kind"}
    taken |= {*keyword.kwlist, *dir(config_dict.ConfigDict)}
    for name in stages:
        if not name.isidentifier() or name in taken:
            raise ConfigError(
                f"{name!r} cannot name a stage: it must be a Python name, and no "
                "keyword, method of ConfigDict or top key of the config.\n"
                "Write e.g. rl_jax.config.chain({'sft': 'sft', 'rl': 'rl'})."
            )
    return schema.tree(tree_keys(dict(stages)))


def kind_keys(kind: str) -> dict[str, schema.Key]:
    """Keys of one stage, without what means nothing for its kind."""
    if kind not in OTHERWISE:
        close = schema.nearest(str(kind), OTHERWISE) or ["rl"]
        raise ConfigError(
            f"{kind!r} is no kind of stage, expected one of {', '.join(OTHERWISE)}.\n"
            f"Write rl_jax.config.stage({close[0]!r}) in the recipe."
        )
    defaults = {"kind": kind} | OTHERWISE[kind]
    return {
        path: dataclasses.replace(key, default=defaults.get(path, key.default))
        for path, key in schema.keys(StageConfig).items()
        if not any(f"{path}.".startswith(f"{out}.") for out in LEFT_OUT[kind])
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
        keys["init"] = dataclasses.replace(keys["init"], default=init)
        table |= {f"{name}.{path}": key for path, key in keys.items()}
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
            if path.endswith(".kind")
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
    checks.check_run(run)
    return _worked_out(run)


def _worked_out(run: Run) -> Run:
    """The run with each automatic value (0) replaced by the number it stands for."""
    head_dim = run.model.head_dim or run.model.width // run.model.num_heads
    stages = []
    for one in run.stages:
        longest = one.rollout.max_prompt_tokens + one.rollout.max_new_tokens
        row_tokens = one.batch.row_tokens or longest
        batch = dataclasses.replace(one.batch, row_tokens=row_tokens)
        stages.append(dataclasses.replace(one, batch=batch))
    model = dataclasses.replace(run.model, head_dim=head_dim)
    return dataclasses.replace(run, model=model, stages=tuple(stages))
