"""Every program of training and sampling, compiled for TPUs that are not there.

The TPU compiler comes with libtpu and runs on a CPU host. It wants a process of its
own: this file is run as a script, which prints what the tests then look at.
"""

import dataclasses
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies
from jax.sharding import NamedSharding

from rl_jax import learner as learners
from rl_jax.kernels import estimate  # pyright: ignore[reportMissingImports]
from rl_jax.learner import Batch, Outcome, State, make_learner
from rl_jax.mesh import make_mesh, spec
from rl_jax.models import decoder
from rl_jax.models.params import abstract_params, num_params
from rl_jax.models.spec import ModelSpec
from rl_jax.objectives.policy import PRESETS
from rl_jax.rollout import programs
from rl_jax.rollout.programs import EngineSpec

TOPOLOGY, MESH = "v5e:2x4", (1, 4, 2)
NUM_DEVICES = 8

MODEL = ModelSpec(
    num_layers=2,
    width=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=128,  # as wide as a tile: narrower ones are padded to it
    ffn_width=512,
    vocab_size=1536,
    dtype="bfloat16",
    remat="layer",
)
ENGINE = EngineSpec(
    num_slots=16,
    max_prompt_tokens=64,
    max_new_tokens=64,
    prefill_rows=8,
    decode_steps=8,
    stop_ids=(1, 2),
)
ROWS, ROW_TOKENS = 12, 128  # sizes that tell logits from any other array
NUM_SAMPLES, NUM_GROUPS = 32, 8
PROGRAMS = (
    "policy_gradient",
    "supervised_gradient",
    "apply_gradient",
    "score",
    "admit",
    "decode",
)


@dataclasses.dataclass(frozen=True)
class Program:
    """What the compiler says of a program; bytes are those of one device.

    Attributes:
        alias_bytes: arguments whose memory the results take over.
        collectives: how many of each kind the program has.
        kernels: names of the Mosaic calls in it.
        logits: arrays of a device's tokens by its part of the vocabulary.
    """

    argument_bytes: int
    alias_bytes: int
    temp_bytes: int
    collectives: dict[str, int]
    kernels: list[str]
    logits: list[str]


def compile_all() -> dict[str, Program]:
    """Compiles every program of PROGRAMS for TOPOLOGY, from shapes alone."""
    topology = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY)
    mesh = make_mesh(*MESH, devices=topology.devices)

    def like(shape, dtype, partition) -> Any:
        return jax.ShapeDtypeStruct(
            shape, dtype, sharding=NamedSharding(mesh, partition)
        )

    def placed(x) -> Any:
        partition = jax.P() if x.sharding is None else x.sharding.spec
        return like(x.shape, x.dtype, partition)

    tx, schedule = learners.optimiser(
        MODEL,
        lr=1e-3,
        schedule="cosine",
        warmup_steps=2,
        total_steps=9,
        final_lr_fraction=0.1,
        weight_decay=0.1,
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        clip_norm=1.0,
    )
    learner = make_learner(
        MODEL, tx, schedule, loss=PRESETS["grpo"], num_groups=NUM_GROUPS
    )
    with jax.set_mesh(mesh):
        params = abstract_params(MODEL, mesh)
        grads = jax.tree.map(placed, jax.eval_shape(learner.zero_gradient, params))
        opt_state = jax.tree.map(placed, jax.eval_shape(tx.init, params))
        state = State(like((), jnp.int32, jax.P()), params, opt_state)
        kinds = {"mask_BT": jnp.bool_} | dict.fromkeys(
            ("sampler_logp_BT", "old_logp_BT"), jnp.float32
        )
        rows = functools.partial(
            like, (ROWS, ROW_TOKENS), partition=spec("batch", "time")
        )
        batch = Batch(
            **{
                f.name: rows(dtype=kinds.get(f.name, jnp.int32))
                for f in dataclasses.fields(Batch)
                if f.name not in ("ref_logp_BT", "adv_BT")
            }
        )
        samples = functools.partial(like, (NUM_SAMPLES,), partition=jax.P())
        outcome = Outcome(
            reward_N=samples(jnp.float32),
            group_N=samples(jnp.int32),
            valid_N=samples(jnp.bool_),
            weight_N=samples(jnp.float32),
        )
        cache = decoder.empty_cache(
            MODEL, ENGINE.num_slots, ENGINE.cache_length, make=like
        )
        slots = jax.tree.map(
            lambda x: like(x.shape, x.dtype, programs.slot_spec(x)),
            programs.slot_shapes(ENGINE),
        )
        W, P, T = ENGINE.num_slots, ENGINE.prefill_rows, ENGINE.max_prompt_tokens
        donated = ("cache", "slots")
        admit = jax.jit(
            functools.partial(programs.admit, model=MODEL, seed=0),
            donate_argnames=donated,
        )
        decode = jax.jit(
            functools.partial(programs.decode, model=MODEL, engine=ENGINE),
            donate_argnames=donated,
        )
        prompts = (
            like((W, 3), jnp.uint32, spec("batch", "time")),
            like((W,), jnp.int32, spec("batch")),
            like((P, T), jnp.int32, spec("batch", "time")),
            like((P,), jnp.int32, spec("batch")),
        )
        lowered = {
            "policy_gradient": learner.policy_gradient.lower(
                params, grads, batch, outcome, 99
            ),
            "supervised_gradient": learner.supervised_gradient.lower(
                params, grads, batch, outcome.weight_N, 99
            ),
            "apply_gradient": learner.apply_gradient.lower(state, grads),
            "score": learner.score.lower(params, batch),
            "admit": admit.lower(params, cache, slots, slots, *prompts),
            "decode": decode.lower(params, cache, slots),
        }
        assert tuple(lowered) == PROGRAMS
        # What the tests below look for is found where it is: in the plain form.
        os.environ["RL_JAX_KERNELS"] = "plain"
        learners._gradients.cache_clear()  # traced with the kernels
        learner = make_learner(MODEL, tx, schedule, loss=PRESETS["grpo"], num_groups=8)
        lowered["plain score"] = learner.score.lower(params, batch)
        return {name: _measured(x.compile()) for name, x in lowered.items()}


_TOKENS, _WORDS = ROWS // MESH[1] * ROW_TOKENS, MODEL.vocab_size // MESH[2]
_ANY = rf"{_TOKENS}|{ROWS // MESH[1]},{ROW_TOKENS}"
_LOGITS = re.compile(rf"\w+\[(?:(?:{_ANY}),{_WORDS}|{_WORDS},(?:{_ANY}))\]")
_KERNEL = re.compile(r"%?(\w+?)[.\d]* = .*custom_call_target=\"tpu_custom_call\"")


def _measured(compiled) -> Program:
    memory = compiled.memory_analysis()
    kinds = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all")
    text = compiled.as_text()
    return Program(
        argument_bytes=memory.argument_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        # An asynchronous one is two instructions, of which one starts it.
        collectives={k: len(re.findall(rf" {k}(?:-start)?\(", text)) for k in kinds},
        kernels=sorted(set(_KERNEL.findall(text))),
        logits=sorted(set(_LOGITS.findall(text))),
    )


@pytest.fixture(scope="module")
def compiled() -> dict[str, Program]:
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, the TPU compiler, is not installed: pip install libtpu")
    env = os.environ | estimate.environment()
    done = subprocess.run(
        [sys.executable, __file__], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: Program(**fields) for name, fields in found.items()}


# Bytes on one device. Norm scales are whole everywhere, hence the slack of a tenth.
WEIGHTS = num_params(MODEL) * 4 / NUM_DEVICES
CACHE = (
    2
    * MODEL.num_layers
    * ENGINE.num_slots
    * ENGINE.cache_length
    * MODEL.num_kv_heads
    * MODEL.head_dim
    * 2
    / NUM_DEVICES
)


@pytest.mark.parametrize(
    ("name", "arguments", "donated"),
    [
        ("policy_gradient", 2 * WEIGHTS, WEIGHTS),
        ("supervised_gradient", 2 * WEIGHTS, WEIGHTS),
        # The gradients are given away as well, but no result needs their memory.
        ("apply_gradient", 4 * WEIGHTS, 3 * WEIGHTS),
        ("score", WEIGHTS, 0),
        ("admit", WEIGHTS + CACHE, CACHE),
        ("decode", WEIGHTS + CACHE, CACHE),
    ],
)
def test_a_device_holds_its_share_and_results_take_over_what_is_donated(
    compiled, name, arguments, donated
):
    program = compiled[name]
    # Small arrays are padded to tiles of 8 x 128: slack for the rows and slots.
    small = 256 * 1024
    assert arguments <= program.argument_bytes <= 1.1 * arguments + small
    assert donated <= program.alias_bytes <= 1.1 * donated + small


@pytest.mark.parametrize("name", PROGRAMS)
def test_temporaries_stay_near_what_a_program_must_hold(compiled, name):
    gathered = num_params(MODEL) * 4 / MESH[2]
    activations = ROWS / MESH[1] * ROW_TOKENS * 4 * (MODEL.vocab_size / MESH[2] * 4)
    assert compiled[name].temp_bytes < 2 * gathered + activations + CACHE


def test_the_update_of_grpo_is_made_of_our_kernels(compiled):
    found = compiled["policy_gradient"].kernels
    for name in (
        "advantage_group",
        "logprob_stats",
        "logprob_grads",
        "splash_mha_fwd",
        "splash_mha_dkv",
    ):
        assert any(kernel.startswith(name) for kernel in found), (name, found)


def test_scoring_and_prefill_use_the_kernels_too(compiled):
    found = compiled["score"].kernels
    assert "logprob_stats" in found
    for name in ("score", "admit"):
        kernels = compiled[name].kernels
        assert any(kernel.startswith("splash_mha_fwd") for kernel in kernels), kernels


def test_no_program_holds_logits(compiled):
    assert compiled["plain score"].logits and not compiled["plain score"].kernels
    for name in ("policy_gradient", "supervised_gradient", "score"):
        assert not compiled[name].logits, name


def test_gradients_gather_weights_and_reduce_what_comes_back(compiled):
    for name in ("policy_gradient", "supervised_gradient"):
        found = compiled[name].collectives
        assert found["all-gather"] > 0
        assert found["all-reduce"] + found["reduce-scatter"] > 0


def test_the_optimiser_only_sums_a_norm(compiled):
    found = compiled["apply_gradient"].collectives
    assert found["all-reduce"] > 0
    assert found["all-gather"] == found["all-to-all"] == 0


def test_sampling_gathers_weights_and_sums_over_heads(compiled):
    for name in ("admit", "decode", "score"):
        found = compiled[name].collectives
        assert found["all-gather"] > 0
        assert found["all-reduce"] + found["reduce-scatter"] > 0


if __name__ == "__main__":
    print(json.dumps({k: dataclasses.asdict(v) for k, v in compile_all().items()}))
