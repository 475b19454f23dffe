"""Every program of training and sampling, compiled for TPUs that are not there.

The TPU compiler comes with libtpu and runs on a CPU host. It wants a process of its
own: this file is run as a script, which prints what the tests then look at.
"""

import dataclasses
import json
import os
import re

import jax
import pytest
from tpu_collectives import collectives, total
from tpu_programs import PROGRAMS, Setting, from_own_process, lowered, tpu_mesh

from rl_jax import learner as learners
from rl_jax.models.params import num_params
from rl_jax.models.spec import ModelSpec
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
SETTING = Setting(
    topology=TOPOLOGY,
    mesh=MESH,
    model=MODEL,
    engine=ENGINE,
    rows=ROWS,
    row_tokens=ROW_TOKENS,
    num_samples=32,
    num_groups=8,
)


@dataclasses.dataclass(frozen=True)
class Program:
    """What the compiler says of a program; bytes are those of one device.

    Attributes:
        alias_bytes: arguments whose memory the results take over.
        collectives: bytes by "kind axes", of what it does once.
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
    mesh = tpu_mesh(SETTING)
    with jax.set_mesh(mesh):
        found = lowered(SETTING, mesh)
        # What the tests below look for is found where it is: in the plain form.
        os.environ["RL_JAX_KERNELS"] = "plain"
        learners._gradients.cache_clear()  # traced with the kernels
        found["plain score"] = lowered(SETTING, mesh, ("score",))["score"]
        return {name: _measured(x.compile()) for name, x in found.items()}


_TOKENS, _WORDS = ROWS // MESH[1] * ROW_TOKENS, MODEL.vocab_size // MESH[2]
_ANY = rf"{_TOKENS}|{ROWS // MESH[1]},{ROW_TOKENS}"
_LOGITS = re.compile(rf"\w+\[(?:(?:{_ANY}),{_WORDS}|{_WORDS},(?:{_ANY}))\]")
_KERNEL = re.compile(r"%?(\w+?)[.\d]* = .*custom_call_target=\"tpu_custom_call\"")


def _measured(compiled) -> Program:
    memory = compiled.memory_analysis()
    text = compiled.as_text()
    return Program(
        argument_bytes=memory.argument_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        collectives=total(collectives(text, {"fsdp": MESH[1], "tensor": MESH[2]})),
        kernels=sorted(set(_KERNEL.findall(text))),
        logits=sorted(set(_LOGITS.findall(text))),
    )


@pytest.fixture(scope="module")
def compiled() -> dict[str, Program]:
    return {k: Program(**v) for k, v in from_own_process(__file__).items()}


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


# Bytes of the layers' matrices in compute dtype, whole along the width.
LAYERS = (num_params(MODEL) - MODEL.vocab_size * MODEL.width) * 2 / MESH[2]


def test_gradients_gather_weights_and_scatter_what_comes_back(compiled):
    for name in ("policy_gradient", "supervised_gradient"):
        found = compiled[name].collectives
        # Forward, and again backward; then the table, as embedding and as head.
        assert found["all-gather fsdp"] >= 2 * 0.98 * LAYERS
        # Small ones are summed whole, here keys' and values': a sixth.
        assert 0.8 * LAYERS <= found["reduce-scatter fsdp"] <= 1.1 * LAYERS
        tables = MODEL.vocab_size * MODEL.width * (2 + 4) / MESH[2]
        assert found["all-reduce fsdp"] <= 1.1 * (tables + LAYERS / 6)


def test_the_optimiser_only_sums_a_norm(compiled):
    found = compiled["apply_gradient"].collectives
    assert found and all(kind.startswith("all-reduce") for kind in found)
    assert sum(found.values()) < 1024


def test_sampling_gathers_weights_and_sums_over_heads(compiled):
    for name in ("admit", "decode", "score"):
        found = compiled[name].collectives
        assert found["all-gather fsdp"] >= 0.98 * LAYERS
        assert found["all-reduce tensor"] > 0
        assert "reduce-scatter fsdp" not in found


def test_a_dispatch_gathers_each_weight_once_however_many_tokens_it_draws(compiled):
    tables = MODEL.vocab_size * MODEL.width * (2 + 4) / MESH[2]
    assert compiled["decode"].collectives["all-gather fsdp"] < 1.1 * (LAYERS + tables)


EXCERPT = """\
%all-reduce-scatter.1 (input: bf16[8,16]) -> bf16[8,4] {
  %all-reduce.1 = bf16[8,16]{1,0} all-reduce(%input), \
replica_groups={{0,2,4,6},{1,3,5,7}}
  ROOT %dynamic-slice.1 = bf16[8,4]{1,0} dynamic-slice(%all-reduce.1, %zero, %at)
}

%started (a: f32[2,4]) -> f32[8,4] {
  ROOT %all-gather.1 = f32[8,4]{1,0} all-gather(%a), \
replica_groups=[2,4]<=[4,2]T(1,0), frontend_attributes={chain_id="0"}
}

%done (a: f32[2,4]) -> f32[8,4] {
  ROOT %all-gather.2 = f32[8,4]{1,0} all-gather(%a), \
replica_groups=[2,4]<=[4,2]T(1,0), frontend_attributes={chain_id="0"}
}

%until (p: (s32[])) -> pred[] {
  %bound = s32[]{:T(128)} constant(3)
  ROOT %less = pred[] compare(%i, %bound), direction=LT
}

%body (p: (s32[])) -> (s32[]) {
  %fusion.1 = bf16[8,4]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
  %async-collective-start = (f32[2,4], f32[8,4]) fusion(%y), calls=%started
  %async-collective-done = f32[8,4] fusion(%z), calls=%done
}

ENTRY %main (x: f32[8]) -> f32[] {
  %while.1 = (s32[]) while(%start), condition=%until, body=%body
  %sum = (f32[2]{0}, f32[]) all-reduce(%a, %b), replica_groups=mesh['axis_0'=4,\
'axis_1'=2,'axis_2'=1] {'axis_1','axis_2'}, to_apply=%add
  %all = f32[] all-reduce(%c), replica_groups=mesh['axis_0'=2,'axis_1'=4], \
device_ids=([4,2]T(1,0)) {'axis_0','axis_1'}, to_apply=%add
  %part = f32[2]{0} reduce-scatter(%d), replica_groups=[4,2]<=[8], dimensions={0}
  %send = (bf16[5]{0}, u32[], token[]) send(%e), is_host_transfer=true, \
frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
  %recv = (bf16[5]{0}, u32[], token[]) recv(%f), is_host_transfer=true, \
frontend_attributes={_xla_megascale_transfer_type="ALL_REDUCE"}
}
"""


def test_collectives_are_read_in_all_the_ways_in_which_they_are_written():
    found = collectives(EXCERPT, {"fsdp": 4, "tensor": 2}, "replica")
    assert total(found) == {
        "reduce-scatter fsdp": 3 * 8 * 16 * 2,
        "all-gather fsdp": 3 * 8 * 4 * 4,
        "all-reduce tensor": (2 + 1) * 4,
        "all-reduce fsdp+tensor": 4,
        "reduce-scatter tensor": 2 * 2 * 4,
        "all-reduce replica": 5 * 2,
    }


def test_groups_written_in_an_unknown_way_are_an_error():
    text = EXCERPT.replace("[4,2]<=[8]", "unheard-of")
    with pytest.raises(ValueError, match="unheard-of"):
        collectives(text, {"fsdp": 4, "tensor": 2})


if __name__ == "__main__":
    print(json.dumps({k: dataclasses.asdict(v) for k, v in compile_all().items()}))
