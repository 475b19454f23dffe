"""Log-probability, entropy and KL in plain JAX: reference, masks, memory, errors.

Legend: N tokens, D model width (E the teacher's), V vocabulary.
"""

import functools
import math
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import logprob_cases as table
import numpy as np
import pytest
from logprob_cases import CASES, KL_CASES, Case

from rl_jax.kernels import logprob  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.logprob import plain  # pyright: ignore[reportMissingImports]
from rl_jax.kernels.platform import (  # pyright: ignore[reportMissingImports]
    KernelError,
)

token_logprob = functools.partial(logprob.token_logprob, implementation="plain")
token_kl = functools.partial(logprob.token_kl, implementation="plain")


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles so small that the table's cases have many, and short ones at the ends."""
    monkeypatch.setattr(plain, "BLOCK", 64)
    monkeypatch.setattr(plain, "CHUNK", 128)


@pytest.mark.parametrize("case", CASES, ids=table.names(CASES))
@pytest.mark.usefixtures("small_tiles")
def test_values_and_gradients_match_the_reference(case):
    table.check(case, table.outputs(case, "plain"), table.expected(case))


@pytest.mark.parametrize("case", KL_CASES, ids=table.names(KL_CASES))
@pytest.mark.usefixtures("small_tiles")
def test_the_kl_and_its_gradients_match_the_reference(case):
    table.check(case, table.kl_outputs(case, "plain"), table.kl_expected(case))


@pytest.mark.parametrize("name", ["ragged", "[D, V], many tiles", "some masked"])
def test_the_size_of_the_tiles_changes_nothing_but_rounding(name, monkeypatch):
    (case,) = (c for c in CASES if c.name == name)
    for block, chunk in ((1000, 1000), (7, 11), (1, 400)):
        monkeypatch.setattr(plain, "BLOCK", block)
        monkeypatch.setattr(plain, "CHUNK", chunk)
        table.check(case, table.outputs(case, "plain"), table.expected(case))


def test_the_cases_reach_the_ends_of_the_vocabulary_and_the_sizes_they_claim():
    for case in CASES:
        model, target_N, mask_N, _ = table.draw(case)
        assert {0, case.V - 1} == {target_N[0], target_N[-1]} or case.N == 1
        assert mask_N is None or np.isnan(model.hidden_ND[~mask_N].astype("f4")).all()
        if case.values != "normal":
            assert 9e3 < table.largest(case) < 1.1e4 or case.softcap


@pytest.mark.parametrize(
    ("temperature", "logp", "entropy", "lse"),
    [(1.0, -0.464369, 0.905959, 2.464369), (0.7, -0.305254, 0.742815, 3.162397)],
)
def test_the_worked_example_comes_out(temperature, logp, entropy, lse):
    head_VD = jnp.array([[1.0], [2.0], [0.5]])
    got = token_logprob(
        jnp.ones((1, 1)), head_VD, jnp.array([1]), temperature=temperature
    )
    np.testing.assert_allclose(
        np.concatenate(got), [logp, entropy, lse], rtol=0, atol=1e-6
    )


def test_dtypes_of_values_and_gradients():
    for case in CASES:
        if case.name in ("bfloat16 hidden, float32 head", "bfloat16"):
            got = table.outputs(case, "plain")
            assert [got[n].dtype for n in ("logp_N", "entropy_N", "lse_N")] == [
                "f4"
            ] * 3
            assert got["d_hidden_ND"].dtype == case.hidden
            assert got["d_weight"].dtype == case.head


def test_finite_differences_agree_in_float64(small_tiles):
    """Of a random combination of all outputs, along random directions."""
    rng = np.random.default_rng(3)
    N, V, D, E = 70, 300, 3, 2
    draw = [rng.normal(size=s) for s in ((N, D), (D, V), (V,), (N, E), (V, E), (5, N))]
    hidden_ND, weight_DV, bias_V, teacher_hidden_NE, teacher_VE, factor_5N = draw
    target_N, mask_N = rng.integers(0, V, N), rng.random(N) < 0.8

    def loss(hidden_ND, weight_DV, bias_V):
        shared = {"bias_V": bias_V, "layout": "DV", "temperature": 0.7, "softcap": 3.0}
        found = token_logprob(hidden_ND, weight_DV, target_N, mask_N=mask_N, **shared)
        found += token_kl(
            hidden_ND,
            weight_DV,
            teacher_hidden_NE,
            teacher_VE,
            mask_N=mask_N,
            **shared,
        )
        return sum((f * x).sum() for f, x in zip(factor_5N, found, strict=True))

    with jax.enable_x64(True):
        inputs = [jnp.asarray(x) for x in (hidden_ND, weight_DV, bias_V)]
        towards = [jnp.asarray(rng.normal(size=x.shape)) for x in inputs]
        value, grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*inputs)
        assert value.dtype == jnp.float64

        @jax.jit
        def at(step):
            return loss(*(x + step * t for x, t in zip(inputs, towards, strict=True)))

        step = 1e-3  # the fourth-order formula is exact to about its fourth power
        slope = 8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))
        slope /= 12 * step
        want = sum((g * t).sum() for g, t in zip(grads, towards, strict=True))
        np.testing.assert_allclose(slope, want, rtol=1e-7)


@pytest.mark.usefixtures("small_tiles")
def test_masked_tokens_are_as_if_they_were_not_there():
    case = Case("mask", N=150, V=300, D=4, mask="some", bias=True)
    model, target_N, mask_N, d_out = table.draw(case)
    assert mask_N is not None

    def run(hidden_ND, target_N, mask_N, d_out):
        def call(hidden_ND, weight, bias_V):
            return token_logprob(
                hidden_ND, weight, target_N, mask_N=mask_N, bias_V=bias_V
            )

        out, pull = jax.vjp(call, hidden_ND, model.weight, model.bias_V)
        return out, pull(logprob.Logprob(*d_out))

    ones_N = mask_N.astype(np.int8)  # a mask may be of any dtype
    out, (d_hidden_ND, *d_head) = jax.jit(run)(model.hidden_ND, target_N, ones_N, d_out)
    kept = [x[mask_N] for x in (model.hidden_ND, target_N, *d_out)]
    want, (want_d_hidden, *want_d_head) = jax.jit(run)(*kept[:2], None, tuple(kept[2:]))
    for got, wanted in zip((*out, d_hidden_ND), (*want, want_d_hidden), strict=True):
        np.testing.assert_allclose(got[mask_N], wanted, rtol=0, atol=1e-6)
        assert not got[~mask_N].any()
    for got, wanted in zip(d_head, want_d_head, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("num_live", "blocks"), [(0, 0), (1, 1), (64, 1), (65, 2)])
@pytest.mark.usefixtures("small_tiles")
def test_whole_blocks_of_masked_tokens_are_not_computed(num_live, blocks, monkeypatch):
    tiles = []
    made = plain._tile_logits

    def counted(*args):
        jax.debug.callback(lambda: tiles.append(1))
        return made(*args)

    monkeypatch.setattr(plain, "_tile_logits", counted)
    # The live ones are spread over all tokens.
    mask_N = np.random.default_rng(0).permutation(np.arange(500) < num_live)

    def loss(hidden_ND, weight):
        out = token_logprob(hidden_ND, weight, jnp.zeros(500, int), mask_N=mask_N)
        return out.logp_N.sum()

    inputs = jnp.ones((500, 2)), jnp.ones((300, 2))
    jax.block_until_ready(jax.jit(jax.grad(loss, argnums=(0, 1)))(*inputs))
    jax.effects_barrier()
    # Three chunks of the vocabulary, forward and backward.
    assert len(tiles) == 2 * 3 * blocks


@functools.cache
def _values_and_gradient():
    """Jitted once: (hidden, weight, bias, target, mask) to values and d_hidden."""

    def run(hidden_ND, weight, bias_V, target_N, mask_N):
        def call(hidden_ND):
            return token_logprob(
                hidden_ND,
                weight,
                target_N,
                mask_N=mask_N,
                bias_V=bias_V,
                temperature=0.8,
            )

        out, pull = jax.vjp(call, hidden_ND)
        return out, pull(jax.tree.map(jnp.ones_like, out))[0]

    return jax.jit(run)


_seeds = st.integers(0, 2**32 - 1)
_properties = hypothesis.settings(max_examples=25, deadline=None)


def _drawn(seed, N=9, V=13, D=4):
    rng = np.random.default_rng(seed)
    size = float(rng.choice([0.1, 1, 30]))
    shapes = ((N, D), (V, D), (V,))
    arrays = [np.asarray(size * rng.normal(size=s), np.float32) for s in shapes]
    return rng, *arrays, rng.integers(0, V, N).astype(np.int32), rng.random(N) < 0.7


@_properties
@hypothesis.given(_seeds)
def test_permuted_tokens_and_words_give_permuted_results(seed):
    rng, hidden_ND, weight, bias_V, target_N, mask_N = _drawn(seed)
    run = _values_and_gradient()
    want, want_d = run(hidden_ND, weight, bias_V, target_N, mask_N)
    to_N, to_V = rng.permutation(len(target_N)), rng.permutation(len(bias_V))
    got, got_d = run(
        hidden_ND[to_N],
        weight[to_V],
        bias_V[to_V],
        np.argsort(to_V).astype(np.int32)[target_N[to_N]],
        mask_N[to_N],
    )
    scale = max(1.0, *(float(np.abs(x).max()) for x in (*want, want_d)))
    for x, y in zip((*got, got_d), (*want, want_d), strict=True):
        np.testing.assert_allclose(x, y[to_N], rtol=0, atol=1e-5 * scale)


@_properties
@hypothesis.given(_seeds, st.floats(-50, 50))
def test_a_constant_added_to_all_logits_moves_the_normaliser_alone(seed, constant):
    _, hidden_ND, weight, bias_V, target_N, mask_N = _drawn(seed)
    run = _values_and_gradient()
    want, _ = run(hidden_ND, weight, bias_V, target_N, mask_N)
    got, _ = run(hidden_ND, weight, bias_V + np.float32(constant), target_N, mask_N)
    atol = 1e-5 * max(1.0, float(np.abs(want.lse_N).max()), abs(constant))
    np.testing.assert_allclose(got.logp_N, want.logp_N, rtol=0, atol=atol)
    np.testing.assert_allclose(got.entropy_N, want.entropy_N, rtol=0, atol=atol)
    moved_N = mask_N * (constant / 0.8)
    np.testing.assert_allclose(got.lse_N, want.lse_N + moved_N, rtol=0, atol=atol)


@_properties
@hypothesis.given(_seeds)
def test_probabilities_sum_to_one_and_entropy_is_their_mean_surprise(seed):
    _, hidden_ND, weight, bias_V, _, _ = _drawn(seed)
    V = len(bias_V)
    # One token for each word, all of the same distribution.
    hidden_VD = np.repeat(hidden_ND[:1], V, axis=0)
    words_V, all_V = np.arange(V, dtype=np.int32), np.ones(V, bool)
    out, _ = _values_and_gradient()(hidden_VD, weight, bias_V, words_V, all_V)
    p_V = np.exp(np.asarray(out.logp_N, np.float64))
    assert (out.logp_N <= 0).all() and abs(p_V.sum() - 1) < 1e-4
    surprise = -(p_V * out.logp_N).sum()
    np.testing.assert_allclose(out.entropy_N, surprise, rtol=0, atol=1e-3)
    assert (out.entropy_N >= -1e-5).all()
    assert (out.entropy_N <= math.log(V) + 1e-5).all()


@functools.cache
def _kl():
    return jax.jit(token_kl)


@_properties
@hypothesis.given(_seeds)
def test_a_kl_is_positive_and_zero_for_equals_and_exchanges_with_its_models(seed):
    _, hidden_ND, weight, _, _, _ = _drawn(seed)
    _, teacher_ND, teacher_weight, _, _, _ = _drawn(seed + 1)
    # float32 resolves logits, whose differences these are, no better.
    both = (hidden_ND @ weight.T, teacher_ND @ teacher_weight.T)
    atol = 1e-5 * max(1.0, *(float(np.abs(z).max()) for z in both))
    found = _kl()(hidden_ND, weight, teacher_ND, teacher_weight)
    assert (found.reverse_N >= -atol).all() and (found.forward_N >= -atol).all()
    turned = _kl()(teacher_ND, teacher_weight, hidden_ND, weight)
    np.testing.assert_allclose(turned.forward_N, found.reverse_N, rtol=0, atol=atol)
    np.testing.assert_allclose(turned.reverse_N, found.forward_N, rtol=0, atol=atol)
    same = _kl()(hidden_ND, weight, hidden_ND, weight)
    assert not same.reverse_N.any() and not same.forward_N.any()


def naive_logprob(hidden_ND, weight, target_N, mask_N=None):
    """What the kernel replaces: all logits at once."""
    logp_NV = jax.nn.log_softmax(hidden_ND @ weight.T)
    picked_N = jnp.take_along_axis(logp_NV, target_N[:, None], axis=1)[:, 0]
    return picked_N, -(jnp.exp(logp_NV) * logp_NV).sum(axis=1)


def naive_kl(hidden_ND, weight, teacher_hidden_ND, teacher_weight, mask_N=None):
    logp_NV = jax.nn.log_softmax(hidden_ND @ weight.T)
    logq_NV = jax.nn.log_softmax(teacher_hidden_ND @ teacher_weight.T)
    apart_NV = logp_NV - logq_NV
    reverse_N = (jnp.exp(logp_NV) * apart_NV).sum(axis=1)
    return reverse_N, -(jnp.exp(logq_NV) * apart_NV).sum(axis=1)


def largest_array(hlo: str) -> int:
    """Elements of the largest array that a program's text mentions."""
    shapes = re.findall(r"\b(?:f64|f32|bf16|s32|u32|pred)\[([\d,]+)\]", hlo)
    return max(math.prod(int(n) for n in shape.split(",")) for shape in shapes)


@pytest.mark.parametrize("kind", ["logprob", "kl", "logprob with a mask"])
@pytest.mark.parametrize("backward", [False, True])
def test_the_logits_are_never_held(kind, backward):
    N, V, D = 2048, 49152, 576
    shape = jax.ShapeDtypeStruct
    model = [shape((N, D), "f4"), shape((V, D), "f4")]
    rest = model if kind == "kl" else [shape((N,), "i4")]
    mask = {"mask_N": shape((N,), "?")} if "mask" in kind else {}

    def compiled(kernel):
        def loss(hidden_ND, weight, rest, mask):
            first_N, second_N, *_ = kernel(hidden_ND, weight, *rest, **mask)
            return (first_N + 0.1 * second_N).sum()

        function = jax.value_and_grad(loss, argnums=(0, 1)) if backward else loss
        return jax.jit(function).lower(*model, rest, mask).compile()

    tiled = compiled(token_kl if kind == "kl" else token_logprob)
    whole = compiled(naive_kl if kind == "kl" else naive_logprob)
    # The naive program shows that both measures see the logits when they are there.
    assert largest_array(whole.as_text() or "") >= N * V
    assert temporaries(whole) >= N * V * 4
    assert largest_array(tiled.as_text() or "") <= V * D < N * V / 3
    assert temporaries(tiled) <= temporaries(whole) / 20


def temporaries(program) -> int:
    return program.memory_analysis().temp_size_in_bytes


def _small():
    inputs = table.draw(Case("small", N=3, V=20, D=4))
    return inputs.model.hidden_ND, inputs.model.weight, inputs.target_N


@pytest.mark.parametrize("op", ["token_logprob", "token_kl"])
def test_an_argument_or_the_environment_chooses_the_implementation(op, monkeypatch):
    hidden_ND, weight, target_N = _small()
    rest = (target_N,) if op == "token_logprob" else (hidden_ND, weight)
    function = getattr(logprob, op)

    def program(**options):
        def call(hidden_ND, weight):
            return function(hidden_ND, weight, *rest, **options)[0]

        return str(jax.make_jaxpr(call)(hidden_ND, weight))

    monkeypatch.delenv("RL_JAX_KERNELS", raising=False)
    assert "platform_index" in program()
    assert "platform_index" not in program(implementation="plain")
    assert "pallas_call" not in program(implementation="plain")
    monkeypatch.setenv("RL_JAX_KERNELS", "gpu_interpret")
    assert "pallas_call" in program() and "platform_index" not in program()
    assert "pallas_call" not in program(implementation="plain")
    monkeypatch.setenv("RL_JAX_KERNELS", "plain")
    assert "platform_index" not in program() and "pallas_call" not in program()
    monkeypatch.setenv("RL_JAX_KERNELS", "triton")
    with pytest.raises(KernelError, match="'triton'.*RL_JAX_KERNELS.*plain, tpu, gpu"):
        program()


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"hidden_ND": np.ones((1, 3, 4), "f4")}, r"\[N, D\].*\(1, 3, 4\)"),
        ({"hidden_ND": np.ones((0, 4), "f4")}, "N, D >= 1"),
        ({"hidden_ND": np.ones((3, 5), "f4")}, "width D = 5.*20, 4"),
        ({"hidden_ND": np.ones((3, 4), "i4")}, "float32 or bfloat16, got int32"),
        ({"weight": np.ones(4, "f4")}, r"weight must be \[V, D\]"),
        ({"layout": "DV"}, r"weight must be \[D, V\] with .*width D = 4"),
        ({"layout": "TV"}, '"VD" or "DV", got \'TV\''),
        ({"bias_V": np.ones(4, "f4")}, r"bias must be \[V\] with the weight's V = 20"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"temperature": math.nan}, "temperature must be above 0, got nan"),
        ({"softcap": -1.0}, "softcap must be 0 .none. or more, got -1.0"),
        ({"target_N": np.ones(4, "i4")}, r"target_N must have .* N = 3, got \(4,\)"),
        ({"target_N": np.ones(3, "f4")}, "target_N must be integers, got float32"),
        ({"mask_N": np.ones(2, bool)}, r"mask_N must have .* N = 3, got \(2,\)"),
    ],
)
def test_what_cannot_be_taken_is_an_error_that_names_the_rule(changes, rule):
    arguments = dict(zip(("hidden_ND", "weight", "target_N"), _small(), strict=True))
    with pytest.raises(KernelError, match=f"token_logprob: .*{rule}"):
        token_logprob(**(arguments | changes))


@pytest.mark.parametrize(
    ("teacher_hidden", "teacher_weight", "rule"),
    [
        ((3, 5), (20, 4), "teacher's weight must be .* D = 5"),
        ((3, 5), (21, 5), "same vocabulary, got V = 20 and 21"),
        ((4, 5), (20, 5), "teacher_hidden_NE must have .* N = 3"),
    ],
)
def test_a_teacher_that_does_not_fit_is_an_error(teacher_hidden, teacher_weight, rule):
    hidden_ND, weight, _ = _small()
    with pytest.raises(KernelError, match=f"token_kl: .*{rule}"):
        token_kl(hidden_ND, weight, jnp.ones(teacher_hidden), jnp.ones(teacher_weight))
