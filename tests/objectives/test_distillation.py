"""Distillation: worked numbers of every form, what a teacher that agrees teaches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policy_cases import (
    ADV,
    LOGP,
    OLD,
    SAMPLER,
    TEACHER,
    assert_close,
    jitted_weights,
    pack,
    packed_masks,
    unpack,
)

from rl_jax.kernels.logprob import (  # pyright: ignore[reportMissingImports]
    token_kl,
)
from rl_jax.objectives.distillation import (
    PRESETS,
    RESTS,
    OnPolicy,
    jensen_shannon,
    on_policy_loss,
    soft_loss,
    teacher_advantage,
    top_k_kl,
)
from rl_jax.objectives.policy_check import validate


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def make(name, **changes) -> OnPolicy:
    """A preset; changes to fields of its policy loss come with `loss__`."""
    spec = PRESETS[name]
    loss = {k[6:]: v for k, v in changes.items() if k.startswith("loss__")}
    own = {k: v for k, v in changes.items() if not k.startswith("loss__")}
    return dataclasses.replace(spec, loss=dataclasses.replace(spec.loss, **loss), **own)


jitted_loss = jax.jit(
    jax.value_and_grad(on_policy_loss, has_aux=True), static_argnames="spec"
)


def loss_and_grad(spec, dtype="float32", teacher=TEACHER):
    lengths = [len(x) for x in LOGP]
    weight_N = jitted_weights(
        jnp.array(lengths),
        jnp.array([0, 0, 1]),
        jnp.ones(3, bool),
        mode=spec.loss.aggregate,
        num_groups=2,
        constant=4.0,
    )
    weights = [[float(w)] * n for w, n in zip(weight_N, lengths, strict=True)]
    mask_BT, segment_BT = packed_masks(LOGP)

    def packed(x):
        return jnp.array(pack(x, np.nan), dtype)

    (loss, metrics), grad_BT = jitted_loss(
        *(packed(x) for x in (LOGP, LOGP, OLD, SAMPLER, teacher, ADV)),
        mask_BT,
        packed(weights),
        segment_BT,
        spec=spec,
        num_tokens=9,
    )
    assert loss.dtype == dtype
    np.testing.assert_array_equal(np.where(mask_BT, 0.0, grad_BT), 0.0)
    return loss, unpack(grad_BT, LOGP), metrics


WORKED = {
    "opd": (
        make("opd"),
        -0.713613,
        [
            [-0.078468, 0.043035, 0.002178],
            [0.105703, -0.121475],
            [-0.043079, 0.048553, -0.774629, 0.104568],
        ],
    ),
    "mopd": (
        make("mopd", outcome=0.5),
        -0.037530,
        [
            [-0.114136, -0.019127, -0.054455],
            [0.146810, 0.075922],
            [-0.069234, 0.037670, 0.000000, 0.033853],
        ],
    ),
    "async_mopd": (
        make("async_mopd"),
        0.142707,
        [
            [-0.071335, 0.047817, 0.000000],
            [0.000000, 0.000000],
            [-0.041027, 0.050227, 0.000000, 0.000000],
        ],
    ),
    "glm5": (make("glm5"), 0.229491, None),
}


@pytest.mark.parametrize("name", WORKED)
def test_on_policy_forms_have_the_worked_values_and_gradients(name, dtype):
    spec, expected, grads = WORKED[name]
    loss, grad, _ = loss_and_grad(spec, dtype)
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-6)
    if grads is not None:
        assert_close(grad, grads)


@pytest.mark.parametrize(
    ("spec", "student", "expected"),
    [
        (
            make("opd"),
            SAMPLER,
            [
                [0.55, -0.45, -0.02],
                [-1.35, 0.60],
                [0.42, -0.29, 1.90, -1.39],
            ],
        ),
        (
            make("mopd", outcome=0.5),
            LOGP,
            [[0.8, 0.2, 0.5], [-1.25, -0.25], [0.9, -0.3, 1.0, -0.6]],
        ),
        (
            make("kimi_k3", bound=0.5),
            LOGP,
            [[0.3, -0.3, 0.0], [-0.5, 0.0], [0.5, -0.5, 0.5, -0.5]],
        ),
    ],
)
def test_advantages_have_the_worked_values(spec, student, expected):
    arrays = (jnp.array(pack(x, 0.0)) for x in (TEACHER, student, ADV))
    adv_BT = teacher_advantage(*arrays, spec=spec)
    assert_close(unpack(adv_BT, LOGP), expected)


def test_the_reported_kl_is_the_sampled_one():
    _, _, metrics = loss_and_grad(make("opd"))
    gaps = np.array(sum(SAMPLER, [])) - np.array(sum(TEACHER, []))
    np.testing.assert_allclose(metrics["reverse_kl"], gaps.mean(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", PRESETS)
def test_a_teacher_that_agrees_with_the_student_teaches_nothing(name):
    validate(PRESETS[name].loss)
    hash(PRESETS[name])
    # Kimi's loss also pulls to the old policy: not the teacher's doing.
    tau = {"loss__tau": 1e-12} if PRESETS[name].loss.tau else {}
    spec = make(name, outcome=0.0, **tau)
    same = {"sampler": SAMPLER, "old": OLD, "policy": LOGP}[spec.minus]
    loss, grad, metrics = loss_and_grad(spec, teacher=same)
    assert metrics["reverse_kl"] == 0 and abs(float(loss)) < 1e-9
    assert_close(grad, [np.zeros(len(x)) for x in LOGP], atol=1e-9)


def test_a_missing_outcome_or_an_unknown_student_is_refused():
    x_BT = jnp.zeros((1, 2))
    arrays = (x_BT, x_BT, x_BT, x_BT, x_BT, None, x_BT, x_BT)
    with pytest.raises(ValueError, match="outcome_adv_BT"):
        on_policy_loss(*arrays, spec=make("mopd"), num_tokens=2)
    with pytest.raises(ValueError, match="'teacher'"):
        on_policy_loss(*arrays, spec=make("opd", minus="teacher"), num_tokens=2)


# Over a vocabulary of three.
STUDENT_V = np.array([0.5, 0.3, 0.2])
TEACHER_V = np.array([0.2, 0.5, 0.3])
REVERSE_GRAD_V = [0.346243, -0.220389, -0.125854]


def test_sampled_gradients_are_the_reverse_kls_in_the_mean_only():
    spec = make("opd")
    with jax.enable_x64(True):
        adv_V = teacher_advantage(
            jnp.log(TEACHER_V), jnp.log(STUDENT_V), None, spec=spec
        )
        jacobian_VV = jax.jacobian(jax.nn.log_softmax)(jnp.log(STUDENT_V))
    draw_VV = -np.asarray(adv_V)[:, None] * np.asarray(jacobian_VV)
    mean_V = STUDENT_V @ draw_VV
    np.testing.assert_allclose(mean_V, REVERSE_GRAD_V, rtol=0, atol=1e-6)
    deviation_V = np.sqrt(STUDENT_V @ (draw_VV - mean_V) ** 2)
    expected = [0.113381, 0.174723, 0.158516]
    np.testing.assert_allclose(deviation_V, expected, rtol=0, atol=1e-6)


def soft(logits_V, teacher_V, *, direction, temperature=1.0, **options):
    """The kernel's KL of two heads that are the identity, as a loss of one token."""
    eye = jnp.eye(len(teacher_V), dtype=logits_V.dtype)
    teacher_1V = jnp.array([teacher_V], logits_V.dtype)
    kl = token_kl(
        logits_V[None], eye, teacher_1V, eye, temperature=temperature, **options
    )
    kl_11 = getattr(kl, f"{direction}_N")[None]
    one = jnp.ones((1, 1))
    return soft_loss(kl_11, one, one, temperature=temperature)[0]


@pytest.mark.parametrize(
    ("direction", "student", "teacher", "temperature", "value", "grad"),
    [
        ("forward", [1.0, 0.0, -1.0], [2.0, 1.0, -2.0], 1.0, 0.054618, None),
        (
            *("forward", [1.0, 0.0, -1.0], [2.0, 1.0, -2.0], 2.0, 0.190469),
            [-0.135233, -0.082023, 0.217256],
        ),
        (
            *("reverse", np.log(STUDENT_V), np.log(TEACHER_V), 1.0, 0.223805),
            REVERSE_GRAD_V,
        ),
        (
            *("forward", np.log(STUDENT_V), np.log(TEACHER_V), 1.0, 0.193794),
            [0.3, -0.2, -0.1],
        ),
    ],
)
def test_soft_losses_have_the_worked_values_and_gradients(
    direction, student, teacher, temperature, value, grad
):
    loss, grad_V = jax.jit(
        jax.value_and_grad(
            lambda z: soft(z, teacher, direction=direction, temperature=temperature)
        )
    )(jnp.array(student, jnp.float32))
    np.testing.assert_allclose(loss, value, rtol=0, atol=1e-6)
    if grad is not None:
        np.testing.assert_allclose(grad_V, grad, rtol=0, atol=1e-6)


def test_soft_losses_read_nothing_under_the_mask():
    def total(kl_BT):
        mask_BT = jnp.array([[1, 0]])
        return soft_loss(kl_BT, mask_BT, jnp.array([[0.5, jnp.nan]]))[0]

    loss, grad_BT = jax.value_and_grad(total)(jnp.array([[0.2, jnp.nan]]))
    np.testing.assert_allclose(loss, 0.1, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(grad_BT, [[0.5, 0.0]])


def logps(seed, V=7):
    rng = np.random.default_rng(seed)
    return jax.nn.log_softmax(jnp.array(rng.normal(0, 2, (2, 1, 3, V)), jnp.float32))


def full_kl(p, q):
    p, q = np.asarray(p, np.float64), np.asarray(q, np.float64)
    return np.sum(np.exp(p) * (p - q), -1)


def slow_top_k(p_K, q_K, rest) -> float:
    p, q = np.exp(np.float64(p_K)), np.exp(np.float64(q_K))
    if rest == "renormalised":
        p, q = p / p.sum(), q / q.sum()
    if rest == "bucket":
        p, q = [*p, 1 - p.sum()], [*q, 1 - q.sum()]
    return sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("seed", range(3))
def test_the_kl_of_kept_tokens_matches_the_slow_version(rest, seed):
    student_BTV, teacher_BTV = logps(seed)
    p_BTK, id_BTK = jax.lax.top_k(teacher_BTV, 3)
    q_BTK = jnp.take_along_axis(student_BTV, id_BTK, -1)
    kl_BT = top_k_kl(q_BTK, p_BTK, rest=rest)
    for t in range(3):
        expected = slow_top_k(p_BTK[0, t], q_BTK[0, t], rest)
        np.testing.assert_allclose(kl_BT[0, t], expected, rtol=0, atol=2e-6)
    if rest == "bucket":
        assert np.all(kl_BT <= full_kl(teacher_BTV, student_BTV) + 1e-6)
        assert np.all(kl_BT >= -1e-6)


@pytest.mark.parametrize("rest", RESTS)
def test_keeping_the_whole_vocabulary_gives_the_whole_kl(rest):
    student_BTV, teacher_BTV = logps(5)
    kl_BT = top_k_kl(student_BTV, teacher_BTV, rest=rest)
    # 1e-5: of the rest, rounding leaves 1e-7 and a logarithm of two such.
    expected = full_kl(teacher_BTV, student_BTV)
    np.testing.assert_allclose(kl_BT, expected, rtol=0, atol=1e-5)


def test_kept_tokens_that_agree_teach_nothing_unless_the_rest_is_dropped():
    z_V = jnp.array([2.0, 1.0, 0.5, -1.0])

    def total(z_V, rest):
        q_K = jax.nn.log_softmax(z_V)[:2]
        p_K = jax.nn.log_softmax(jnp.array([2.0, 1.0, 0.5, -1.0]))[:2]
        return top_k_kl(q_K[None, None], p_K[None, None], rest=rest).sum()

    for rest in ("bucket", "renormalised"):
        grad_V = jax.grad(total)(z_V, rest)
        np.testing.assert_allclose(grad_V, np.zeros(4), rtol=0, atol=1e-6)
    grad_V = jax.grad(total)(z_V, "dropped")
    assert np.all(grad_V[:2] < -0.01) and np.all(grad_V[2:] > 0.01)
    with pytest.raises(ValueError, match="'kept'"):
        top_k_kl(z_V, z_V, rest="kept")


@pytest.mark.parametrize(
    ("student", "teacher", "beta", "value"),
    [
        (STUDENT_V, TEACHER_V, 0.1, 0.017563),
        (STUDENT_V, TEACHER_V, 0.5, 0.050875),
        (STUDENT_V, TEACHER_V, 0.9, 0.019661),
        (STUDENT_V, TEACHER_V, 0.0, 0.193794),
        (STUDENT_V, TEACHER_V, 1.0, 0.223805),
        ([0.5, 0.3, 0.2], [0.7, 0.2, 0.1], 0.5, 0.021901),
        ([0.5, 0.3, 0.2], [0.7, 0.2, 0.1], 0.0, 0.085123),
        ([0.5, 0.3, 0.2], [0.7, 0.2, 0.1], 1.0, 0.092033),
    ],
)
def test_the_jensen_shannon_divergence_has_the_worked_values(
    student, teacher, beta, value, dtype
):
    logp_NV, teacher_NV = jnp.log(jnp.array([[student], [teacher]], dtype))
    found = jensen_shannon(logp_NV, teacher_NV, beta=beta)
    np.testing.assert_allclose(found, [value], rtol=0, atol=1e-6)


def test_a_mixture_outside_of_the_two_is_refused():
    with pytest.raises(ValueError, match="beta"):
        jensen_shannon(jnp.zeros((1, 1)), jnp.zeros((1, 1)), beta=1.5)
