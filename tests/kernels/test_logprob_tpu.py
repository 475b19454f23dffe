"""The TPU kernels of the log-probability: in Pallas' interpreter, and compiled.

The interpreter fills memory with NaN, carries out copies when they are waited for, and
can watch for races. Compiled, they are for TPUs that are not there: this file is then
run as a script, in a process of its own, and prints what the tests look at.

Legend: N tokens, D model width, V vocabulary.
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
import logprob_cases as cases
import logprob_reference as reference
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from rl_jax.kernels import estimate  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.logprob import token_logprob, tpu  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.logprob.blocks import Blocks  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.logprob.head import Head, Logits, Stats  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.platform import KernelError  # pyright: ignore[reportMissingImports]

QUICK = {
    "one token",
    "many tiles, bfloat16",
    "[D, V], many tiles",
    "bfloat16, all options, [D, V]",
    "float32 hidden, bfloat16 head",
    "some masked",
    "everything masked",
    "extreme",
}
QUICK_KL = {"ragged", "bfloat16", "extreme"}


def _marked(table, quick):
    slow = pytest.mark.slow
    return [
        pytest.param(case, id=case.name, marks=[] if case.name in quick else [slow])
        for case in table
    ]


@pytest.mark.parametrize("case", _marked(cases.CASES, QUICK))
def test_values_and_gradients_match_the_reference(case):
    cases.check(case, cases.outputs(case, "tpu_interpret"), cases.expected(case))


@pytest.mark.parametrize("case", _marked(cases.KL_CASES, QUICK_KL))
def test_kl_and_its_gradients_match_the_reference(case):
    got = cases.kl_outputs(case, "tpu_interpret")
    cases.check(case, got, cases.kl_expected(case))


# Small tiles, several in each direction, none of them whole at the end.

SMALL = Blocks(tokens=128, vocab=256, rows=128, columns=128)
N, D, V = 300, 200, 700


def _drawn(
    layout="VD", dtype: Any = np.float32, N=N, D=D, V=V
) -> tuple[reference.Model, np.ndarray]:
    """A model and targets, of which some are other shards'."""
    rng = np.random.default_rng(0)
    weight_VD = rng.normal(size=(V, D)) * (2 / np.sqrt(D))
    model = reference.Model(
        rng.normal(size=(N, D)).astype(dtype),
        (weight_VD if layout == "VD" else weight_VD.T).astype(dtype),
        rng.normal(size=V).astype(dtype),
        layout,
        0.7,
        4.0,
    )
    return model, rng.integers(-50, V + 50, N).astype(np.int32)


def _arguments(model, num_live):
    """Of the model, with NaN where masked tokens have their hidden states."""
    hidden_ND = model.hidden_ND.copy()
    hidden_ND[num_live:] = np.nan
    head = Head(jnp.asarray(model.weight), jnp.asarray(model.bias_V))
    logits = Logits(model.layout, model.temperature, model.softcap)
    return jnp.asarray(hidden_ND), head, logits


def _stats(model, target_N, num_live, blocks):
    hidden_ND, head, logits = _arguments(model, num_live)
    call = functools.partial(tpu.stats, logits=logits, interpret=True, blocks=blocks)
    out = jax.jit(call)(hidden_ND, head, jnp.asarray(target_N), jnp.int32(num_live))
    return Stats(*map(np.asarray, out))


def _grads(model, target_N, num_live, blocks):
    """(got, wanted) gradients of a sum of all three outputs, of live tokens."""
    N, V = len(model.hidden_ND), len(model.bias_V)
    rng = np.random.default_rng(1)
    mask_N = np.arange(N) < num_live
    d_KN = rng.normal(size=(3, N)).astype(np.float32) * mask_N
    out = reference.token_logprob(model, target_N.clip(0, V - 1), mask_N)
    want = reference.logprob_grads(model, target_N, d_KN, mask_N)
    hidden_ND, head, logits = _arguments(model, num_live)
    of_token = (jnp.asarray(x, jnp.float32) for x in (out.lse_N, out.entropy_N, *d_KN))
    call = functools.partial(tpu.grads, logits=logits, interpret=True, blocks=blocks)
    got = jax.jit(call)(
        *(hidden_ND, head, jnp.asarray(target_N), jnp.int32(num_live)), *of_token
    )
    return got, want


def _agree(got, want):
    for x, y in zip(got, want, strict=True):
        x = np.asarray(x)
        error = x.astype(np.float64) - y
        assert np.isfinite(error).all()
        if x.dtype == np.float32:
            assert np.abs(error).max() <= 1e-5 * max(np.abs(y).max(), 1e-3)
        else:
            assert np.linalg.norm(error) <= 1e-2 * max(np.linalg.norm(y), 1e-3)


@pytest.mark.parametrize(("layout", "num_live"), [("VD", 300), ("DV", 130)])
def test_statistics_over_several_tiles_match_the_reference(layout, num_live):
    model, target_N = _drawn(layout)
    got = _stats(model, target_N, num_live, SMALL)
    want = np.zeros((4, N))
    want[1] = 1  # masked tokens: a sum that can be divided by
    for n in range(num_live):
        z_V, _ = reference.logits(model, n)
        e_V = np.exp(z_V - z_V.max())
        here = 0 <= target_N[n] < V
        hit = z_V[target_N[n]] if here else 0.0
        want[:, n] = z_V.max(), e_V.sum(), (e_V * (z_V - z_V.max())).sum(), hit
    _agree(got, want)


# One, two and three live tiles of tokens: the copies of d_hidden differ. Its sums are
# one array for float32, two for bfloat16, and as many again for a second core.
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("layout", "num_live", "cores"),
    [("VD", 300, 1), ("DV", 200, 1), ("VD", 100, 2), ("DV", 300, 2), ("VD", 0, 1)],
)
def test_gradients_over_several_tiles_match_the_reference(
    layout, num_live, cores, dtype
):
    model, target_N = _drawn(layout, dtype)
    blocks = dataclasses.replace(SMALL, cores=cores)
    got, want = _grads(model, target_N, num_live, blocks)
    _agree(got, want)
    assert not np.asarray(got[0])[num_live:].any()


# Copies are made as late as a wait allows, or at once: a read too early or a write too
# late shows in one of the two. Two cores run at once, and races are looked for.
@pytest.mark.parametrize(
    "num_live", [pytest.param(100, marks=pytest.mark.slow), 200, 300]
)
@pytest.mark.parametrize(
    ("cores", "when"), [(1, "eager"), (1, "on_wait"), (2, "eager")]
)
def test_no_copy_of_the_sums_is_early_or_late(
    monkeypatch, capsys, num_live, cores, when
):
    interpreter = functools.partial(
        pltpu.InterpretParams,
        dma_execution_mode=when,
        detect_races=True,
        num_cores_or_threads=cores,
    )
    monkeypatch.setattr(pltpu, "InterpretParams", interpreter)
    model, target_N = _drawn(dtype=jnp.bfloat16)
    blocks = dataclasses.replace(SMALL, cores=cores)
    _agree(*_grads(model, target_N, num_live, blocks))
    assert "RACE" not in capsys.readouterr().out


def test_a_dtype_that_no_kernel_takes_is_an_error_that_says_so():
    model, target_N = _drawn(N=5, D=3, V=17)
    hidden_ND, head, logits = _arguments(model, 5)
    half = hidden_ND.astype(jnp.float16)
    with pytest.raises(KernelError, match="float32 or bfloat16, got float16"):
        tpu.stats(half, head, jnp.asarray(target_N), jnp.int32(5), logits)


# Compiled for TPUs that are not there.

# (N, D, V, layout, options, hidden and head dtypes); what they have in common is that
# no array is a multiple of its tiles, and few are of 8 x 128.
VARIANTS = {
    "options": (1000, 1024, 50257, "VD", True, "bfloat16", "bfloat16"),
    "[D, V]": (1000, 1024, 50257, "DV", True, "bfloat16", "bfloat16"),
    "narrow": (300, 576, 49152, "VD", False, "bfloat16", "bfloat16"),
    "float32": (600, 512, 3000, "DV", True, "float32", "float32"),
    "mixed": (600, 512, 3000, "VD", False, "bfloat16", "float32"),
    "one word": (5, 3, 1, "VD", True, "float32", "bfloat16"),
    "one token": (1, 130, 1031, "DV", False, "bfloat16", "float32"),
}


def _variant(name) -> estimate.Program:
    """Forward and backward kernels, of one model and of a student and its teacher."""
    N, D, V, layout, options, hidden, weight = VARIANTS[name]
    logits = Logits(layout, 0.7, 30.0) if options else Logits(layout)
    like = jax.ShapeDtypeStruct
    head = Head(
        like((V, D) if layout == "VD" else (D, V), weight),
        like((V,), weight) if options else None,
    )
    of_token = (like((N,), jnp.float32),) * 5
    teacher = like((N, 256), jnp.bfloat16), Head(like((256, V), jnp.bfloat16))
    shapes = (like((N, D), hidden), head, like((N,), jnp.int32), teacher, of_token)

    def call(hidden_ND, head, target_N, teacher, of_token, num_live):
        model, both = (hidden_ND, head), (hidden_ND, head, *teacher)
        two = {"logits": logits, "teacher_logits": Logits("DV")}
        return (
            tpu.stats(*model, target_N, num_live, logits),
            tpu.grads(*model, target_N, num_live, *of_token, logits),
            tpu.kl_stats(*both, num_live, **two),
            tpu.kl_grads(*both, num_live, *of_token, **two),
        )

    return estimate.Program("variant", name, call, (*shapes, like((), jnp.int32)))


def _sharded() -> dict[str, Any]:
    """Rows over one axis of v5e:2x4, the vocabulary over the other."""
    from jax.experimental import topologies

    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x4")
    mesh = jax.sharding.Mesh(
        np.array(topology.devices).reshape(2, 4), ("rows", "words")
    )
    specs = (jax.P("rows"), jax.P("words"), jax.P("rows"), jax.P("rows"))
    shapes = ((2048, 512), (8192, 512), (2048,), (2048,))
    arguments = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, spec))
        for shape, spec, dtype in zip(
            shapes, specs, ("bfloat16", "bfloat16", "int32", "bool"), strict=True
        )
    ]

    @functools.partial(
        jax.shard_map,
        in_specs=specs,
        out_specs=(jax.P("rows"), (jax.P("rows"), jax.P("words"))),
    )
    def call(hidden_ND, weight_VD, target_N, mask_N):
        def logprob(hidden_ND, weight_VD):
            out = token_logprob(
                hidden_ND, weight_VD, target_N, mask_N=mask_N, vocab_axis="words"
            )
            return out.logp_N + out.entropy_N

        logp_N, pull = jax.vjp(logprob, hidden_ND, weight_VD)
        return logp_N, pull(logp_N)

    with jax.set_mesh(mesh):
        compiled: Any = jax.jit(call).lower(*arguments).compile()
    return {
        "text": compiled.as_text(),
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
    }


def _answers(generation, names) -> dict[str, Any]:
    found = {}
    for name in names:
        if name == "sharded":
            found[name] = _sharded()
            continue
        known = {str(program): program for program in estimate.programs()}
        program = _variant(name) if name in VARIANTS else known[name]
        found[name] = estimate.compile_program(program, generation)
    return found


def compiled_for(generation, *names) -> dict[str, Any]:
    """What the compiler says of each, from a process of its own."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu, the TPU compiler, is not installed: pip install libtpu")
    done = subprocess.run(
        [sys.executable, __file__, generation, *names],
        env=os.environ | estimate.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


MIB = 2**20
ALL = [
    "v5e",
    *(pytest.param(g, marks=pytest.mark.slow) for g in ("v5p", "v6e", "tpu7x")),
]


@pytest.mark.parametrize("generation", ALL)
@pytest.mark.parametrize(
    "shape",
    [estimate.SHAPES[0], pytest.param(estimate.SHAPES[1], marks=pytest.mark.slow)],
    ids=str,
)
def test_no_generation_holds_the_logits(generation, shape):
    forward, both, naive = (
        f"logprob, {kind}, {shape}"
        for kind in ("forward", "forward + backward", "naive forward")
    )
    found = compiled_for(generation, forward, both, naive)
    temp = {name: x["temp_bytes"] for name, x in found.items()}
    kernels = {"logprob_stats", "logprob_grads"}
    kernels |= {"logprob_total"} if generation == "v5p" else set()
    assert set(found[both]["kernels"]) == kernels
    assert temp[forward] <= 64 * MIB
    smaller_gradient = shape.D * min(shape.N, shape.V) * 4
    assert temp[both] <= smaller_gradient + 128 * MIB
    assert temp[naive] >= 4096 * MIB
    assert temp[naive] >= 20 * temp[forward]


@pytest.mark.slow
@pytest.mark.parametrize("generation", ["v5e", "v5p", "v6e", "tpu7x"])
def test_every_option_compiles(generation):
    found = compiled_for(generation, *VARIANTS)
    for name, x in found.items():
        kernels = {"logprob_stats", "logprob_grads", "logprob_kl_stats"}
        assert kernels | {"logprob_kl_grads"} <= set(x["kernels"]), name


def test_a_sharded_head_compiles_and_its_logits_are_nowhere():
    found = compiled_for("v5e", "sharded")["sharded"]
    for kernel in ("logprob_stats", "logprob_grads"):
        assert f"%{kernel}" in found["text"]
    # 1,024 tokens and 2,048 words a device.
    assert "[1024,2048]" not in found["text"]
    assert "[2048,1024]" not in found["text"]
    assert found["temp_bytes"] < 16 * MIB


if __name__ == "__main__":
    print(json.dumps(_answers(sys.argv[1], sys.argv[2:])))
