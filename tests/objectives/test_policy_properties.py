"""Policy losses on random packed batches: a slow twin, and what must never matter."""

import dataclasses

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.objectives.policy import PRESETS, PolicyLoss, policy_loss

NAMES = ("logp", "entropy", "old", "sampler", "ref", "adv", "mask", "weight", "segment")
B, T = 8, 11


def spec_of(surrogate, denominator="old", **changes) -> PolicyLoss:
    terms = {"kl": "k3", "kl_coef": 0.3, "entropy_coef": 0.05}
    return PolicyLoss(
        centre="group_mean",
        scale="group_std",
        surrogate=surrogate,
        denominator=denominator,
        clip_low=0.2,
        clip_high=0.28,
        aggregate="token_mean",
        **(terms | changes),
    )


# Every branch of the loss, each with all of its terms switched on.
SPECS = [
    spec_of("clip", sampler_cap=1.5, ratio_floor=0.6, ratio_cap=1.6),
    spec_of("clip", "sampler", kl="k1"),
    spec_of("cispo", kl="k2", correction="mask", sampler_low=0.7, sampler_cap=1.4),
    spec_of("capped", "sampler", kl="k3_unbiased", ratio_cap=1.3),
    spec_of("none", kl="k1", correction="keep", sampler_low=0.7, sampler_cap=1.4),
    spec_of(
        "clip",
        ratio="sequence",
        kl="k1_unbiased",
        correction="sequence_truncate",
        sampler_low=0.5,
        sampler_cap=1.2,
        off_policy_delta=0.05,
    ),
    spec_of(
        "clip",
        ratio="sequence_token",
        correction="geometric_mask",
        sampler_low=0.9,
        sampler_cap=1.15,
    ),
    spec_of(
        "none",
        ratio="sequence_sum",
        correction="sequence_mask",
        sampler_cap=1.3,
    ),
    spec_of("dropped", "sampler", off_policy_delta=0.05),
    spec_of(
        "kimi_k15",
        tau=0.4,
        correction="geometric_keep",
        sampler_low=0.9,
        sampler_cap=1.15,
    ),
    spec_of("kimi_k25", tau=0.4),
    spec_of("kimi_k2", tau=0.5),
    spec_of("sapo", tau=1.0, tau_negative=1.05),
]


def of_specs(specs):
    return pytest.mark.parametrize(
        "spec", specs, ids=lambda spec: f"{spec.surrogate}-{spec.ratio}-{spec.kl}"
    )


each_spec = of_specs(SPECS)
# Tests with shapes or dtypes of their own compile anew: with and without sums over
# samples is enough.
some_specs = of_specs([SPECS[i] for i in (0, 3, 5, 6, 9)])

jitted_loss = jax.jit(
    jax.value_and_grad(policy_loss, argnums=(0, 1), has_aux=True),
    static_argnames=("spec",),
)


def random_batch(lengths, seed=0, dtype: type = np.float32):
    """Samples of the given lengths, packed end to end, rest garbage under mask 0.

    Some tokens inside of samples are masked too, but never the last one.
    """
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
    mask_BT, segment_BT = np.zeros((B, T), bool), np.zeros((B, T), np.int32)
    for n, (row, columns) in enumerate(spans(lengths)):
        mask_BT[row, columns] = rng.uniform(size=columns.stop - columns.start) < 0.8
        mask_BT[row, columns.stop - 1 : columns.stop] = columns.stop > columns.start
        segment_BT[row, columns] = n + 1
        batch["adv"][row, columns] = rng.normal()
        batch["weight"][row, columns] = rng.uniform(0.05, 0.2)
    for x_BT in batch.values():
        x_BT[~mask_BT] = rng.choice([np.nan, np.inf, -np.inf, 1e30])
    batch = {k: x.astype(dtype) for k, x in batch.items()}
    return batch | {"mask": mask_BT, "segment": segment_BT}


def spans(lengths) -> list[tuple[int, slice]]:
    """(row, columns) of samples laid end to end."""
    row, column, found = 0, 0, []
    for length in lengths:
        if column + length > T:
            row, column = row + 1, 0
        found.append((row, slice(column, column + length)))
        column += length
    return found


def evaluate(batch, spec, num_tokens=None):
    num_tokens = int(batch["mask"].sum()) if num_tokens is None else num_tokens
    (loss, metrics), (grad_BT, entropy_grad_BT) = jitted_loss(
        *(jnp.asarray(batch[name]) for name in NAMES), spec=spec, num_tokens=num_tokens
    )
    return loss, metrics, np.asarray(grad_BT), np.asarray(entropy_grad_BT)


def bounded(x, low, high):
    return min(max(x, low), high)


def slow_correction(spec, rho_T, t) -> float:
    """The weight of token t of a sample whose tokens have these exp(old - sampler)."""
    judged = {
        "sequence": np.prod(rho_T),
        "geometric": np.prod(rho_T) ** (1 / len(rho_T)),
    }.get(spec.correction.split("_")[0], rho_T[t])
    if spec.correction.endswith("truncate"):
        return bounded(judged, spec.sampler_low, spec.sampler_cap)
    if not spec.sampler_low <= judged <= spec.sampler_cap:
        return 0.0
    if spec.correction.endswith("keep"):
        return 1.0
    return rho_T[t] if spec.correction == "geometric_mask" else judged


def slow_surrogate(spec, t, now_T, moved_T, below_T, adv) -> float:
    """One token's loss: what has a gradient from `moved_T`, the rest from `now_T`."""
    x_T, fixed_T = moved_T - below_T, now_T - below_T
    log_r, fixed_log_r = {
        "token": (x_T[t], fixed_T[t]),
        "sequence": (np.mean(x_T), np.mean(fixed_T)),
        "sequence_token": (
            np.mean(fixed_T) + x_T[t] - fixed_T[t],
            np.mean(fixed_T),
        ),
        "sequence_sum": (np.sum(x_T), np.sum(fixed_T)),
    }[spec.ratio]
    cap = spec.ratio_cap or np.inf
    r = bounded(np.exp(log_r), spec.ratio_floor, cap)
    fixed_r = bounded(np.exp(fixed_log_r), spec.ratio_floor, cap)
    low, high = 1 - spec.clip_low, 1 + spec.clip_high
    return {
        "clip": -min(r * adv, bounded(r, low, high) * adv),
        "none": -r * adv,
        "cispo": -bounded(fixed_r, low, high) * adv * moved_T[t],
        "capped": -fixed_r * adv * moved_T[t],
        "dropped": -fixed_r * adv * moved_T[t] if low < fixed_r < high else 0.0,
        "kimi_k15": -adv * moved_T[t] + spec.tau / 2 * np.sum(x_T) ** 2 / len(x_T),
        "kimi_k2": (adv - spec.tau * np.sum(x_T)) ** 2 / len(x_T),
        "sapo": -adv * gate(r, spec.tau if adv > 0 else spec.tau_negative),
        "kimi_k25": -bounded(r, low, high) * adv + spec.tau * x_T[t] ** 2,
    }[spec.surrogate]


def gate(r, tau) -> float:
    return 4 / tau / (1 + np.exp(-tau * (r - 1))) if tau else 0.0


def slow_kl(kind, now, moved, ref, below) -> float:
    k1, k2 = moved - ref, (moved - ref) ** 2 / 2
    k3 = np.exp(ref - moved) - (ref - moved) - 1
    weight = np.exp(moved - below)
    return {
        "k1": (now - ref) + (k2 - (now - ref) ** 2 / 2),
        "k2": k2,
        "k3": k3,
        "k1_unbiased": weight * k1,
        "k3_unbiased": weight * k3,
    }[kind]


def slow_loss(batch, spec, moved_BT) -> float:
    """The loss with the policy at `moved_BT`; what the papers hold fixed stays.

    Differences of this function in moved_BT are the gradient the papers mean.
    """
    total = 0.0
    for segment in sorted(set(batch["segment"].ravel()) - {0}):
        here = (batch["segment"] == segment) & batch["mask"]
        now_T, old_T, sampler_T, ref_T, adv_T, weight_T, entropy_T = (
            batch[k][here].astype(np.float64)
            for k in ("logp", "old", "sampler", "ref", "adv", "weight", "entropy")
        )
        moved_T = moved_BT[here].astype(np.float64)
        below_T = old_T if spec.denominator == "old" else sampler_T
        for t, adv in enumerate(adv_T):
            token = slow_surrogate(spec, t, now_T, moved_T, below_T, adv)
            if spec.sampler_cap:
                token *= slow_correction(spec, np.exp(old_T - sampler_T), t)
            if spec.off_policy_delta and adv < 0:
                token *= np.mean(sampler_T - now_T) <= spec.off_policy_delta
            token += spec.kl_coef * slow_kl(
                spec.kl, now_T[t], moved_T[t], ref_T[t], below_T[t]
            )
            token -= spec.entropy_coef * entropy_T[t]
            total += weight_T[t] * token
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


@each_spec
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


@each_spec
def test_float32_agrees_with_float64(spec):
    batch = random_batch(LENGTHS)
    loss, _, grad_BT, _ = evaluate(batch, spec)
    assert loss.dtype == jnp.float32
    with jax.enable_x64(True):
        wide = {
            k: x if k in ("mask", "segment") else x.astype(float)
            for k, x in batch.items()
        }
        wide_loss, _, wide_BT, _ = evaluate(wide, spec)
    np.testing.assert_allclose(loss, wide_loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(grad_BT, wide_BT, rtol=1e-5, atol=1e-6)


@each_spec
def test_garbage_under_the_mask_changes_nothing(spec):
    batch = random_batch(LENGTHS)
    results = []
    for garbage in (0.5, np.nan, -np.inf, np.inf, -1e30):
        for name in set(NAMES) - {"mask", "segment"}:
            batch[name][~batch["mask"]] = garbage
        results.append(evaluate(batch, spec))
    for result in results[1:]:
        jax.tree.map(np.testing.assert_array_equal, result, results[0])
    for grad_BT in results[0][2:]:
        np.testing.assert_array_equal(grad_BT[~batch["mask"]], 0.0)


@some_specs
def test_padding_changes_nothing(spec):
    batch = random_batch(LENGTHS)
    loss, metrics, grad_BT, entropy_grad_BT = evaluate(batch, spec)
    longer = {
        name: np.pad(
            x_BT,
            ((0, 1), (0, 5)),
            constant_values=0 if name in ("mask", "segment") else np.nan,
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


@each_spec
def test_permuting_rows_permutes_the_gradient(spec):
    batch = random_batch(LENGTHS)
    order_B = np.random.default_rng(1).permutation(B)
    loss, _, grad_BT, _ = evaluate(batch, spec)
    permuted = {name: x_BT[order_B] for name, x_BT in batch.items()}
    permuted_loss, _, permuted_BT, _ = evaluate(permuted, spec)
    np.testing.assert_allclose(permuted_loss, loss, rtol=0, atol=1e-6)
    # 1e-7: an ulp, since vector lanes and their remainder round differently.
    np.testing.assert_allclose(permuted_BT, grad_BT[order_B], rtol=0, atol=1e-7)


@each_spec
def test_one_sample_a_row_equals_several(spec):
    lengths = [4, 6, 5, 3]
    packed = random_batch(lengths)
    loss, metrics, grad_BT, _ = evaluate(packed, spec)
    alone = {
        k: np.full_like(x, 0 if k in ("mask", "segment") else 9)
        for k, x in packed.items()
    }
    for n, (row, columns) in enumerate(spans(lengths)):
        for name, x_BT in packed.items():
            sample_T = x_BT[row, columns]
            alone[name][n, : len(sample_T)] = sample_T
    alone_loss, alone_metrics, alone_BT, _ = evaluate(alone, spec)
    np.testing.assert_allclose(alone_loss, loss, rtol=0, atol=1e-6)
    for n, (row, columns) in enumerate(spans(lengths)):
        sample_T = grad_BT[row, columns]
        # 1e-7: an ulp, since vector lanes and their remainder round differently.
        np.testing.assert_allclose(
            alone_BT[n, : len(sample_T)], sample_T, rtol=0, atol=1e-7
        )
    for name, value in metrics.items():
        np.testing.assert_allclose(alone_metrics[name], value, rtol=0, atol=1e-6)


@some_specs
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


@each_spec
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


def on_policy_gradient(batch, spec) -> np.ndarray:
    """-adv * weight; a product over the sample counts it once for every token."""
    counts_BT = np.ones((B, T))
    if spec.ratio == "sequence_sum":
        for segment in set(batch["segment"].ravel()) - {0}:
            here = batch["segment"] == segment
            counts_BT[here] = (here & batch["mask"]).sum()
    return np.where(batch["mask"], -batch["adv"] * batch["weight"] * counts_BT, 0.0)


@each_spec
def test_on_policy_every_surrogate_has_the_plain_policy_gradient(spec):
    batch, spec = on_policy(random_batch(LENGTHS), spec)
    _, metrics, grad_BT, _ = evaluate(batch, spec)
    expected_BT = on_policy_gradient(batch, spec)
    np.testing.assert_allclose(grad_BT, expected_BT, rtol=0, atol=1e-6)
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
        return policy_loss(*same, *arrays[5:8], spec=spec, num_tokens=1)[0]

    expected_BT = evaluate(batch, spec)[2]
    np.testing.assert_allclose(
        jax.jit(jax.grad(loss_fn))(arrays[0]), expected_BT, rtol=0, atol=1e-7
    )


@pytest.mark.parametrize("spec", [spec for spec in SPECS if not spec.tau])
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
    last = [(row, columns.stop - 1) for row, columns in spans(LENGTHS)]
    assert all(abs(grad_BT[index]) > 1e-4 for index in last)


@some_specs
def test_narrow_inputs_are_widened_first(spec):
    narrow = {
        name: x_BT if x_BT.dtype != np.float32 else jnp.asarray(x_BT, jnp.bfloat16)
        for name, x_BT in random_batch(LENGTHS).items()
    }
    wide = {
        name: x_BT if x_BT.dtype != jnp.bfloat16 else x_BT.astype(jnp.float32)
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


@each_spec
def test_far_apart_policies_stay_finite(spec):
    batch = random_batch(LENGTHS)
    far_BT = np.resize(np.array([-20.0, -300.0, -0.1], np.float32), (B, T))
    for names in (["logp"], ["old", "ref"], ["sampler", "old"], ["sampler"]):
        loss, metrics, grad_BT, _ = evaluate(batch | dict.fromkeys(names, far_BT), spec)
        assert np.isfinite(loss) and np.all(np.isfinite(grad_BT))
        assert all(np.isfinite(value) for value in metrics.values())


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[5]])
def test_a_sharded_batch_gives_the_loss_of_one_device(spec):
    devices = np.array(jax.devices()[:B])
    if B % len(devices):
        pytest.skip(f"{len(devices)} devices do not divide {B} rows")
    mesh = jax.sharding.Mesh(
        devices, ("rows",), axis_types=(jax.sharding.AxisType.Explicit,)
    )
    batch = random_batch(LENGTHS)
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


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[5]])
def test_inside_a_shard_map_over_rows_parts_add_up(spec):
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Explicit,))
    batch = random_batch(LENGTHS)
    num_tokens = int(batch["mask"].sum())
    rows = jax.P("rows", None)

    def local(*arrays):
        (loss, metrics), (grad_BT, _) = jax.value_and_grad(
            policy_loss, argnums=(0, 1), has_aux=True
        )(*arrays, spec=spec, num_tokens=num_tokens)
        del metrics["ratio_max"], metrics["ratio_min"], metrics["sampler_gap_max"]
        return jax.lax.psum((loss, metrics), "rows"), grad_BT

    with jax.set_mesh(mesh):
        arrays = [jax.device_put(batch[name], rows) for name in NAMES]
        (loss, metrics), grad_BT = jax.jit(
            jax.shard_map(local, in_specs=rows, out_specs=(jax.P(), rows))
        )(*arrays)
    whole, whole_metrics, whole_BT, _ = evaluate(batch, spec)
    np.testing.assert_allclose(loss, whole, rtol=0, atol=1e-6)
    np.testing.assert_allclose(grad_BT, whole_BT, rtol=0, atol=1e-7)
    for name, value in metrics.items():
        np.testing.assert_allclose(value, whole_metrics[name], rtol=0, atol=1e-6)
