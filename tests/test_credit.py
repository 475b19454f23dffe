"""Advantages of tokens, against sums written out, on one device and on eight."""

import dataclasses

import jax
import numpy as np
import pytest

from rl_jax.credit import is_by_token, with_advantages
from rl_jax.learner import Batch, Outcome
from rl_jax.mesh import make_mesh, sharding
from rl_jax.objectives.policy import COMPAT, PRESETS

B, T, N = 8, 11, 6
REWARD_N = np.array([1, 0, 0, 1, 1, 0], np.float32)
OUTCOME = Outcome(
    reward_N=REWARD_N,
    group_N=np.array([0, 0, 0, 1, 1, 1], np.int32),
    valid_N=np.ones(N, bool),
    weight_N=np.ones(N, np.float32),
)
COEF = 0.1


def micro_batches(mesh):
    """Two batches of three samples each, a token of each not the policy's."""
    rng = np.random.default_rng(0)
    batches, arrays = [], []
    for k in range(2):
        names = ("token", "target", "position", "segment", "sample", "group")
        ints = {name: np.zeros((B, T), np.int32) for name in names}
        mask_BT = np.zeros((B, T), bool)
        old_BT = rng.normal(size=(B, T)).astype(np.float32) - 2
        ref_BT = old_BT + 0.3 * rng.normal(size=(B, T)).astype(np.float32)
        for b in range(3):
            ints["segment"][b, 1:6] = 1
            ints["sample"][b, 1:6] = 3 * k + b
            mask_BT[b, 2:6] = True
            mask_BT[b, 3] = b > 0
        arrays.append((mask_BT, old_BT, ref_BT, ints["sample"]))
        every = {f"{name}_BT": x for name, x in ints.items()} | {
            "mask_BT": mask_BT,
            "sampler_logp_BT": old_BT,
            "old_logp_BT": old_BT,
            "ref_logp_BT": ref_BT,
        }
        rows = sharding(mesh, "batch", "time")
        placed = {name: jax.device_put(x, rows) for name, x in every.items()}
        batches.append(Batch(**placed))
    return batches, [np.concatenate(x) for x in zip(*arrays, strict=True)]


def less_mean_of_others(reward_N):
    groups = reward_N.reshape(2, 3)
    return (groups - (groups.sum(1, keepdims=True) - groups) / 2).reshape(N)


LOSSES = {
    "kl in the reward": dataclasses.replace(PRESETS["rloo"], kl_coef=COEF),
    "kl in the return": dataclasses.replace(
        PRESETS["reinforce_plus_plus"], kl_coef=COEF
    ),
    "whitened": PRESETS["reinforce_plus_plus_baseline"],
}


def expected(name, mask_BT, old_BT, ref_BT, sample_BT):
    kl_BT = np.where(mask_BT, old_BT - ref_BT, 0.0).astype(float)
    if name == "kl in the reward":
        paid_N = [kl_BT[mask_BT & (sample_BT == n)].sum() for n in range(N)]
        adv_N = less_mean_of_others(REWARD_N - COEF * np.array(paid_N))
        return np.where(mask_BT, adv_N[sample_BT], 0.0)
    if name == "kl in the return":
        to_come_BT = kl_BT[:, ::-1].cumsum(axis=1)[:, ::-1]
        adv_BT = REWARD_N[sample_BT] - COEF * to_come_BT
    else:
        groups = REWARD_N.reshape(2, 3).astype(float)
        adv_BT = (groups - groups.mean(1, keepdims=True)).reshape(N)[sample_BT]
    spread = np.sqrt(adv_BT[mask_BT].var() + 1e-8)
    return np.where(mask_BT, (adv_BT - adv_BT[mask_BT].mean()) / spread, 0.0)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 2, 2)])
@pytest.mark.parametrize("name", LOSSES)
def test_tokens_are_worth_what_the_sums_written_out_say(name, sizes):
    mesh = make_mesh(*sizes, devices=jax.devices()[: int(np.prod(sizes))])
    with jax.set_mesh(mesh):
        batches, arrays = micro_batches(mesh)
        found = with_advantages(batches, OUTCOME, loss=LOSSES[name], num_groups=2)
    mask_BT = arrays[0]
    found_BT = np.concatenate([np.asarray(batch.adv_BT) for batch in found])
    want_BT = expected(name, *arrays)
    assert np.abs(want_BT[mask_BT]).max() > 0.3
    np.testing.assert_allclose(
        np.where(mask_BT, found_BT, 0), want_BT, rtol=0, atol=2e-6
    )


def test_only_losses_that_need_it_tell_tokens_apart():
    apart = {name for name, loss in PRESETS.items() if is_by_token(loss)}
    assert apart == {"reinforce_plus_plus", "reinforce_plus_plus_baseline"}
    assert all(is_by_token(loss) for loss in LOSSES.values())
    assert is_by_token(COMPAT["trl"]["rloo"])
