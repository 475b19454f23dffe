"""Gradients of distillation, against NumPy in float64, on one device and on eight.

Legend: B rows, T positions, D width of the student (E of the teacher), V vocabulary,
K tokens kept of it, N samples.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from tiny_optimiser import adamw

from rl_jax.data.packing import Packed, Piece, pack
from rl_jax.distill_learner import Soft, make_distiller
from rl_jax.learner import Outcome, batch_logprobs, merge_metrics, to_device
from rl_jax.mesh import make_mesh, sharding
from rl_jax.models.decoder import hidden_states
from rl_jax.models.spec import ModelSpec
from rl_jax.objectives.distillation import PRESETS
from tiny_stage import random_params

V, T, N, ROWS = 34, 11, 12, 8
STUDENT = ModelSpec(
    num_layers=1,
    width=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    ffn_width=24,
    vocab_size=V,
    tie_embeddings=False,
    final_softcap=9.0,
)
TEACHER = ModelSpec(
    num_layers=2,
    width=24,
    num_heads=2,
    num_kv_heads=2,
    head_dim=4,
    ffn_width=16,
    vocab_size=V,
    qk_norm="head",
)
SAMPLING = 0.7  # temperature
OPD = PRESETS["opd"]
REWARDED = dataclasses.replace(
    OPD, outcome=0.5, loss=dataclasses.replace(OPD.loss, centre="group_mean")
)


@pytest.fixture(scope="module", autouse=True)
def mesh():
    mesh = make_mesh(devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        yield mesh


def both(mesh):
    """(student's weights, teacher's)"""
    return random_params(mesh, 0, STUDENT), random_params(mesh, 1, TEACHER)


def pieces(seed=2, num_prompt=2):
    rng = np.random.default_rng(seed)
    lengths = [12, 5, 7, 9, 4, 8, 12, 10, 11, 6, 3, 9]
    return [
        Piece(
            tokens=rng.integers(0, V, n).astype(np.int32),
            mask=np.arange(n) >= num_prompt,
            sampler_logp=(rng.normal(size=n) * 0.3 - 3).astype(np.float32),
            sample=i,
            group=i // 4,
        )
        for i, n in enumerate(lengths)
    ]


PIECES = pieces()
NUM_TOKENS = sum(int(p.mask.sum()) for p in PIECES)
_RNG = np.random.default_rng(3)
WEIGHT_N = _RNG.uniform(0.01, 0.03, N).astype(np.float32)
OUTCOME = Outcome(
    reward_N=_RNG.normal(size=N).astype(np.float32),
    group_N=(np.arange(N) // 4).astype(np.int32),
    valid_N=np.arange(N) != 5,  # one could not be judged
    weight_N=WEIGHT_N,
)


@functools.cache
def distiller(soft=None, on_policy=None, teacher=TEACHER):
    tx, schedule = adamw(STUDENT, eps=1e-8, clip_norm=0.0)
    return make_distiller(
        *(STUDENT, teacher, tx, schedule),
        soft=soft,
        on_policy=on_policy,
        num_groups=3,
        temperature=SAMPLING,
    )


def soft_gradient(soft, mesh, packed, *, rows_a_pass=ROWS, params=None, teacher=None):
    """(gradients, metrics) of packed rows, in passes of so many."""
    programs = distiller(soft, None, STUDENT if teacher is not None else TEACHER)
    student, other = both(mesh)
    params = student if params is None else params
    teacher = other if teacher is None else teacher
    grads, parts = programs.zero_gradient(params), []
    for i in range(0, len(packed.mask_BT), rows_a_pass):
        batch = to_device(packed.rows(i, i + rows_a_pass), mesh)
        grads, metrics = programs.soft_gradient(
            params, grads, teacher, batch, WEIGHT_N, NUM_TOKENS
        )
        parts.append(metrics)
    return jax.device_get(grads), merge_metrics(parts)


def on_policy_gradient(spec, mesh, packed, *, same=False):
    params, teacher = both(mesh)
    teacher = params if same else teacher
    programs = distiller(None, spec, STUDENT if same else TEACHER)
    batch = to_device(packed, mesh)
    batch = dataclasses.replace(
        batch, ref_logp_BT=programs.teacher_score(teacher, batch)
    )
    if same:
        batch = dataclasses.replace(
            batch, sampler_logp_BT=programs.score(params, batch)
        )
    grads, metrics = programs.on_policy_gradient(
        params, programs.zero_gradient(params), batch, OUTCOME, NUM_TOKENS
    )
    return jax.device_get(grads), merge_metrics([metrics])


def assert_near(got, want, *, atol=1e-5):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), got, want
    )


def largest(tree):
    return max(float(np.abs(x).max()) for x in jax.tree.leaves(tree))


# Twins.


@functools.partial(jax.jit, static_argnames="model")
def hidden(params, batch, model):
    return hidden_states(
        params, batch.token_BT, batch.position_BT, batch.segment_BT, model
    )


@jax.jit
def logps(params, batch):
    return batch_logprobs(params, batch, model=STUDENT, temperature=SAMPLING)[0]


@functools.partial(jax.jit, static_argnames="fn")
def pulled_back(fn, params, batch, d_out):
    """The gradient by the weights of what has this gradient by `fn(params, batch)`."""
    return jax.vjp(lambda p: fn(p, batch), params)[1](d_out)[0]


def hidden_of_student(params, batch):
    return hidden(params, batch, STUDENT)


def put(x, mesh):
    axes = ("batch", "time", "width")[: np.ndim(x)]
    return jax.device_put(np.asarray(x, np.float32), sharding(mesh, *axes))


def float64(x):
    return np.asarray(x, np.float64)


def log_softmax(z_V):
    z_V = z_V - z_V.max()
    return z_V - np.log(np.exp(z_V).sum())


def forward_of(q_V, p_V):
    """(KL of p to q, its gradient by the logits of q)"""
    return np.sum(np.exp(p_V) * (p_V - q_V)), np.exp(q_V) - np.exp(p_V)


def reverse_of(q_V, p_V):
    kl = np.sum(np.exp(q_V) * (q_V - p_V))
    return kl, np.exp(q_V) * (q_V - p_V - kl)


def few_of(q_V, p_V, num_kept, rest):
    """Forward KL over the teacher's likeliest tokens, and its gradient."""
    kept = np.argsort(-p_V)[:num_kept]
    onehot_KV = np.eye(len(q_V))[kept]
    p_K, q_K = np.exp(p_V[kept]), np.exp(q_V[kept])
    if rest == "renormalised":
        p_K = p_K / p_K.sum()
        kl = np.sum(p_K * (np.log(p_K) - np.log(q_K / q_K.sum())))
        return kl, (q_K / q_K.sum() - p_K) @ onehot_KV
    kl = np.sum(p_K * np.log(p_K / q_K))
    slope_V = p_K.sum() * np.exp(q_V) - p_K @ onehot_KV
    if rest == "dropped":
        return kl, slope_V
    left, left_q = 1 - p_K.sum(), 1 - q_K.sum()
    # The gradient of log(1 - sum of q): minus that of the sum, over what is left.
    slope_of_sum_V = q_K @ onehot_KV - q_K.sum() * np.exp(q_V)
    return kl + left * np.log(left / left_q), slope_V + left / left_q * slope_of_sum_V


def twin(soft, mesh, packed):
    """(loss, gradient) in NumPy from hidden states on; the layers are jax's."""
    (params, teacher), batch = both(mesh), to_device(packed, mesh)
    hidden_BTD = float64(hidden_of_student(params, batch))
    hidden_BTE = float64(hidden(teacher, batch, TEACHER))
    head_VD, head_VE = float64(params.head_VD), float64(teacher.embed_VD)
    loss, d_hidden_BTD, d_head_VD = 0.0, np.zeros(hidden_BTD.shape), 0 * head_VD
    for b, t in zip(*np.nonzero(packed.mask_BT), strict=True):
        h_D = hidden_BTD[b, t]
        capped_V = np.tanh(head_VD @ h_D / STUDENT.final_softcap)
        q_V = log_softmax(STUDENT.final_softcap * capped_V / soft.temperature)
        p_V = log_softmax(head_VE @ hidden_BTE[b, t] / soft.temperature)
        if soft.top_k:
            kl, d_z_V = few_of(q_V, p_V, soft.top_k, soft.rest)
        else:
            kl, d_z_V = {"forward": forward_of, "reverse": reverse_of}[soft.direction](
                q_V, p_V
            )
        weight = soft.temperature**2 * float(WEIGHT_N[packed.sample_BT[b, t]])
        loss += weight * kl
        d_V = weight / soft.temperature * (1 - capped_V**2) * d_z_V
        d_hidden_BTD[b, t] = d_V @ head_VD
        d_head_VD += d_V[:, None] * h_D
    grads = pulled_back(hidden_of_student, params, batch, put(d_hidden_BTD, mesh))
    return loss, dataclasses.replace(grads, head_VD=d_head_VD)


SOFT = [
    Soft(),
    Soft(2.0, "reverse"),
    Soft(2.0, "forward", 5, "bucket"),
    Soft(0.5, "forward", 3, "renormalised"),
    Soft(1.0, "forward", 4, "dropped"),
]
NAMES = [f"{s.direction} {s.top_k or 'all'} {s.rest} at {s.temperature}" for s in SOFT]


@pytest.mark.parametrize("soft", SOFT, ids=NAMES)
def test_the_soft_loss_and_its_gradient_are_those_of_numpy(soft, mesh):
    packed = pack(PIECES, T, ROWS)
    grads, metrics = soft_gradient(soft, mesh, packed)
    loss, want = twin(soft, mesh, packed)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert_near(grads, want)
    assert largest(want) > 0.01 and loss > 0.01


def test_both_directions_are_reported_in_the_mean_over_tokens(mesh):
    packed = pack(PIECES, T, ROWS)
    _, metrics = soft_gradient(SOFT[0], mesh, packed)
    params, teacher = both(mesh)
    batch = to_device(packed, mesh)
    total = float(distiller(SOFT[0]).total_kl(params, teacher, batch))
    assert metrics["reverse_kl"] == pytest.approx(total / NUM_TOKENS, rel=1e-5)
    _, reverse = soft_gradient(Soft(1.0, "reverse"), mesh, packed)
    assert reverse["reverse_kl"] == pytest.approx(metrics["reverse_kl"], rel=1e-6)
    assert reverse["loss"] != pytest.approx(metrics["loss"], rel=1e-2)


def test_as_many_likeliest_tokens_as_there_are_give_the_whole_kl(mesh):
    packed = pack(PIECES, T, ROWS)
    grads, metrics = soft_gradient(Soft(), mesh, packed)
    every, found = soft_gradient(Soft(top_k=V, rest="renormalised"), mesh, packed)
    assert found["loss"] == pytest.approx(metrics["loss"], abs=1e-5)
    assert_near(every, grads)


@pytest.mark.parametrize("soft", SOFT[1:3], ids=NAMES[1:3])
def test_a_teacher_that_is_the_student_teaches_nothing(soft, mesh):
    params, _ = both(mesh)
    grads, metrics = soft_gradient(
        soft, mesh, pack(PIECES, T, ROWS), params=params, teacher=params
    )
    assert abs(metrics["loss"]) < 1e-6 and largest(grads) < 1e-6


@pytest.mark.parametrize("soft", [SOFT[1], SOFT[2]], ids=[NAMES[1], NAMES[2]])
def test_packed_is_unpacked_and_padding_changes_nothing(soft, mesh):
    want, want_metrics = soft_gradient(soft, mesh, pack(PIECES, T, ROWS))
    alone = [pack([piece], T, 1) for piece in PIECES]
    names = [f.name for f in dataclasses.fields(Packed)]
    rows = Packed(*(np.concatenate([getattr(r, n) for r in alone]) for n in names))
    padded = pack(PIECES, T, 2 * ROWS)  # half of the rows or more are empty
    assert len(padded.mask_BT) == 2 * ROWS and not padded.mask_BT[ROWS:].any()
    for packed, passes in ((rows, 4), (padded, ROWS)):
        grads, metrics = soft_gradient(soft, mesh, packed, rows_a_pass=passes)
        assert_near(grads, want)
        assert metrics["loss"] == pytest.approx(want_metrics["loss"], abs=1e-5)


@pytest.mark.parametrize("kind", ["whole", "few", "drawn"])
def test_what_is_masked_has_no_gradient(kind, mesh):
    def made(ending):
        cut = [
            dataclasses.replace(
                p,
                tokens=np.append(p.tokens[:-1], ending).astype(np.int32),
                mask=p.mask & (np.arange(len(p.mask)) < len(p.mask) - 1),
            )
            for p in PIECES
        ]
        packed = pack(cut, T, ROWS)
        if kind == "drawn":
            return on_policy_gradient(OPD, mesh, packed)
        return soft_gradient(SOFT[1] if kind == "whole" else SOFT[2], mesh, packed)

    grads, metrics = made(5)
    again, same = made(29)
    assert metrics == same and largest(grads) > 0.01
    jax.tree.map(np.testing.assert_array_equal, grads, again)


# Drawn tokens.


def outcome_advantage():
    adv_N = np.zeros(N)
    for group in range(3):
        inside = [n for n in range(N) if n // 4 == group and OUTCOME.valid_N[n]]
        rewards = float64(OUTCOME.reward_N)[inside]
        adv_N[inside] = rewards - rewards.mean()
    return adv_N


@pytest.mark.parametrize("spec", [OPD, REWARDED], ids=["teacher alone", "and rewards"])
def test_the_gradient_of_drawn_tokens_is_that_of_the_teachers_advantage(spec, mesh):
    packed = pack(PIECES, T, ROWS)
    grads, metrics = on_policy_gradient(spec, mesh, packed)
    (params, teacher), batch = both(mesh), to_device(packed, mesh)
    logp_BT = float64(logps(params, batch))
    hidden_BTE = float64(hidden(teacher, batch, TEACHER))
    head_VE = float64(teacher.embed_VD)
    adv_N, total, d_logp_BT = outcome_advantage(), 0.0, np.zeros(logp_BT.shape)
    for b, t in zip(*np.nonzero(packed.mask_BT), strict=True):
        n = packed.sample_BT[b, t]
        teacher_V = log_softmax(head_VE @ hidden_BTE[b, t] / SAMPLING)
        behind = packed.sampler_logp_BT[b, t] - teacher_V[packed.target_BT[b, t]]
        total += behind
        adv = -behind + spec.outcome * adv_N[n]
        ratio = np.exp(logp_BT[b, t] - packed.sampler_logp_BT[b, t])
        d_logp_BT[b, t] = -WEIGHT_N[n] * ratio * adv
    want = pulled_back(logps, params, batch, put(d_logp_BT, mesh))
    assert metrics["reverse_kl"] == pytest.approx(total / NUM_TOKENS, abs=1e-5)
    assert_near(grads, want, atol=3e-5)
    assert largest(want) > 0.01


@pytest.mark.parametrize("name", ["opd", "glm5"])
def test_a_student_that_is_its_teacher_has_no_advantage(name, mesh):
    packed = pack(PIECES, T, ROWS)
    grads, metrics = on_policy_gradient(PRESETS[name], mesh, packed, same=True)
    assert metrics["reverse_kl"] == 0 and metrics["policy_loss"] == 0
    assert largest(grads) < 1e-6


# Many devices; the other forms are in tests/test_sharding_stages.py.


def on_mesh(sizes):
    count = sizes[0] * sizes[1] * sizes[2]
    many = make_mesh(*sizes, devices=jax.devices()[:count])
    with jax.set_mesh(many):
        return soft_gradient(SOFT[2], many, pack(PIECES, T, ROWS))


def test_the_likeliest_tokens_are_found_among_those_of_all_devices():
    want, want_metrics = on_mesh((1, 1, 1))
    got, metrics = on_mesh((2, 2, 2))
    assert metrics == pytest.approx(want_metrics, rel=0, abs=1e-5)
    assert_near(got, want)
    assert largest(want) > 0.01
