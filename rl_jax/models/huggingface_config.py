"""config.json of a Hugging Face Llama, to a `ModelSpec` and back.

What the decoder cannot do is refused by the name of the key.
"""

import functools
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.models.spec import ModelSpec, RopeScaling
from rl_jax.models.weight_files import model_folder, read_json

CONFIG = "config.json"

# Keys of config.json that change the model -> the one value that is supported, which
# is also the meaning of an absent key. None: the key must be absent or null.
_SUPPORTED = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "partial_rotary_factor": 1.0,
    "rope_interleaved": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "layer_types": None,
    "quantization_config": None,
    "compression_config": None,
    "original_max_position_embeddings": None,
    "auto_map": None,
}
_READ = set(
    "model_type num_hidden_layers hidden_size num_attention_heads num_key_value_heads "
    "head_dim intermediate_size vocab_size rope_theta rope_scaling rope_parameters "
    "rms_norm_eps tie_word_embeddings".split()
)
# Keys that say nothing of the function from tokens to logits.
_INERT = set(
    "bos_token_id eos_token_id pad_token_id torch_dtype dtype transformers_version "
    "use_cache initializer_range pretraining_tp max_position_embeddings "
    "is_llama_config transformers.js_config".split()
)
_LLAMA3_KEYS = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)

# (key, value found, what is supported) -> the error to raise.
Fault = Callable[[str, Any, Any], ConfigError]


def spec_from_config(
    source: str | os.PathLike | Mapping[str, Any],
    *,
    dtype: str,
    param_dtype: str,
    float32_head: bool,
    remat: str,
) -> ModelSpec:
    """The `ModelSpec` of a Hugging Face folder, or of its parsed config.json.

    An absent key has the value that transformers' LlamaConfig gives it, except that
    sizes must be present; null is the same as absent. A key that neither we nor
    LlamaConfig know is named in one warning, since transformers ignores it too.

    Args:
        source: the folder, or the config as a dict.
        dtype, param_dtype, float32_head, remat: our own choices, as in `ModelSpec`;
            the dtype that config.json names is not used.

    Raises:
        ConfigError: if the file cannot be read, or asks for what the decoder does not
            do: another model_type, biases, other rope types, quantised weights, ...
    """
    if isinstance(source, Mapping):
        where, config = CONFIG, dict(source)
    else:
        where = str(model_folder(source) / CONFIG)
        config = read_json(where)
    config = {key: value for key, value in config.items() if value is not None}
    fault = functools.partial(_unsupported, where)
    _check_keys(config, fault)
    tie = config.get("tie_word_embeddings", False)
    if not isinstance(tie, bool):
        raise fault("tie_word_embeddings", tie, "true or false")
    num_heads, num_kv_heads, head_dim = _heads(config, fault)
    rope_theta, rope_scaling = _rope(config, fault)
    return ModelSpec(
        num_layers=_size(config, "num_hidden_layers", fault),
        width=_size(config, "hidden_size", fault),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_width=_size(config, "intermediate_size", fault),
        vocab_size=_size(config, "vocab_size", fault),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        norm_eps=_positive({"rms_norm_eps": 1e-6, **config}, "rms_norm_eps", fault),
        tie_embeddings=tie,
        dtype=dtype,
        param_dtype=param_dtype,
        float32_head=float32_head,
        remat=remat,
    )


def _check_keys(config: dict[str, Any], fault: Fault) -> None:
    if config.get("model_type") != "llama":
        raise fault("model_type", config.get("model_type"), "llama")
    for key, supported in _SUPPORTED.items():
        if key in config and config[key] != supported:
            raise fault(key, config[key], supported)
    unknown = sorted(
        key
        for key in config.keys() - _SUPPORTED.keys() - _READ - _INERT
        if not key.startswith("_")
    )
    if unknown:
        logging.getLogger(__name__).warning(
            "config.json has keys that no Llama model reads; they are ignored, as "
            "transformers does: %s",
            ", ".join(unknown),
        )


def _heads(config: dict[str, Any], fault: Fault) -> tuple[int, int, int]:
    """(num_heads, num_kv_heads, head_dim)."""
    num_heads = _size(config, "num_attention_heads", fault)
    config = {"num_key_value_heads": num_heads, **config}
    num_kv_heads = _size(config, "num_key_value_heads", fault)
    if num_heads % num_kv_heads:
        raise fault("num_key_value_heads", num_kv_heads, f"a divisor of {num_heads}")
    if "head_dim" not in config:
        width = _size(config, "hidden_size", fault)
        if width % num_heads:
            raise fault("num_attention_heads", num_heads, f"a divisor of {width}")
        config["head_dim"] = width // num_heads
    head_dim = _size(config, "head_dim", fault)
    if head_dim % 2:
        raise fault("head_dim", head_dim, "an even number")
    return num_heads, num_kv_heads, head_dim


def _rope(config: dict[str, Any], fault: Fault) -> tuple[float, RopeScaling | None]:
    """Base and scaling, from the keys of transformers 4 or of transformers 5."""
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    if old and new and old != new:
        raise fault("rope_scaling", old, "what rope_parameters says")
    name = "rope_scaling" if old else "rope_parameters"
    rope = old or new or {}
    if not isinstance(rope, dict):
        raise fault(name, rope, "null or an object")
    rope = {key: value for key, value in rope.items() if value is not None}
    kind = rope.pop("rope_type", rope.get("type", "default"))
    if rope.pop("type", kind) != kind or kind not in ("default", "llama3"):
        raise fault(f"{name}.rope_type", kind, 'one of "default", "llama3"')
    theta = rope.pop("rope_theta", config.get("rope_theta", 10_000.0))
    if theta != config.get("rope_theta", theta):
        raise fault(f"{name}.rope_theta", theta, f"rope_theta: {config['rope_theta']}")
    theta = _positive({"rope_theta": theta}, "rope_theta", fault)
    part = rope.pop("partial_rotary_factor", 1.0)
    if part != 1.0:
        raise fault(f"{name}.partial_rotary_factor", part, 1.0)
    keys = _LLAMA3_KEYS if kind == "llama3" else ()
    for key in sorted(rope.keys() - set(keys)):
        raise fault(f"{name}.{key}", rope[key], None)
    if kind == "default":
        return theta, None
    rope = {f"{name}.{key}": value for key, value in rope.items()}
    factor, low, high, original = (
        _positive(rope, f"{name}.{key}", fault) for key in keys
    )
    if low >= high:
        raise fault(f"{name}.high_freq_factor", high, f"above low_freq_factor, {low}")
    return theta, RopeScaling(factor, low, high, int(original))


def _size(config: dict[str, Any], key: str, fault: Fault) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise fault(key, value, "a whole number from 1")
    return value


def _positive(config: dict[str, Any], key: str, fault: Fault) -> float:
    value = config.get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if 0 < value < math.inf:
            return float(value)
    raise fault(key, value, "a number above 0")


def _unsupported(where: str, key: str, found: Any, supported: Any) -> ConfigError:
    """The error of one key; None stands for an absent key or null."""
    shown = json.dumps(found)
    shown = f"{shown[:120]}..." if len(shown) > 120 else shown
    shown = f"no {key}" if found is None else f"{key}: {shown}"
    words = supported if isinstance(supported, str) else json.dumps(supported)
    words = "no such key" if supported is None else words
    return ConfigError(
        f"{where} has {shown}.\nSupported: {words}.\n"
        "The decoder is a dense Llama; use a checkpoint of that kind."
    )


def config_from_spec(model: ModelSpec) -> dict[str, Any]:
    """config.json of a model, with the rope keys that every transformers reads."""
    scaling = model.rope_scaling
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "hidden_size": model.width,
        "intermediate_size": model.ffn_width,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "rope_scaling": scaling
        and {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_max_positions,
        },
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": model.param_dtype,
    }
