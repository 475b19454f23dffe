"""Every program of training and sampling, lowered for TPUs that are not there.

The TPU compiler comes with libtpu and runs on a CPU host. It wants a process of its
own: a test's file is run as a script, which prints what its tests then look at.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from tiny_optimiser import adamw

from rl_jax import placement
from rl_jax.kernels import estimate  # pyright: ignore[reportMissingImports]
from rl_jax.learner import Batch, Learner, Outcome, State, make_learner
from rl_jax.mesh import make_mesh, spec
from rl_jax.models import decoder
from rl_jax.models.params import abstract_params
from rl_jax.models.spec import ModelSpec
from rl_jax.objectives.policy import PRESETS
from rl_jax.rollout import programs
from rl_jax.rollout.programs import EngineSpec

PROGRAMS = (
    "policy_gradient",
    "supervised_gradient",
    "apply_gradient",
    "score",
    "admit",
    "decode",
)


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the programs are lowered for.

    Attributes:
        topology: as libtpu names it, of one slice.
        mesh: sizes of replica, fsdp and tensor, of all slices together.
        rows, row_tokens: of a micro-batch.
        num_samples, num_groups: of a step.
    """

    topology: str
    mesh: tuple[int, int, int]
    model: ModelSpec
    engine: EngineSpec
    rows: int
    row_tokens: int
    num_samples: int
    num_groups: int
    num_slices: int = 1


def from_own_process(path: str, *arguments: str, wait_secs: int = 300) -> Any:
    """What the script `path` prints on its last line, JSON; skips without libtpu."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, the TPU compiler, is not installed: pip install libtpu")
    done = subprocess.run(
        [sys.executable, path, *arguments],
        env=os.environ | estimate.environment(),
        capture_output=True,
        text=True,
        timeout=wait_secs,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def tpu_mesh(setting: Setting) -> Mesh:
    """The mesh of a setting, over devices that are not there."""
    slices = {} if setting.num_slices == 1 else {"num_slices": setting.num_slices}
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=setting.topology, **slices
    )
    return make_mesh(*setting.mesh, devices=topology.devices)


def new_learner(setting: Setting, *, host: bool = False) -> tuple[Learner, Any]:
    """(programs of a stage of GRPO, its optimiser).

    Args:
        host: the optimiser's moments stay on the hosts.
    """
    tx, schedule = adamw(
        setting.model,
        schedule="cosine",
        warmup_steps=2,
        total_steps=9,
        final_lr_fraction=0.1,
        weight_decay=0.1,
        host=host,
    )
    loss, groups = PRESETS["grpo"], setting.num_groups
    return make_learner(setting.model, tx, schedule, loss=loss, num_groups=groups), tx


def lowered(
    setting: Setting, mesh: Mesh, names: tuple[str, ...] = PROGRAMS
) -> dict[str, Any]:
    """The programs of these names, from shapes alone: `jax.stages.Lowered` each.

    Those of PROGRAMS, and "apply_host": "apply_gradient" with the moments on the hosts.

    Called under `jax.set_mesh(mesh)`.
    """
    model, engine = setting.model, setting.engine

    def like(shape, dtype, partition) -> Any:
        return jax.ShapeDtypeStruct(
            shape, dtype, sharding=NamedSharding(mesh, partition)
        )

    def placed(x) -> Any:
        partition = jax.P() if x.sharding is None else x.sharding.spec
        return like(x.shape, x.dtype, partition)

    learner, tx = new_learner(setting)
    params = abstract_params(model, mesh)
    grads = jax.tree.map(placed, jax.eval_shape(learner.zero_gradient, params))
    opt_state = jax.tree.map(placed, jax.eval_shape(tx.init, params))
    state = State(like((), jnp.int32, jax.P()), params, opt_state)
    apart = dataclasses.replace(state, opt_state=placement.on_host(opt_state))
    apply_host = new_learner(setting, host=True)[0].apply_gradient
    kinds = {"mask_BT": jnp.bool_} | dict.fromkeys(
        ("sampler_logp_BT", "old_logp_BT"), jnp.float32
    )
    rows = functools.partial(
        like, (setting.rows, setting.row_tokens), partition=spec("batch", "time")
    )
    batch = Batch(
        **{
            f.name: rows(dtype=kinds.get(f.name, jnp.int32))
            for f in dataclasses.fields(Batch)
            if f.name not in ("ref_logp_BT", "adv_BT")
        }
    )
    samples = functools.partial(like, (setting.num_samples,), partition=jax.P())
    outcome = Outcome(
        reward_N=samples(jnp.float32),
        group_N=samples(jnp.int32),
        valid_N=samples(jnp.bool_),
        weight_N=samples(jnp.float32),
    )
    cache = decoder.empty_cache(model, engine.num_slots, engine.cache_length, like)
    slots = jax.tree.map(
        lambda x: like(x.shape, x.dtype, programs.slot_spec(x)),
        programs.slot_shapes(engine),
    )
    W, P, T = engine.num_slots, engine.prefill_rows, engine.max_prompt_tokens
    donated = ("cache", "slots")
    admit = jax.jit(
        functools.partial(programs.admit, model=model, seed=0),
        donate_argnames=donated,
    )
    decode = jax.jit(
        functools.partial(programs.decode, model=model, engine=engine),
        donate_argnames=donated,
    )
    prompts = (
        like((W, 3), jnp.uint32, spec("batch", "time")),
        like((W,), jnp.int32, spec("batch")),
        like((P, T), jnp.int32, spec("batch", "time")),
        like((P,), jnp.int32, spec("batch")),
    )
    calls = {
        "policy_gradient": lambda: learner.policy_gradient.lower(
            params, grads, batch, outcome, 99
        ),
        "supervised_gradient": lambda: learner.supervised_gradient.lower(
            params, grads, batch, outcome.weight_N, 99
        ),
        "apply_gradient": lambda: learner.apply_gradient.lower(state, grads),
        "apply_host": lambda: apply_host.lower(apart, grads),
        "score": lambda: learner.score.lower(params, batch),
        "admit": lambda: admit.lower(params, cache, slots, slots, *prompts),
        "decode": lambda: decode.lower(params, cache, slots),
    }
    return {name: calls[name]() for name in names}
