"""Expected logits come from transformers: make_golden.py says how."""

import dataclasses
import functools
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding
from safetensors.numpy import load_file, save_file

from rl_jax.errors import ConfigError
from rl_jax.mesh import make_mesh
from rl_jax.models import decoder, huggingface
from rl_jax.models.huggingface import load_params, spec_from_config, weights
from rl_jax.models.params import abstract_params
from rl_jax.models.spec import Attention, ModelSpec

FILES = pathlib.Path(__file__).parent / "files"
MODELS = ("untied", "scaled", "wide_heads")
# Logits reach 11. Those of transformers in float32 are up to 2e-5 from its own in
# float64, and ours are up to 4e-5 from them.
ATOL = 1e-4


def model_of(folder, **changes):
    choices = {"dtype": "float32", "param_dtype": "float32", "remat": "none"}
    return spec_from_config(folder, **{**choices, "float32_head": True, **changes})


def one_device():
    return make_mesh(devices=jax.devices()[:1])


def eight_devices():
    return make_mesh(fsdp=4, tensor=2, devices=jax.devices()[:8])


def expected(name):
    found = np.load(FILES / name / "expected.npz")
    return found["token_BT"], found["logits_BTV"]


def put(mesh, x, *axes):
    return jax.device_put(x, NamedSharding(mesh, jax.P(*axes)))


@functools.partial(jax.jit, static_argnames="model")
def packed_logits(params, token_BT, position_BT, segment_BT, model):
    hidden_BTD = decoder.hidden_states(params, token_BT, position_BT, segment_BT, model)
    head_VD = decoder.gather_head(params, model)
    return jnp.einsum("BTD,VD->BTV", hidden_BTD, head_VD)


def logits_of(params, token_BT, model, mesh):
    """Float32 [B, T, V] over whole rows, each one sample."""
    rows = functools.partial(put, mesh)
    position_BT = np.broadcast_to(np.arange(token_BT.shape[1]), token_BT.shape)
    with jax.set_mesh(mesh):
        batch = ("replica", "fsdp")
        args = (token_BT, position_BT, np.ones_like(token_BT))
        args = (rows(np.asarray(x, np.int32), batch) for x in args)
        return np.asarray(packed_logits(params, *args, model))


def copy_of(name, folder, change=lambda tensors: tensors, **config):
    """A model folder with its tensors passed through `change`, keys replaced."""
    shutil.copytree(FILES / name, folder, dirs_exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    save_file(change(load_file(folder / "model.safetensors")), folder / "new")
    (folder / "new").replace(folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("name", "mesh"),
    [*((name, one_device) for name in MODELS), ("untied", eight_devices)],
)
def test_logits_are_those_of_transformers(name, mesh):
    mesh, model = mesh(), model_of(FILES / name)
    token_BT, logits_BTV = expected(name)
    params = load_params(FILES / name, model, mesh)
    found = logits_of(params, token_BT, model, mesh)
    np.testing.assert_allclose(found, logits_BTV, rtol=0, atol=ATOL)


@pytest.mark.parametrize(
    ("name", "mesh"), [("scaled", one_device), ("wide_heads", eight_devices)]
)
def test_prefill_and_decoding_give_the_same_logits(name, mesh):
    mesh, model = mesh(), model_of(FILES / name)
    token_BT, logits_BTV = expected(name)
    params = load_params(FILES / name, model, mesh)
    B, T = token_BT.shape
    length_B = np.array([5, 1, 3, 6], np.int32)  # prompts; the rest is decoded

    def make(shape, dtype, spec):
        return put(mesh, np.zeros(shape, dtype), *spec)

    with jax.set_mesh(mesh):
        batch = ("replica", "fsdp")
        prefill = jax.jit(decoder.prefill, static_argnames="model")
        prompt_BT = put(mesh, token_BT[:, :6], batch)
        k, v = prefill(params, prompt_BT, put(mesh, length_B, batch), model)
        empty = decoder.empty_cache(model, B, T, make)
        cache = decoder.Cache(
            *(
                tuple(
                    old.at[:, :, :6].set(jax.reshard(new, decoder.cache_spec()))
                    for old, new in zip(olds, news, strict=True)
                )
                for olds, news in ((empty.k, k), (empty.v, v))
            )
        )

        @jax.jit
        def step(cache, token_B, position_B):
            layers = decoder.unrolled(params, model)
            head_VD = decoder.gather_head(params, model)
            return decoder.decode_step(
                params, layers, head_VD, cache, token_B, position_B, model
            )

        for i in range(T - 6):
            position_B = length_B + i
            token_B = token_BT[np.arange(B), position_B]
            found_BV, cache = step(
                cache, put(mesh, token_B, batch), put(mesh, position_B, batch)
            )
            want_BV = logits_BTV[np.arange(B), position_B]
            np.testing.assert_allclose(np.asarray(found_BV), want_BV, rtol=0, atol=ATOL)


def test_target_logprobs_are_those_of_transformers():
    mesh, model = eight_devices(), model_of(FILES / "wide_heads")
    token_BT, logits_BTV = expected("wide_heads")
    params = load_params(FILES / "wide_heads", model, mesh)
    want_BTV = np.asarray(jax.nn.log_softmax(logits_BTV / 0.7))
    want_BT = np.take_along_axis(want_BTV, token_BT[..., None], axis=-1)[..., 0]

    @jax.jit
    def logps(params, token_BT, position_BT):
        hidden_BTD = decoder.hidden_states(
            params, token_BT, position_BT, jnp.ones_like(token_BT), model
        )
        return decoder.target_logprobs(
            params,
            hidden_BTD,
            token_BT,
            jnp.ones_like(token_BT),
            model,
            temperature=0.7,
        )

    with jax.set_mesh(mesh):
        batch = ("replica", "fsdp")
        position_BT = np.broadcast_to(np.arange(12, dtype=np.int32), token_BT.shape)
        logp_BT, _ = logps(
            params, put(mesh, token_BT, batch), put(mesh, position_BT, batch)
        )
    np.testing.assert_allclose(np.asarray(logp_BT), want_BT, rtol=0, atol=2 * ATOL)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("scaled", {"attention": (Attention(rope_theta=500_000.0),)}),
        ("untied", {"norm_eps": 1e-3}),
    ],
)
def test_the_expected_logits_tell_a_wrong_spec_from_the_right_one(name, change):
    mesh, model = one_device(), model_of(FILES / name)
    token_BT, logits_BTV = expected(name)
    params = load_params(FILES / name, model, mesh)
    wrong = dataclasses.replace(model, **change)
    error = np.abs(logits_of(params, token_BT, wrong, mesh) - logits_BTV).max()
    assert error > 100 * ATOL


@pytest.mark.parametrize("name", MODELS)
def test_a_sharded_load_equals_a_load_on_one_device(name):
    model, mesh = model_of(FILES / name), eight_devices()
    whole = load_params(FILES / name, model, one_device())
    parts = load_params(FILES / name, model, mesh)
    shapes = abstract_params(model, mesh)
    assert jax.tree.structure(parts) == jax.tree.structure(shapes)
    for a, b, want in zip(*map(jax.tree.leaves, (whole, parts, shapes)), strict=True):
        assert (b.shape, b.dtype) == (want.shape, want.dtype)
        assert b.sharding == want.sharding
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", MODELS)  # stored as F32, BF16 and F16
def test_weights_are_cast_to_param_dtype(name):
    mesh = one_device()
    exact = load_params(FILES / name, model_of(FILES / name), mesh)
    short = model_of(FILES / name, param_dtype="bfloat16")
    rounded = load_params(FILES / name, short, mesh)
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(rounded), strict=True):
        assert (a.dtype, b.dtype) == (jnp.float32, jnp.bfloat16)
        want = np.asarray(a).astype(ml_dtypes.bfloat16)
        np.testing.assert_array_equal(np.asarray(b), want)


@pytest.mark.parametrize("mesh", [one_device, eight_devices])
def test_the_host_holds_no_more_than_a_chunk_of_a_leaf(monkeypatch, mesh):
    held, peak = 0, 0

    class Counted(np.ndarray):
        def __del__(self):
            nonlocal held
            held -= self.nbytes if self.base is None else 0

    def counting(*args):
        nonlocal held, peak
        out = Counted(*args)
        held += out.nbytes
        peak = max(peak, held)
        return out

    model, mesh = model_of(FILES / "untied"), mesh()
    want = load_params(FILES / "untied", model, mesh)
    monkeypatch.setattr("rl_jax.models.huggingface.np.empty", counting)
    # A copy to the devices, so that the CPU's arrays do not keep the host's alive.
    put = jax.device_put
    monkeypatch.setattr("jax.device_put", lambda x, device: put(np.array(x), device))
    w_gate = want.layers.w_gate_LDF
    layer_bytes = w_gate.addressable_shards[0].data[0].nbytes
    # The embedding's part is more than this, and no multiple of it.
    monkeypatch.setattr(huggingface, "_CHUNK_BYTES", layer_bytes)
    with jax.set_mesh(mesh):
        found = load_params(FILES / "untied", model, mesh)
    assert peak == layer_bytes
    jax.tree.map(np.testing.assert_array_equal, found, want)


def drop(name):
    return lambda tensors: {n: x for n, x in tensors.items() if n != name}


def add(name, value):
    return lambda tensors: {**tensors, name: value}


@pytest.mark.parametrize(
    ("change", "config", "message"),
    [
        (
            drop("model.layers.1.mlp.up_proj.weight"),
            {},
            r"layers.1.mlp.up_proj.weight is missing from .*safetensors.*\[48, 32\]",
        ),
        (drop("lm_head.weight"), {}, '(?s)lm_head.*"tie_word_embeddings": true'),
        (
            add("model.layers.0.self_attn.q_proj.bias", np.zeros(32, np.float32)),
            {},
            r"safetensors holds model.layers.0.self_attn.q_proj.bias \[32\], which",
        ),
        (lambda x: x, {"num_hidden_layers": 1}, "layers.1.*and 8 other tensors"),
        (lambda x: x, {"num_hidden_layers": 3}, "layers.2.input_layernorm.* missing"),
        (
            lambda x: x,
            {"vocab_size": 65},
            r"embed_tokens.*safetensors is F32 \[64, 32\].\nExpected \[65, 32\]",
        ),
        (
            lambda x: x,
            {"num_key_value_heads": 4},
            r"k_proj.weight .* \[16, 32\].\nExpected \[32, 32\]",
        ),
        (
            add("model.norm.weight", np.ones(32, np.float64)),
            {},
            "(?s)model.norm.weight .* F64 .* F32, BF16, F16",
        ),
        (lambda x: x, {"tie_word_embeddings": True}, "(?s)lm_head.* differs .*false"),
    ],
)
def test_tensors_that_do_not_fit_the_config_are_refused_by_name(
    tmp_path, change, config, message
):
    folder = copy_of("untied", tmp_path, change, **config)
    with pytest.raises(ConfigError, match=message) as error:
        load_params(folder, model_of(folder), one_device())
    assert len(str(error.value).splitlines()) <= 3


def test_rotary_buffers_and_an_equal_head_of_a_tied_model_are_passed_over(tmp_path):
    def change(tensors):
        buffer = {f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in (0, 1)}
        head = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
        return {**tensors, **head, **{n: np.ones(8, np.float32) for n in buffer}}

    folder = copy_of("scaled", tmp_path, change)
    model, mesh = model_of(folder), one_device()
    found = load_params(folder, model, mesh)
    assert found.head_VD is None
    want = load_params(FILES / "scaled", model, mesh)
    jax.tree.map(np.testing.assert_array_equal, found, want)


def test_every_axis_of_every_weight_comes_from_where_it_belongs(tmp_path):
    # No two sizes alike, so that a transposed or merged axis cannot pass.
    L, D, H, K, C, F, V = 3, 14, 10, 5, 4, 11, 17
    model = ModelSpec(L, D, H, K, C, F, V, tie_embeddings=False)
    shapes = {"model.embed_tokens": (V, D), "lm_head": (V, D), "model.norm": (D,)}
    for i in range(L):
        shapes |= {
            f"model.layers.{i}.self_attn.q_proj": (H * C, D),
            f"model.layers.{i}.self_attn.k_proj": (K * C, D),
            f"model.layers.{i}.self_attn.v_proj": (K * C, D),
            f"model.layers.{i}.self_attn.o_proj": (D, H * C),
            f"model.layers.{i}.mlp.gate_proj": (F, D),
            f"model.layers.{i}.mlp.up_proj": (F, D),
            f"model.layers.{i}.mlp.down_proj": (D, F),
            f"model.layers.{i}.input_layernorm": (D,),
            f"model.layers.{i}.post_attention_layernorm": (D,),
        }
    rng = np.random.default_rng(0)
    stored = {
        f"{name}.weight": rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    save_file(stored, tmp_path / "model.safetensors")
    found = jax.tree.map(np.asarray, load_params(tmp_path, model, one_device()))
    layers = found.layers
    for i in range(L):
        own = {
            name.removeprefix(f"model.layers.{i}.").removesuffix(".weight"): value
            for name, value in stored.items()
        }
        for d, h, c in np.ndindex(D, H, C):
            q = own["self_attn.q_proj"][h * C + c, d]
            o = own["self_attn.o_proj"][d, h * C + c]
            assert (q, o) == (layers.w_q_LDHC[i, d, h, c], layers.w_o_LHCD[i, h, c, d])
        for d, k, c in np.ndindex(D, K, C):
            key, value = (own[f"self_attn.{x}_proj"][k * C + c, d] for x in "kv")
            assert key == layers.w_k_LDKC[i, d, k, c]
            assert value == layers.w_v_LDKC[i, d, k, c]
        for name, leaf in (
            ("mlp.gate_proj", layers.w_gate_LDF[i].T),
            ("mlp.up_proj", layers.w_up_LDF[i].T),
            ("mlp.down_proj", layers.w_down_LFD[i].T),
            ("input_layernorm", layers.attn_norm_LD[i]),
            ("post_attention_layernorm", layers.mlp_norm_LD[i]),
        ):
            np.testing.assert_array_equal(own[name], leaf)
    np.testing.assert_array_equal(stored["model.embed_tokens.weight"], found.embed_VD)
    np.testing.assert_array_equal(stored["lm_head.weight"], found.head_VD)
    np.testing.assert_array_equal(stored["model.norm.weight"], found.norm_D)


def test_weights_say_how_each_leaf_lies_in_the_files():
    model = ModelSpec(3, 14, 10, 5, 4, 11, 17, tie_embeddings=False)
    tree = weights(model)
    w_o = tree.layers.w_o_LHCD
    assert w_o.names == tuple(
        f"model.layers.{i}.self_attn.o_proj.weight" for i in range(3)
    )
    assert (w_o.is_stacked, w_o.ours, w_o.stored) == (True, "HCD", "D HC")
    assert (w_o.letters, w_o.stored_shape) == ("DHC", [14, 40])
    assert (tree.head_VD.names, tree.head_VD.is_stacked) == (("lm_head.weight",), False)
    assert weights(dataclasses.replace(model, tie_embeddings=True)).head_VD is None
