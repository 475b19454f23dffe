"""The programs of an 8B model (Qwen3-8B's sizes), compiled for 16 and 32 chips of v5e.

Nothing is run: what is said of memory and collectives is read from the compiled
programs. As a script with a name of SETTINGS it compiles; `pytest -s` prints the table.
"""

import dataclasses
import json
import math
import re
import sys

import jax
import pytest
from tpu_collectives import arrays, collectives, total
from tpu_programs import Setting, from_own_process, lowered, tpu_mesh

from rl_jax.models.params import Leaf, layout, num_params
from rl_jax.models.spec import Attention, ModelSpec
from rl_jax.rollout.programs import EngineSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

MODEL = ModelSpec(
    num_layers=36,
    width=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_width=12288,
    vocab_size=151936,
    family="qwen3",
    attention=(Attention(rope_theta=1e6),),
    qk_norm="head",
    norm_eps=1e-6,
    tie_embeddings=False,
    dtype="bfloat16",
    remat="layer",
)
ENGINE = EngineSpec(
    num_slots=64,
    max_prompt_tokens=1024,
    max_new_tokens=1024,
    prefill_rows=8,
    decode_steps=16,
    stop_ids=(151645, 151643),
)
FSDP, TENSOR = 4, 4
ROW_TOKENS = 2048
ONE_SLICE = Setting(
    topology="v5e:4x4",
    mesh=(1, FSDP, TENSOR),
    model=MODEL,
    engine=ENGINE,
    rows=8,
    row_tokens=ROW_TOKENS,
    num_samples=512,
    num_groups=64,
)
SETTINGS = {
    "v5e:4x4": ONE_SLICE,
    "2 x v5e:4x4": dataclasses.replace(
        ONE_SLICE, mesh=(2, FSDP, TENSOR), rows=16, num_slices=2
    ),
}
PROGRAMS = (
    *("policy_gradient", "apply_gradient", "apply_host"),
    *("score", "admit", "decode"),
)

GIB = 2**30
USABLE = 15.75 * GIB  # of a v5e's 16 GiB, what libtpu gives to programs
WEIGHTS = num_params(MODEL)
TABLE = MODEL.vocab_size * MODEL.width  # the embedding's weights, and the head's
# Whole along the width, as a device computes with them: bytes in bfloat16.
LAYERS_BYTES = (WEIGHTS - 2 * TABLE) * 2 / TENSOR
TABLE_BYTES = TABLE * 2 / TENSOR
HEAD_BYTES = TABLE * 4 / TENSOR  # its matmul is in float32
HOST = re.compile(r"S\(5\)|MoveToHost|MoveToDevice| (?:infeed|outfeed)\(")


@dataclasses.dataclass(frozen=True)
class Program:
    """What the compiler says of a program; bytes are those of one device.

    Attributes:
        collectives: bytes by "kind axes"; a decode counts all its steps.
        shapes: of every array of more than a hundredth of the weights.
        gathered: shapes of what comes out of all-gathers.
        host: what moves data to the host or from it; not the messages of slices.
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    collectives: dict[str, int]
    shapes: list[list[int]]
    gathered: list[list[int]]
    host: list[str]

    @property
    def peak_bytes(self) -> int:
        own = self.output_bytes - self.alias_bytes
        return self.argument_bytes + self.temp_bytes + own


def measured(compiled) -> Program:
    memory, text = compiled.memory_analysis(), compiled.as_text()
    lines = text.splitlines()
    gathers = "\n".join(
        x.split(" all-gather(")[0] for x in lines if " all-gather(" in x
    )
    messages = [x for x in lines if re.search(r" (?:send|recv)\(", x)]
    return Program(
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        alias_bytes=memory.alias_size_in_bytes,
        temp_bytes=memory.temp_size_in_bytes,
        collectives=total(
            collectives(text, {"fsdp": FSDP, "tensor": TENSOR}, "replica")
        ),
        shapes=_shapes(text, WEIGHTS // 100),
        gathered=_shapes(gathers, 0),
        host=HOST.findall(text) + [x for x in messages if "xla_megascale" not in x],
    )


def _shapes(text: str, more_than: int) -> list[list[int]]:
    found = {dims for _, dims in arrays(text) if math.prod(dims) > more_than}
    return sorted(map(list, found))


def compile_all(name: str) -> dict[str, Program]:
    setting = SETTINGS[name]
    mesh = tpu_mesh(setting)
    with jax.set_mesh(mesh):
        found = lowered(setting, mesh, PROGRAMS)
        return {name: measured(x.compile()) for name, x in found.items()}


@pytest.fixture(scope="module", params=SETTINGS)
def compiled(request) -> dict[str, Program]:
    found = from_own_process(__file__, request.param, wait_secs=1200)
    programs = {name: Program(**fields) for name, fields in found.items()}
    print(f"\n{request.param}, GiB a chip: argument, temp, peak; collectives")
    for name, one in programs.items():
        sizes = (one.argument_bytes, one.temp_bytes, one.peak_bytes)
        parts = [f"{k} {v / GIB:.2f}" for k, v in one.collectives.items()]
        line = " ".join(f"{x / GIB:5.2f}" for x in sizes)
        print(f"{name:16} {line}; {', '.join(sorted(parts))}")
    return programs


@pytest.fixture
def setting(request) -> Setting:
    return SETTINGS[request.node.callspec.params["compiled"]]


def cache_shape(setting: Setting) -> tuple[int, ...]:
    """Of one layer's keys, on one device."""
    slots = ENGINE.num_slots // (setting.mesh[0] * FSDP)
    heads = MODEL.num_kv_heads // TENSOR
    return slots, heads, ENGINE.cache_length, MODEL.head_dim


def test_all_that_is_held_at_once_fits_the_memory_of_a_chip(compiled, setting):
    state = WEIGHTS * 4 / (FSDP * TENSOR)
    cache = 2 * MODEL.num_layers * math.prod(cache_shape(setting)) * 2
    # What lies in memory beside each program's own arguments.
    beside = {
        "policy_gradient": 2 * state + cache,  # the optimiser's moments
        "apply_gradient": cache,
        "apply_host": cache,
        "score": 2 * state + cache,
        "admit": 2 * state,
        "decode": 2 * state,
    }
    for name, program in compiled.items():
        assert program.peak_bytes + beside[name] < USABLE, name


def test_a_device_holds_its_share(compiled, setting):
    state = WEIGHTS * 4 / (FSDP * TENSOR)
    cache = 2 * MODEL.num_layers * math.prod(cache_shape(setting)) * 2
    for name, held in {
        "policy_gradient": 2 * state,
        "apply_gradient": 4 * state,
        "apply_host": 2 * state,
        "score": state,
        "admit": state + cache - HEAD_BYTES / FSDP,  # draws nothing, reads no head
        "decode": state + cache,
    }.items():
        assert held <= compiled[name].argument_bytes <= 1.01 * held, name


def test_no_large_array_is_whole_where_the_table_divides_it(compiled, setting):
    axes = {"embed": FSDP} | dict.fromkeys(
        ("heads", "kv_heads", "ffn", "vocab"), TENSOR
    )
    leaves = jax.tree.leaves(layout(MODEL), is_leaf=lambda x: isinstance(x, Leaf))
    rows = setting.rows // (setting.mesh[0] * FSDP)
    expected = {
        # A device's part of each weight.
        *(
            tuple(n // axes.get(a, 1) for n, a in zip(x.shape, x.axes, strict=True))
            for x in leaves
        ),
        # A table gathered along its width; what each layer keeps for the way back.
        (MODEL.vocab_size // TENSOR, MODEL.width),
        (MODEL.num_layers, rows, ROW_TOKENS, MODEL.width),
    }
    known = {tuple(sorted(x)) for x in expected}
    for name, program in compiled.items():
        shapes = {tuple(sorted(n for n in x if n > 1)) for x in program.shapes}
        assert shapes <= known, (name, shapes - known)


def test_the_cache_is_never_gathered(compiled, setting):
    for name in ("admit", "decode"):
        gathered = compiled[name].gathered
        assert gathered
        assert not [x for x in gathered if ENGINE.cache_length in x], name
    # Keys and values of prompts are, as any slot may take any of them.
    heads = MODEL.num_kv_heads // TENSOR
    tokens = ENGINE.prefill_rows * ENGINE.max_prompt_tokens
    prompts = 2 * MODEL.num_layers * tokens * heads * MODEL.head_dim * 2
    found = compiled["admit"].collectives
    assert found["all-gather fsdp"] <= 1.01 * (LAYERS_BYTES + TABLE_BYTES + prompts)
    between = found.get("all-gather replica", 0)
    assert between <= prompts / FSDP if setting.num_slices > 1 else between == 0
    assert compiled["decode"].collectives.get("all-gather replica", 0) < 1024**2


def test_nothing_passes_through_the_host(compiled):
    for name, program in compiled.items():
        if name != "apply_host":
            assert not program.host, (name, program.host[:3])


def test_moments_on_the_hosts_leave_the_chip_but_for_a_layer(compiled):
    here, there = compiled["apply_gradient"], compiled["apply_host"]
    share = 2 * 4 / (FSDP * TENSOR)  # bytes on a chip of both moments of a weight
    tables, layers = 2 * TABLE, WEIGHTS - 2 * TABLE
    # The tables are no layer's; layers come, are worked on and go.
    left = (tables + 4 * layers / MODEL.num_layers) * share
    assert there.host
    assert there.peak_bytes <= here.peak_bytes - WEIGHTS * share + left
    assert there.collectives.keys() == here.collectives.keys()


def test_layers_are_gathered_and_their_gradients_scattered(compiled):
    found = compiled["policy_gradient"].collectives
    # Forward, and again backward; the tables once each.
    expected = 2 * LAYERS_BYTES + TABLE_BYTES + HEAD_BYTES
    assert 0.99 * expected <= found["all-gather fsdp"] <= 1.03 * expected
    # The compiler pads some, to divide them evenly.
    assert 0.99 * LAYERS_BYTES <= found["reduce-scatter fsdp"] <= 1.06 * LAYERS_BYTES


def test_only_gradients_of_the_tables_are_summed_whole(compiled):
    # 151,936 = 2 ** 7 * 1,187 words: a quarter has no divisor that libtpu 0.0.42 wants
    # for a reduce-scatter. Should a later one find it, this may go.
    found = compiled["policy_gradient"].collectives
    tables = TABLE_BYTES + HEAD_BYTES
    assert found["all-reduce fsdp"] <= 1.01 * tables


def test_slices_exchange_one_sum_of_their_shares_of_the_gradient(compiled, setting):
    found = compiled["policy_gradient"].collectives
    between = sum(v for kind, v in found.items() if "replica" in kind)
    if setting.num_slices == 1:
        assert not between
        return
    share = (LAYERS_BYTES + TABLE_BYTES + HEAD_BYTES) / FSDP
    assert 0.99 * share <= found["all-reduce replica"] <= 1.06 * share
    assert between <= 1.07 * share


def test_a_dispatch_gathers_each_weight_once_however_many_tokens_it_draws(compiled):
    once = LAYERS_BYTES + TABLE_BYTES + HEAD_BYTES
    assert compiled["decode"].collectives["all-gather fsdp"] <= 1.01 * once


def test_the_optimiser_sums_no_array(compiled):
    for name in ("apply_gradient", "apply_host"):
        found = compiled[name].collectives
        assert found and all(kind.startswith("all-reduce") for kind in found)
        assert sum(found.values()) < 1024


if __name__ == "__main__":
    found = compile_all(sys.argv[1])
    print(json.dumps({k: dataclasses.asdict(v) for k, v in found.items()}))
