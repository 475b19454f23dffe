"""config.json of a Hugging Face folder, to a `ModelSpec` and back.

What the decoder cannot do is refused by the name of the key.
"""

import dataclasses
import functools
import json
import logging
import math
import os
from collections.abc import Mapping
from typing import Any

from rl_jax.errors import ConfigError
from rl_jax.models.families import FAMILIES, FULL, REQUIRED, SLIDING, Family, rotates
from rl_jax.models.huggingface_rope import Fault, Rope, positive, read_rope, write_rope
from rl_jax.models.spec import Attention, ModelSpec
from rl_jax.models.weight_files import model_folder, read_json

CONFIG = "config.json"

# Keys that change the model in some family or version -> the one value that is
# supported, which is also the meaning of an absent key. None: absent or null. A family
# that reads one of them follows it instead.
_ONLY = {
    "attention_dropout": 0.0,
    "partial_rotary_factor": 1.0,
    "rope_interleaved": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "layer_types": None,
    "quantization_config": None,
    "compression_config": None,
    "original_max_position_embeddings": None,
    "auto_map": None,
}
# Keys that say nothing of the function from tokens to logits.
_INERT = set(
    "model_type bos_token_id eos_token_id pad_token_id torch_dtype dtype "
    "transformers_version use_cache cache_implementation initializer_range "
    "pretraining_tp hidden_act max_window_layers is_llama_config "
    "transformers.js_config".split()
)
# Null has a meaning of its own here; elsewhere it is the same as absent.
_NULL_COUNTS = {
    "num_key_value_heads",
    "sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
}
_FLAGS = {"tie_word_embeddings", "use_sliding_window"}
_NUMBERS = {"rms_norm_eps", "query_pre_attn_scalar"}
_SOFTCAPS = {"attn_logit_softcapping", "final_logit_softcapping"}
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}  # theirs -> ours


def spec_from_config(
    source: str | os.PathLike | Mapping[str, Any],
    *,
    dtype: str,
    param_dtype: str,
    float32_head: bool,
    remat: str,
) -> ModelSpec:
    """The `ModelSpec` of a Hugging Face folder, or of its parsed config.json.

    An absent key has the value that transformers' config class gives it, except that
    sizes must be present; null is the same as absent, unless it switches something
    off. A key that neither we nor that class know is named in one warning, since
    transformers ignores it too.

    Args:
        source: the folder, or the config as a dict.
        dtype, param_dtype, float32_head, remat: our own choices, as in `ModelSpec`;
            the dtype that config.json names is not used.

    Raises:
        ConfigError: if the file cannot be read, or asks for what the decoder does not
            do: another model_type, output biases, other rope types, quantised weights.
    """
    if isinstance(source, Mapping):
        where, config = CONFIG, dict(source)
    else:
        where = str(model_folder(source) / CONFIG)
        config = read_json(where)
    fault = functools.partial(_unsupported, where)
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise fault("model_type", name, f"one of {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[name]
    _check_keys(config, family, fault)
    config = _whole(config, family, fault)
    num_heads, num_kv_heads, head_dim = _heads(config, fault)
    key = "hidden_act" if "hidden_act" in family.reads else "hidden_activation"
    activation = config[key]
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise fault(key, activation, f"one of {', '.join(_ACTIVATIONS)}")
    return ModelSpec(
        num_layers=_size(config, "num_hidden_layers", fault),
        width=_size(config, "hidden_size", fault),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        ffn_width=_size(config, "intermediate_size", fault),
        vocab_size=_size(config, "vocab_size", fault),
        family=name,
        attention=_attention(config, family, fault),
        activation=_ACTIVATIONS[activation],
        norm_eps=config["rms_norm_eps"],
        tie_embeddings=config["tie_word_embeddings"],
        dtype=dtype,
        param_dtype=param_dtype,
        float32_head=float32_head,
        remat=remat,
        **family.fields(config),
    )


def _check_keys(config: Mapping[str, Any], family: Family, fault: Fault) -> None:
    """Refuses what is not supported, and warns of what nobody reads."""
    only = {"architectures": [family.architecture], **_ONLY, **family.only}
    for key, supported in only.items():
        found = config.get(key)
        if key not in family.reads and found is not None and found != supported:
            raise fault(key, found, supported)
    unknown = sorted(
        key
        for key in config.keys() - only.keys() - family.reads.keys() - _INERT
        if not key.startswith("_") and config[key] is not None
    )
    if unknown:
        logging.getLogger(__name__).warning(
            "config.json has keys that no %s reads; they are ignored, as transformers "
            "does: %s",
            family.architecture,
            ", ".join(unknown),
        )


def _whole(config: Mapping[str, Any], family: Family, fault: Fault) -> dict[str, Any]:
    """The keys that the family reads, absent ones as it says, numbers checked."""
    whole = {
        key: None if absent is REQUIRED else absent
        for key, absent in family.reads.items()
    } | {
        key: value
        for key, value in config.items()
        if key in family.reads and (value is not None or key in _NULL_COUNTS)
    }
    for key in _FLAGS & whole.keys():
        if not isinstance(whole[key], bool):
            raise fault(key, whole[key], "true or false")
    for key in _NUMBERS & whole.keys():
        whole[key] = positive(whole, key, fault)
    for key in _SOFTCAPS & whole.keys():
        if whole[key] is not None:
            whole[key] = positive(whole, key, fault)
    return whole


def _heads(config: Mapping[str, Any], fault: Fault) -> tuple[int, int, int]:
    """(num_heads, num_kv_heads, head_dim)."""
    num_heads = _size(config, "num_attention_heads", fault)
    num_kv_heads = num_heads
    if config["num_key_value_heads"] is not None:
        num_kv_heads = _size(config, "num_key_value_heads", fault)
    if num_heads % num_kv_heads:
        raise fault("num_key_value_heads", num_kv_heads, f"a divisor of {num_heads}")
    if config["head_dim"] is None:
        width = _size(config, "hidden_size", fault)
        if width % num_heads:
            raise fault("num_attention_heads", num_heads, f"a divisor of {width}")
        config = {**config, "head_dim": width // num_heads}
    head_dim = _size(config, "head_dim", fault)
    if head_dim % 2:
        raise fault("head_dim", head_dim, "an even number")
    return num_heads, num_kv_heads, head_dim


def _attention(
    config: dict[str, Any], family: Family, fault: Fault
) -> tuple[Attention, ...]:
    """`ModelSpec.attention`: the shortest pattern of layers."""
    num_layers = _size(config, "num_hidden_layers", fault)
    for key in ("no_rope_layer_interval", "sliding_window_pattern"):
        if key in config:
            _size(config, key, fault)
    if "max_window_layers" in config:
        _size(config, "max_window_layers", fault, least=0)
    no_rope = config.get("no_rope_layers")
    if no_rope is not None and not _is_list(no_rope, (0, 1), num_layers, more=True):
        raise fault("no_rope_layers", no_rope, f"{num_layers} zeros and ones")
    window = config.get("sliding_window")
    if not config.get("use_sliding_window", True):
        window = None
    config = {**config, "sliding_window": window}
    kinds = config.get("layer_types")
    if kinds is None:
        slides = (family.slides(config, i) for i in range(num_layers))
        kinds = [SLIDING if yes else FULL for yes in slides]
    elif not _is_list(kinds, (FULL, SLIDING), num_layers):
        raise fault("layer_types", kinds, f'{num_layers} times "{FULL}" or "{SLIDING}"')
    if SLIDING in kinds:
        if window is None:
            raise fault("layer_types", kinds, f'"{FULL}" only, without sliding_window')
        window = _size(config, "sliding_window", fault)
    rope = read_rope(config, family, fault)
    layers = [
        Attention(
            (window or 0) if kind == SLIDING else 0,
            *(rope[kind] if rotates(config, i) else (0.0, None)),
        )
        for i, kind in enumerate(kinds)
    ]
    return _shortest(layers)


def _shortest(layers: list[Attention]) -> tuple[Attention, ...]:
    """The shortest pattern that the layers, from the first on, repeat."""
    period = next(
        p
        for p in range(1, len(layers) + 1)
        if all(layer == layers[i % p] for i, layer in enumerate(layers))
    )
    return tuple(layers[:period])


def _is_list(value: Any, allowed: tuple, length: int, *, more: bool = False) -> bool:
    if not isinstance(value, list) or any(x not in allowed for x in value):
        return False
    return len(value) == length or (more and len(value) > length)


def _size(config: Mapping[str, Any], key: str, fault: Fault, *, least: int = 1) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise fault(key, value, f"a whole number from {least}")
    return value


def _unsupported(where: str, key: str, found: Any, supported: Any) -> ConfigError:
    """The error of one key; None stands for an absent key or null."""
    shown = json.dumps(found)
    shown = f"{shown[:120]}..." if len(shown) > 120 else shown
    shown = f"no {key}" if found is None else f"{key}: {shown}"
    words = supported if isinstance(supported, str) else json.dumps(supported)
    words = "no such key" if supported is None else words
    return ConfigError(
        f"{where} has {shown}.\nSupported: {words}.\n"
        "The decoder does nothing else; use a checkpoint of that kind."
    )


def config_from_spec(model: ModelSpec) -> dict[str, Any]:
    """config.json of a model, with the keys that every transformers reads.

    Raises:
        ConfigError: if config.json of the model's family cannot say what the spec
            says, such as windows in a Llama.
    """
    family = FAMILIES[model.family]
    layers = [model.layer_attention(i) for i in range(model.num_layers)]
    kinds = [SLIDING if layer.window else FULL for layer in layers]
    windows = [layer.window for layer in layers if layer.window]
    window = windows[0] if windows else None
    if window is None and "layer_types" in family.reads:
        # No layer has it, as layer_types says; transformers wants one all the same.
        window = family.reads["sliding_window"]
    scale = model.query_scale or model.head_dim**-0.5
    theirs = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    keys = {
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.width,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.ffn_width,
        "vocab_size": model.vocab_size,
        "hidden_act": theirs[model.activation],
        "hidden_activation": theirs[model.activation],
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tie_embeddings,
        "layer_types": kinds,
        "sliding_window": window,
        "use_sliding_window": bool(windows),
        "max_window_layers": kinds.index(SLIDING) if windows else model.num_layers,
        "sliding_window_pattern": len(model.attention),
        "no_rope_layers": [int(layer.rope_theta > 0) for layer in layers],
        "query_pre_attn_scalar": _whole_or_not(scale**-2),
        "attn_logit_softcapping": model.attn_softcap or None,
        "final_logit_softcapping": model.final_softcap or None,
        **write_rope(_rope_of(layers, kinds, family), family),
    }
    config = {
        "architectures": [family.architecture],
        "model_type": model.family,
        **{key: value for key, value in keys.items() if key in family.reads},
        **family.only,
        "torch_dtype": model.param_dtype,
    }
    choices = ("dtype", "param_dtype", "float32_head", "remat")
    read = spec_from_config(config, **{name: getattr(model, name) for name in choices})
    want = dataclasses.replace(model, attention=_shortest(layers))
    for field in dataclasses.fields(model):
        found, wanted = getattr(read, field.name), getattr(want, field.name)
        if found != wanted:
            raise ConfigError(
                f"config.json of a {model.family} cannot say {field.name}={wanted}; it "
                f"would be read as {found}.\nGive the model that, or another family."
            )
    return config


def _rope_of(
    layers: list[Attention], kinds: list[str], family: Family
) -> dict[str, Rope]:
    """The rope of the first rotated layer of each kind, the family's if none is."""
    _, sliding_theta = family.sliding_theta or ("", family.rope_theta)
    rope: dict[str, Rope] = {
        FULL: (family.rope_theta, None),
        SLIDING: (sliding_theta, None),
    }
    for layer, kind in reversed(list(zip(layers, kinds, strict=True))):
        if layer.rope_theta:
            own = (layer.rope_theta, layer.rope_scaling)
            rope |= dict.fromkeys([kind] if family.sliding_theta else rope, own)
    return rope


def _whole_or_not(value: float) -> float:
    """A number that was computed from a whole one, as that."""
    return round(value) if math.isclose(value, round(value)) else value
