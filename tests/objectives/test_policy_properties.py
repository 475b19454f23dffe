"""Policy losses on random packed batches: a slow twin, and what must never matter."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.objectives.policy import PRESETS, PolicyLoss, policy_loss

NAMES = ("logp", "entropy", "old", "sampler", "ref", "adv", "mask", "weight")
B, T = 8, 11

# Every branch of the loss, each with all of its terms switched on.
SPECS = [
    PolicyLoss(
        advantage="group_std",
        denominator=denominator,
        bound=bound,
        clip_low=0.2,
        clip_high=0.28,
        aggregate="token_mean",
        kl=kl,
        kl_coef=0.3,
        sampler_cap=1.5 if denominator == "old" else 0.0,
        entropy_coef=0.05,
    )
    for denominator, bound, kl in [
        ("old", "clip", "k3"),
        ("sampler", "clip", "k1"),
        ("old", "cispo", "k2"),
        ("sampler", "cispo", "k3"),
        ("old", "none", "k1"),
    ]
]

jitted_loss = jax.jit(
    jax.value_and_grad(policy_loss, argnums=(0, 1), has_aux=True),
    static_argnames=("spec",),
)


def random_batch(lengths, seed=0, dtype: type = np.float32):
    """Samples of the given lengths, packed end to end, rest garbage under mask 0."""
    rng = np.random.default_rng(seed)
    logp_BT = -rng.exponential(1.0, (B, T))
    batch = {
        "logp": logp_BT,
        "entropy": rng.exponential(1.0, (B, T)),
        "old": logp_BT + rng.normal(0, 0.3, (B, T)),
        "sampler": logp_BT + rng.normal(0, 0.4, (B, T)),
        "ref": logp_BT + rng.normal(0, 0.5, (B, T)),
        "adv": np.zeros((B, T)),
        "weight": np.zeros((B, T)),
    }
    mask_BT = np.zeros((B, T), bool)
    row, column = 0, 0
    for length in lengths:
        if column + length > T:
            row, column = row + 1, 0
        span = np.s_[row, column : column + length]
        mask_BT[span] = True
        batch["adv"][span] = rng.normal()
        batch["weight"][span] = rng.uniform(0.05, 0.2)
        column += length
    for x_BT in batch.values():
        x_BT[~mask_BT] = rng.choice([np.nan, np.inf, -np.inf, 1e30])
    return {k: x.astype(dtype) for k, x in batch.items()} | {"mask": mask_BT}


def evaluate(batch, spec, num_tokens=None):
    num_tokens = int(batch["mask"].sum()) if num_tokens is None else num_tokens
    (loss, metrics), (grad_BT, entropy_grad_BT) = jitted_loss(
        *(jnp.asarray(batch[name]) for name in NAMES), spec=spec, num_tokens=num_tokens
    )
    return loss, metrics, np.asarray(grad_BT), np.asarray(entropy_grad_BT)


def slow_loss(batch, spec, moved_BT) -> float:
    """The loss with the policy at `moved_BT`; what the papers hold fixed stays.

    Differences of this function in moved_BT are the gradient the papers mean.
    """
    total = 0.0
    for b, t in zip(*np.nonzero(batch["mask"]), strict=True):
        now, logp, old, sampler, ref, adv, weight = (
            np.float64(x_BT[b, t])
            for x_BT in (
                batch["logp"],
                moved_BT,
                *(batch[k] for k in ("old", "sampler", "ref", "adv", "weight")),
            )
        )
        below = old if spec.denominator == "old" else sampler
        low, high = 1 - spec.clip_low, 1 + spec.clip_high
        if spec.bound == "clip":
            r = np.exp(logp - below)
            token = -min(r * adv, min(max(r, low), high) * adv)
        elif spec.bound == "cispo":
            r = np.exp(now - below)
            token = -min(max(r, low), high) * adv * logp
        else:
            token = -np.exp(logp - below) * adv
        if spec.sampler_cap:
            token *= min(np.exp(old - sampler), spec.sampler_cap)
        if spec.kl == "k1":
            kl = (now - ref) + ((logp - ref) ** 2 - (now - ref) ** 2) / 2
        elif spec.kl == "k2":
            kl = (logp - ref) ** 2 / 2
        else:
            kl = np.exp(ref - logp) - (ref - logp) - 1
        token += spec.kl_coef * kl
        token -= spec.entropy_coef * np.float64(batch["entropy"][b, t])
        total += weight * token
    return total


def slow_gradient(batch, spec, step=1e-6) -> np.ndarray:
    grad_BT = np.zeros((B, T))
    for b, t in zip(*np.nonzero(batch["mask"]), strict=True):
        ends = []
        for sign in (1, -1):
            moved_BT = batch["logp"].copy()
            moved_BT[b, t] += sign * step
            ends.append(slow_loss(batch, spec, moved_BT))
        grad_BT[b, t] = (ends[0] - ends[1]) / (2 * step)
    return grad_BT


@pytest.mark.parametrize("spec", SPECS)
@hypothesis.given(
    lengths=st.lists(st.integers(0, T), min_size=1, max_size=4),
    seed=st.integers(0, 999),
)
@hypothesis.settings(max_examples=8, deadline=None)
def test_values_and_gradients_match_the_slow_version(spec, lengths, seed):
    with jax.enable_x64(True):
        batch = random_batch(lengths, seed, np.float64)
        loss, _, grad_BT, entropy_grad_BT = evaluate(batch, spec)
        assert loss.dtype == jnp.float64
        slow = slow_loss(batch, spec, batch["logp"])
        np.testing.assert_allclose(loss, slow, rtol=0, atol=1e-9)
        # 1e-6: rounding of a central difference over 2e-6 in float64.
        slow_BT = slow_gradient(batch, spec)
        np.testing.assert_allclose(grad_BT, slow_BT, rtol=0, atol=1e-6)
        bonus_BT = np.where(batch["mask"], -spec.entropy_coef * batch["weight"], 0.0)
        np.testing.assert_allclose(entropy_grad_BT, bonus_BT, rtol=0, atol=1e-12)


LENGTHS = [4, 6, 11, 3, 5, 2, 1, 7, 9, 8, 2]


@pytest.mark.parametrize("spec", SPECS)
def test_float32_agrees_with_float64(spec):
    batch = random_batch(LENGTHS)
    loss, _, grad_BT, _ = evaluate(batch, spec)
    assert loss.dtype == jnp.float32
    with jax.enable_x64(True):
        wide = {k: x if k == "mask" else x.astype(float) for k, x in batch.items()}
        wide_loss, _, wide_BT, _ = evaluate(wide, spec)
    np.testing.assert_allclose(loss, wide_loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(grad_BT, wide_BT, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_garbage_under_the_mask_changes_nothing(spec):
    batch = random_batch(LENGTHS)
    results = []
    for garbage in (0.5, np.nan, -np.inf, np.inf, -1e30):
        for name in set(NAMES) - {"mask"}:
            batch[name][~batch["mask"]] = garbage
        results.append(evaluate(batch, spec))
    for result in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, result, results[0])
    for grad_BT in results[0][2:]:
        np.testing.assert_array_equal(grad_BT[~batch["mask"]], 0.0)


@pytest.mark.parametrize("spec", SPECS)
def test_padding_changes_nothing(spec):
    batch = random_batch(LENGTHS)
    loss, metrics, grad_BT, entropy_grad_BT = evaluate(batch, spec)
    longer = {
        name: np.pad(
            x_BT, ((0, 1), (0, 5)), constant_values=0 if name == "mask" else np.nan
        )
        for name, x_BT in batch.items()
    }
    longer_loss, longer_metrics, *grads = evaluate(longer, spec)
    # 1e-6: a longer row is summed in another order.
    np.testing.assert_allclose(longer_loss, loss, rtol=0, atol=1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(longer_metrics[name], value, rtol=0, atol=1e-6)
    for longer_BT, short_BT in zip(grads, (grad_BT, entropy_grad_BT), strict=True):
        # 1e-7: an ulp, since programs of two shapes are fused in two ways.
        np.testing.assert_allclose(longer_BT[:B, :T], short_BT, rtol=0, atol=1e-7)
        np.testing.assert_array_equal(longer_BT[~longer["mask"]], 0.0)


@pytest.mark.parametrize("spec", SPECS)
def test_permuting_rows_permutes_the_gradient(spec):
    batch = random_batch(LENGTHS)
    order_B = np.random.default_rng(1).permutation(B)
    loss, _, grad_BT, _ = evaluate(batch, spec)
    permuted = {name: x_BT[order_B] for name, x_BT in batch.items()}
    permuted_loss, _, permuted_BT, _ = evaluate(permuted, spec)
    np.testing.assert_allclose(permuted_loss, loss, rtol=0, atol=1e-6)
    # 1e-7: an ulp, since vector lanes and their remainder round differently.
    np.testing.assert_allclose(permuted_BT, grad_BT[order_B], rtol=0, atol=1e-7)


@pytest.mark.parametrize("spec", SPECS)
def test_one_sample_a_row_equals_several(spec):
    packed = random_batch([4, 6, 5, 3])
    loss, metrics, grad_BT, _ = evaluate(packed, spec)
    alone = {k: np.full_like(x, 0 if k == "mask" else 9) for k, x in packed.items()}
    spans = [np.s_[0, :4], np.s_[0, 4:10], np.s_[1, :5], np.s_[1, 5:8]]
    for n, (row, columns) in enumerate(spans):
        for name, x_BT in packed.items():
            sample_T = x_BT[row, columns]
            alone[name][n, : len(sample_T)] = sample_T
    alone_loss, alone_metrics, alone_BT, _ = evaluate(alone, spec)
    np.testing.assert_allclose(alone_loss, loss, rtol=0, atol=1e-6)
    for n, (row, columns) in enumerate(spans):
        sample_T = grad_BT[row, columns]
        # 1e-7: an ulp, since vector lanes and their remainder round differently.
        np.testing.assert_allclose(
            alone_BT[n, : len(sample_T)], sample_T, rtol=0, atol=1e-7
        )
    for name, value in metrics.items():
        np.testing.assert_allclose(alone_metrics[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_micro_batches_add_up_to_the_batch(spec):
    # The last rows hold no sample: one of the four micro-batches is empty.
    batch = random_batch(LENGTHS[:7])
    assert not batch["mask"][6:].any()
    num_tokens = int(batch["mask"].sum())
    loss, metrics, grad_BT, _ = evaluate(batch, spec)
    parts = [
        evaluate(
            {name: np.split(x_BT, 4)[i] for name, x_BT in batch.items()},
            spec,
            num_tokens,
        )
        for i in range(4)
    ]
    np.testing.assert_allclose(sum(p[0] for p in parts), loss, rtol=0, atol=1e-6)
    # 1e-6: programs of another shape may fuse, and so round, differently.
    np.testing.assert_allclose(
        np.concatenate([p[2] for p in parts]), grad_BT, rtol=0, atol=1e-6
    )
    for name, value in metrics.items():
        combine = {"_max": max, "_min": min}.get(name[-4:], sum)
        total = combine(p[1][name] for p in parts)
        np.testing.assert_allclose(total, value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("spec", SPECS)
def test_a_batch_without_tokens_gives_zero(spec):
    loss, metrics, grad_BT, _ = evaluate(random_batch([]), spec)
    assert loss == 0
    np.testing.assert_array_equal(grad_BT, np.zeros((B, T)))
    assert metrics.pop("ratio_min") == pytest.approx(np.exp(20))
    assert all(value == 0 for value in metrics.values())


def on_policy(batch, spec):
    """The same batch and spec where no token has drifted and only adv acts."""
    same = {k: batch["logp"] for k in ("old", "sampler", "ref")}
    spec = dataclasses.replace(spec, kl_coef=0.0, entropy_coef=0.0)
    return batch | same, spec


@pytest.mark.parametrize("spec", SPECS)
def test_on_policy_every_bound_has_the_plain_policy_gradient(spec):
    batch, spec = on_policy(random_batch(LENGTHS), spec)
    _, metrics, grad_BT, _ = evaluate(batch, spec)
    expected_BT = np.where(batch["mask"], -batch["adv"] * batch["weight"], 0.0)
    np.testing.assert_allclose(grad_BT, expected_BT, rtol=0, atol=1e-7)
    assert metrics["ratio_max"] == metrics["ratio_min"] == 1
    assert metrics["clip_fraction"] == metrics["sampler_kl"] == metrics["kl"] == 0


def test_on_policy_a_bound_of_zero_width_does_not_weaken_the_gradient():
    spec = dataclasses.replace(PRESETS["grpo"], clip_low=0.0, clip_high=0.0)
    batch, spec = on_policy(random_batch(LENGTHS), spec)
    _, _, grad_BT, _ = evaluate(batch, spec)
    expected_BT = np.where(batch["mask"], -batch["adv"] * batch["weight"], 0.0)
    np.testing.assert_array_equal(grad_BT, expected_BT)


def test_the_policy_itself_may_stand_for_the_old_one():
    batch, spec = on_policy(random_batch(LENGTHS), PRESETS["dapo"])
    arrays = [jnp.asarray(batch[name]) for name in NAMES]

    def loss_fn(logp_BT):
        same = [logp_BT, arrays[1], logp_BT, logp_BT, None]
        return policy_loss(*same, *arrays[5:], spec=spec, num_tokens=1)[0]

    expected_BT = evaluate(batch, spec)[2]
    np.testing.assert_allclose(
        jax.jit(jax.grad(loss_fn))(arrays[0]), expected_BT, rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("spec", SPECS)
def test_zero_advantages_give_exactly_no_gradient(spec):
    batch = random_batch(LENGTHS)
    batch["adv"] = np.zeros((B, T), np.float32)
    spec = dataclasses.replace(spec, kl_coef=0.0, entropy_coef=0.0)
    loss, _, grad_BT, _ = evaluate(batch, spec)
    assert loss == 0
    np.testing.assert_array_equal(grad_BT, np.zeros((B, T)))


@pytest.mark.parametrize("name", PRESETS)
def test_the_last_token_of_every_sample_gets_a_gradient(name):
    # It is the end-of-sequence token: without one, a policy never learns to stop.
    batch, spec = on_policy(random_batch(LENGTHS), PRESETS[name])
    _, _, grad_BT, _ = evaluate(batch, spec)
    row, column, last = 0, 0, []
    for length in LENGTHS:
        if column + length > T:
            row, column = row + 1, 0
        column += length
        last.append((row, column - 1))
    assert all(abs(grad_BT[index]) > 1e-4 for index in last)


@pytest.mark.parametrize("spec", SPECS)
def test_narrow_inputs_are_widened_first(spec):
    narrow = {
        name: x_BT if name == "mask" else jnp.asarray(x_BT, jnp.bfloat16)
        for name, x_BT in random_batch(LENGTHS).items()
    }
    wide = {
        name: x_BT if name == "mask" else x_BT.astype(jnp.float32)
        for name, x_BT in narrow.items()
    }
    loss, metrics, grad_BT, _ = evaluate(narrow, spec)
    wide_loss, wide_metrics, wide_BT, _ = evaluate(wide, spec)
    assert loss.dtype == jnp.float32
    assert all(value.dtype == jnp.float32 for value in metrics.values())
    # 1e-6: the two programs may fuse differently.
    np.testing.assert_allclose(loss, wide_loss, rtol=0, atol=1e-6)
    for name, value in wide_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(grad_BT, np.asarray(wide_BT, grad_BT.dtype))


@pytest.mark.parametrize("spec", SPECS)
def test_far_apart_policies_stay_finite(spec):
    batch = random_batch(LENGTHS)
    far_BT = np.resize(np.array([-20.0, -300.0, -0.1], np.float32), (B, T))
    for names in (["logp"], ["old", "ref"], ["sampler", "old"], ["sampler"]):
        loss, metrics, grad_BT, _ = evaluate(batch | dict.fromkeys(names, far_BT), spec)
        assert np.isfinite(loss) and np.all(np.isfinite(grad_BT))
        assert all(np.isfinite(value) for value in metrics.values())


def test_a_sharded_batch_gives_the_loss_of_one_device():
    devices = np.array(jax.devices()[:B])
    if B % len(devices):
        pytest.skip(f"{len(devices)} devices do not divide {B} rows")
    mesh = jax.sharding.Mesh(
        devices, ("rows",), axis_types=(jax.sharding.AxisType.Explicit,)
    )
    spec, batch = SPECS[0], random_batch(LENGTHS)
    loss, metrics, grad_BT, _ = evaluate(batch, spec)
    with jax.set_mesh(mesh):
        sharded = {
            name: jax.device_put(x_BT, jax.P("rows", None))
            for name, x_BT in batch.items()
        }
        num_tokens = int(batch["mask"].sum())
        (sharded_loss, sharded_metrics), (sharded_BT, _) = jitted_loss(
            *(sharded[name] for name in NAMES), spec=spec, num_tokens=num_tokens
        )
        assert jax.typeof(sharded_BT).sharding.spec == jax.P("rows", None)
    np.testing.assert_allclose(sharded_loss, loss, rtol=0, atol=1e-5)
    np.testing.assert_allclose(sharded_BT, grad_BT, rtol=0, atol=1e-6)
    for name, value in metrics.items():
        np.testing.assert_allclose(sharded_metrics[name], value, rtol=0, atol=1e-5)
