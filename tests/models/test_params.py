"""The parameter tree: shapes, layouts, and initial values on any mesh."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.mesh import make_mesh, sharding
from rl_jax.models.params import (
    Leaf,
    abstract_params,
    init_params,
    layout,
    map_layout,
    num_params,
)
from rl_jax.models.spec import ModelSpec

L, D, H, K, C, F, V = 3, 16, 4, 2, 6, 40, 96

MODEL = ModelSpec(
    num_layers=L,
    width=D,
    num_heads=H,
    num_kv_heads=K,
    head_dim=C,
    ffn_width=F,
    vocab_size=V,
)
UNTIED = dataclasses.replace(MODEL, tie_embeddings=False, param_dtype="bfloat16")
# Every leaf that some family has.
OPTIONS = {"qkv_bias": True, "qk_norm": "whole", "post_norm": True, "norm_offset": 1.0}
FULL = dataclasses.replace(UNTIED, **OPTIONS)
PER_HEAD = dataclasses.replace(MODEL, pre_norm=False, qk_norm="head")


@pytest.fixture(scope="module")
def params():
    return init_params(MODEL, make_mesh(devices=jax.devices()[:1]), seed=0)


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(2, 2, 2)


@pytest.fixture(scope="module")
def sharded_params(mesh):
    return init_params(MODEL, mesh, seed=0)


@pytest.mark.parametrize("model", [UNTIED, FULL, PER_HEAD])
def test_names_spell_shapes(model):
    size = dict(zip("LDHKCFV", (L, D, H, K, C, F, V), strict=True))

    def check(path, leaf):
        letters = path[-1].name.rsplit("_", 1)[1]
        assert leaf.shape == tuple(size[letter] for letter in letters)
        assert len(leaf.axes) == len(leaf.shape)

    jax.tree_util.tree_map_with_path(
        check, layout(model), is_leaf=lambda x: isinstance(x, Leaf)
    )


def test_fan_in_is_the_size_that_a_product_sums_over():
    found = layout(UNTIED)
    assert found.head_VD.fan_in == found.layers.w_q_LDHC.fan_in == D
    assert found.layers.w_o_LHCD.fan_in == H * C
    assert found.layers.w_down_LFD.fan_in == F
    assert found.norm_D.fan_in == found.layers.attn_norm_LD.fan_in == 0


def test_num_params_counts_a_tied_head_once(params):
    assert num_params(MODEL) == sum(x.size for x in jax.tree.leaves(params))
    assert num_params(UNTIED) == num_params(MODEL) + V * D


def test_a_tied_head_has_no_weight_of_its_own(params):
    assert params.head_VD is None
    assert layout(UNTIED).head_VD.shape == (V, D)


def test_abstract_params_are_those_that_init_makes(mesh, sharded_params):
    wanted = map_layout(lambda leaf: sharding(mesh, *leaf.axes), MODEL)

    def check(x, abstract, wanted):
        assert (x.shape, x.dtype) == (abstract.shape, abstract.dtype)
        assert x.sharding == abstract.sharding == wanted

    jax.tree.map(check, sharded_params, abstract_params(MODEL, mesh), wanted)


def test_stored_weights_have_the_dtype_asked_for(mesh):
    for x in jax.tree.leaves(abstract_params(UNTIED, mesh)):
        assert x.dtype == jnp.bfloat16


def test_initial_values_do_not_depend_on_the_mesh(params, sharded_params):
    jax.tree.map(np.testing.assert_array_equal, sharded_params, params)


@pytest.mark.slow
def test_initial_values_depend_on_the_seed(params, mesh):
    other = init_params(MODEL, mesh, seed=1)
    assert not np.array_equal(params.embed_VD, other.embed_VD)


def test_initial_values_differ_between_weights_and_layers(params):
    layers = params.layers
    assert not np.array_equal(layers.w_k_LDKC, layers.w_v_LDKC)
    assert not np.array_equal(layers.w_gate_LDF[0], layers.w_gate_LDF[1])


def test_initial_values_have_the_spread_that_their_docstring_gives(params):
    residual = math.sqrt(2 * L)
    layers = params.layers
    for w, std in [
        (params.embed_VD, D**-0.5),
        (layers.w_q_LDHC, D**-0.5),
        (layers.w_up_LDF, D**-0.5),
        (layers.w_o_LHCD, (H * C) ** -0.5 / residual),
        (layers.w_down_LFD, F**-0.5 / residual),
    ]:
        std *= 0.9594  # what a normal keeps when it is clipped at two of them
        # A standard deviation from n values is off by std / sqrt(2 n); four of them.
        np.testing.assert_allclose(
            np.std(w), std, rtol=0, atol=4 * std / math.sqrt(2 * w.size)
        )
        assert abs(np.mean(w)) < 4 * std / math.sqrt(w.size)


def test_norms_begin_at_one(params):
    for scale in (params.norm_D, params.layers.attn_norm_LD, params.layers.mlp_norm_LD):
        np.testing.assert_array_equal(scale, np.ones(scale.shape))


def test_norms_that_are_stored_less_one_begin_at_zero_as_biases_do(mesh):
    layers = init_params(FULL, mesh, seed=0).layers
    for name in ("attn_norm_LD", "mlp_post_norm_LD", "q_norm_LHC", "b_v_LKC"):
        np.testing.assert_array_equal(np.asarray(getattr(layers, name), np.float32), 0)
