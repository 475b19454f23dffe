"""Each family against transformers, whose logits make_golden.py has stored.

`pytest -s -k are_those_of tests/models/test_families.py` prints the table of largest
differences.
"""

import dataclasses
import functools
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from safetensors.numpy import load_file, save_file

import tiny_families
from rl_jax.errors import ConfigError
from rl_jax.mesh import make_mesh
from rl_jax.models import decoder
from rl_jax.models.families import FAMILIES
from rl_jax.models.huggingface import load_params, spec_from_config, weights
from rl_jax.models.huggingface_config import config_from_spec
from rl_jax.models.params import layout
from rl_jax.models.spec import Attention, ModelSpec, RopeScaling

# Logits reach 12; those of transformers are up to 3e-5 from its own in float64.
ATOL = 2e-4
CHOICES = {
    "dtype": "float32",
    "param_dtype": "float32",
    "float32_head": True,
    "remat": "none",
}


def spec_of(source):
    return spec_from_config(source, **CHOICES)


@functools.cache
def mesh():
    return make_mesh(devices=jax.devices()[:1])


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """name -> (spec, params), read as a user's folder would be."""

    @functools.cache
    def load(name):
        folder = tiny_families.write(name, tmp_path_factory.mktemp(name))
        model = spec_of(folder)
        return model, load_params(folder, model, mesh())

    return load


def put(x, on):
    batch = NamedSharding(on, jax.P(("replica", "fsdp")))
    return jax.device_put(np.asarray(x, np.int32), batch)


@functools.partial(jax.jit, static_argnames="model")
def packed_logits(params, token_BT, position_BT, segment_BT, model):
    hidden_BTD = decoder.hidden_states(params, token_BT, position_BT, segment_BT, model)
    head_VD = decoder.gather_head(params, model)
    logits_BTV = jnp.einsum("BTD,VD->BTV", hidden_BTD, head_VD)
    if model.final_softcap:
        logits_BTV = model.final_softcap * jnp.tanh(logits_BTV / model.final_softcap)
    return logits_BTV


def logits_of(params, token_BT, model, on=None):
    """Float32 [B, T, V] over whole rows, each one sample."""
    on = on or mesh()
    position_BT = np.broadcast_to(np.arange(token_BT.shape[1]), token_BT.shape)
    rows = (put(x, on) for x in (token_BT, position_BT, np.ones_like(token_BT)))
    with jax.set_mesh(on):
        return np.asarray(packed_logits(params, *rows, model))


def test_every_family_has_a_model_here():
    names = {
        tiny_families.config_of(name)["model_type"] for name in tiny_families.NAMES
    }
    assert names == FAMILIES.keys()


@pytest.mark.parametrize("name", tiny_families.NAMES)
def test_logits_are_those_of_transformers(loaded, name):
    model, params = loaded(name)
    token_BT, want_BTV = tiny_families.expected(name)
    error = np.abs(logits_of(params, token_BT, model) - want_BTV).max()
    print(f"\n{model.family:12} {name:16} {error:.1e}", end="")
    assert error <= ATOL, f"{name}: largest difference {error:.1e}"


PROMPT = 9  # longer than the windows


@functools.partial(jax.jit, static_argnames="model")
def prompt_cache(params, token_BT, length_B, empty, model):
    k, v = decoder.prefill(params, token_BT, length_B, model)

    def filled(olds, news):
        news = (jax.reshard(new, decoder.cache_spec()) for new in news)
        pairs = zip(olds, news, strict=True)
        return tuple(old.at[:, :, :PROMPT].set(new) for old, new in pairs)

    return decoder.Cache(filled(empty.k, k), filled(empty.v, v))


@functools.partial(jax.jit, static_argnames="model")
def step(params, cache, token_B, position_B, model):
    layers = decoder.unrolled(params, model)
    head_VD = decoder.gather_head(params, model)
    return decoder.decode_step(
        params, layers, head_VD, cache, token_B, position_B, model
    )


@pytest.mark.parametrize("name", tiny_families.NAMES)
def test_prefill_and_decoding_give_the_same_logits(loaded, name):
    model, params = loaded(name)
    token_BT, want_BTV = tiny_families.expected(name)
    B, T = token_BT.shape
    length_B = np.array([PROMPT, 2], np.int32)  # prompts; the rest is decoded

    def make(shape, dtype, spec):
        return jax.device_put(np.zeros(shape, dtype), NamedSharding(mesh(), spec))

    rows = functools.partial(put, on=mesh())
    with jax.set_mesh(mesh()):
        empty = decoder.empty_cache(model, B, T, make)
        prompt_BT, lengths = rows(token_BT[:, :PROMPT]), rows(length_B)
        cache = prompt_cache(params, prompt_BT, lengths, empty, model)
        for i in range(T - PROMPT):
            at = np.arange(B), length_B + i
            found_BV, cache = step(
                params, cache, rows(token_BT[at]), rows(at[1]), model
            )
            error = np.abs(np.asarray(found_BV) - want_BTV[at]).max()
            assert error <= ATOL, f"{name}, step {i}: largest difference {error:.1e}"


DEFAULT = {"rope_type": "default"}
FULL, SLIDING = "full_attention", "sliding_attention"


def rope(name, kind="", **changes):
    """rope_parameters of a model with keys changed, or left out if `...`."""
    parameters = tiny_families.config_of(name)["rope_parameters"]
    own = parameters[kind] if kind else parameters
    own = {k: v for k, v in {**own, **changes}.items() if v is not ...}
    return {"rope_parameters": {**parameters, kind: own} if kind else own}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("llama", {"rms_norm_eps": 0.02}),
        ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
        ("llama", rope("llama", rope_theta=550.0)),
        ("llama", {"rope_parameters": {**DEFAULT, "rope_theta": 500.0}}),
        ("llama", rope("llama", factor=7.0)),
        ("llama", rope("llama", low_freq_factor=1.5)),
        ("llama", rope("llama", high_freq_factor=5.0)),
        ("llama", rope("llama", original_max_position_embeddings=24)),
        ("llama_linear", rope("llama_linear", factor=2.0)),
        ("smollm3", {"no_rope_layers": [0, 1, 1]}),
        ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 3}),
        ("smollm3_windows", {"sliding_window": 6}),
        ("smollm3_windows", {"layer_types": [SLIDING, FULL, FULL]}),
        ("mistral", {"sliding_window": 6}),
        ("mistral", {"sliding_window": None}),
        ("qwen2_windows", {"layer_types": None, "max_window_layers": 2}),
        ("qwen2_windows", {"layer_types": None, "use_sliding_window": False}),
        ("qwen2_windows", {"sliding_window": 5}),
        ("qwen3_yarn", rope("qwen3_yarn", attention_factor=1.2)),
        ("qwen3_yarn", rope("qwen3_yarn", beta_fast=3.0)),
        ("qwen3_yarn", rope("qwen3_yarn", beta_slow=0.6)),
        ("qwen3_yarn", rope("qwen3_yarn", truncate=True)),
        ("qwen3_yarn", rope("qwen3_yarn", factor=5.0)),
        ("olmo2", {"rms_norm_eps": 0.02}),
        ("olmo3", {"layer_types": [FULL] * 5}),
        ("olmo3", {"sliding_window": 5}),
        ("olmo3", rope("olmo3", FULL, factor=5.0)),
        ("olmo3", rope("olmo3", FULL, rope_theta=220.0)),
        ("olmo3", rope("olmo3", SLIDING, rope_theta=50.0)),
        ("gemma2", {"query_pre_attn_scalar": 8}),
        ("gemma2", {"attn_logit_softcapping": 2.6}),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gemma2", {"final_logit_softcapping": 6.5}),
        ("gemma2", {"final_logit_softcapping": None}),
        ("gemma2", {"sliding_window": 6}),
        ("gemma2", {"layer_types": [FULL, SLIDING, FULL]}),
        ("gemma3", {"layer_types": None, "sliding_window_pattern": 2}),
        ("gemma3", rope("gemma3", FULL, factor=3.5)),
        ("gemma3", rope("gemma3", FULL, rope_theta=500.0)),
        ("gemma3", rope("gemma3", SLIDING, rope_theta=20.0)),
    ],
)
def test_every_choice_of_a_config_changes_the_logits(loaded, name, change):
    model, params = loaded(name)
    changed = spec_of(tiny_families.config_of(name) | change)
    assert changed != model
    token_BT, want_BTV = tiny_families.expected(name)
    error = np.abs(logits_of(params, token_BT, changed) - want_BTV).max()
    assert error > 20 * ATOL


def test_a_head_that_is_tied_is_the_embedding(loaded, tmp_path):
    name = "gemma3_untied"
    folder = tiny_families.write(name, tmp_path, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    model, (_, untied) = spec_of(folder), loaded(name)
    params = load_params(folder, model, mesh())
    token_BT, want_BTV = tiny_families.expected(name)
    found_BTV = logits_of(params, token_BT, model)
    assert np.abs(found_BTV - want_BTV).max() > 1.0
    same = dataclasses.replace(model, tie_embeddings=False)
    tied_by_hand = untied.replace(head_VD=untied.embed_VD)
    np.testing.assert_array_equal(found_BTV, logits_of(tied_by_hand, token_BT, same))


@pytest.mark.parametrize("name", ["qwen2_windows", "qwen3", "olmo3", "gemma3"])
def test_a_model_on_eight_devices_is_that_on_one(name, tmp_path):
    # Sizes that can be divided, unlike those of the stored models.
    config = tiny_families.config_of(name) | {"vocab_size": 38, "intermediate_size": 34}
    model = spec_of(config)
    tensors = {
        key: tiny_families.stored_weight(key, tuple(weight.stored_shape))
        for weight in jax.tree.leaves(weights(model))
        for key in weight.names
    }
    save_file(tensors, tmp_path / "model.safetensors")
    token_BT, _ = tiny_families.expected(name)
    token_BT = np.concatenate([token_BT, token_BT[:, ::-1]])
    eight = make_mesh(fsdp=4, tensor=2, devices=jax.devices()[:8])
    whole, parts = (load_params(tmp_path, model, on) for on in (mesh(), eight))
    jax.tree.map(np.testing.assert_array_equal, whole, parts)
    if model.qk_norm == "whole":
        spec = parts.layers.q_norm_LHC.sharding.spec
        assert spec == jax.P(None, "tensor", None)
    want_BTV = logits_of(whole, token_BT, model)
    found_BTV = logits_of(parts, token_BT, model, eight)
    np.testing.assert_allclose(found_BTV, want_BTV, rtol=0, atol=ATOL)


# Name on the hub -> its config.json.
PUBLISHED = json.loads((tiny_families.FILES.parent / "published.json").read_text())


def llama3(factor):
    return RopeScaling(
        "llama3", factor, 8192, low_freq_factor=1.0, high_freq_factor=4.0
    )


# What the specs have otherwise than `ModelSpec`'s defaults.
LLAMA_8B = {
    "sizes": (32, 4096, 32, 8, 128, 14336, 128256),
    "attention": [Attention(0, 5e5, llama3(8.0))],
    "tie_embeddings": False,
}
QWEN_7B = {
    "sizes": (28, 3584, 28, 4, 128, 18944, 152064),
    "qkv_bias": True,
    "norm_eps": 1e-6,
    "tie_embeddings": False,
}
OLMO = {"qk_norm": "whole", "pre_norm": False, "post_norm": True, "norm_eps": 1e-6}
GEMMA = {
    "activation": "gelu_tanh",
    "post_norm": True,
    "norm_offset": 1.0,
    "query_scale": 1 / 16,
    "norm_eps": 1e-6,
}
OLMO3_YARN = RopeScaling("yarn", 8.0, 8192, attention_factor=1.2079441541679836)
WANTED = {
    "meta-llama/Llama-3.1-8B": LLAMA_8B,
    "meta-llama/Llama-3.2-1B": {
        "sizes": (16, 2048, 32, 8, 64, 8192, 128256),
        "attention": [Attention(0, 5e5, llama3(32.0))],
    },
    "meta-llama/Llama-3.3-70B-Instruct": {
        **LLAMA_8B,
        "sizes": (80, 8192, 64, 8, 128, 28672, 128256),
    },
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": LLAMA_8B,
    "HuggingFaceTB/SmolLM2-135M-Instruct": {
        "sizes": (30, 576, 9, 3, 64, 1536, 49152),
        "attention": [Attention(0, 1e5)],
    },
    "HuggingFaceTB/SmolLM3-3B": {
        "sizes": (36, 2048, 16, 4, 128, 11008, 128256),
        "attention": [*[Attention(0, 5e6)] * 3, Attention(0, 0.0)],
        "norm_eps": 1e-6,
    },
    "mistralai/Mistral-7B-v0.1": {
        "sizes": (32, 4096, 32, 8, 128, 14336, 32000),
        "attention": [Attention(4096, 1e4)],
        "tie_embeddings": False,
    },
    "mistralai/Mistral-7B-v0.3": {
        "sizes": (32, 4096, 32, 8, 128, 14336, 32768),
        "attention": [Attention(0, 1e6)],
        "tie_embeddings": False,
    },
    "Qwen/Qwen2.5-7B": {**QWEN_7B, "attention": [Attention(0, 1e6)]},
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": QWEN_7B,
    "Qwen/Qwen3-8B": {
        "sizes": (36, 4096, 32, 8, 128, 12288, 151936),
        "attention": [Attention(0, 1e6)],
        "qk_norm": "head",
        "norm_eps": 1e-6,
        "tie_embeddings": False,
    },
    "allenai/OLMo-2-1124-7B": {
        **OLMO,
        "sizes": (32, 4096, 32, 32, 128, 11008, 100352),
        "attention": [Attention(0, 5e5)],
        "tie_embeddings": False,
    },
    "allenai/Olmo-3-7B-Think": {
        **OLMO,
        "sizes": (32, 4096, 32, 32, 128, 11008, 100278),
        "attention": [*[Attention(4096, 5e5)] * 3, Attention(0, 5e5, OLMO3_YARN)],
        "tie_embeddings": False,
    },
    "google/gemma-2-2b-it": {
        **GEMMA,
        "sizes": (26, 2304, 8, 4, 256, 9216, 256000),
        "attention": [Attention(4096), Attention()],
        "embed_scale": 48.0,
        "attn_softcap": 50.0,
        "final_softcap": 30.0,
    },
    "google/gemma-3-1b-it": {
        **GEMMA,
        "sizes": (26, 1152, 4, 1, 256, 6912, 262144),
        "attention": [*[Attention(512, 1e4)] * 5, Attention(0, 1e6)],
        "qk_norm": "head",
        "embed_scale": 1152**0.5,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read_whole_and_without_a_warning(name, caplog):
    changes = {**WANTED[name]}
    want = ModelSpec(
        *changes.pop("sizes"),
        family=PUBLISHED[name]["model_type"],
        attention=tuple(changes.pop("attention", [Attention()])),
        **changes,
        **CHOICES,
    )
    with caplog.at_level(logging.WARNING):
        assert spec_of(PUBLISHED[name]) == want
    assert not caplog.records


@pytest.mark.parametrize("name", [*PUBLISHED, *tiny_families.NAMES])
def test_a_written_config_reads_back_as_the_same_model(name, caplog):
    model = spec_of(PUBLISHED.get(name) or tiny_families.config_of(name))
    config = json.loads(json.dumps(config_from_spec(model)))
    with caplog.at_level(logging.WARNING):
        assert spec_of(config) == model
    assert not caplog.records
    assert config["architectures"] == [FAMILIES[model.family].architecture]


@pytest.mark.parametrize("name", tiny_families.NAMES)
def test_every_weight_of_a_family_has_a_name(name):
    model = spec_of(tiny_families.config_of(name))
    named = FAMILIES[model.family].tensors.keys()
    leaves = vars(layout(model).layers)
    assert {field for field, leaf in leaves.items() if leaf is not None} <= named


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama", "model_type", "gemma3"),  # with images
        ("llama", "model_type", "qwen3_moe"),
        ("llama", "attention_bias", True),
        ("llama", "sliding_window", 4096),
        ("smollm3", "mlp_bias", True),
        ("smollm3", "no_rope_layers", [1, 0]),
        ("smollm3", "no_rope_layers", [1, 0, 2]),
        ("smollm3", "no_rope_layer_interval", 0),
        ("mistral", "architectures", ["MixtralForCausalLM"]),
        ("mistral", "layer_types", [FULL, SLIDING]),
        ("mistral", "sliding_window", 0),
        ("qwen2", "layer_types", [SLIDING, FULL]),  # use_sliding_window is false
        ("qwen2_windows", "layer_types", [FULL, SLIDING]),  # of three layers
        ("qwen2_windows", "layer_types", [FULL, SLIDING, "chunked_attention"]),
        ("qwen2_windows", "max_window_layers", -1),
        ("qwen2_windows", "use_sliding_window", 1),
        ("qwen3", "attention_bias", True),
        ("olmo2", "attention_bias", True),
        ("olmo3", "sliding_window", "4096"),
        ("gemma2", "hidden_activation", "gelu"),
        ("gemma2", "use_bidirectional_attention", True),
        ("gemma2", "query_pre_attn_scalar", 0),
        ("gemma2", "attn_logit_softcapping", -1.0),
        ("gemma2", "final_logit_softcapping", "30"),
        ("gemma3", "attn_logit_softcapping", 50.0),
        ("gemma3", "sliding_window_pattern", 0),
    ],
)
def test_what_a_family_cannot_do_is_refused_by_name(name, key, value):
    config = tiny_families.config_of(name) | {key: value}
    with pytest.raises(ConfigError, match=f"config.json has {key}: ") as error:
        spec_of(config)
    assert len(str(error.value).splitlines()) <= 3


@pytest.mark.parametrize("name", ["olmo3", "gemma2", "gemma3"])
def test_layers_with_a_window_need_its_length(name):
    config = tiny_families.config_of(name) | {"sliding_window": None}
    with pytest.raises(ConfigError, match="layer_types"):
        spec_of(config)


def test_absent_and_null_differ_where_null_switches_something_off():
    config = tiny_families.config_of("gemma2")
    absent = {k: v for k, v in config.items() if not k.endswith("softcapping")}
    assert spec_of(absent).attn_softcap == 50.0
    assert spec_of(absent).final_softcap == 30.0
    null = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    assert spec_of(config | null).attn_softcap == 0.0
    assert spec_of(config | null).final_softcap == 0.0
    config = tiny_families.config_of("mistral")
    assert spec_of(config | {"sliding_window": None}).attention[0].window == 0
    del config["sliding_window"]
    assert spec_of(config).attention[0].window == 4096


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny_families.NAMES)
def test_transformers_gives_the_same_logits_by_a_config_of_ours(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = tiny_families.write(name, tmp_path)
    config = config_from_spec(spec_of(folder)) | {"max_position_embeddings": 64}
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": 0}))
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    assert not any(report.values()), report
    token_BT, want_BTV = tiny_families.expected(name)
    with torch.no_grad():
        found_BTV = model(torch.from_numpy(token_BT.astype(np.int64))).logits.numpy()
    error = np.abs(found_BTV - want_BTV).max()
    assert error <= ATOL, f"{name}: largest difference {error:.1e}"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_absent_keys_mean_what_transformers_means_by_them(name):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 37,
        "hidden_size": 64,
        "intermediate_size": 33,
        "num_hidden_layers": 30,
        "num_attention_heads": 32,
    }
    theirs = transformers.AutoConfig.for_model(name, **sizes).to_dict()
    assert spec_of({"model_type": name, **sizes}) == spec_of(theirs)
    # The same with windows, where they are not on by default.
    windows = {"sliding_window": 7, "use_sliding_window": True}
    if windows.keys() <= FAMILIES[name].reads.keys():
        theirs = transformers.AutoConfig.for_model(name, **sizes, **windows).to_dict()
        found = spec_of({"model_type": name, **sizes, **windows})
        assert found == spec_of(theirs)
        assert {layer.window for layer in found.attention} == {0, 7}
