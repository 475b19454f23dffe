"""The learner: gradients of any split, their twins, AdamW, and what is given away.

Legend: B rows, T positions, N samples, V vocabulary, D width.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import learner as learners
from rl_jax.data.packing import Packed, Piece, pack
from rl_jax.learner import State, init_state, make_learner, merge_metrics, to_device
from rl_jax.mesh import make_mesh, sharding
from rl_jax.models.decoder import gather_head, hidden_states, target_logprobs
from rl_jax.models.params import layout, map_layout
from rl_jax.models.spec import ModelSpec
from rl_jax.objectives.policy import PRESETS, policy_loss
from rl_jax.optimiser import optimiser

V, T, TEMPERATURE = 17, 9, 0.7
EOS = 3

MODEL = ModelSpec(
    num_layers=2,
    width=12,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    ffn_width=20,
    vocab_size=V,
)
GRPO = PRESETS["grpo"]
# Every term of the loss at once, for what must hold for all of them.
EVERY_TERM = dataclasses.replace(
    GRPO, kl_coef=0.1, sampler_cap=1.5, entropy_coef=0.05, clip_low=0.1
)
OPTIM = {
    "lr": 0.01,
    "schedule": "linear",
    "warmup_steps": 2,
    "total_steps": 5,
    "final_lr_fraction": 0.1,
    "weight_decay": 0.1,
    "b1": 0.9,
    "b2": 0.95,
    "eps": 1e-6,
    "clip_norm": 1.0,
}


@pytest.fixture(scope="module", autouse=True)
def mesh():
    mesh = make_mesh(devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        yield mesh


def random_tree(mesh, seed, scale=1.0):
    rng = np.random.default_rng(seed)

    def one(leaf):
        x = rng.normal(size=leaf.shape) * (leaf.fan_in or 9) ** -0.5 * scale
        x = (x + (leaf.fan_in == 0)).astype(np.float32)
        return jax.device_put(x, sharding(mesh, *leaf.axes))

    return map_layout(one, MODEL)


@pytest.fixture(scope="module")
def params(mesh):
    return random_tree(mesh, seed=0)


@functools.cache
def learner(loss=GRPO):
    tx, schedule = optimiser(MODEL, **OPTIM)
    return make_learner(
        MODEL, tx, schedule, loss=loss, num_groups=2, temperature=TEMPERATURE
    )


def make_pieces():
    """Samples of ragged lengths: a prompt, an answer, sometimes EOS at the end."""
    rng = np.random.default_rng(1)
    pieces = []
    for i, (n, prompt) in enumerate([(10, 3), (4, 1), (6, 2), (5, 4), (3, 1), (6, 3)]):
        tokens = rng.integers(EOS + 1, V, n).astype(np.int32)
        tokens[-1] = EOS if i % 2 == 0 else tokens[-1]
        pieces.append(Piece(tokens, np.arange(n) >= prompt, sample=i, group=i // 3))
    return pieces


PIECES = make_pieces()
NUM_TOKENS = sum(int(p.mask.sum()) for p in PIECES)
REWARD_N = np.array([1.0, -0.5, 0.3, -1.2, 0.8, 0.1], np.float32)
WEIGHT_N = np.array([0.1, 0.05, 0.02, 0.03, 0.07, 0.04], np.float32)
OUTCOME = learners.Outcome(
    reward_N=REWARD_N,
    group_N=np.array([piece.group for piece in PIECES], np.int32),
    valid_N=np.ones(6, bool),
    weight_N=WEIGHT_N,
)
# Two groups of three, each over its own deviation.
_GROUPS = REWARD_N.reshape(2, 3) - REWARD_N.reshape(2, 3).mean(axis=1, keepdims=True)
ADV_N = (_GROUPS / (_GROUPS.std(axis=1, keepdims=True) + 1e-6)).reshape(6)


@pytest.fixture(scope="module")
def drawn(params, mesh):
    """The pieces with log-probabilities that a sampler could have reported."""
    packed = pack(PIECES, T, 4)
    logp_BT = np.asarray(learner().score(params, to_device(packed, mesh)))
    rng, out = np.random.default_rng(2), []
    for piece in PIECES:
        logp = logp_BT[(packed.sample_BT == piece.sample) & (packed.segment_BT > 0)]
        logp = np.concatenate([[0.0], logp + rng.normal(size=len(logp)) * 0.3])
        logp = np.where(piece.mask, logp, 0.0).astype(np.float32)
        out.append(dataclasses.replace(piece, sampler_logp=logp))
    return out


def gradient(kind, params, mesh, packed, rows_a_pass, *, loss=GRPO, add=lambda b: b):
    """Summed over micro-batches of so many rows, as a stage does: (grads, metrics).

    Args:
        add: what else goes into each batch, such as old log-probabilities.
    """
    programs = learner(loss)
    program = getattr(programs, kind)
    grads, parts = programs.zero_gradient(params), []
    for i in range(0, len(packed.token_BT), rows_a_pass):
        batch = to_device(packed.rows(i, i + rows_a_pass), mesh)
        given = OUTCOME if kind == "policy_gradient" else WEIGHT_N
        grads, metrics = program(params, grads, add(batch), given, NUM_TOKENS)
        parts.append(metrics)
    return jax.device_get(grads), merge_metrics(parts)


def shifted(batch, seed=5):
    """Old and reference log-probabilities that are a function of the tokens alone."""
    noise_V = np.random.default_rng(seed).normal(size=(2, V)).astype(np.float32) * 0.2
    logp_BT = np.asarray(batch.sampler_logp_BT)
    target_BT = np.asarray(batch.target_BT)

    def put(x):
        return jax.device_put(x, batch.sampler_logp_BT.sharding)

    return batch.replace(
        old_logp_BT=put(logp_BT + noise_V[0, target_BT]),
        ref_logp_BT=put(logp_BT + noise_V[1, target_BT]),
    )


def assert_near(got, want, *, atol=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), got, want
    )


# Rows onto the device.


def test_rows_arrive_with_their_dtypes_and_without_advantages(mesh):
    packed = pack(PIECES, T, 4)
    batch = to_device(packed, mesh)
    for field in dataclasses.fields(packed):
        np.testing.assert_array_equal(
            getattr(batch, field.name), getattr(packed, field.name)
        )
        assert getattr(batch, field.name).dtype == getattr(packed, field.name).dtype
    assert batch.old_logp_BT is None and batch.ref_logp_BT is None


def test_each_counted_target_gets_what_its_sample_has(mesh):
    packed = pack(PIECES, T, 4)
    found_BT = jax.jit(learners.per_token)(WEIGHT_N, to_device(packed, mesh))
    want = np.where(packed.mask_BT, WEIGHT_N[packed.sample_BT], 0)
    np.testing.assert_array_equal(found_BT, want)


# Gradients.

SPLITS = [
    pytest.param(lambda pieces: pack(pieces, T, 4), 4, id="one pass"),
    pytest.param(lambda pieces: pack(pieces[::-1], T, 4), 4, id="other order"),
    pytest.param(lambda pieces: pack(pieces, T, 1), 1, id="a row a pass"),
]


def unpacked(pieces):
    """Every sample in a row of its own."""
    rows = [pack([piece], T, 1) for piece in pieces]
    names = [f.name for f in dataclasses.fields(Packed)]
    return Packed(*(np.concatenate([getattr(r, n) for r in rows]) for n in names))


@pytest.fixture(scope="module")
def alone(params, mesh, drawn):
    """Results of both kinds, a row a pass, every sample in a row of its own."""
    rows = unpacked(drawn)
    return {
        kind: gradient(kind, params, mesh, rows, 1, loss=EVERY_TERM, add=shifted)
        for kind in ("policy_gradient", "supervised_gradient")
    }


@pytest.mark.parametrize("kind", ["policy_gradient", "supervised_gradient"])
@pytest.mark.parametrize(("lay_out", "rows_a_pass"), SPLITS)
def test_any_split_and_packing_gives_the_same_gradient(
    params, mesh, drawn, alone, kind, lay_out, rows_a_pass
):
    packed = lay_out(drawn)
    grads, metrics = gradient(
        kind, params, mesh, packed, rows_a_pass, loss=EVERY_TERM, add=shifted
    )
    want_grads, want_metrics = alone[kind]
    assert_near(grads, want_grads)
    assert np.abs(grads.embed_VD).max() > 0.01
    assert metrics.keys() == want_metrics.keys()
    for name, value in metrics.items():
        assert value == pytest.approx(want_metrics[name], rel=0, abs=1e-5), name


def naive_logprobs(params, batch):
    """Log-probabilities of unpacked samples, from whole logits."""
    hidden_BTD = hidden_states(
        params, batch.token_BT, batch.position_BT, batch.segment_BT, MODEL
    )
    logits_BTV = hidden_BTD @ gather_head(params, MODEL).T
    logp_BTV = jax.nn.log_softmax(logits_BTV / TEMPERATURE)
    return (logp_BTV * jax.nn.one_hot(batch.target_BT, V)).sum(axis=-1)


def test_the_first_step_is_reinforce(params, mesh, drawn):
    rows = unpacked(PIECES)
    scale_BT = np.where(rows.mask_BT, (WEIGHT_N * ADV_N)[rows.sample_BT], 0.0)

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def reinforce(params, batch):
        logp_BT = naive_logprobs(params, batch)
        return -(scale_BT * logp_BT).sum(), logp_BT

    want, want_logp_BT = jax.device_get(reinforce(params, to_device(rows, mesh)))
    packed = pack(drawn, T, 4)
    grads, metrics = gradient("policy_gradient", params, mesh, packed, 4)
    assert_near(grads, want)
    for name in ("ratio_mean", "ratio_max", "ratio_min"):
        assert metrics[name] == pytest.approx(1.0, abs=1e-6)
    assert metrics["clip_fraction"] == 0.0

    # The same programs give the same log-probabilities, under temperature.
    logp_BT = np.asarray(learner().score(params, to_device(packed, mesh)))
    for n in range(len(PIECES)):
        np.testing.assert_allclose(
            logp_BT[packed.mask_BT & (packed.sample_BT == n)],
            want_logp_BT[n][rows.mask_BT[n]],
            rtol=0,
            atol=1e-5,
        )


def test_a_batch_that_counts_nothing_has_exactly_no_gradient(params, mesh):
    silent = [dataclasses.replace(p, mask=np.zeros_like(p.mask)) for p in PIECES]
    packed = pack(silent, T, 4)
    for kind in ("policy_gradient", "supervised_gradient"):
        grads, _ = gradient(kind, params, mesh, packed, 4, loss=EVERY_TERM, add=shifted)
        assert not any(g.any() for g in jax.tree.leaves(grads))


def test_hidden_states_feel_counted_targets_alone_and_the_stop_token_is_one(
    params, mesh
):
    packed = pack(PIECES, T, 4)
    batch = to_device(packed, mesh)

    @jax.jit
    def felt(params, batch):
        hidden_BTD = hidden_states(
            params, batch.token_BT, batch.position_BT, batch.segment_BT, MODEL
        )

        def loss(hidden_BTD):
            logp_BT, entropy_BT = target_logprobs(
                params,
                hidden_BTD,
                batch.target_BT,
                batch.mask_BT,
                MODEL,
                temperature=TEMPERATURE,
            )
            return policy_loss(
                logp_BT,
                entropy_BT,
                jax.lax.stop_gradient(logp_BT),
                batch.sampler_logp_BT,
                None,
                learners.per_token(jnp.asarray(ADV_N), batch),
                batch.mask_BT,
                learners.per_token(jnp.asarray(WEIGHT_N), batch),
                spec=GRPO,
                num_tokens=NUM_TOKENS,
            )[0]

        return jnp.abs(jax.grad(loss)(hidden_BTD)).sum(axis=-1)

    felt_BT = np.asarray(felt(params, batch))
    np.testing.assert_array_equal(felt_BT > 0, packed.mask_BT)
    at_stop_BT = (packed.target_BT == EOS) & (packed.segment_BT > 0)
    assert at_stop_BT.sum() == 3
    assert (felt_BT[at_stop_BT] > 1e-4).all()


def test_old_logprobs_follow_the_weights(params, mesh):
    def ratio(params, add):
        packed = pack(PIECES, T, 4)
        return gradient("policy_gradient", params, mesh, packed, 4, add=add)[1]

    later = random_tree(mesh, seed=2)
    score = learner().score
    # Without them, "old" is whatever the weights are now.
    assert ratio(later, lambda b: b)["ratio_mean"] == pytest.approx(1.0, abs=1e-6)

    def scored(by):
        return lambda batch: batch.replace(old_logp_BT=score(by, batch))

    same = ratio(later, scored(later))
    assert same["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    batch = to_device(pack(PIECES, T, 4), mesh)
    gap_BT = np.asarray(score(later, batch)) - np.asarray(score(params, batch))
    want = np.exp(gap_BT)[np.asarray(batch.mask_BT)]
    moved = ratio(later, scored(params))
    assert moved["ratio_mean"] == pytest.approx(want.mean(), rel=1e-4)
    assert moved["ratio_max"] == pytest.approx(want.max(), rel=1e-4)
    assert abs(want.mean() - 1) > 0.01


# The optimiser.


def slow_lr(k, schedule, warmup_steps):
    lr, rest = OPTIM["lr"], OPTIM["total_steps"] - warmup_steps
    final = OPTIM["final_lr_fraction"]
    if k < warmup_steps:
        return lr * (k + 1) / warmup_steps
    done = min(1.0, (k - warmup_steps) / rest)
    if schedule == "linear":
        return lr * (1 - done * (1 - final))
    if schedule == "cosine":
        return lr * (final + (1 - final) * (1 + math.cos(math.pi * done)) / 2)
    return lr


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup_steps", [0, 1, 3])
def test_learning_rates_match_the_slow_version(schedule, warmup_steps):
    changed = OPTIM | {"schedule": schedule, "warmup_steps": warmup_steps}
    _, lr = optimiser(MODEL, **changed)
    got = jax.jit(jax.vmap(lr))(np.arange(8))
    want = [slow_lr(k, schedule, warmup_steps) for k in range(8)]
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-8)


def slow_adamw(params, steps_of_grads, clip_norm):
    """Weights after each step, float64, one leaf at a time (arXiv:1711.05101)."""
    b1, b2, eps = OPTIM["b1"], OPTIM["b2"], OPTIM["eps"]
    names = [path[-1].name for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    leaves, treedef = jax.tree.flatten(jax.device_get(params))
    w = [x.astype(np.float64) for x in leaves]
    m, v = [0.0 * x for x in w], [0.0 * x for x in w]
    after = []
    for k, grads in enumerate(steps_of_grads):
        grads = [g.astype(np.float64) for g in jax.tree.leaves(grads)]
        norm = math.sqrt(sum((g**2).sum() for g in grads))
        scale = clip_norm / norm if clip_norm and norm > clip_norm else 1.0
        lr = slow_lr(k, OPTIM["schedule"], OPTIM["warmup_steps"])
        for i, g in enumerate(grads):
            m[i] = b1 * m[i] + (1 - b1) * g * scale
            v[i] = b2 * v[i] + (1 - b2) * (g * scale) ** 2
            m_hat, v_hat = m[i] / (1 - b1 ** (k + 1)), v[i] / (1 - b2 ** (k + 1))
            decay = 0.0 if "norm" in names[i] else OPTIM["weight_decay"]
            w[i] = w[i] - lr * (m_hat / (np.sqrt(v_hat) + eps) + decay * w[i])
        after.append((treedef.unflatten(w.copy()), norm, lr))
    return after


@pytest.mark.parametrize("clip_norm", [1.0, 0.0])
def test_adamw_matches_the_slow_version(mesh, clip_norm):
    tx, schedule = optimiser(MODEL, **OPTIM | {"clip_norm": clip_norm})
    apply_gradient = make_learner(MODEL, tx, schedule).apply_gradient
    # Norms of about 10, 0.3, 10 and 0.3: clipped every other time.
    scales = (1.0, 0.03, 1.0, 0.03)
    trees = [random_tree(mesh, 10 + k, scale) for k, scale in enumerate(scales)]
    steps_of_grads = [
        jax.tree.map(lambda g, scale=scale: g * np.float32(scale), jax.device_get(tree))
        for tree, scale in zip(trees, scales, strict=True)
    ]
    params = random_tree(mesh, seed=0)
    wanted = slow_adamw(params, steps_of_grads, clip_norm)
    assert wanted[0][1] > 1 > wanted[1][1]
    state = init_state(params, tx)
    for k, (grads, (want, norm, lr)) in enumerate(
        zip(steps_of_grads, wanted, strict=True)
    ):
        placed = jax.tree.map(
            lambda g, w: jax.device_put(g, w.sharding), grads, state.params
        )
        state, metrics = apply_gradient(state, placed)
        assert int(state.step) == k + 1
        assert float(metrics["grad_norm"]) == pytest.approx(norm, rel=1e-5)
        assert float(metrics["learning_rate"]) == pytest.approx(lr, rel=1e-6)
        assert_near(jax.device_get(state.params), want, atol=2e-6)


def test_weight_decay_leaves_exactly_the_norm_scales_alone():
    undecayed = [
        path[-1].name
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            layout(MODEL), is_leaf=lambda x: hasattr(x, "fan_in")
        )
        if leaf.fan_in == 0
    ]
    assert undecayed == ["attn_norm_LD", "mlp_norm_LD", "norm_D"]


def test_a_new_state_is_at_step_zero(params):
    tx, _ = optimiser(MODEL, **OPTIM)
    state = init_state(params, tx)
    assert state.step.dtype == jnp.int32 and int(state.step) == 0
    assert state.params is params


def test_optimiser_state_and_gradients_are_float32_for_bfloat16_weights(mesh):
    low = dataclasses.replace(MODEL, param_dtype="bfloat16")
    tx, schedule = optimiser(low, **OPTIM)
    programs = make_learner(low, tx, schedule)
    params = jax.tree.map(
        lambda w: jax.ShapeDtypeStruct(w.shape, jnp.bfloat16, sharding=w.sharding),
        random_tree(mesh, seed=0),
    )
    grads = jax.eval_shape(programs.zero_gradient, params)
    assert {g.dtype for g in jax.tree.leaves(grads)} == {jnp.dtype("float32")}
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=sharding(mesh))
    state = State(step, params, jax.eval_shape(tx.init, params))  # type: ignore
    floats = [
        x.dtype
        for x in jax.tree.leaves(state.opt_state)
        if jnp.issubdtype(x.dtype, jnp.floating)
    ]
    assert set(floats) == {jnp.dtype("float32")}
    # What a step returns is what it takes: else the next step compiles again.
    after, _ = jax.eval_shape(programs.apply_gradient, state, grads)
    jax.tree.map(_assert_alike, state, after)


def _assert_alike(a, b):
    assert (a.shape, a.dtype) == (b.shape, b.dtype)


# What is given away, and what is not.


def test_gradients_are_donated_and_weights_are_not(mesh):
    params = random_tree(mesh, seed=3)
    programs = learner()
    batch = to_device(pack(PIECES, T, 4), mesh)
    zero = programs.zero_gradient(params)
    grads, _ = programs.policy_gradient(params, zero, batch, OUTCOME, NUM_TOKENS)
    assert zero.embed_VD.is_deleted()
    programs.score(params, batch)
    assert not any(w.is_deleted() for w in jax.tree.leaves(params))
    assert not batch.token_BT.is_deleted()

    tx, _ = optimiser(MODEL, **OPTIM)
    state = init_state(params, tx)
    new_state, _ = programs.apply_gradient(state, grads)
    assert params.embed_VD.is_deleted() and state.opt_state is not None
    assert all(x.is_deleted() for x in jax.tree.leaves(state.opt_state))
    assert not any(x.is_deleted() for x in jax.tree.leaves(new_state))


def test_merged_metrics_add_up_but_for_extremes():
    parts = [
        {
            "loss": jnp.float32(1.5),
            "ratio_max": jnp.float32(2),
            "gap_min": jnp.int32(3),
        },
        {"loss": jnp.float32(-1), "ratio_max": jnp.float32(1), "gap_min": jnp.int32(4)},
    ]
    merged = merge_metrics(parts)
    assert merged == {"loss": 0.5, "ratio_max": 2.0, "gap_min": 3.0}
    assert all(isinstance(value, float) for value in merged.values())
