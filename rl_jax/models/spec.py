"""What differs between decoders, as data."""

import dataclasses
from typing import Any

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How the rotary wavelengths are stretched beyond the length of pre-training.

    Attributes:
        kind: "linear": every wavelength times `factor`. "llama3": long ones by it,
            short ones not, a ramp between (the Llama 3.1 release). "yarn": a ramp by
            the number of turns (arXiv:2309.00071, section 3.2).
        original_max_positions: length of pre-training; not of "linear".
        low_freq_factor, high_freq_factor: of "llama3", ends of its ramp, in turns.
        beta_fast, beta_slow: of "yarn", ends of its ramp, in turns.
        attention_factor: of "yarn", times the rotated queries and keys.
        truncate: of "yarn", the ramp's ends are whole channels.
    """

    kind: str
    factor: float
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True


@dataclasses.dataclass(frozen=True)
class Attention:
    """What may differ from layer to layer."""

    window: int = 0  # newest positions seen, the token's own among them; 0: all
    rope_theta: float = 10_000.0  # base of the rotary wavelengths; 0: no rotation
    rope_scaling: RopeScaling | None = None


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """Sizes and choices of one dense decoder.

    The defaults are Llama's; what the other families have otherwise is in families.py.
    """

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_width: int
    vocab_size: int
    family: str = "llama"  # whose names its files use; no computation depends on it
    attention: tuple[Attention, ...] = (Attention(),)  # of layer i: i % length
    activation: str = "silu"  # "gelu_tanh": of Gemma
    qkv_bias: bool = False  # added to queries, keys and values
    qk_norm: str = "none"  # "head": over each head's channels; "whole": over all
    pre_norm: bool = True  # norms before attention and feed-forward
    post_norm: bool = False  # norms after them, before the residual sum
    norm_eps: float = 1e-5
    norm_offset: float = 0.0  # added to a norm's scale: Gemma stores scale - 1
    embed_scale: float = 1.0  # times the embedding
    query_scale: float = 0.0  # times the queries; 0: head_dim ** -0.5
    attn_softcap: float = 0.0  # scores to cap * tanh(score / cap); 0: as they are
    final_softcap: float = 0.0  # the same of logits
    tie_embeddings: bool = True
    dtype: str = "float32"  # of activations and matmuls
    param_dtype: str = "float32"  # of stored weights
    float32_head: bool = True  # the head's matmul in float32, whatever dtype
    remat: str = "none"  # "layer": recompute each layer in the backward pass

    @property
    def compute_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)

    @property
    def head_dtype(self) -> jnp.dtype:
        return jnp.dtype(jnp.float32) if self.float32_head else self.compute_dtype

    def layer_attention(self, layer: int) -> Attention:
        """How layer number `layer`, from 0, attends."""
        return self.attention[layer % len(self.attention)]


def spec_from_dict(fields: dict[str, Any]) -> ModelSpec:
    """The spec of which `dataclasses.asdict` made `fields`, also through JSON."""

    def attention(own: dict[str, Any]) -> Attention:
        rest = dict(own)
        scaling = rest.pop("rope_scaling")
        return Attention(**rest, rope_scaling=scaling and RopeScaling(**scaling))

    rest = dict(fields)
    layers = tuple(attention(own) for own in rest.pop("attention"))
    return ModelSpec(**rest, attention=layers)
