"""The families of dense decoders, as data: one entry of `FAMILIES` each.

An entry says what the family's config.json and safetensors call things, what an absent
key means, and which fields of `ModelSpec` follow. huggingface_config.py reads
config.json with it, huggingface.py the weights; the decoder knows no family.

Legend: the letters of params.py. A stored matrix has its outputs first, and heads and
channels as one axis: "HC D" is [H * C, D].
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

FULL, SLIDING = "full_attention", "sliding_attention"  # entries of layer_types

EMBED = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"

# Field of `Layers` -> (name inside model.layers.{i}, axes as stored). A model has those
# that its `layout` has.
_BLOCKS = {
    "w_q_LDHC": ("self_attn.q_proj.weight", "HC D"),
    "w_k_LDKC": ("self_attn.k_proj.weight", "KC D"),
    "w_v_LDKC": ("self_attn.v_proj.weight", "KC D"),
    "b_q_LHC": ("self_attn.q_proj.bias", "HC"),
    "b_k_LKC": ("self_attn.k_proj.bias", "KC"),
    "b_v_LKC": ("self_attn.v_proj.bias", "KC"),
    "q_norm_LC": ("self_attn.q_norm.weight", "C"),
    "k_norm_LC": ("self_attn.k_norm.weight", "C"),
    "q_norm_LHC": ("self_attn.q_norm.weight", "HC"),
    "k_norm_LKC": ("self_attn.k_norm.weight", "KC"),
    "w_o_LHCD": ("self_attn.o_proj.weight", "D HC"),
    "w_gate_LDF": ("mlp.gate_proj.weight", "F D"),
    "w_up_LDF": ("mlp.up_proj.weight", "F D"),
    "w_down_LFD": ("mlp.down_proj.weight", "D F"),
}
# The same stored name is another norm in another family.
_PRE_NORMS = _BLOCKS | {
    "attn_norm_LD": ("input_layernorm.weight", "D"),
    "mlp_norm_LD": ("post_attention_layernorm.weight", "D"),
}
_POST_NORMS = _BLOCKS | {
    "attn_post_norm_LD": ("post_attention_layernorm.weight", "D"),
    "mlp_post_norm_LD": ("post_feedforward_layernorm.weight", "D"),
}
_FOUR_NORMS = _POST_NORMS | {
    "attn_norm_LD": ("input_layernorm.weight", "D"),
    "mlp_norm_LD": ("pre_feedforward_layernorm.weight", "D"),
}

REQUIRED = object()  # the meaning of an absent key: an error
# Keys that every family reads -> their meaning when they are absent.
_COMMON = {
    "num_hidden_layers": REQUIRED,
    "hidden_size": REQUIRED,
    "num_attention_heads": REQUIRED,
    "num_key_value_heads": None,  # num_attention_heads
    "head_dim": None,  # hidden_size / num_attention_heads
    "intermediate_size": REQUIRED,
    "vocab_size": REQUIRED,
    "max_position_embeddings": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": None,  # `Family.rope_theta`
    "rope_scaling": None,
    "rope_parameters": None,
}
_SILU = _COMMON | {"hidden_act": "silu"}
_QWEN = _SILU | {
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_GEMMA = _COMMON | {
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
}
_NO_BIAS = {"attention_bias": False}
_NO_BIASES = {"attention_bias": False, "mlp_bias": False}

Config = Mapping[str, Any]  # config.json with every key that the family reads


@dataclasses.dataclass(frozen=True)
class Family:
    """One family of decoders.

    Attributes:
        architecture: the one class in config.json's "architectures".
        tensors: field of `Layers` -> (name inside model.layers.{i}, axes as stored).
        reads: keys that the model follows -> the meaning of an absent one, which is
            that of transformers' config class.
        only: further keys of the config class that change the model -> the one value
            that is supported, and is the meaning of an absent key.
        fields: what of `ModelSpec` follows besides sizes, activation and attention.
        slides: (config, i) -> whether layer i, from 0, has a window, where layer_types
            is null. sliding_window is null there if use_sliding_window is false.
        rope_theta: base of the rotary wavelengths, where no key gives it.
        sliding_theta: (key, value where it is absent) of the base in layers with a
            window, if the rope may differ there; only the other layers' is scaled.
    """

    architecture: str
    tensors: Mapping[str, tuple[str, str]]
    reads: Mapping[str, Any]
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fields: Callable[[Config], dict[str, Any]] = lambda config: {}
    slides: Callable[[Config, int], bool] = lambda config, i: False
    rope_theta: float = 10_000.0
    sliding_theta: tuple[str, float] | None = None


def _smollm3_slides(config: Config, i: int) -> bool:
    return config["sliding_window"] is not None and not rotates(config, i)


def _qwen_slides(config: Config, i: int) -> bool:
    return config["sliding_window"] is not None and i >= config["max_window_layers"]


def _olmo_fields(config: Config) -> dict[str, Any]:
    return {"qk_norm": "whole", "pre_norm": False, "post_norm": True}


def _gemma_fields(config: Config) -> dict[str, Any]:
    return {
        "post_norm": True,
        "norm_offset": 1.0,
        "embed_scale": config["hidden_size"] ** 0.5,
        "query_scale": config["query_pre_attn_scalar"] ** -0.5,
        "attn_softcap": config.get("attn_logit_softcapping") or 0.0,
        "final_softcap": config["final_logit_softcapping"] or 0.0,
    }


# By the model_type of config.json.
FAMILIES: dict[str, Family] = {
    # Llama 3.1, 3.2 (text) and 3.3, SmolLM2, R1-distilled Llama.
    "llama": Family(
        architecture="LlamaForCausalLM",
        tensors=_PRE_NORMS,
        reads=_SILU,
        only=_NO_BIASES,
    ),
    "smollm3": Family(
        architecture="SmolLM3ForCausalLM",
        tensors=_PRE_NORMS,
        reads=_SILU
        | {
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
            "no_rope_layers": None,  # 1: rotated; null: by the interval
            "no_rope_layer_interval": 4,
            "use_sliding_window": False,
            "sliding_window": None,
            "layer_types": None,
        },
        only=_NO_BIASES,
        slides=_smollm3_slides,
        rope_theta=2_000_000.0,
    ),
    "mistral": Family(
        architecture="MistralForCausalLM",
        tensors=_PRE_NORMS,
        reads=_SILU | {"num_key_value_heads": 8, "sliding_window": 4096},
        slides=lambda config, i: config["sliding_window"] is not None,
    ),
    # Qwen2, Qwen2.5, R1-distilled Qwen.
    "qwen2": Family(
        architecture="Qwen2ForCausalLM",
        tensors=_PRE_NORMS,
        reads=_QWEN,
        fields=lambda config: {"qkv_bias": True},
        slides=_qwen_slides,
    ),
    "qwen3": Family(
        architecture="Qwen3ForCausalLM",
        tensors=_PRE_NORMS,
        reads=_QWEN | {"head_dim": 128},
        only=_NO_BIAS,
        fields=lambda config: {"qk_norm": "head"},
        slides=_qwen_slides,
    ),
    "olmo2": Family(
        architecture="Olmo2ForCausalLM",
        tensors=_POST_NORMS,
        reads=_SILU | {"rms_norm_eps": 1e-5},
        only=_NO_BIAS,
        fields=_olmo_fields,
    ),
    "olmo3": Family(
        architecture="Olmo3ForCausalLM",
        tensors=_POST_NORMS,
        reads=_SILU
        | {"rms_norm_eps": 1e-5, "sliding_window": 4096, "layer_types": None},
        only=_NO_BIAS,
        fields=_olmo_fields,
        slides=lambda config, i: (i + 1) % 4 != 0,
        rope_theta=500_000.0,
        sliding_theta=("rope_theta", 500_000.0),
    ),
    "gemma2": Family(
        architecture="Gemma2ForCausalLM",
        tensors=_FOUR_NORMS,
        reads=_GEMMA
        | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        only=_NO_BIAS | {"use_bidirectional_attention": False},
        fields=_gemma_fields,
        slides=lambda config, i: i % 2 == 0,
    ),
    # The text models alone; "gemma3" is the one with images.
    "gemma3_text": Family(
        architecture="Gemma3ForCausalLM",
        tensors=_FOUR_NORMS,
        reads=_GEMMA
        | {
            "final_logit_softcapping": None,
            "sliding_window_pattern": 6,
            "rope_local_base_freq": None,
        },
        # transformers stores the soft cap of attention, and does not use it.
        only=_NO_BIAS
        | {"attn_logit_softcapping": None, "use_bidirectional_attention": False},
        fields=lambda config: _gemma_fields(config) | {"qk_norm": "head"},
        slides=lambda config, i: (i + 1) % config["sliding_window_pattern"] != 0,
        rope_theta=1_000_000.0,
        sliding_theta=("rope_local_base_freq", 10_000.0),
    ),
}


def rotates(config: Config, i: int) -> bool:
    """Whether layer i, from 0, has rotary embeddings; only SmolLM3 has others."""
    if config.get("no_rope_layers") is not None:
        return bool(config["no_rope_layers"][i])
    interval = config.get("no_rope_layer_interval")
    return interval is None or (i + 1) % interval != 0
