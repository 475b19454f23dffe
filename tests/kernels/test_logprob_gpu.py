"""The GPU's log-probability kernels over the table of cases, in tiles smaller than it.

On the CPU the kernels run in Pallas's interpreter. With a GPU, run them for real:

    RL_JAX_TEST_PLATFORM=cuda python -m pytest tests/kernels/test_logprob_gpu.py --slow

Legend: N tokens, D model width (E the teacher's), V vocabulary.
"""

import jax
import jax.numpy as jnp
import logprob_cases as cases
import numpy as np
import pytest

from rl_jax.kernels.logprob import (  # pyright: ignore[reportMissingImports]
    gpu,
    head,
)

INTERPRET = jax.default_backend() != "gpu"
IMPLEMENTATION = "gpu_interpret" if INTERPRET else "gpu"

# Several tiles in each direction, chunks and spans at the sizes of the table.
BLOCKS = gpu.Blocks(rows=32, cols=64, depth=16, num_warps=4, num_stages=2, chunk=128)

# The rest of the table takes a minute in the interpreter.
QUICK = {
    *("one token", "one word", "ragged", "[D, V], many tiles", "bfloat16"),
    *("bias, soft cap, temperature", "float32 hidden, bfloat16 head", "some masked"),
    *("everything masked", "extreme", "large, bfloat16", "bfloat16 teacher"),
    *("both extreme", "mixed"),
}


def marked(table, quick=QUICK):
    slow = [pytest.mark.slow] if INTERPRET else []
    return [
        pytest.param(case, id=case.name, marks=[] if case.name in quick else slow)
        for case in table
    ]


def live_first(drawn, *models):
    """(order, number of live tokens, models with hidden states in that order).

    As the public function does it: masked tokens last, with hidden states of zero.
    """
    N = len(drawn.target_N)
    mask_N = np.ones(N, bool) if drawn.mask_N is None else drawn.mask_N
    order_N = np.argsort(~mask_N, kind="stable")
    moved = []
    for model in models:
        hidden_ND = np.where(mask_N[:, None], model.hidden_ND, 0)[order_N]
        moved.append(model._replace(hidden_ND=hidden_ND.astype(model.hidden_ND.dtype)))
    return order_N, jnp.int32(mask_N.sum()), moved


def arguments(model):
    bias_V = None if model.bias_V is None else jnp.asarray(model.bias_V)
    return (
        jnp.asarray(model.hidden_ND),
        head.Head(jnp.asarray(model.weight), bias_V),
        head.Logits(model.layout, model.temperature, model.softcap),
    )


def named(out, grads, order_N, live):
    """Results in their own order, zeros where the mask is 0; gradients by name."""
    live_N = np.arange(len(order_N)) < live
    d_hidden_ND, d_weight, d_bias_V = map(np.asarray, grads)
    named = {k: np.where(live_N, x, 0).astype(np.float32) for k, x in out.items()}
    named["d_hidden_ND"] = d_hidden_ND
    back_N = np.argsort(order_N)
    named = {k: x[back_N] for k, x in named.items()} | {"d_weight": d_weight}
    return named if grads[2] is None else named | {"d_bias_V": d_bias_V}


def logprob(case, blocks=BLOCKS):
    """What `cases.expected(case)` gives, from the kernels alone."""
    drawn = cases.draw(case)
    order_N, live, (model,) = live_first(drawn, drawn.model)
    hidden_ND, weight, logits = arguments(model)
    live_N = np.arange(len(order_N)) < live
    target_N = jnp.asarray(drawn.target_N[order_N])
    d_out = [jnp.asarray(np.where(live_N, x[order_N], 0)) for x in drawn.d_out]

    @jax.jit
    def run(hidden_ND, weight, target_N, live, *d_out):
        options = {"interpret": INTERPRET, "blocks": blocks}
        s = gpu.stats(hidden_ND, weight, target_N, live, logits, **options)
        lse_N = s.top_N + jnp.log(s.sum_N)
        entropy_N = lse_N - s.top_N - s.dot_N / s.sum_N
        out = {"logp_N": s.target_N - lse_N, "entropy_N": entropy_N, "lse_N": lse_N}
        lse_N, entropy_N = (jnp.where(live_N, x, 0.0) for x in (lse_N, entropy_N))
        return (
            s,
            out,
            gpu.grads(
                *(hidden_ND, weight, target_N, live, lse_N, entropy_N, *d_out, logits),
                **options,
            ),
        )

    s, out, grads = run(hidden_ND, weight, target_N, live, *d_out)
    assert all(np.isfinite(x).all() for x in s), "masked tokens too"
    return named(out, grads, order_N, live)


def kl(case, blocks=BLOCKS):
    """What `cases.kl_expected(case)` gives, from the kernels alone."""
    drawn = cases.draw(case.student)
    teacher = cases.draw(case.teacher).model
    order_N, live, models = live_first(drawn, drawn.model, teacher)
    (hidden_ND, weight, logits), (teacher_hidden_NE, teacher_weight, teacher_logits) = (
        map(arguments, models)
    )
    live_N = np.arange(len(order_N)) < live
    d_out = [jnp.asarray(np.where(live_N, x[order_N], 0)) for x in drawn.d_out[:2]]

    @jax.jit
    def run(live, hidden_ND, weight, teacher_hidden_NE, teacher_weight, *d_out):
        options = {"interpret": INTERPRET, "blocks": blocks}
        inputs = (hidden_ND, weight, teacher_hidden_NE, teacher_weight, live)
        s = gpu.kl_stats(*inputs, logits, teacher_logits, **options)
        lse_N = s.top_N + jnp.log(s.sum_N)
        teacher_lse_N = s.teacher_top_N + jnp.log(s.teacher_sum_N)
        reverse_N = s.dot_N / s.sum_N - (lse_N - teacher_lse_N)
        forward_N = s.teacher_dot_N / s.teacher_sum_N - (teacher_lse_N - lse_N)
        saved = [jnp.where(live_N, x, 0.0) for x in (lse_N, teacher_lse_N, reverse_N)]
        grads = gpu.kl_grads(*inputs, *saved, *d_out, logits, teacher_logits, **options)
        return s, {"reverse_N": reverse_N, "forward_N": forward_N}, grads

    s, out, grads = run(
        live, hidden_ND, weight, teacher_hidden_NE, teacher_weight, *d_out
    )
    assert all(np.isfinite(x).all() for x in s), "masked tokens too"
    return named(out, grads, order_N, live)


@pytest.mark.parametrize("case", marked(cases.CASES))
def test_values_and_gradients_match_the_reference(case):
    cases.check(case, logprob(case), cases.expected(case))


@pytest.mark.parametrize("case", marked(cases.KL_CASES))
def test_divergences_and_gradients_match_the_reference(case):
    cases.check(case, kl(case), cases.kl_expected(case))


@pytest.mark.parametrize("case", marked(cases.CASES, {"some masked, bfloat16"}))
def test_the_public_function_gives_the_same(case):
    got = cases.outputs(case, IMPLEMENTATION)
    cases.check(case, got, cases.expected(case))


@pytest.mark.parametrize("case", marked(cases.KL_CASES, {"some masked"}))
def test_the_public_divergences_are_the_same(case):
    got = cases.kl_outputs(case, IMPLEMENTATION)
    cases.check(case, got, cases.kl_expected(case))


def test_tiles_of_masked_tokens_are_not_looked_at():
    case = cases.Case("masked at the end", N=100, V=130, D=29, bias=True)
    drawn = cases.draw(case)
    live_N = np.arange(case.N) < 20
    case_20 = drawn._replace(mask_N=live_N)
    _, live, (model,) = live_first(case_20, drawn.model)
    # Tokens of the first tile are zeros, as in every call; those of the others NaN.
    hidden_ND = np.where(np.arange(case.N)[:, None] < 32, model.hidden_ND, np.nan)
    hidden_ND, weight, logits = arguments(model._replace(hidden_ND=hidden_ND))
    target_N = jnp.asarray(drawn.target_N)
    d_out = [jnp.asarray(np.where(live_N, x, 0)) for x in drawn.d_out]
    nan_N = jnp.where(live_N, 1.0, jnp.nan)

    @jax.jit
    def run(hidden_ND, weight, *per_token):
        options = {"interpret": INTERPRET, "blocks": BLOCKS}
        stats = gpu.stats(hidden_ND, weight, target_N, live, logits, **options)
        grads = gpu.grads(
            *(hidden_ND, weight, target_N, live, *per_token, logits), **options
        )
        return stats, grads

    stats, grads = run(hidden_ND, weight, nan_N, nan_N, *d_out)
    for x in jax.tree.leaves((stats, grads)):
        assert np.isfinite(x).all()
    assert not np.asarray(grads[0])[20:].any()


def test_targets_of_other_shards_are_not_found():
    V = 45  # ends within a tile, where there are words that do not exist
    case = cases.Case("another shard", N=6, V=V, D=5)
    hidden_ND, weight, logits = arguments(cases.draw(case).model)
    target_N = jnp.array([-1, V, V + 1, -V, 0, V - 1], jnp.int32)

    @jax.jit
    def target_logits(hidden_ND, weight):
        options = {"interpret": INTERPRET, "blocks": BLOCKS}
        args = (hidden_ND, weight, target_N, jnp.int32(6), logits)
        return gpu.stats(*args, **options).target_N

    got_N = np.asarray(target_logits(hidden_ND, weight))
    z_NV = np.asarray(hidden_ND @ weight.weight.T)
    expected_N = [0, 0, 0, 0, z_NV[4, 0], z_NV[5, V - 1]]
    np.testing.assert_allclose(got_N, expected_N, rtol=0, atol=1e-5)


def test_sizes_of_tiles_change_nothing_but_rounding():
    (case,) = (c for c in cases.CASES if c.name == "ragged")
    for blocks in (
        gpu.Blocks(16, 16, 16, 4, 1, chunk=16),
        gpu.Blocks(64, 32, 32, 4, 2, chunk=64),
        gpu.Blocks(16, 128, 64, 4, 2, chunk=4096),
    ):
        cases.check(case, logprob(case, blocks), cases.expected(case))


@pytest.mark.skipif(INTERPRET, reason="the interpreter has one order anyway")
def test_results_repeat_to_the_bit():
    for case in cases.CASES:
        once, again = (cases.outputs(case, IMPLEMENTATION) for _ in range(2))
        for name in once:
            np.testing.assert_array_equal(once[name], again[name])
