"""The gradient of a step on pairs, against one made reply by reply.

Legend: N pairs, 2 the chosen and the rejected reply, T positions, V vocabulary.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_optimiser import adamw

from rl_jax.data.packing import Piece
from rl_jax.data.pair_packing import num_places, pack_pairs
from rl_jax.learner import make_learner, merge_metrics, to_device
from rl_jax.mesh import make_mesh, sharding
from rl_jax.models.decoder import gather_head, hidden_states
from rl_jax.models.spec import ModelSpec
from rl_jax.objectives.preference import PRESETS, PreferenceLoss
from rl_jax.preference_learner import PairArrays, make_preference_learner
from tiny_stage import random_params

MODEL = ModelSpec(
    num_layers=1,
    width=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    ffn_width=24,
    vocab_size=34,
)
V, ROWS, T = MODEL.vocab_size, 8, 15
N = num_places(ROWS, T)
# replica, fsdp, tensor; more of them are in tests/test_sharding_stages.py.
ONE_DEVICE = (1, 1, 1)
SPECIAL = (0, 5, 10, 15, 20, 25, 30)
LENGTHS = [(6, 9), (12, 4), (5, 5), (16, 7), (8, 3), (3, 11), (9, 10)]


def special_ids(loss):
    return SPECIAL if loss.mask_special else ()


def made_pairs():
    """Pairs that share a prompt of two tokens, and what the reference thinks."""
    rng = np.random.default_rng(0)
    pairs = []
    for both in LENGTHS:
        prompt = rng.integers(0, V, 2)
        pieces = []
        for n in both:
            tokens = [*prompt, *rng.integers(0, V, n - 2)]
            pieces.append(Piece(np.array(tokens, np.int32), np.arange(n) >= 2))
        pairs.append(tuple(pieces))
    tokens_N2 = np.array(LENGTHS) - 2  # special ones or not
    # Near enough to random weights for either sign of h.
    ref_N2 = -tokens_N2 * np.log(V) + rng.normal(size=tokens_N2.shape)
    return pairs, ref_N2.astype(np.float32), tokens_N2.astype(np.float32)


def mesh_of(sizes):
    return make_mesh(*sizes, devices=jax.devices()[: math.prod(sizes)])


@functools.cache
def updater():
    tx, schedule = adamw(MODEL)
    return tx, make_learner(MODEL, tx, schedule)


@functools.cache
def learner(loss: PreferenceLoss):
    return make_preference_learner(
        MODEL, loss=loss, num_pairs=N, special_ids=special_ids(loss)
    )


def num_special(pairs, ids):
    """special_N2: how many tokens of each reply are special."""
    return np.array(
        [[np.isin(p.tokens[p.mask], ids).sum() for p in pair] for pair in pairs]
    )


def arrays(ref_n2, tokens_n2, special_n2, weight, junk=0.0):
    """The arrays of a few pairs, with junk in the places that have none."""
    n = len(ref_n2)
    ref_N2 = np.full((N, 2), junk, np.float32)
    tokens_N2, weight_N = np.ones((N, 2), np.float32), np.zeros(N, np.float32)
    ref_N2[:n], tokens_N2[:n], weight_N[:n] = ref_n2, tokens_n2 - special_n2, weight
    special_N = np.zeros(N, np.float32)
    special_N[:n] = special_n2[:, 0]
    return PairArrays(ref_N2, tokens_N2, weight_N, special_N)


def gradient(loss, split=1, junk=0.0):
    """Gradients and metrics of a step on all pairs, taken in so many parts."""
    pairs, ref_N2, tokens_N2 = made_pairs()
    special_N2 = num_special(pairs, special_ids(loss))
    mesh = mesh_of(ONE_DEVICE)
    with jax.set_mesh(mesh):
        params = random_params(mesh, 1, MODEL)
        grads, parts = updater()[1].zero_gradient(params), []
        for share in np.array_split(np.arange(len(pairs)), split):
            for rows in pack_pairs([pairs[i] for i in share], ROWS, T):
                i = share[rows.index]
                known = arrays(
                    *(ref_N2[i], tokens_N2[i], special_N2[i]), 1 / len(pairs), junk
                )
                batch = to_device(rows.packed, mesh)
                grads, metrics = learner(loss).preference_gradient(
                    params, grads, batch, known
                )
                parts.append(metrics)
        return grads, merge_metrics(parts), len(parts)


# The slow version: one reply at a time in a row of its own, then NumPy in float64.


@functools.cache
def replies(special_ids=()):
    """Of each reply alone: logp in float64 of the model's logits, and its gradient.

    Then the same of its special tokens, which are not in the first two.
    """
    mesh = mesh_of(ONE_DEVICE)

    rows = sharding(mesh, "batch", "time")

    @jax.jit
    def logits_of(params, token_BT):
        position_BT = jax.reshard(jnp.arange(T)[None], rows.spec)
        hidden_BTD = hidden_states(
            params, token_BT, position_BT, jnp.ones_like(token_BT), MODEL
        )
        head_VD = gather_head(params, MODEL)
        return jnp.einsum("BTD,VD->BTV", hidden_BTD, head_VD, precision="highest")

    @jax.jit
    def total_gradient(params, token_BT, wanted_BTV):
        def total(params):
            logp_BTV = jax.nn.log_softmax(logits_of(params, token_BT))
            return jnp.sum(logp_BTV * wanted_BTV)

        return jax.grad(total)(params)

    found = []
    with jax.set_mesh(mesh):
        params = random_params(mesh, 1, MODEL)
        for pair in made_pairs()[0]:
            for piece in pair:
                # All of one length, so that there is one program; what comes after
                # the reply is not seen by it and does not count.
                token_T = np.zeros(T, np.int32)
                target_T, mask_T = np.zeros(T, np.int32), np.zeros(T, bool)
                n = len(piece.tokens) - 1
                token_T[:n], target_T[:n] = piece.tokens[:-1], piece.tokens[1:]
                mask_T[:n] = piece.mask[1:]
                token_BT = jax.device_put(token_T[None], rows)
                logits_BTV = logits_of(params, token_BT)
                logits_TV = np.asarray(logits_BTV, np.float64)[0]
                special_T = np.array([target in special_ids for target in target_T])
                both = []
                for counts_T in (mask_T & ~special_T, mask_T & special_T):
                    logp = 0.0
                    for t in range(n):
                        if counts_T[t]:
                            top = logits_TV[t].max()
                            norm = top + np.log(np.exp(logits_TV[t] - top).sum())
                            logp += logits_TV[t, target_T[t]] - norm
                    wanted_TV = np.eye(V, dtype=np.float32)[target_T]
                    wanted_TV = wanted_TV * counts_T[:, None]
                    wanted_BTV = jax.device_put(wanted_TV[None], rows)
                    grads = total_gradient(params, token_BT, wanted_BTV)
                    both += [logp, jax.device_get(grads)]
                found.append(tuple(both))
    return found


def slow_step(loss: PreferenceLoss):
    """(loss, accuracy, margin, gradient) from the formulas, pair by pair."""
    pairs, ref_N2, all_N2 = made_pairs()
    tokens_N2 = all_N2 - num_special(pairs, special_ids(loss))
    alone, n = replies(special_ids(loss)), len(ref_N2)
    total, right, margin = 0.0, 0, 0.0
    grads: Any = jax.tree.map(lambda g: np.zeros(g.shape, np.float64), alone[0][1])
    for i in range(n):
        chosen, d_chosen, special, d_special = alone[2 * i]
        rejected, d_rejected, *_ = alone[2 * i + 1]
        over = tokens_N2[i] if loss.average == "mean" else np.ones(2)
        h = (chosen - ref_N2[i, 0]) / over[0] - (rejected - ref_N2[i, 1]) / over[1]
        z, smooth = loss.beta * h, loss.label_smoothing
        if loss.kind == "sigmoid":
            value = (1 - smooth) * np.log1p(np.exp(-z)) + smooth * np.log1p(np.exp(z))
            d_h = loss.beta * (
                -(1 - smooth) / (1 + np.exp(z)) + smooth / (1 + np.exp(-z))
            )
        elif loss.kind == "ipo":
            value, d_h = (h - 0.5 / loss.beta) ** 2, 2 * (h - 0.5 / loss.beta)
        else:
            value, d_h = max(0.0, 1 - z), -loss.beta * (z < 1)
        nll = -(chosen + special) / all_N2[i, 0]
        total += (value + loss.nll_coef * nll) / n
        right, margin = right + (h > 0) / n, margin + z / n
        of_chosen = (d_h / over[0] - loss.nll_coef / all_N2[i, 0]) / n
        of_special = -loss.nll_coef / all_N2[i, 0] / n
        of_rejected = -d_h / over[1] / n
        for factor, part in (
            (of_chosen, d_chosen),
            (of_special, d_special),
            (of_rejected, d_rejected),
        ):
            grads = jax.tree.map(lambda g, d: g + factor * d, grads, part)  # noqa: B023
    return total, right, margin, grads


def assert_near(got, want, atol):
    def check(path, a, b):
        np.testing.assert_allclose(
            np.asarray(a), np.asarray(b), rtol=0, atol=atol, err_msg=str(path)
        )

    jax.tree_util.tree_map_with_path(check, got, want)


@pytest.mark.parametrize("name", ["dpo", "llama3"])
def test_totals_are_the_sums_of_the_models_own_log_probabilities(name):
    pairs, _, _ = made_pairs()
    mesh, got_N3 = mesh_of(ONE_DEVICE), np.zeros((len(pairs), 3))
    with jax.set_mesh(mesh):
        params = random_params(mesh, 1, MODEL)
        for rows in pack_pairs(pairs, ROWS, T):
            totals = learner(PRESETS[name]).score_totals(
                params, to_device(rows.packed, mesh)
            )
            assert totals.shape == (N, 3) and totals.dtype == jnp.float32
            got_N3[rows.index] = np.asarray(totals)[: len(rows.index)]
            assert not np.asarray(totals)[len(rows.index) :].any()
    want_N3 = wanted_totals(PRESETS[name])
    np.testing.assert_allclose(got_N3, want_N3, rtol=0, atol=2e-5)
    assert want_N3[:, 2].any() == PRESETS[name].mask_special


def wanted_totals(loss):
    """logp_N3 of the slow version."""
    alone = replies(special_ids(loss))
    pairs = zip(alone[::2], alone[1::2], strict=True)
    return np.array([(a[0], b[0], a[2]) for a, b in pairs])


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_is_that_of_the_slow_version(name):
    loss = PRESETS[name]
    grads, metrics, _ = gradient(loss)
    value, right, margin, slow = slow_step(loss)
    assert 0 < right < 1, "all pairs on one side: nothing to tell a sign by"
    scale = max(1.0, abs(value))
    assert metrics["loss"] == pytest.approx(value, rel=0, abs=1e-5 * scale)
    assert metrics["accuracy"] == pytest.approx(right, rel=0, abs=1e-6)
    assert metrics["reward_margin"] == pytest.approx(margin, rel=0, abs=1e-5)
    assert_near(grads, slow, atol=1e-5 * scale)
    assert max(np.abs(g).max() for g in jax.tree.leaves(slow)) > 1e-3


def test_how_the_step_is_split_changes_nothing():
    whole, metrics, count = gradient(PRESETS["llama3"])
    parts, metrics_3, count_3 = gradient(PRESETS["llama3"], split=3)
    assert (count, count_3) == (1, 3)
    assert_near(parts, whole, atol=1e-6)
    for name, value in metrics.items():
        assert metrics_3[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name


def test_what_stands_in_places_without_a_pair_is_not_read():
    clean, metrics, _ = gradient(PRESETS["dpo"])
    dirty, metrics_2, _ = gradient(PRESETS["dpo"], junk=np.nan)
    assert metrics == metrics_2
    jax.tree.map(np.testing.assert_array_equal, dirty, clean)


def test_measure_says_what_the_gradients_metrics_say():
    pairs, ref_N2, tokens_N2 = made_pairs()
    logp_N3 = wanted_totals(PRESETS["llama3"]).astype(np.float32)
    special_N2, n = num_special(pairs, SPECIAL), len(ref_N2)
    known = PairArrays(
        *(ref_N2, tokens_N2 - special_N2),
        *(np.full(n, 1 / n, np.float32), special_N2[:, 0]),
    )
    found = learner(PRESETS["llama3"]).measure(logp_N3, known)
    _, metrics, _ = gradient(PRESETS["llama3"])
    for name, value in metrics.items():
        assert float(found[name]) == pytest.approx(value, rel=0, abs=2e-5), name


def test_the_programs_are_compiled_once():
    gradient(PRESETS["llama3"])
    gradient(PRESETS["llama3"], split=3)
    before = learner(PRESETS["llama3"]).preference_gradient._cache_size()
    gradient(PRESETS["llama3"], split=2)
    assert learner(PRESETS["llama3"]).preference_gradient._cache_size() == before
