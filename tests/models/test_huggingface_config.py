import dataclasses
import json
import logging

import pytest

from rl_jax.errors import ConfigError
from rl_jax.models.huggingface_config import config_from_spec, spec_from_config
from rl_jax.models.spec import Attention, ModelSpec

CHOICES = {
    "dtype": "bfloat16",
    "param_dtype": "float32",
    "float32_head": True,
    "remat": "layer",
}
# SmolLM2-135M-Instruct, as it is published.
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}


def smollm2(**changes):
    """Its `ModelSpec` with keys changed, or left out where the value is `...`."""
    config = {**SMOLLM2, **changes}
    config = {key: value for key, value in config.items() if value is not ...}
    return spec_from_config(config, **CHOICES)


def test_smollm2_is_read_whole_and_without_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        found = smollm2()
    assert found == ModelSpec(
        num_layers=30,
        width=576,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        ffn_width=1536,
        vocab_size=49152,
        attention=(Attention(rope_theta=100_000.0),),
        norm_eps=1e-5,
        tie_embeddings=True,
        **CHOICES,
    )
    assert not caplog.records


def test_absent_keys_mean_what_transformers_means_by_them():
    found = smollm2(
        num_key_value_heads=...,
        rope_theta=...,
        rms_norm_eps=...,
        tie_word_embeddings=...,
        hidden_act=...,
        architectures=None,
    )
    assert found.num_kv_heads == 9
    assert found.attention == (Attention(rope_theta=10_000.0),)
    assert found.norm_eps == 1e-6
    assert not found.tie_embeddings


def test_head_dim_is_read_where_it_is_not_width_over_heads():
    assert smollm2(head_dim=128).head_dim == 128
    assert smollm2(head_dim=None).head_dim == 64


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "mamba"),
        ("model_type", ["llama"]),
        ("model_type", ...),
        ("architectures", ["LlamaForSequenceClassification"]),
        ("architectures", ["LlamaModel"]),
        ("hidden_act", "gelu"),
        ("hidden_act", ["silu"]),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("attention_dropout", 0.1),
        ("sliding_window", 4096),
        ("layer_types", ["sliding_attention"] * 30),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("partial_rotary_factor", 0.5),
        ("rope_interleaved", True),
        ("auto_map", {"AutoModelForCausalLM": "modeling.Model"}),
        ("use_mrope", True),
        ("num_hidden_layers", ...),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", "30"),
        ("hidden_size", 576.0),
        ("vocab_size", True),
        ("num_key_value_heads", 2),
        ("num_attention_heads", ...),
        ("head_dim", 63),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", "1e-5"),
        ("rope_theta", -1.0),
        ("tie_word_embeddings", 1),
    ],
)
def test_what_the_decoder_cannot_do_is_refused_by_name(key, value):
    with pytest.raises(ConfigError, match=f"config.json has (no )?{key}") as error:
        smollm2(**{key: value})
    message = str(error.value)
    assert "Supported: " in message
    assert len(message.splitlines()) <= 3


def test_an_error_shows_the_value_found_and_what_is_supported():
    with pytest.raises(ConfigError, match=r'act: "gelu"\.\nSupported: one of silu, '):
        smollm2(hidden_act="gelu")
    with pytest.raises(ConfigError, match=r"attention_bias: true\.\nSupported: false"):
        smollm2(attention_bias=True)
    with pytest.raises(ConfigError, match=r"type: \"mamba\"\.\nSupported: .*, llama, "):
        smollm2(model_type="mamba")


def test_a_head_dim_that_follows_from_nothing_is_refused():
    with pytest.raises(ConfigError, match="num_attention_heads: 7.*\n.*divisor of 576"):
        smollm2(num_attention_heads=7, num_key_value_heads=7)
    assert smollm2(num_attention_heads=7, num_key_value_heads=7, head_dim=8)


def test_a_key_that_no_llama_has_is_named_in_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        smollm2(unheard_of=3, _name_or_path="x")
    assert [r for r in caplog.messages if "unheard_of" in r and "_name" not in r]


def test_keys_of_another_family_are_not_followed(caplog):
    others = {"no_rope_layers": [0] * 30, "query_pre_attn_scalar": 9}
    others |= {"final_logit_softcapping": 30.0, "sliding_window_pattern": 6}
    with caplog.at_level(logging.WARNING):
        assert smollm2(**others, max_window_layers="inert") == smollm2()
    for key in others:
        assert key in caplog.text
    assert "max_window_layers" not in caplog.text


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        spec_from_config(tmp_path / "nowhere", **CHOICES)
    with pytest.raises(ConfigError, match="config.json cannot be read"):
        spec_from_config(tmp_path, **CHOICES)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="config.json cannot be read as JSON"):
        spec_from_config(tmp_path, **CHOICES)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="holds a list"):
        spec_from_config(tmp_path, **CHOICES)


@pytest.mark.parametrize("act", ["silu", "gelu_tanh"])
def test_a_written_config_reads_back_as_the_same_model(act):
    model = ModelSpec(
        num_layers=2,
        width=12,
        num_heads=3,
        num_kv_heads=1,
        head_dim=6,
        ffn_width=20,
        vocab_size=17,
        attention=(Attention(rope_theta=1234.5),),
        activation=act,
        norm_eps=3e-6,
        tie_embeddings=False,
        **CHOICES,
    )
    config = json.loads(json.dumps(config_from_spec(model)))
    assert spec_from_config(config, **CHOICES) == model


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"attention": (Attention(window=4),)}, "attention"),
        ({"attention": (Attention(), Attention(rope_theta=0.0))}, "attention"),
        ({"qkv_bias": True}, "qkv_bias"),
        ({"qk_norm": "head"}, "qk_norm"),
        ({"post_norm": True}, "post_norm"),
        ({"norm_offset": 1.0}, "norm_offset"),
        ({"embed_scale": 2.0}, "embed_scale"),
        ({"query_scale": 2.0}, "query_scale"),
        ({"attn_softcap": 50.0}, "attn_softcap"),
        ({"final_softcap": 30.0}, "final_softcap"),
        ({"family": "qwen2"}, "qkv_bias"),
        ({"family": "gemma2", "num_layers": 3}, "pre_norm|post_norm|norm_offset"),
    ],
)
def test_a_config_that_could_not_say_what_the_model_does_is_not_written(change, field):
    model = ModelSpec(2, 12, 3, 1, 6, 20, 17, **CHOICES)
    with pytest.raises(ConfigError, match=f"cannot say ({field})=") as error:
        config_from_spec(dataclasses.replace(model, **change))
    assert len(str(error.value).splitlines()) <= 3


def test_a_pattern_that_is_longer_than_need_be_is_written_all_the_same():
    model = ModelSpec(2, 12, 3, 1, 6, 20, 17, **CHOICES)
    longer = dataclasses.replace(model, attention=(Attention(), Attention()))
    assert config_from_spec(longer) == config_from_spec(model)
