"""Training a reward model: a slow twin of the whole step, packing, splits, meshes.

Legend: P prompts, K replies to each.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reward_reference as reference
from tiny_optimiser import adamw

from rl_jax import learner as learners
from rl_jax.data.rankings import Judged
from rl_jax.data.reply_rows import ReplyRows, pack_groups
from rl_jax.learner import init_state, make_learner
from rl_jax.mesh import make_mesh
from rl_jax.models import reward_head
from rl_jax.models.spec import Attention, ModelSpec
from rl_jax.reward_learner import (
    make_reward_learner,
    said_of,
    to_device,
)
from tiny_stage import random_leaf

V = 8
# So few weights that each can be moved by itself; every size divides over the meshes.
MODEL = ModelSpec(
    num_layers=1,
    width=8,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    ffn_width=6,
    vocab_size=V,
    attention=(Attention(rope_theta=100.0),),
)
T, P, K = 11, 8, 3
ADAM: dict[str, Any] = {"lr": 0.1, "clip_norm": 0.05, "eps": 1e-2, "weight_decay": 0.3}


def judged(rank, margin=(), label=None, index=0):
    replies = ((),) * max(len(rank), 1)
    return Judged((), replies, tuple(rank), margin, label, "", index, None, {})


def some_groups(seed=0):
    """Replies of six prompts, and what was said of them."""
    rng = np.random.default_rng(seed)
    ranks = [(0, 1), (1, 0, 2), (0, 1), (0, 0, 1), (1, 0), (2, 1, 0)]
    margin = ((0.0, 0.7), (0.0, 0.0))
    said = [
        judged(rank, margin if rank == (0, 1) else (), index=i)
        for i, rank in enumerate(ranks)
    ]
    lengths = [rng.integers(3, T, len(rank)) for rank in ranks]
    groups = [[rng.integers(0, V, n).astype(np.int32) for n in x] for x in lengths]
    return groups, said


def random_params(mesh):
    leaf = functools.partial(random_leaf, np.random.default_rng(1), mesh)
    return reward_head.map_layout(leaf, MODEL)


@functools.cache
def mesh_of(sizes=(1, 1, 1)):
    count = sizes[0] * sizes[1] * sizes[2]
    return make_mesh(*sizes, devices=jax.devices()[:count])


@functools.cache
def learner_of(form: Any = "ranking"):
    return make_reward_learner(MODEL, form=form)


def gradient(groups, said, *, rows, params, mesh, most=P):
    """(sum of gradients, sums of metrics, number of micro-batches)"""
    learner = learner_of()
    grads = jax.tree.map(jnp.zeros_like, params)
    parts = []
    for packed in pack_groups(groups, rows, T, most):
        said_P = said_of(packed, said, 1 / len(groups), P, K)
        batch = to_device(packed, mesh)
        grads, metrics = learner.gradient(params, grads, batch, said_P)
        parts.append(metrics)
    return grads, learners.merge_metrics(parts), len(parts)


@pytest.fixture(scope="module")
def one():
    mesh = mesh_of()
    with jax.set_mesh(mesh):
        params = random_params(mesh)
        yield mesh, params, gradient(*some_groups(), rows=8, params=params, mesh=mesh)


def assert_near(got, want, atol=1e-6):
    def check(path, a, b):
        np.testing.assert_allclose(
            np.asarray(a), np.asarray(b), rtol=0, atol=atol, err_msg=str(path)
        )

    jax.tree_util.tree_map_with_path(check, got, want)


# The slow twin.


def test_a_whole_step_is_that_of_the_slow_version():
    mesh = mesh_of()
    groups, said = some_groups()
    groups, said = groups[1:4], said[1:4]
    tx, schedule = adamw(MODEL, decayed=reward_head.decayed(MODEL), **ADAM)
    with jax.set_mesh(mesh):
        params = random_params(mesh)
        found, metrics, _ = gradient(groups, said, rows=8, params=params, mesh=mesh)
        before = jax.tree.map(lambda w: np.asarray(w, np.float64), params)
        step_grads = jax.tree.map(jnp.copy, found)
        whole: Any = params
        state = init_state(whole, tx)
        shared = make_learner(MODEL, tx, schedule)
        state, applied = shared.apply_gradient(state, step_grads)

    names = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(before)
    ]
    treedef = jax.tree.structure(before)
    weights = dict(zip(names, jax.tree.leaves(before), strict=True))

    def loss(weights):
        tree = jax.tree.unflatten(treedef, [weights[name] for name in names])
        scores = [
            [reference.slow_score(tree, reply.tolist(), MODEL) for reply in group]
            for group in groups
        ]
        ranks, margins = [x.rank for x in said], [x.margin for x in said]
        return reference.slow_loss(scores, ranks, margins)

    assert metrics["loss"] == pytest.approx(loss(weights), abs=1e-6)
    grads = reference.slow_gradient(loss, weights)
    for name, got in zip(names, jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(got, grads[name], rtol=0, atol=1e-5, err_msg=name)
    # What no difference of scores can see.
    assert abs(grads[".bias"]) < 1e-9 and np.abs(grads[".score_D"]).max() > 1e-2
    norm = np.sqrt(sum((grad**2).sum() for grad in grads.values()))
    assert float(applied["grad_norm"]) == pytest.approx(norm, abs=1e-5)
    assert norm > ADAM["clip_norm"]
    is_matrix = jax.tree.leaves(reward_head.decayed(MODEL))
    decayed = {name for name, yes in zip(names, is_matrix, strict=True) if yes}
    after = reference.slow_first_adam_step(weights, grads, decayed=decayed, **ADAM)
    for name, got in zip(names, jax.tree.leaves(state.params), strict=True):
        # The gradient's error over eps, times the learning rate.
        np.testing.assert_allclose(got, after[name], rtol=0, atol=1e-4, err_msg=name)


# What must not matter.


def test_packed_replies_have_the_gradient_of_replies_in_rows_of_their_own(one):
    mesh, params, (grads, metrics, _) = one
    groups, said = some_groups()
    packed = next(pack_groups(groups, 8, T, P))
    assert packed.segment_BT.max() > 1  # some rows hold several replies
    total = jax.tree.map(jnp.zeros_like, params)
    loss = 0.0
    for group, one_said in zip(groups, said, strict=True):
        token_BT, position_BT, segment_BT = np.zeros((3, 8, T), np.int32)
        for b, reply in enumerate(group):
            token_BT[b, : len(reply)] = reply
            position_BT[b, : len(reply)] = np.arange(len(reply))
            segment_BT[b, : len(reply)] = 1
        last = tuple((b, len(reply) - 1) for b, reply in enumerate(group))
        rows = ReplyRows(token_BT, position_BT, segment_BT, (0,), (last,))
        said_P = said_of(rows, [one_said], 1 / len(groups), P, K)
        total, found = learner_of().gradient(
            params, total, to_device(rows, mesh), said_P
        )
        loss += float(found["loss"])
    assert loss == pytest.approx(metrics["loss"], abs=1e-6)
    assert_near(total, grads)


@pytest.mark.parametrize("most", [1, 2])
def test_any_split_into_micro_batches_has_the_same_gradient(one, most):
    mesh, params, (grads, metrics, count) = one
    found, split_metrics, split_count = gradient(
        *some_groups(), rows=8, params=params, mesh=mesh, most=most
    )
    assert split_count == 6 // most > count
    assert_near(found, grads)
    for name, value in metrics.items():
        assert split_metrics[name] == pytest.approx(value, abs=1e-6)


def test_what_stands_in_the_padding_changes_nothing(one):
    mesh, params, (grads, metrics, _) = one
    groups, said = some_groups()
    total, loss = jax.tree.map(jnp.zeros_like, params), 0.0
    rng = np.random.default_rng(5)
    for packed in pack_groups(groups, 8, T, P):
        is_padding = packed.segment_BT == 0
        assert is_padding.any()
        noise = rng.integers(0, V, is_padding.shape)
        tokens = np.where(is_padding, noise, packed.token_BT).astype(np.int32)
        packed = dataclasses.replace(packed, token_BT=tokens)
        said_P = said_of(packed, said, 1 / len(groups), P, K)
        # Places without a reply, whatever is written there.
        empty = ~said_P.valid_PK
        said_P = dataclasses.replace(
            said_P,
            row_PK=np.where(empty, 7, said_P.row_PK).astype(np.int32),
            rank_PK=np.where(empty, -9, said_P.rank_PK).astype(np.int32),
            margin_PIJ=np.where(
                empty[:, :, None] | empty[:, None], np.nan, said_P.margin_PIJ
            ).astype(np.float32),
        )
        total, found = learner_of().gradient(
            params, total, to_device(packed, mesh), said_P
        )
        loss += float(found["loss"])
    assert loss == pytest.approx(metrics["loss"], abs=1e-7)
    assert_near(total, grads, atol=1e-7)


def test_tokens_after_the_last_have_no_influence_and_no_gradient(one):
    mesh, params, _ = one
    reply, after = np.array([3, 4, 5], np.int32), 7
    tokens = np.zeros((8, T), np.int32)
    tokens[:2, :3], tokens[1, 1] = reply, 2
    segments = (np.arange(T) < 3).astype(np.int32) * np.ones((8, 1), np.int32)
    positions = np.broadcast_to(np.arange(T, dtype=np.int32), (8, T))
    last = (((0, 2), (1, 2)),)
    short = ReplyRows(tokens, positions, segments, (0,), last)
    longer = tokens.copy()
    longer[:2, 3:5] = after  # of the same segment
    long = dataclasses.replace(
        short, token_BT=longer, segment_BT=np.where(positions < 5, 1, 0).astype("int32")
    )
    found = []
    for rows in (short, long):
        said_P = said_of(rows, [judged((0, 1))], 1.0, P, K)
        zero = jax.tree.map(jnp.zeros_like, params)
        batch = to_device(rows, mesh)
        found.append(learner_of().gradient(params, zero, batch, said_P))
    assert float(found[0][1]["loss"]) == float(found[1][1]["loss"])
    embedding_VD = np.asarray(found[1][0].trunk.embed_VD)
    assert np.abs(embedding_VD[reply]).max() > 1e-3
    np.testing.assert_array_equal(embedding_VD[after], 0.0)


# Losses.


def test_two_replies_have_the_loss_of_a_pair(one):
    mesh, params, _ = one
    pair = [np.array([1, 2, 3], np.int32), np.array([1, 4, 6], np.int32)]
    rows = next(pack_groups([pair], 8, T, P))
    batch = to_device(rows, mesh)
    score_BT = np.asarray(learner_of().score(params, batch), np.float64)
    a, b = (score_BT[at] for at in rows.last[0])
    for rank, ahead in (((0, 1), a - b), ((1, 0), b - a)):
        said_P = said_of(rows, [judged(rank)], 1.0, P, K)
        metrics = learner_of().measure(params, batch, said_P)
        wanted = np.log1p(np.exp(-ahead))
        assert float(metrics["loss"]) == pytest.approx(wanted, abs=1e-6)
        assert float(metrics["score_margin"]) == pytest.approx(ahead, abs=1e-6)
        assert float(metrics["accuracy"]) == float(ahead > 0)


def test_labels_have_the_cross_entropy_of_the_score(one):
    mesh, params, _ = one
    groups = [[np.array([1, 2, 3], np.int32)], [np.array([7, 4], np.int32)]]
    labels = (1.0, 0.25)
    said = [judged((), label=label) for label in labels]
    rows = next(pack_groups(groups, 8, T, P))
    batch = to_device(rows, mesh)
    score_BT = np.asarray(learner_of().score(params, batch), np.float64)
    wanted = 0.0
    for group, [end] in zip(rows.groups, rows.last, strict=True):
        p = 1 / (1 + np.exp(-score_BT[end]))
        y = labels[group]
        wanted -= (y * np.log(p) + (1 - y) * np.log(1 - p)) / 2
    learner = learner_of(form="pointwise")
    metrics = learner.measure(params, batch, said_of(rows, said, 0.5, P, 1))
    assert float(metrics["loss"]) == pytest.approx(wanted, abs=1e-6)
    assert metrics.keys() == {"loss", "accuracy"}
