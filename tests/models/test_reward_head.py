"""The head of a reward model: its scores, its layout, how it begins."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reward_reference as reference

from rl_jax.mesh import make_mesh, sharding
from rl_jax.models import params as decoder_params
from rl_jax.models import reward_head
from rl_jax.models.merging import merge
from rl_jax.models.reward_head import RewardParams, at_last
from rl_jax.models.spec import Attention, ModelSpec

MODEL = ModelSpec(
    num_layers=2,
    width=12,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    ffn_width=20,
    vocab_size=17,
    attention=(Attention(rope_theta=100.0),),
    tie_embeddings=False,
)


@pytest.fixture(scope="module", autouse=True)
def mesh():
    mesh = make_mesh(devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        yield mesh


def random_params(mesh, seed=0):
    rng = np.random.default_rng(seed)

    def one(leaf):
        x = rng.normal(size=leaf.shape) * (leaf.fan_in or 9) ** -0.5
        x = np.asarray(x + (leaf.fan_in == 0), np.float32)
        return jax.device_put(x, sharding(mesh, *leaf.axes))

    return reward_head.map_layout(one, MODEL)


def alone(tokens, mesh):
    """Token, position and segment of one reply in a row of its own."""
    n, rows = len(tokens), sharding(mesh, "batch", "time")
    arrays = np.array([[tokens], [range(n)], [[1] * n]], np.int32)
    return tuple(jax.device_put(x, rows) for x in arrays)


scores = jax.jit(reward_head.scores, static_argnames="model")


def test_the_score_is_that_of_the_slow_version(mesh):
    params = random_params(mesh)
    slow = jax.tree.map(lambda w: np.asarray(w, np.float64), params)
    tokens = [3, 1, 16, 7, 7, 2]
    score_BT = scores(params, *alone(tokens, mesh), model=MODEL)
    assert score_BT.dtype == jnp.float32
    # Of each position that of the sequence up to it: attention is causal.
    wanted = [
        reference.slow_score(slow, tokens[: t + 1], MODEL) for t in range(len(tokens))
    ]
    np.testing.assert_allclose(score_BT[0], wanted, rtol=0, atol=1e-5)
    assert np.std(wanted) > 0.1


def test_scores_are_taken_where_replies_end():
    score_BT = jnp.arange(12.0).reshape(3, 4)
    row_PK, column_PK = np.array([[2, 0]]), np.array([[1, 3]])
    score_PK = jax.jit(at_last)(score_BT, row_PK, column_PK)
    np.testing.assert_array_equal(score_PK, [[9.0, 3.0]])


def test_it_begins_with_the_trunk_of_the_policy_and_scores_nothing(mesh):
    policy = decoder_params.init_params(MODEL, mesh, seed=0)
    params = reward_head.from_policy(policy, MODEL)
    np.testing.assert_array_equal(params.trunk.embed_VD, policy.embed_VD)
    assert policy.head_VD is not None and params.trunk.head_VD is None
    score_BT = scores(params, *alone([1, 2, 3], mesh), model=MODEL)
    np.testing.assert_array_equal(score_BT, np.zeros((1, 3)))


def test_the_abstract_tree_is_that_of_a_reward_model(mesh):
    model = dataclasses.replace(MODEL, param_dtype="bfloat16")
    policy = decoder_params.init_params(model, mesh, seed=0)
    params = reward_head.from_policy(policy, model)
    abstract = reward_head.abstract_params(model, mesh)

    def check(x, like):
        assert (x.shape, x.dtype, x.sharding) == (like.shape, like.dtype, like.sharding)

    jax.tree.map(check, params, abstract)
    assert params.trunk.embed_VD.dtype == jnp.bfloat16
    assert params.score_D.dtype == jnp.float32


def test_matrices_and_the_head_decay_but_norms_and_the_bias_do_not():
    decayed = reward_head.decayed(MODEL)
    assert decayed.score_D and decayed.trunk.layers.w_q_LDHC
    assert not decayed.bias and not decayed.trunk.norm_D


def test_reward_models_can_be_merged(mesh):
    trees = [random_params(mesh, seed) for seed in (0, 1)]
    merged = merge(trees, (0.25, 0.75))
    assert isinstance(merged, RewardParams)
    for name in ("score_D", "bias"):
        a, b = (np.asarray(getattr(tree, name)) for tree in trees)
        np.testing.assert_allclose(
            getattr(merged, name), 0.25 * a + 0.75 * b, rtol=0, atol=1e-6
        )
