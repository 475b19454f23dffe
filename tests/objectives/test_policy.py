"""Policy losses: worked numbers for values, gradients and metrics.

Properties that hold for any batch are in test_policy_properties.py, the checks of a
spec in test_policy_spec.py. The worked
numbers use three samples of two prompts; the first two share a packed row, and both
rows end in garbage under a zero mask.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.objectives.aggregate import token_weights
from rl_jax.objectives.policy import PRESETS, PolicyLoss, policy_loss

LOGP = [[-0.50, -1.20, -0.30], [-0.90, -0.40], [-1.50, -0.20, -0.70, -2.00]]
OLD = [[-0.70, -1.00, -0.30], [-0.60, -0.90], [-1.40, -0.60, -0.70, -1.60]]
SAMPLER = [[-0.75, -1.05, -0.28], [-0.55, -1.00], [-1.42, -0.61, -2.00, -1.61]]
REF = [[-0.60, -1.10, -0.50], [-0.80, -0.80], [-1.20, -0.50, -0.90, -1.00]]
ADV = [[1.0] * 3, [-0.5] * 2, [0.8] * 4]
ZERO_ADV = [[0.0] * 3, [0.0] * 2, [0.0] * 4]
PROMPTS = [0, 0, 1]

# Tokens of two samples and their old log-probabilities, as used to compare trainers.
PEER_LOGP = [[-1.0, -0.5], [-0.7, -2.0, -0.3, -1.1]]
PEER_OLD = [[-1.2, -0.9], [-0.5, -1.0, -0.3, -2.5]]
PEER_ADV = [[1.0] * 2, [-1.0] * 4]

jitted_loss = jax.jit(
    jax.value_and_grad(policy_loss, argnums=(0, 1), has_aux=True),
    static_argnames=("spec",),
)
jitted_weights = jax.jit(
    token_weights, static_argnames=("mode", "num_groups", "constant")
)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def make(name="grpo", **changes) -> PolicyLoss:
    return dataclasses.replace(PRESETS[name], **changes)


def pack(ragged, garbage) -> np.ndarray:
    """Two rows: the first two samples end to end, then the others; 7 positions."""
    rows = [sum(ragged[:2], []), sum(ragged[2:], [])]
    return np.array([row + [garbage] * (7 - len(row)) for row in rows])


def unpack(x_BT, ragged) -> list[np.ndarray]:
    tokens_N = np.concatenate(
        [np.asarray(x_BT)[0, : len(sum(ragged[:2], []))], *np.asarray(x_BT)[1:]]
    )
    return np.split(tokens_N, np.cumsum([len(x) for x in ragged]))[: len(ragged)]


def loss_and_grads(
    spec,
    dtype="float32",
    *,
    logp=LOGP,
    old=OLD,
    sampler=SAMPLER,
    ref=REF,
    adv=ADV,
    prompts=PROMPTS,
    constant=4.0,
    garbage=np.nan,
):
    """Loss, gradient to logp per sample, metrics, gradient to the entropies."""
    lengths = [len(x) for x in logp]
    weight_N = jitted_weights(
        jnp.array(lengths),
        jnp.array(prompts),
        jnp.ones(len(lengths), bool),
        mode=spec.aggregate,
        num_groups=max(prompts) + 1,
        constant=constant,
    )
    weights = [[float(w)] * n for w, n in zip(weight_N, lengths, strict=True)]
    entropies = [[0.1 * n + 0.3] * n for n in lengths]
    packed = [
        jnp.array(pack(x, garbage), dtype)
        for x in (logp, entropies, old, sampler, ref, adv)
    ]
    mask_BT = jnp.array(pack([[1] * n for n in lengths], 0))
    # The loss does not read these fields: specs that differ in them share a program.
    program = make(
        **{
            name: getattr(spec, name)
            for name in dataclasses.asdict(spec)
            if name not in ("aggregate", "dynamic_sampling", "overlong_buffer")
        }
    )
    (loss, metrics), (grad_BT, entropy_grad_BT) = jitted_loss(
        *packed,
        mask_BT,
        jnp.array(pack(weights, garbage), dtype),
        spec=program,
        num_tokens=sum(lengths),
    )
    assert loss.dtype == dtype and loss.shape == ()
    assert grad_BT.shape == mask_BT.shape
    np.testing.assert_array_equal(np.where(mask_BT, 0.0, grad_BT), 0.0)
    return loss, unpack(grad_BT, logp), metrics, unpack(entropy_grad_BT, logp)


def assert_close(actual, expected, atol=1.5e-6):
    """1.5e-6: the expected numbers have six decimals, float32 weights an ulp."""
    for actual_T, expected_T in zip(actual, expected, strict=True):
        np.testing.assert_allclose(actual_T, expected_T, rtol=0, atol=atol)


DAPO_GRADS = [
    [-0.135711, -0.090970, -0.111111],
    [0.000000, 0.091596],
    [-0.080430, 0.000000, -0.088889, -0.059584],
]

WORKED = {
    "ppo, token mean": (
        make(aggregate="token_mean"),
        -0.534944,
        [
            [0.000000, -0.090970, -0.111111],
            [0.000000, 0.091596],
            [-0.080430, 0.000000, -0.088889, -0.059584],
        ],
    ),
    "dapo": (make("dapo"), -0.544433, DAPO_GRADS),
    "grpo": (
        make("grpo"),
        -0.383032,
        [
            [0.000000, -0.090970, -0.111111],
            [0.000000, 0.137393],
            [-0.060322, 0.000000, -0.066667, -0.044688],
        ],
    ),
    "dr_grpo": (
        make("dr_grpo"),
        -0.401208,
        [
            [0.000000, -0.068228, -0.083333],
            [0.000000, 0.068697],
            [-0.060322, 0.000000, -0.066667, -0.044688],
        ],
    ),
    "cispo, small cap": (
        make("cispo", clip_high=0.28),
        0.469659,
        [
            [-0.135711, -0.090970, -0.111111],
            [0.041157, 0.071111],
            [-0.080430, -0.113778, -0.088889, -0.059584],
        ],
    ),
    "cispo over the sampler, prompt mean": (
        make("cispo", denominator="sampler", clip_high=0.5, aggregate="prompt_mean"),
        0.544060,
        [
            [-0.128403, -0.086071, -0.098020],
            [0.035234, 0.075000],
            [-0.092312, -0.150000, -0.150000, -0.067706],
        ],
    ),
    "ppo, prompt mean": (
        make(aggregate="prompt_mean"),
        -0.556953,
        [
            [0.000000, -0.081873, -0.100000],
            [0.000000, 0.082436],
            [-0.090484, 0.000000, -0.100000, -0.067032],
        ],
    ),
}


@pytest.mark.parametrize("name", WORKED)
def test_losses_have_the_worked_values_and_gradients(name, dtype):
    spec, expected, grads = WORKED[name]
    loss, grad, metrics, _ = loss_and_grads(spec, dtype)
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(metrics["policy_loss"], expected, rtol=0, atol=1e-6)
    assert_close(grad, grads)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("token_mean", -0.534944),
        ("seq_mean_token_mean", -0.383032),
        ("seq_mean_token_sum", -1.604832),
        ("seq_sum_const", -0.401208),
        ("prompt_mean", -0.556953),
    ],
)
def test_every_aggregation_has_the_worked_value(aggregate, expected, dtype):
    loss, *_ = loss_and_grads(make(aggregate=aggregate), dtype)
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-6)


def test_grpo_with_a_kl_term_has_the_worked_value(dtype):
    loss, *_ = loss_and_grads(make(kl_coef=0.001), dtype)
    np.testing.assert_allclose(loss, -0.382947, rtol=0, atol=1e-6)
    only_kl, *_ = loss_and_grads(make(kl_coef=1.0), dtype, adv=ZERO_ADV)
    np.testing.assert_allclose(only_kl, 0.084749, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [("seq_mean_token_mean", -0.458159), ("token_mean", -0.638646)],
)
def test_a_capped_sampler_weight_has_the_worked_values(aggregate, expected, dtype):
    spec = make("dapo", aggregate=aggregate, sampler_cap=2.0)
    loss, _, metrics, _ = loss_and_grads(spec, dtype)
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1e-6)
    # The cap bites on one token only: 3.669297 becomes 2.
    weights = [1.051271, 1.051271, 0.980199, 0.951229, 1.105171]
    weights += [1.020201, 1.010050, 2.0, 1.010050]
    np.testing.assert_allclose(
        metrics["sampler_weight_mean"], np.mean(weights), rtol=0, atol=1e-6
    )


def test_the_sampler_weight_multiplies_the_gradient_and_not_the_kl_term():
    spec = make("dapo", aggregate="seq_mean_token_sum", sampler_cap=2.0)
    _, plain, _, _ = loss_and_grads(dataclasses.replace(spec, sampler_cap=0.0))
    _, capped, _, _ = loss_and_grads(spec)
    weights = np.array([1.020201, 1.010050, 2.0, 1.010050])
    assert_close([capped[2]], [plain[2] * weights])
    kl = [
        loss_and_grads(dataclasses.replace(s, kl_coef=0.5), adv=ZERO_ADV)[1]
        for s in (spec, dataclasses.replace(spec, sampler_cap=0.0))
    ]
    assert_close(kl[0], kl[1], atol=0)


RATIOS = {
    "old": [
        [1.221403, 0.818731, 1.0],
        [0.740818, 1.648721],
        [0.904837, 1.491825, 1.0, 0.670320],
    ],
    "sampler": [
        [1.284025, 0.860708, 0.980199],
        [0.704688, 1.822119],
        [0.923116, 1.506818, 3.669297, 0.677057],
    ],
}


@pytest.mark.parametrize("denominator", RATIOS)
def test_without_a_bound_the_gradient_is_minus_ratio_times_advantage(
    denominator, dtype
):
    spec = make(denominator=denominator, bound="none", aggregate="token_mean")
    loss, grad, metrics, _ = loss_and_grads(spec, dtype)
    expected = [
        -np.array(r) * np.array(a) / 9
        for r, a in zip(RATIOS[denominator], ADV, strict=True)
    ]
    assert_close(grad, expected)
    # -r * A is its own gradient, summed.
    np.testing.assert_allclose(loss, sum(map(np.sum, expected)), rtol=0, atol=1e-6)
    ratios = sum(RATIOS[denominator], [])
    for name, value in [
        ("ratio_mean", np.mean(ratios)),
        ("ratio_max", max(ratios)),
        ("ratio_min", min(ratios)),
        ("clip_fraction", 0.0),
    ]:
        np.testing.assert_allclose(metrics[name], value, rtol=0, atol=1e-6)


def test_clipped_tokens_are_counted_by_the_sign_of_their_advantage(dtype):
    _, grad, metrics, _ = loss_and_grads(make(), dtype)
    assert sum(np.sum(g == 0) for g in grad) == 3
    for name, count in [("fraction", 3), ("low_fraction", 1), ("high_fraction", 2)]:
        np.testing.assert_allclose(
            metrics[f"clip_{name}"], count / 9, rtol=0, atol=1e-6
        )


def test_the_gap_to_the_sampler_is_measured(dtype):
    _, _, metrics, _ = loss_and_grads(make(), dtype)
    gaps = np.abs(np.array(sum(OLD, [])) - np.array(sum(SAMPLER, [])))
    for name, value in [
        ("sampler_gap_mean", np.mean(gaps)),
        ("sampler_gap_max", 1.3),
        ("sampler_kl", 0.153193),
        ("sampler_weight_mean", 1.0),
    ]:
        np.testing.assert_allclose(metrics[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "mean"), [("k1", -0.033333), ("k2", 0.080556), ("k3", 0.103547)]
)
def test_the_kl_metric_is_the_token_mean_of_the_estimator(kind, mean, dtype):
    spec = make(kl=kind, kl_coef=0.5, aggregate="token_mean")
    loss, _, metrics, _ = loss_and_grads(spec, dtype)
    np.testing.assert_allclose(metrics["kl"], mean, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        loss - metrics["policy_loss"], 0.5 * mean, rtol=0, atol=1e-6
    )


def test_k1_is_reported_with_the_gradient_of_k2(dtype):
    spec = make(kl="k1", kl_coef=2.0, aggregate="token_mean")
    _, grad, _, _ = loss_and_grads(spec, dtype, adv=ZERO_ADV)
    expected = [
        2.0 * (np.array(a) - np.array(b)) / 9 for a, b in zip(LOGP, REF, strict=True)
    ]
    assert_close(grad, expected)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_another_reference_gives_another_gradient(kind):
    spec = make(kl=kind, kl_coef=1.0)
    _, grad, _, _ = loss_and_grads(spec)
    moved = [[f - 0.5 for f in x] for x in REF]
    _, other, _, _ = loss_and_grads(spec, ref=moved)
    for grad_T, other_T in zip(grad, other, strict=True):
        assert np.all(np.abs(grad_T - other_T) > 0.01)


def test_the_entropy_bonus_lowers_the_loss_and_reaches_the_entropy(dtype):
    without, _, _, _ = loss_and_grads(make(), dtype)
    loss, _, metrics, grad = loss_and_grads(make(entropy_coef=0.1), dtype)
    # Entropies are 0.6, 0.5 and 0.7; each sample weighs a third.
    np.testing.assert_allclose(loss - without, -0.1 * 0.6, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        metrics["entropy"], (3 * 0.6 + 2 * 0.5 + 4 * 0.7) / 9, rtol=0, atol=1e-6
    )
    assert_close(grad, [[-0.1 / 9] * 3, [-0.1 / 6] * 2, [-0.1 / 12] * 4])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (make("dapo"), 0.695421),
        (make("dapo", aggregate="seq_mean_token_mean"), 0.208891),
        (make("dapo", aggregate="seq_mean_token_sum"), 2.086264),
        (make("dapo", aggregate="seq_sum_const"), 0.260783),
        (make("cispo", clip_low=0.2, clip_high=0.28), -0.336618),
        (make("cispo", clip_high=0.28), -0.192578),
        (make("cispo"), -0.683713),
    ],
)
def test_losses_equal_those_of_peers_with_the_same_rule(spec, expected, dtype):
    loss, *_ = loss_and_grads(
        spec,
        dtype,
        logp=PEER_LOGP,
        old=PEER_OLD,
        sampler=PEER_OLD,
        ref=PEER_OLD,
        adv=PEER_ADV,
        prompts=[0, 0],
        constant=8.0,
    )
    np.testing.assert_allclose(loss, expected, rtol=0, atol=1.5e-6)
