"""What a config must satisfy beyond its types, checked before jax starts.

Each fault raises `ConfigError` with the key, the value found, and an override to try.
What needs the devices (mesh sizes against their number) or the data (columns) is
checked where these are first seen.
"""

import operator
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_jax import dag, data_checks, schema
from rl_jax.data import sources
from rl_jax.errors import ConfigError
from rl_jax.faults import divisor, fault, multiple
from rl_jax.kinds import KINDS
from rl_jax.rewards import registry, routing

if TYPE_CHECKING:
    from rl_jax.config_keys import Run, StageConfig


class Bound(NamedTuple):
    """A range of numbers, in words and as a test."""

    words: str
    holds: Callable[[Any], bool]


ONE_OR_MORE = Bound("1 or more", lambda x: x >= 1)
NOT_NEGATIVE = Bound("0 or more", lambda x: x >= 0)
POSITIVE = Bound("more than 0", lambda x: x > 0)
FRACTION = Bound("from 0 to 1", lambda x: 0 <= x <= 1)
DECAY = Bound("from 0 to below 1", lambda x: 0 <= x < 1)
PROBABILITY = Bound("more than 0 and at most 1", lambda x: 0 < x <= 1)
ANY = Bound("any number", lambda x: True)

RUN_BOUNDS = {
    "seed": NOT_NEGATIVE,
    "model.num_layers": ONE_OR_MORE,
    "model.width": ONE_OR_MORE,
    "model.num_heads": ONE_OR_MORE,
    "model.num_kv_heads": ONE_OR_MORE,
    "model.head_dim": NOT_NEGATIVE,
    "model.ffn_width": ONE_OR_MORE,
    "model.vocab_size": ONE_OR_MORE,
    "model.rope_theta": POSITIVE,
    "mesh.replica": ONE_OR_MORE,
    "mesh.fsdp": Bound("-1, or 1 or more", lambda x: x == -1 or x >= 1),
    "mesh.tensor": ONE_OR_MORE,
    "runtime.num_processes": NOT_NEGATIVE,
    "runtime.process_id": Bound("-1 or more", lambda x: x >= -1),
    "runtime.start_secs": POSITIVE,
    "runtime.step_minutes": NOT_NEGATIVE,
}
STAGE_BOUNDS = {
    "steps": NOT_NEGATIVE,
    "data.num_problems": ONE_OR_MORE,
    "data.num_eval_problems": ONE_OR_MORE,
    "rollout.prompts_per_step": ONE_OR_MORE,
    "rollout.group_size": ONE_OR_MORE,
    "rollout.max_prompt_tokens": ONE_OR_MORE,
    "rollout.max_new_tokens": ONE_OR_MORE,
    "rollout.temperature": NOT_NEGATIVE,
    "rollout.top_p": PROBABILITY,
    "rollout.top_k": NOT_NEGATIVE,
    "rollout.slots": ONE_OR_MORE,
    "rollout.decode_steps": ONE_OR_MORE,
    "rollout.prefill_rows": ONE_OR_MORE,
    "rollout.replica": NOT_NEGATIVE,
    "rollout.fsdp": Bound("-1 or more", lambda x: x >= -1),
    "rollout.tensor": NOT_NEGATIVE,
    "reward.timeout_secs": POSITIVE,
    "reward.max_infrastructure_share": FRACTION,
    "reward.workers": ONE_OR_MORE,
    "objective.clip_low": NOT_NEGATIVE,
    "objective.clip_high": NOT_NEGATIVE,
    "objective.ratio_cap": NOT_NEGATIVE,
    "objective.tau": NOT_NEGATIVE,
    "objective.tau_negative": NOT_NEGATIVE,
    "objective.kl_coef": NOT_NEGATIVE,
    "objective.sampler_low": NOT_NEGATIVE,
    "objective.sampler_cap": NOT_NEGATIVE,
    "objective.off_policy_delta": NOT_NEGATIVE,
    "objective.entropy_coef": ANY,
    "objective.overlong_buffer": FRACTION,
    "objective.overlong_factor": POSITIVE,
    "objective.length_coef": NOT_NEGATIVE,
    "objective.length_from": ONE_OR_MORE,
    "objective.max_refills": NOT_NEGATIVE,
    "objective.reference_every": NOT_NEGATIVE,
    "data.wrong_share": FRACTION,
    "reward.model_weight": ANY,
    "reward.hidden_gap": POSITIVE,
    "curriculum.retire_at": FRACTION,
    "curriculum.retire_after": ONE_OR_MORE,
    "curriculum.reenter_after": NOT_NEGATIVE,
    "curriculum.floor": PROBABILITY,
    "distill.temperature": POSITIVE,
    "distill.top_k": NOT_NEGATIVE,
    "distill.outcome": NOT_NEGATIVE,
    "distill.bound": NOT_NEGATIVE,
    "select.min_score": ANY,
    "select.max_per_prompt": NOT_NEGATIVE,
    "select.min_gap": NOT_NEGATIVE,
    "select.max_prompts": NOT_NEGATIVE,
    "select.max_pass_rate": FRACTION,
    "select.held_out": DECAY,
    "curate.near": FRACTION,
    "curate.near_ngram": ONE_OR_MORE,
    "curate.ngram": ONE_OR_MORE,
    "curate.overlap": FRACTION,
    "curate.min_pass_rate": FRACTION,
    "curate.max_pass_rate": FRACTION,
    "merge.ema": DECAY,
    "gate.at_least": ANY,
    "gate.at_most": ANY,
    "gate.rise": ANY,
    "gate.fall": ANY,
    "preference.beta": POSITIVE,
    "preference.label_smoothing": Bound("from 0 to 0.5", lambda x: 0 <= x <= 0.5),
    "preference.nll_coef": NOT_NEGATIVE,
    "preference.pairs_per_step": ONE_OR_MORE,
    "ranking.prompts_per_step": ONE_OR_MORE,
    "optim.lr": NOT_NEGATIVE,
    "optim.warmup_steps": NOT_NEGATIVE,
    "optim.final_lr_fraction": FRACTION,
    "optim.weight_decay": NOT_NEGATIVE,
    "optim.b1": DECAY,
    "optim.b2": DECAY,
    "optim.eps": POSITIVE,
    "optim.clip_norm": NOT_NEGATIVE,
    "batch.row_tokens": NOT_NEGATIVE,
    "batch.micro_rows": ONE_OR_MORE,
    "batch.rows_per_step": ONE_OR_MORE,
    "batch.updates_per_step": ONE_OR_MORE,
    "eval.every": NOT_NEGATIVE,
    "eval.num_prompts": ONE_OR_MORE,
    "eval.num_samples": NOT_NEGATIVE,
    "checkpoint.every": NOT_NEGATIVE,
    "checkpoint.keep": ONE_OR_MORE,
    "log.samples_every": NOT_NEGATIVE,
    "log.num_samples": ONE_OR_MORE,
}


def check_run(run: "Run") -> None:
    """Raises ConfigError for the first fault found in a run."""
    _check_bounds(run, RUN_BOUNDS, "")
    _check_model(run)
    if not run.stages or len({stage.name for stage in run.stages}) < len(run.stages):
        raise ConfigError(
            f"config.stages is {tuple(stage.name for stage in run.stages)}.\n"
            "Expected one or more names of stages, none of them twice."
        )
    for stage in run.stages:
        _check_bounds(stage, STAGE_BOUNDS, stage.prefix)
        _check_init(stage, dag.before(run, stage, "policy"))
        data_checks.check(stage, dag.before(run, stage, "data"))
        _check_eval(stage)
        _check_reward(stage)
        _check_rows(run, stage)
        _check_gate(stage)


def _check_bounds(holder: Any, bounds: dict[str, Bound], prefix: str) -> None:
    table = schema.keys(type(holder))
    for key, bound in bounds.items():
        value = operator.attrgetter(key)(holder)
        if value is not None and not bound.holds(value):
            # An optional number has no default; a half is in the range of each.
            example = 0.5 if table[key].default is None else table[key].default
            raise fault(
                f"config.{prefix}{key} is {value}, expected {bound.words}",
                (prefix + key, example),
                note=f" ({table[key].comment})",
            )


def _check_model(run: "Run") -> None:
    model, tensor = run.model, run.mesh.tensor
    if model.path:
        if os.path.isfile(os.path.join(model.path, "config.json")):
            return
        wrong = "has no config.json" if os.path.isdir(model.path) else "is not a folder"
        raise ConfigError(
            f"config.model.path is {model.path!r}, which {wrong}; expected a local "
            "Hugging Face model folder.\nTo get one: `hf download ORG/NAME --local-dir "
            "DIR`; then write `--config.model.path=DIR`."
        )
    if model.num_heads % model.num_kv_heads:
        raise fault(
            f"config.model.num_heads={model.num_heads} is not a multiple of "
            f"config.model.num_kv_heads={model.num_kv_heads}",
            ("model.num_kv_heads", divisor(model.num_heads, model.num_kv_heads)),
        )
    if not model.head_dim and model.width % model.num_heads:
        raise fault(
            f"config.model.width={model.width} is not a multiple of config.model."
            f"num_heads={model.num_heads}, so no head_dim follows from them",
            ("model.width", multiple(model.width, model.num_heads)),
            ("model.head_dim", 32),
        )
    head_dim = model.head_dim or model.width // model.num_heads
    if head_dim % 2:
        origin = "" if model.head_dim else " (width / num_heads)"
        raise fault(
            f"config.model.head_dim is {head_dim}{origin}, expected an even number: "
            "rotary positions turn pairs of channels",
            ("model.head_dim", head_dim + 1),
        )
    for key in ("num_kv_heads", "ffn_width", "vocab_size"):
        size = getattr(model, key)
        if size % tensor:
            raise fault(
                f"config.model.{key}={size} is not a multiple of "
                f"config.mesh.tensor={tensor}",
                ("mesh.tensor", 1),
                (f"model.{key}", multiple(size, tensor)),
            )


def _check_init(stage: "StageConfig", earlier: list[str]) -> None:
    known = ["base", "new", *earlier]
    if dag.is_had(stage.init, (), known):
        return
    raise fault(
        f"config.{stage.prefix}init is {stage.init!r}, expected "
        f"{', '.join(map(repr, known))}, or an existing folder of checkpoints",
        (f"{stage.prefix}init", (schema.nearest(stage.init, known) or known)[0]),
    )


def _check_eval(stage: "StageConfig") -> None:
    key = stage.prefix
    if not stage.eval.every or "data.eval" in KINDS[stage.kind].left_out:
        return
    if stage.data.held_out and not stage.data.eval:
        return  # only the loss is measured
    if not stage.data.eval:
        generated = stage.data.train in sources.BUILT_IN
        raise fault(
            f"config.{key}eval.every is {stage.eval.every}, but there is nothing to "
            f"evaluate on: config.{key}data.eval is empty",
            (f"{key}data.eval", stage.data.train if generated else "FILE"),
            (f"{key}eval.every", 0),
        )
    if not stage.eval.greedy and not stage.eval.num_samples:
        raise fault(
            f"config.{key}eval.greedy is false and config.{key}eval.num_samples is 0: "
            "an evaluation would take no replies",
            (f"{key}eval.greedy", True),
            (f"{key}eval.num_samples", 4),
        )
    if stage.eval.num_samples and not stage.rollout.temperature:
        raise fault(
            f"config.{key}eval.num_samples is {stage.eval.num_samples}, but at "
            f"config.{key}rollout.temperature=0 all replies are the same",
            (f"{key}rollout.temperature", 1.0),
            (f"{key}eval.num_samples", 0),
        )


def check_functions(functions: tuple[str, ...], key: str) -> None:
    """Raises ConfigError for a reward function that is not there.

    Args:
        key: of the config, without "config.", that names them.
    """
    for name in functions:
        file, colon, _ = name.rpartition(":")
        if colon and file.endswith(".py") and not os.path.isfile(file):
            raise fault(
                f"config.{key} has {name!r}, but there is no file {file!r} "
                f"in {os.getcwd()}",
                (key, "PATH.py:FUNCTION"),
            )
        if not colon and name not in registry.BUILT_IN:
            near = (schema.nearest(name, registry.BUILT_IN) or ["maths"])[0]
            raise fault(
                f"config.{key} has {name!r}, expected names among "
                f"{', '.join(registry.BUILT_IN)}, or FILE.py:FUNCTION",
                (key, tuple(near if f == name else f for f in functions)),
            )


def _check_reward(stage: "StageConfig") -> None:
    functions, weights = stage.reward.functions, stage.reward.weights
    key = f"{stage.prefix}reward."
    check_functions(functions, f"{key}functions")
    routing.parse(stage.reward.routes, f"config.{key}routes")
    registry.parse_options(stage.reward.options, f"config.{key}".rstrip("."))
    if not functions or len(set(functions)) < len(functions):
        raise fault(
            f"config.{key}functions is {functions}, expected one name or more, none of "
            "them twice",
            (f"{key}functions", tuple(dict.fromkeys(functions)) or ("maths",)),
        )
    if len(functions) != len(weights):
        raise fault(
            f"config.{key}functions has {len(functions)} names, config.{key}weights "
            f"{len(weights)} numbers; expected one weight for each function",
            (f"{key}weights", tuple(1.0 for _ in functions)),
        )


def check_longest(stage: "StageConfig") -> None:
    """Raises ConfigError if a row has no room for the longest reply and its prompt."""
    rollout, batch, key = stage.rollout, stage.batch, stage.prefix
    longest = rollout.max_prompt_tokens + rollout.max_new_tokens
    if 0 < batch.row_tokens < longest:
        raise fault(
            f"config.{key}batch.row_tokens is {batch.row_tokens}, less than the "
            f"{longest} of {key}rollout.max_prompt_tokens + max_new_tokens",
            (f"{key}batch.row_tokens", longest),
            (f"{key}batch.row_tokens", 0),
        )


def _check_gate(stage: "StageConfig") -> None:
    gate, key = stage.gate, f"{stage.prefix}gate."
    bounds = (gate.at_least, gate.at_most, gate.rise, gate.fall)
    asks = any(bound is not None for bound in bounds)
    if asks and not gate.metric:
        raise fault(
            f"config.{key}metric is empty, so the gate asks for nothing",
            (f"{key}metric", "eval/accuracy"),
        )
    if gate.metric and not asks:
        raise fault(
            f"config.{key}metric is {gate.metric!r}, but the gate has no bound for it: "
            "at_least, at_most, rise or fall",
            (f"{key}at_least", 0.5),
        )


def _check_rows(run: "Run", stage: "StageConfig") -> None:
    batch, key = stage.batch, stage.prefix
    if stage.kind in data_checks.SUPERVISED and batch.rows_per_step % batch.micro_rows:
        raise fault(
            f"config.{key}batch.rows_per_step={batch.rows_per_step} is not a multiple "
            f"of config.{key}batch.micro_rows={batch.micro_rows}",
            (f"{key}batch.micro_rows", divisor(batch.rows_per_step, batch.micro_rows)),
        )
    # Rows are laid on replica x fsdp. With fsdp=-1 the devices decide, later.
    rollout, mesh = stage.rollout, run.mesh
    sampler, where = (rollout, f"{key}rollout") if rollout.mesh else (mesh, "mesh")
    for name, (sizes, place) in {
        "batch.micro_rows": (mesh, "mesh"),
        "rollout.slots": (sampler, where),
        "rollout.prefill_rows": (sampler, where),
    }.items():
        rows = operator.attrgetter(name)(stage)
        parts = max(sizes.replica, 1) * max(sizes.fsdp, 1)
        if rows % parts:
            raise fault(
                f"config.{key}{name}={rows} is not a multiple of {parts}, the product "
                f"of config.{place}.replica and config.{place}.fsdp",
                (f"{key}{name}", multiple(rows, parts)),
            )
